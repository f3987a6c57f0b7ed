"""Everything of this program that reads what somebody else wrote, each as one call."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuilder import catalog
from imagebuilder import plan as plans
from imagebuilder import recipe as recipes
from imagebuilder.catalog import select
from imagebuilder.core import tarstream, yamlfile
from imagebuilder.debian import sources as aptsources
from imagebuilder.debian import versions as debversion
from imagebuilder.errors import ImagebuilderError, InputError, RegistryError
from imagebuilder.host import site
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.plan import rootfs
from imagebuilder.publish.attest import licences, provenance, sbom
from imagebuilder.publish.leaks import rules
from imagebuilder.publish.leaks.layer import scan_layer
from imagebuilder.publish.leaks.text import Search
from imagebuilder.recipe import requirements
from imagebuilder.registry import credentials, reader
from imagebuilder.resolve import agreement, request, wheelfile
from imagebuilder.resolve.uv import File
from imagebuilder.resolve.uv import Target as Platform
from imagebuilder.smoke import report as reports
from imagebuilder.smoke import verdict
from imagebuilder.smoke.views import junit, page
from imagebuilder.store import Store
from imagebuilder.workflow.source import RecipeSource
from tests.fuzz import lockedits
from tests.fuzz import registry as servers
from tests.fuzz.mutation import Mutate, any_bytes, json_document, lines, tar_file, zip_file
from tests.support.images import put_layer
from tests.support.proven import COPYRIGHT
from tests.support.reports import FILES
from tests.support.wheels import File as Member
from tests.support.wheels import make_wheel, splice

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Feed:
    """A target made ready: good inputs to begin with, and the call that takes one and a folder of its own."""

    seeds: tuple[bytes, ...]
    run: Callable[[bytes, Path], None]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One reader of what others write; `commands` are patterns of the programs that it may start."""

    name: str
    ready: Callable[[Path], AbstractContextManager[Feed]]
    mutate: Mutate
    commands: frozenset[str] = frozenset()

    @property
    def exact(self) -> bool:
        """Whether only its own mutations make inputs that it can read."""
        return self.mutate is lockedits.edit


TARGETS: dict[str, Target] = {}


def _target(
    mutate: Mutate, *commands: str
) -> Callable[[Callable[[Path], Iterator[Feed]]], Callable[[Path], Iterator[Feed]]]:
    def enter(made: Callable[[Path], Iterator[Feed]]) -> Callable[[Path], Iterator[Feed]]:
        name = made.__name__.replace("_", "-")
        TARGETS[name] = Target(
            name=name, ready=contextlib.contextmanager(made), mutate=mutate, commands=frozenset(commands)
        )
        return made

    return enter


@_target(lines)
def recipe(_folder: Path) -> Iterator[Feed]:
    locked = lockfile.read(ROOT / "recipes" / "cpu-mpi.lock").sections[0]

    def run(data: bytes, folder: Path) -> None:
        path = folder / "x.yaml"
        path.write_bytes(data)
        loaded = recipes.load(path, catalog.names())
        request.request(select(loaded)).checksum()
        rootfs.image_files(loaded, plans.environment(select(loaded), locked))

    yield Feed(seeds=tuple(path.read_bytes() for path in sorted((ROOT / "recipes").glob("*.yaml"))), run=run)


_REQUIREMENT_FILES = (
    b"numpy>=2 # a comment\ntorchmetrics[image] <2 ; \\\n python_version >= '3.12'\n"
    b"tqdm==4.67.1 --hash=sha256:" + b"1" * 64 + b"\n",
    (
        b'[project]\nname = "train"\nrequires-python = ">=3.11"\ndependencies = ["numpy>=2"]\n'
        b'[project.optional-dependencies]\nviz = ["tabulate"]\n[dependency-groups]\ndev = ["pytest"]\n'
    ),
    (
        b'version = 1\n[[package]]\nname = "tqdm"\nversion = "4.67.1"\nsource = { registry = "r" }\n'
        b'[[package]]\nname = "train"\nsource = { virtual = "." }\n'
        b'dependencies = [{ name = "tqdm", marker = "os_name == \'posix\'" }]\n'
    ),
    b'lock-version = "1.0"\ncreated-by = "x"\n[[packages]]\nname = "tqdm"\nversion = "4.67.1"\n'
    b'wheels = [{ path = "tqdm-4.67.1-py3-none-any.whl", hashes = { sha256 = "' + b"1" * 64 + b'" } }]\n',
)


