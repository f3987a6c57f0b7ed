"""The four sides: who makes and pushes an image, and what it takes to make them forget.

    plain         a Dockerfile as people write it: pip install --no-cache-dir -r requirements.txt
    uv            the same with uv and a cache mount, as uv's own guide for Docker has it
    rendered      our rendered Dockerfile by docker buildx: a stage a layer, zstd
    imagebuilder  the embedded engine, by its command line

All start from one Debian base that is in place, and push to a registry server of their own that is empty when
a round begins.
"""

from __future__ import annotations

import json
import shutil
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from bench.sidebyside.engine import HOUR, Engine
from bench.sidebyside.variants import Bases, Variant
from imagebuilder.core import files, process
from imagebuilder.engines import sitefiles
from imagebuilder.host.site import detect
from imagebuilder.plan import render
from imagebuilder.store import link_or_copy
from tests.support.servers import RegistryServer

PROGRAM = Path(sys.executable).parent / "imagebuilder"
_CA = "--mount=type=secret,id=ca,target=/run/secrets/ca.crt"
_PIP_CONF = "--mount=type=secret,id=pip,target=/etc/pip.conf"


# The registry's access log says what it sent.
_LOGGED = {"log": {"level": "warn"}}
# The guide's second half: what the project requires is a layer of its own, and the package comes after it.
_UV_PROJECT = (
    "COPY project /workspace\n"
    "WORKDIR /workspace\n"
    "RUN --mount=type=bind,from=uv,source=uv,target=/usr/local/bin/uv \\\n"
    "    --mount=type=cache,target=/root/.cache/uv \\\n"
    "    uv pip install --offline --no-deps /workspace\n"
)


class Side(ABC):
    """One way to an image.

    Attributes:
        name: as tables have it.
        registry: where it pushes to.
        skipped: kinds of work that mean nothing to it.

    """

    name = ""
    # Nobody but the lock remembers anything of layers that could be forgotten.
    skipped: frozenset[str] = frozenset({"warm-first"})

    def __init__(self, folder: Path, bases: Bases) -> None:
        self.folder = folder
        self.bases = bases
        (folder / "registry").mkdir(parents=True)
        self.registry = RegistryServer(folder / "registry", extra=_LOGGED)

    def reset(self) -> None:
        """Forget everything: nothing is built, nothing is cached, the registry is empty."""
        self.stop()
        (self.folder / "registry").mkdir(parents=True)
        self.registry = RegistryServer(self.folder / "registry", extra=_LOGGED)
        self.registry.start()

    @property
    def pids(self) -> tuple[int, ...]:
        """Name the servers whose memory belongs to this side."""
        return ()

    @abstractmethod
    def build(self, variant: Variant, *, rebuild: bool = False) -> None:
        """Build it; `rebuild`: from what was downloaded before, but with nothing that was built."""

    @abstractmethod
    def push(self, variant: Variant) -> None: ...

    def tidy(self, variant: Variant) -> None:  # noqa: B027  (most sides have nothing to do)
        """Give back the disk that a state takes, where nothing that comes later is faster with it."""

    def end_building(self) -> None:  # noqa: B027  (most sides have nothing to do)
        """Give back the disk that only a build needs: from now on images are pulled."""

    def name_of(self, variant: Variant) -> str:
        """Name an image in the side's registry; all states of a recipe are tags of one repository."""
        return f"{self.registry.host}/bench:{variant.name.replace('+', '-')}"

    def stop(self) -> None:
        """End all that runs, and give back the disk; `reset` starts it again."""
        self.registry.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class DockerSide(Side):
    """What the sides with a Dockerfile have in common.

    Attributes:
        output: where BuildKit is to put the image.
        one_step: whether all wheels are installed in one.

    """

    output: tuple[str, ...] = ()
    one_step = True

    def __init__(self, folder: Path, bases: Bases) -> None:
        super().__init__(folder, bases)
        self.engine = Engine(folder / "engine")

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.engine.pid,)

    def reset(self) -> None:
        super().reset()
        self.engine.renew()
        for base in self.bases.made:
            self.engine.docker("load", "--input", base.archive)

    def build(self, variant: Variant, *, rebuild: bool = False) -> None:
        context = self.folder / "context" / variant.name
        shutil.rmtree(context, ignore_errors=True)
        context.mkdir(parents=True)
        (context / "Dockerfile").write_text(self.dockerfile(variant))
        (context / "requirements.txt").write_text(variant.requirements)
        if variant.project:
            shutil.copytree(variant.project, context / "project")
        site = detect()
        secrets = sitefiles.write(site, variant.plan.system, context)
        arguments = sitefiles.arguments(site)
        words: list[str | Path] = ["docker", "buildx", "build", "--progress", "plain", "--network", "host"]
        # Without provenance, which would make an index of it: one manifest, like the other sides.
        words += ["--provenance=false", "--tag", self.name_of(variant), *self.output]
        words += [word for key, file in secrets for word in ("--secret", f"id={key},src={file}")]
        words += [word for key, _ in arguments for word in ("--build-arg", key)]
        words += ["--no-cache"] if rebuild else []
        words += [*self.contexts(variant), context]
        process.run(words, timeout=HOUR, env={**dict(arguments), "DOCKER_HOST": self.engine.host})

    def tidy(self, variant: Variant) -> None:
        # All wheels are one step, which a change makes again whatever is kept; cache mounts stay.
        if self.one_step:
            self.engine.docker("image", "rm", "--force", self.name_of(variant))
            self.engine.docker("buildx", "prune", "--all", "--force", "--filter", "type=regular")

    def end_building(self) -> None:
        self.engine.stop()

    @abstractmethod
    def dockerfile(self, variant: Variant) -> str: ...

    def contexts(self, _variant: Variant) -> tuple[str, ...]:
        return ()

    def push(self, variant: Variant) -> None:
        self.engine.docker("push", self.name_of(variant))

    def stop(self) -> None:
        self.engine.stop()
        super().stop()


