# Two commands set up a fresh Debian machine, and then do the work:
#
#   make image   build the main recipe, load it into the local engine, test it in two containers
#   make test    style, types, unit tests and integration tests
#
# While you write code, `make test-fast` runs style, types and all unit tests but the slowest.
#
# You can run both again: they install only what is missing. RECIPE=recipes/x.yaml builds another recipe,
# PYTHON=python3.12 makes .venv with another Python.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
RECIPE ?= recipes/cuda12-torch.yaml
BIN := .venv/bin

# Start the engine and the registry unless they run, and set the variables with their addresses.
SERVICES = services=$$(scripts/services start); eval "$$services";

.PHONY: help image test test-fast test-versions lint unit integration bench bench-pull bench-scaling soak fuzz docs host host-tests clean

help:
	@sed -n '3,4s/^# *//p' Makefile
	@echo "also: make test-fast (style, types, unit tests), lint, unit, integration, bench, bench-pull, bench-scaling, soak, fuzz, docs, clean"

# At the end it prints what makes the commands above it work in your shell: make's own engine is not at the usual socket.
image: $(BIN)/.ready host
	$(SERVICES) $(BIN)/imagebuilder build $(RECIPE) --load
	$(SERVICES) $(BIN)/imagebuilder smoke-test $(RECIPE)
	@$(SERVICES) echo; echo "The image passed its test. For the commands above, first run in your shell:"; \
	echo "    export PATH=$(CURDIR)/$(BIN):\$$PATH"; \
	[ -z "$${DOCKER_HOST:-}" ] || echo "    export DOCKER_HOST=$$DOCKER_HOST"

# Style, types and unit tests run at the same time; each prints its output when it ends. Each run of pytest ends with
# its own summary; .ci/run adds them up. The integration tests run in two processes on one engine and one store:
# tests/integration/conftest.py says what must not run side by side. PROCESSES=1 runs them one after the other.
AT_ONCE = --jobs 2 --output-sync=target --no-print-directory
DURATIONS = --durations 25 --durations-min 5
PROCESSES ?= 2
INTEGRATION = $(BIN)/pytest $(DURATIONS) tests/integration
test: $(BIN)/.ready host-tests
	$(MAKE) $(AT_ONCE) lint unit
	$(SERVICES) $(INTEGRATION) -n $(PROCESSES)

test-fast: $(BIN)/.ready
	$(MAKE) $(AT_ONCE) lint unit LEAVE_OUT='-m "not slow"'

lint: $(BIN)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(BIN)/.ready
	$(BIN)/pytest -n auto $(LEAVE_OUT) $(DURATIONS) tests/unit

integration: $(BIN)/.ready host-tests
	$(SERVICES) $(INTEGRATION) -n $(PROCESSES)

# Compare the embedded engine with a plain Dockerfile, one with uv and the rendered one, as ratios. All four do every
# kind of work on a small recipe. On the main recipe the plain Dockerfile does the most important kinds, and the
# embedded engine does the rest alone. Nothing else may run at the same time. It takes two hours on two cores, and a
# third of that with BENCH_ROUNDS=1. `python -m bench.sidebyside --help` lists the options.
BENCH_ROUNDS ?= 3
BENCH = $(BIN)/python -m bench.sidebyside --samples bench/samples.json --out bench/results.md
bench: $(BIN)/.ready host
	$(BENCH) bench/recipes/cuda-jax.yaml --rounds $(BENCH_ROUNDS)
	$(BENCH) bench/recipes/own-code.yaml --rounds $(BENCH_ROUNDS) --sides plain,uv,imagebuilder --work line-changed
	$(BENCH) recipes/cuda12-torch.yaml --rounds 1 --sides plain,imagebuilder --work cold,nothing-changed,other-nccl,limits
	$(BENCH) recipes/cuda12-torch.yaml --rounds $(BENCH_ROUNDS) --sides imagebuilder

# The pulling side, for the engines that nodes have: plain, uv, gzip and zstd, pulled by Docker with both image stores
# and by Podman. Nothing else may run at the same time; about 20 minutes of builds, 50 a round, and 60 GB of disk.
bench-pull: $(BIN)/.ready host
	$(BIN)/python -m bench.pull recipes/cuda12-torch.yaml --rounds $(BENCH_ROUNDS) --out bench/pull.md

# Torch beside Horovod on 1 and 2 nodes with 1 and 2 ranks each, in one image. Horovod is compiled the first time.
bench-scaling: $(BIN)/.ready host
	mkdir -p build/scaling && cp examples/recipes/*horovod* build/scaling
	$(BIN)/imagebuilder lock build/scaling/cpu-horovod.yaml
	$(SERVICES) $(BIN)/imagebuilder build build/scaling/cpu-horovod.yaml --load
	$(SERVICES) $(BIN)/python -m bench.scaling cpu-horovod --out bench/scaling.md

# First run the long tests once: pushes through a proxy that cuts, delays, truncates and refuses connections at
# random (bench/faulty-pushes.md), builds that are killed or run out of space (bench/store-faults.md), and every case
# that is broken on purpose (tests/soak). Then repeat the integration tests, to find flaky tests and leaks.
SOAK_ROUNDS ?= 5
SOAK_PUSHES ?= 200
soak: $(BIN)/.ready host-tests
	$(BIN)/python -m bench.faulty_pushes --pushes $(SOAK_PUSHES) --out bench/faulty-pushes.md
	$(BIN)/python -m bench.store_faults --out bench/store-faults.md
	$(BIN)/python -m bench.cache_faults --out bench/cache-faults.md
	$(SERVICES) $(BIN)/pytest tests/soak
	$(SERVICES) for round in $$(seq $(SOAK_ROUNDS)); do echo "round $$round of $(SOAK_ROUNDS)"; $(INTEGRATION) -n 2 -x; done

# Give thousands of bad inputs to everything that reads other people's files, for FUZZ_SECONDS each. The engine is
# atheris, which has wheels for CPython 3.11 to 3.13. Inputs that crash something are kept in .cache/fuzz, and so is
# what was learnt of each reader (corpus/).
FUZZ_SECONDS ?= 120
fuzz: $(BIN)/.ready
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --out bench/fuzz.md

# Run the unit tests with the oldest versions of the dependencies, and on each Python from 3.11 on that is installed; the
# last line says which. PYTHONS="lowest 3.12" names them.
PYTHONS ?=
test-versions: $(BIN)/.ready
	scripts/test-versions $(PYTHONS)

# Generate docs/reference and recipes/recipe.schema.json from the code, and build the site in build/site.
docs: $(BIN)/.ready
	$(BIN)/python bin/generate_docs.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q -c docs . build/site
	@echo "The site is in build/site: open build/site/index.html"

$(BIN)/.ready: pyproject.toml scripts/make-venv
	scripts/make-venv $(PYTHON)
	@touch $@

# Debian packages: the tools that the embedded engine runs, a container engine unless one answers, a registry.
host:
	scripts/install-host-packages

# Also packages that only the tests need.
host-tests:
	scripts/install-host-packages tests

# This keeps the store: `imagebuilder cache prune --all` empties it.
clean:
	scripts/services stop
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache build dist
	find imagebuilder tests bench bin -name __pycache__ -prune -exec rm -rf {} +