@_target(lines)
def requirement_file(_folder: Path) -> Iterator[Feed]:
    """The same bytes as a file of each kind: refused where none of the four can be read."""

    def read(name: str, folder: Path) -> ImagebuilderError | None:
        fields = {"name": "x", "base": "debian:trixie", "python": "3.13", "requirements": (name,)}
        loaded, variables = recipes.Recipe.model_validate(fields), agreement.environment("3.13", "amd64")
        try:
            found = requirements.read(loaded, folder, recipes.Places(recipe="x"), variables)
            request.request(dataclasses.replace(select(loaded), demands={"linux/amd64": found})).checksum()
        except ImagebuilderError as error:
            return error
        return None

    def run(data: bytes, folder: Path) -> None:
        errors = []
        for name in ("requirements.txt", "pyproject.toml", "uv.lock", "pylock.toml"):
            (folder / name).write_bytes(data)
            errors.append(read(name, folder))
        refused = [error for error in errors if error]
        if len(refused) == len(errors):
            raise refused[0]

    yield Feed(seeds=_REQUIREMENT_FILES, run=run)


@_target(json_document)
def lock(_folder: Path) -> Iterator[Feed]:
    loaded = recipes.load(ROOT / "recipes" / "cpu-mpi.yaml", catalog.names())
    locked = lockfile.read(ROOT / "recipes" / "cpu-mpi.lock").sections[0]
    files = rootfs.image_files(loaded, plans.environment(select(loaded), locked))

    def run(data: bytes, folder: Path) -> None:
        path = folder / "x.lock"
        path.write_bytes(data)
        read = lockfile.read(path).sections[0]
        for layer in plans.plan(select(loaded), read, files).layers:
            _ = layer.key, layer.title
        # Where it would be put for dpkg: never above its folder.
        for deb in read.debs:
            (folder / f"{deb.name}.deb").touch()

    text = (ROOT / "recipes" / "cpu-mpi.lock").read_text(encoding="utf-8")
    small = json.loads(text)
    section = small["platforms"]["linux/amd64"]
    section["debs"] = section["debs"][:5]
    yield Feed(seeds=(json.dumps(small).encode(), text.encode()), run=run)


@_target(lockedits.edit)
def lock_edits(folder: Path) -> Iterator[Feed]:
    """Locks that say something else than their recipes: none changes what is built, but by other bytes."""
    cases = [
        {"recipe": path.read_text(encoding="utf-8"), "lock": json.loads(locks.path_for(path).read_bytes())}
        for path in sorted((ROOT / "recipes").glob("*.yaml"))
    ]
    judge = lockedits.Judge(cases, folder)

    def run(data: bytes, inside: Path) -> None:
        case = json.loads(data)
        assert judge.changes(case, lockedits.write(case, inside)) != "what is built"

    yield Feed(seeds=tuple(json.dumps(case).encode() for case in cases), run=run)