class Plain(DockerSide):
    """pip, with nothing kept in the image."""

    name = "plain"
    # It keeps no downloads: its warm build is its cold one.
    skipped = frozenset({"warm", "warm-first"})
    output = ("--load",)

    def dockerfile(self, variant: Variant) -> str:
        return (
            f"FROM {variant.base.reference}\n"
            "USER 0:0\n"
            "COPY requirements.txt /tmp/requirements.txt\n"
            f"RUN {_CA} {_PIP_CONF} \\\n"
            "    if [ -e /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \\\n"
            f"    python3 -m ensurepip && python3 -m pip install --no-cache-dir{_no_deps(variant)} "
            "-r /tmp/requirements.txt\n"
            + ("COPY project /workspace\nWORKDIR /workspace\n" if variant.project else "")
        )


class Uv(DockerSide):
    """uv with a cache mount, copied from as its guide says: docs.astral.sh/uv/guides/integration/docker."""

    name = "uv"
    output = ("--load",)

    def dockerfile(self, variant: Variant) -> str:
        return (
            f"FROM {variant.base.reference}\n"
            "USER 0:0\n"
            "ENV UV_LINK_MODE=copy\n"
            "COPY requirements.txt /tmp/requirements.txt\n"
            f"RUN {_CA} {_PIP_CONF} \\\n"
            "    --mount=type=bind,from=uv,source=uv,target=/usr/local/bin/uv \\\n"
            "    --mount=type=cache,target=/root/.cache/uv \\\n"
            "    if [ -e /run/secrets/ca.crt ]; then export SSL_CERT_FILE=/run/secrets/ca.crt; fi; \\\n"
            f"    uv pip install{_no_deps(variant)} -r /tmp/requirements.txt\n"
            + (_UV_PROJECT if variant.project else "")
        )

    def contexts(self, _variant: Variant) -> tuple[str, ...]:
        # uv's image, from which its guide copies it, may be out of reach: the program that locks is the same.
        place = self.folder / "uv"
        if not place.exists():
            place.mkdir()
            shutil.copy(Path(sys.executable).parent / "uv", place / "uv")
        return ("--build-context", f"uv={place}")


class Rendered(DockerSide):
    """The rendered Dockerfile; its first stage is the base that is in place."""

    name = "rendered"
    one_step = False

    def dockerfile(self, variant: Variant) -> str:
        return render.render(variant.plan, files.template("Dockerfile.j2"))

    def contexts(self, variant: Variant) -> tuple[str, ...]:
        return (
            *("--build-context", f"os=docker-image://{variant.base.reference}"),
            *("--output", f"type=image,name={self.name_of(variant)},compression=zstd,oci-mediatypes=true"),
        )


class Embedded(Side):
    """Our own engine: one process a build, one a push."""

    name = "imagebuilder"
    skipped: frozenset[str] = frozenset()
    push_options: tuple[str, ...] = ()

    def end_building(self) -> None:
        shutil.rmtree(self.store)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def reset(self) -> None:
        super().reset()
        self._with_base()

    def build(self, variant: Variant, *, rebuild: bool = False) -> None:
        if rebuild:
            self.forget()
        self._run("build", variant.recipe)

    def forget(self) -> None:
        """Keep downloads and the base, and forget what was built."""
        kept = self.folder / "downloads"
        shutil.move(self.store / "downloads", kept)
        shutil.rmtree(self.store)
        self._with_base()
        shutil.move(kept, self.store / "downloads")

    def push(self, variant: Variant) -> None:
        # Its gates and attachments are its own: what others lack is left out, but the search for secrets.
        options = ("--untested", "--no-attach", "--move", *self.push_options)
        self._run("push", variant.recipe, self.name_of(variant), *options)

    def _with_base(self) -> None:
        for part in ("blobs", "layers"):
            source = self.bases.store.root / part
            shutil.copytree(source, self.store / part, copy_function=_link, dirs_exist_ok=True)

    def _run(self, *words: str | Path) -> None:
        result = process.run(
            [PROGRAM, *words, "--store", self.store, "--json", "--progress", "lines"], timeout=HOUR
        )
        json.loads(result.stdout)


SIDES: dict[str, type[Side]] = {side.name: side for side in (Plain, Uv, Rendered, Embedded)}


def stored(side: Side) -> int:
    """Count the bytes of blobs in the side's registry."""
    root = side.registry.folder / "data"
    return sum(path.stat().st_size for path in root.rglob("data") if path.is_file())


def _link(source: str, target: str) -> None:
    link_or_copy(Path(source), Path(target))


def _no_deps(variant: Variant) -> str:
    return " --no-deps" if variant.forced else ""
