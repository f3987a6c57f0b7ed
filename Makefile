# Two commands do all of the set-up on a fresh Debian machine, and then the work:
#
#   make image   build the main recipe, put it into the local engine, prove it with two containers
#   make test    style, types, unit tests and integration tests
#
# Both may be run again: what is in place is left alone. RECIPE=recipes/x.yaml builds another recipe,
# PYTHON=python3.12 takes another Python for .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
RECIPE ?= recipes/cuda12-torch.yaml
BIN := .venv/bin

# What leads to the engine and the registry, whoever started them.
SERVICES = services=$$(scripts/services start); eval "$$services";

.PHONY: help image test lint unit integration bench soak fuzz docs host host-tests clean

help:
	@sed -n '3,4s/^# *//p' Makefile
	@echo "also: make lint, unit, integration, bench, soak, fuzz, docs, clean"

image: $(BIN)/.ready host
	$(SERVICES) $(BIN)/imagebuilder build $(RECIPE) --load
	$(SERVICES) $(BIN)/imagebuilder smoke-test $(RECIPE)
	@echo
	@echo "Proven. To push it: $(BIN)/imagebuilder push $(RECIPE) REGISTRY/NAME"

# One run of pytest, so that its last line counts every test; the quick ones come first.
test: lint host-tests
	$(SERVICES) $(BIN)/pytest --durations 25 --durations-min 5 tests/unit tests/integration

lint: $(BIN)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(BIN)/.ready
	$(BIN)/pytest tests/unit

integration: $(BIN)/.ready host-tests
	$(SERVICES) $(BIN)/pytest tests/integration

# Side by side with a plain Dockerfile, one with uv and our rendered one, printed as ratios: every kind of work on
# a small recipe, and what counts most on the main one; there our own engine does the rest alone. Nothing else may
# run meanwhile; it takes two hours on two cores. BENCH_ROUNDS=1 is a third of that. `python -m bench.sidebyside
# --help` has the rest.
BENCH_ROUNDS ?= 3
BENCH = $(BIN)/python -m bench.sidebyside --samples bench/samples.json --out bench/results.md
bench: $(BIN)/.ready host
	$(BENCH) bench/recipes/cuda-jax.yaml --rounds $(BENCH_ROUNDS)
	$(BENCH) recipes/cuda12-torch.yaml --rounds 1 --sides plain,imagebuilder --work cold,nothing-changed,other-nccl,limits
	$(BENCH) recipes/cuda12-torch.yaml --rounds $(BENCH_ROUNDS) --sides imagebuilder

# The integration tests again and again, until one fails: what is flaky or leaks shows. Before them what takes
# long, once: pushes through a proxy that cuts, delays, truncates and refuses at random (their table is
# bench/faulty-pushes.md), builds killed and starved (bench/store-faults.md), and everything that is broken on purpose (tests/soak).
SOAK_ROUNDS ?= 5
SOAK_PUSHES ?= 200
soak: $(BIN)/.ready host-tests
	$(BIN)/python -m bench.faulty_pushes --pushes $(SOAK_PUSHES) --out bench/faulty-pushes.md
	$(BIN)/python -m bench.store_faults --out bench/store-faults.md
	$(SERVICES) $(BIN)/pytest tests/soak
	$(SERVICES) for round in $$(seq $(SOAK_ROUNDS)); do echo "round $$round of $(SOAK_ROUNDS)"; $(BIN)/pytest -x tests/integration; done

# Bad input by the thousand for everything that reads what others write, for FUZZ_SECONDS each or, where that is
# 0, FUZZ_COUNT inputs each. Inputs that crash something are kept in .cache/fuzz.
FUZZ_SECONDS ?= 120
FUZZ_COUNT ?= 1000
fuzz: $(BIN)/.ready
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --count $(FUZZ_COUNT) --out bench/fuzz.md

# What is generated from the code: docs/reference, recipes/recipe.schema.json.
docs: $(BIN)/.ready
	$(BIN)/python bin/generate_docs.py

$(BIN)/.ready: pyproject.toml scripts/make-venv
	scripts/make-venv $(PYTHON)
	@touch $@

# Debian packages: the tools that the embedded engine runs, a container engine unless one answers, a registry.
host:
	scripts/install-host-packages

# And what only the tests need.
host-tests:
	scripts/install-host-packages tests

# The store is kept: `imagebuilder cache prune` empties it.
clean:
	scripts/services stop
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache build dist
	find imagebuilder tests bench bin -name __pycache__ -prune -exec rm -rf {} +