@_target(lines)
def component(_folder: Path) -> Iterator[Feed]:
    """A component's file: shipped, or beside a recipe, which the stricter reader has to bear."""
    files = [*(ROOT / "imagebuilder" / "catalog").glob("*.yaml"), *(ROOT / "examples" / "catalog").iterdir()]

    def run(data: bytes, inside: Path) -> None:
        path = inside / "aws-ofi-nccl.yaml"
        path.write_bytes(data)
        with contextlib.suppress(ImagebuilderError):
            yamlfile.validate(yamlfile.parse(data, "x.yaml"), catalog.Component)
        found = catalog.own.read(path)
        recipe = {"name": "x", "base": "debian:trixie", "python": "3.13", "pins": {found.name: "1.0"}}
        components = {**catalog.load(), found.name: found}
        chosen = select(recipes.Recipe.model_validate(recipe), components=components)
        request.request(chosen).checksum()
        json.loads(json.dumps(chosen.recorded))

    yield Feed(seeds=tuple(path.read_bytes() for path in sorted(files)), run=run)


@_target(lines)
def apt_files(_folder: Path) -> Iterator[Feed]:
    """Sources of apt in both formats, and paragraphs of a package index, as a base or a mirror has them."""

    def run(data: bytes, _folder: Path) -> None:
        text = data.decode("utf-8", "replace")
        for name in ("x.sources", "x.list"):
            for found in aptsources.of_file(name, text):
                _ = found.uri, found.suites, found.components
        for paragraph in aptsources.paragraphs(text, {"package", "version"}):
            debversion.upstream(paragraph.get("version", ""))

    stanza = b"Types: deb deb-src\nURIs: https://mirror.example/debian\nSuites: trixie trixie-updates\n"
    seeds = (
        stanza
        + b"Components: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ\n\nTypes: deb\n",
        b"# x\ndeb [signed-by=/x.gpg trusted=yes] https://mirror.example/debian trixie main contrib\n",
        b"Package: a\nVersion: 1:2.0~rc1-3+b1\nDescription: x\n .\n more\n\nPackage: b\n",
    )
    yield Feed(seeds=seeds, run=run)


@_target(lines, "apt-config", "uv", "pip")
def site_file(folder: Path) -> Iterator[Feed]:
    def run(data: bytes, inside: Path) -> None:
        path = inside / "site.yaml"
        path.write_bytes(data)
        site.detect(path)

    seed = (
        b"proxies: {https: http://proxy.example:3128, no_proxy: localhost}\n"
        b"index: https://index.example/simple\nextra_indexes: [https://more.example/simple]\n"
        b"wheel_folders: [wheels]\nno_index: false\n"
        b"registries:\n  registry.example:5000: {plain_http: true}\n"
    )
    assert folder.is_dir()
    yield Feed(seeds=(seed,), run=run)


@_target(zip_file)
def wheel(folder: Path) -> Iterator[Feed]:
    def run(data: bytes, inside: Path) -> None:
        path = inside / "demo-1.0-py3-none-any.whl"
        path.write_bytes(data)
        splice([path], Store(inside / "store"))

    yield Feed(seeds=_wheels(folder), run=run)


@_target(zip_file)
def wheel_metadata(folder: Path) -> Iterator[Feed]:
    platform = Platform(python="3.13", glibc="2.41", architecture="amd64", site=site.Site())

    def run(data: bytes, inside: Path) -> None:
        path = inside / "demo-1.0-py3-none-any.whl"
        path.write_bytes(data)
        licences._metadata_of(path)
        offered = File(name=path.name, url=path.as_uri(), sha256="", size=-1)
        wheelfile.best([offered], platform)
        found = wheelfile.requires(offered, servers.no_session())
        for name in ("demo", "numpy"):
            wheelfile.demands(found, name, platform)

    text = b"Metadata-Version: 2.4\nName: demo\nVersion: 1.0\nLicense-Expression: MIT\n"
    requires = b"Requires-Dist: numpy>=2; python_version>'3' and extra=='x'\n"
    yield Feed(seeds=(*_wheels(folder, text + requires), *_wheels(folder)), run=run)


def _wheels(folder: Path, metadata: bytes = b"") -> tuple[bytes, ...]:
    files: dict[str, bytes | Member] = {
        "demo/__init__.py": b"x = 1\n" * 50,
        "demo/data.bin": bytes(range(256)) * 40,
        "demo-1.0.data/scripts/run": b"#!python\nprint()\n",
        "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo:main\n",
        "demo/stored.txt": Member(data=b"plain", method=0),
    }
    if metadata:
        files["demo-1.0.dist-info/METADATA"] = metadata
    path = make_wheel(folder, files)
    return (path.read_bytes(),)


@_target(tar_file)
def layer(folder: Path) -> Iterator[Feed]:
    store = Store(folder / "store")
    record = put_layer(
        store,
        {
            "./usr/share/doc/zlib1g/copyright": COPYRIGHT,
            "./root/.netrc": b"machine a login b password c1f9e7a3d5b2\n",
            "./etc/link": b"->../usr",
            "./" + "long/" * 40 + "name": b"x" * 3000,
        },
    )
    search = Search(rules.load(), ())

    def run(data: bytes, inside: Path) -> None:
        blobs = Store(inside / "store")
        digest, _ = blobs.put_bytes(data)
        scan_layer(blobs.blob(digest), search)
        licences.of_layer(blobs, digest)

    packed = store.blob(record.digest).read_bytes()
    plain = gzip.decompress(packed)
    yield Feed(seeds=(packed, plain, tarstream.zstd().compress(plain)), run=run)


@_target(lines)
def package_texts(_folder: Path) -> Iterator[Feed]:
    from imagebuilder.layers.system import debs

    def run(data: bytes, _folder: Path) -> None:
        text = data.decode("utf-8", "replace")
        licences.of_copyright(text)
        licences.of_metadata(text)
        packages = {}
        for paragraph in text.split("\n\n")[:50]:
            package = debs.parse_package(paragraph)
            packages[package.name] = package
        debs.rounds(tuple(packages.values()))

    control = b"Package: a\nEssential: yes\nDepends: b (>= 1) | c, d:any\nPre-Depends: e\nProvides: f (= 1)\n"
    yield Feed(
        seeds=(control + b"\nPackage: b\nDepends: a\n\nPackage: e\n", b"Package: x\n" + COPYRIGHT), run=run
    )


@_target(json_document)
def oci_documents(_folder: Path) -> Iterator[Feed]:
    digest = "sha256:" + "a" * 64
    part = {"mediaType": "application/x", "digest": digest, "size": 3, "annotations": {"a": "b"}}
    manifest = {"schemaVersion": 2, "mediaType": reader.OCI_MANIFEST, "config": part, "layers": [part, part]}
    index = {"schemaVersion": 2, "manifests": [{**part, "artifactType": "application/y"}]}
    tags = {"name": "x", "tags": ["one", "two"]}

    def run(data: bytes, _folder: Path) -> None:
        words: dict[bytes, Any] = {b'"config"': reader.ImageManifest, b'"manifests"': reader.Index}
        model = next((model for word, model in words.items() if word in data), reader._Tags)
        reader.parse(model, data, "registry.example/x")

    yield Feed(seeds=tuple(json.dumps(item).encode() for item in (manifest, index, tags)), run=run)


@_target(json_document)
def report(_folder: Path) -> Iterator[Feed]:
    def run(data: bytes, inside: Path) -> None:
        path = inside / "report.json"
        path.write_bytes(data)
        with contextlib.suppress(ValueError):
            _ = verdict.read(data).shortcoming({})
        found = reports.read(path)
        for line in reports.lines(found):
            line.encode("utf-8", "surrogatepass")
        page.render(found)
        junit.render(found)

    yield Feed(seeds=tuple(path.read_bytes() for path in FILES), run=run)


@_target(json_document)
def attestations(folder: Path) -> Iterator[Feed]:
    documents, check = servers.documents(folder)

    def run(data: bytes, _folder: Path) -> None:
        try:
            document = reader.json_object(data, "x")
            if "_type" in document:
                provenance.read(document)
            elif "nodes" in document:
                verdict.read(data)
            else:
                sbom.subject(document)
                sbom.contents(document)
        except ValueError as error:
            raise RegistryError(yamlfile.printable(str(error))) from error
        finally:
            check(data)

    yield Feed(seeds=documents, run=run)


@_target(json_document)
def attached_source(_folder: Path) -> Iterator[Feed]:
    """Recipe and lock as an image's registry gives them, in one JSON object."""
    source = {
        "recipe": (ROOT / "recipes" / "cpu-mpi.yaml").read_text(encoding="utf-8"),
        "lock": (ROOT / "recipes" / "cpu-mpi.lock").read_text(encoding="utf-8"),
    }

    def run(data: bytes, _folder: Path) -> None:
        try:
            found = json.loads(data)
            recipe, lock = str(found["recipe"]), str(found["lock"])
            (recipe + lock).encode()
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError("is no source") from None
        RecipeSource(recipe=recipe, lock=lock).read()

    yield Feed(seeds=(json.dumps(source).encode(),), run=run)


@_target(lines)
def signing_key(_folder: Path) -> Iterator[Feed]:
    from imagebuilder.publish.attest import signing_keys

    def run(data: bytes, inside: Path) -> None:
        path = inside / "x.key"
        path.write_bytes(data)
        try:
            signing_keys.load_public(path)
        except InputError:
            signing_keys.load_private(path, lambda: "word")

    yield Feed(seeds=servers.keys(), run=run)


@_target(json_document, "docker-credential-*")
def docker_config(_folder: Path) -> Iterator[Feed]:
    config = {
        "auths": {
            "https://registry.example/v1/": {"auth": "YWxpY2U6c2VjcmV0"},
            "other.example": {"identitytoken": "t"},
        }
    }

    def run(data: bytes, inside: Path) -> None:
        (inside / "config.json").write_bytes(data)
        for host in ("registry.example", "other.example", "docker.io"):
            credentials.find(host, {"DOCKER_CONFIG": str(inside)})

    yield Feed(seeds=(json.dumps(config).encode(),), run=run)


@_target(json_document, "docker-credential-fuzz", "cat")
def credential_helper(folder: Path) -> Iterator[Feed]:
    """What a helper prints: a script of our own prints the input."""
    tools = folder / "tools"
    tools.mkdir()
    helper = tools / "docker-credential-fuzz"
    helper.write_text(f'#!/bin/sh\nexec cat "{folder}/said"\n')
    helper.chmod(0o755)
    (folder / "config.json").write_text('{"credsStore": "fuzz"}')
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{tools}:{before}"

    def run(data: bytes, _folder: Path) -> None:
        (folder / "said").write_bytes(data)
        credentials.find("registry.example", {"DOCKER_CONFIG": str(folder)})

    try:
        yield Feed(seeds=(b'{"ServerURL": "x", "Username": "alice", "Secret": "word"}',), run=run)
    finally:
        os.environ["PATH"] = before


@_target(any_bytes)
def registry(folder: Path) -> Iterator[Feed]:
    """A registry whose answers are spoilt as the input says: inspected, verified, and pushed to."""
    with servers.spoilt(folder) as run:
        yield Feed(seeds=(b"", b"1", b"2", b"3"), run=run)


@_target(lines)
def sign_in(folder: Path) -> Iterator[Feed]:
    """Challenge and token: the first line of the input is the header, the rest what the token server says."""
    with servers.challenging(folder) as run:
        yield Feed(
            seeds=(
                b'Bearer realm="http://TOKEN/token",service="s",scope="repository:x:pull"\n{"token": "t"}',
                b'Basic realm="x"\n{}',
            ),
            run=run,
        )


@_target(any_bytes)
def index_server(folder: Path) -> Iterator[Feed]:
    """A package index or mirror: what it says when a wheel is measured, read and fetched."""
    with servers.mirror(folder, _wheels(folder)[0]) as run:
        yield Feed(seeds=(b"", b"1", b"2", b"3"), run=run)
