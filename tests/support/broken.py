"""Images and settings that are broken on purpose, described by files: tests/cases/broken/<name>/case.yaml.

A case is an image of a shipped recipe with one small layer on top, or a setting of one node, or both. No part
of it is built: the layer is written here, and the engine pulls it like any other.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import io
import json
import re
import tarfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field

from imagebuilder.core import yamlfile
from imagebuilder.core.model import Strict
from imagebuilder.engines.load import load
from imagebuilder.host.site import detect
from imagebuilder.image.oci import CONFIG_TYPE, MANIFEST_TYPE
from imagebuilder.smoke.engine import Engine, look_up
from imagebuilder.smoke.nodes.cluster import Cluster
from imagebuilder.smoke.nodes.containers import ContainerCluster
from imagebuilder.smoke.report import Report
from imagebuilder.smoke.run import Watch, run_smoke
from imagebuilder.smoke.target import SmokeOptions
from imagebuilder.store import ImageLayer, ImageRecord, LayerRecord, Store

CASES = Path(__file__).resolve().parents[1] / "cases" / "broken"
BEGIN, END = "<!-- controls: begin -->", "<!-- controls: end -->"
_LONGEST = 200
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
# Of the image with torch: it has a compiler.
_COMPILER = "cuda12-torch"


class Replacement(Strict):
    """A text that a file has exactly once, and what stands there in the broken image."""

    old: str
    new: str


class Change(Strict):
    """What differs from the sound image: paths are the image's, names are of files in the case's folder.

    Attributes:
        labels, env: set in the image's config.
        entrypoint: instead of the image's own, where it is given.
        add: path and name of a file to put there, with mode 0755.
        append: path and name of a file whose text is added to the end of the one in the image.
        edit: path, and texts to replace.
        compile: path of a shared library, and name of the C file that it is made of.
        modes: path and mode, as `0555`.
        remove: paths.

    """

    labels: dict[str, str] = Field(default={})
    env: dict[str, str] = Field(default={})
    entrypoint: tuple[str, ...] = ()
    add: dict[str, str] = Field(default={})
    append: dict[str, str] = Field(default={})
    edit: dict[str, tuple[Replacement, ...]] = Field(default={})
    compile: dict[str, str] = Field(default={})
    modes: dict[str, str] = Field(default={})
    remove: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Change()


class NodeChange(Strict):
    """What differs on one node.

    Attributes:
        settings: of its container, in the words of the engine's SDK.
        root: a line for `sh`, run there as root once it has started.
        network: a line for `sh`, run as root with the right to change the node's network.

    """

    settings: dict[str, Any] = Field(default={})
    root: str = ""
    network: str = ""


class Case(Strict):
    """One thing that is broken, and how it has to be noticed.

    Attributes:
        broken: how, in words that follow `broken on purpose:`.
        base: the recipe of the sound image, a shipped one or one of tests/cases/images.
        check: the one that has to fail.
        message: regular expression for one of the messages it fails with.
        remedy: the same for what that message advises.
        sample: whether `make test` runs it; `make soak` runs all.

    """

    broken: str
    base: Literal["cpu-mpi", "cuda12-torch", "frameworks", "mxnet"]
    check: str
    message: str
    remedy: str = ""
    sample: bool = False
    image: Change = Change()
    nodes: dict[str, NodeChange] = Field(default={})


# A layer like those of the cases, made in the same way, of which nobody takes notice.
HARMLESS = Change(labels={"org.imagebuilder.test": "sound"}, modes={"/etc/hostname": "0644"})


@dataclass(frozen=True, kw_only=True)
class Caught:
    """How a case was noticed; no message where it was not."""

    check: str
    message: str
    seconds: float


def names(*, sample: bool = False) -> tuple[str, ...]:
    """Name all cases, or those of the sample."""
    found = sorted(path.parent.name for path in CASES.glob("*/case.yaml"))
    return tuple(name for name in found if not sample or read(name).sample)


def recipe(base: str) -> Path:
    """Return the recipe of a sound image."""
    own = CASES.parent / "images" / f"{base}.yaml"
    return own if own.exists() else CASES.parents[2] / "recipes" / f"{base}.yaml"


def read(name: str) -> Case:
    path = CASES / name / "case.yaml"
    return yamlfile.validate(yamlfile.parse(path.read_bytes(), str(path)), Case)


@contextmanager
def image(name: str, base: str, change: Change, engine: Engine, store: Store) -> Iterator[str]:
    """Put the changed image into the engine, where the sound one is; what the engine knows it by.

    Args:
        name: of the case.
        base: what the engine knows the sound image by.
        change: to it.
        engine: where both are.
        store: where the sound image was built.

    """
    if not change:
        yield base
        return
    sound = store.image(base.partition(":")[0])
    assert sound is not None
    record = _derive(f"broken-{name}", sound, change, _layer(name, base, change, engine), store)
    loaded = load(record, store, engine)
    try:
        yield loaded.reference
    finally:
        for reference in loaded.references:
            engine.client.images.remove(reference, force=True)


def run(case: Case | None, reference: str, engine: Engine, store: Store) -> Report:
    """Run the smoke test on a case, with the check that has to notice it; without a case all checks."""
    nodes = case.nodes if case else {}
    options = SmokeOptions(
        mode="cpu",
        only=frozenset({case.check}) if case else frozenset(),
        containers={int(index): _lists(change.settings) for index, change in nodes.items()},
    )

    def started(cluster: Cluster) -> None:
        _alter(nodes, reference, engine, cast("ContainerCluster", cluster))

    return run_smoke(
        look_up(engine, reference), options, store=store, site=detect(), watch=Watch(started=started)
    )


def caught(case: Case, report: Report) -> Caught:
    """Find in a report what has to be there for a case."""
    result = next(check for check in report.checks if check.name == case.check)
    message = ""
    for finding in result.findings:
        if re.search(case.message, finding.message) and re.search(case.remedy, finding.remedy):
            message = finding.message
            break
    return Caught(check=result.name, message=message, seconds=result.seconds)


def said(report: Report) -> str:
    """All that failed, for a test that did not find what it looked for."""
    lines = [f"{check.name}: {check.status} {check.reason}" for check in report.checks]
    lines += [
        f"{check.name}, {f.node}: {f.message}\n  -> {f.remedy}"
        for check in report.checks
        for f in check.findings
    ]
    return "\n".join(lines)


def write_table(page: Path, rows: Mapping[str, Caught]) -> None:
    """Write into a page, between its marks, how cases were caught. Other cases keep their lines."""
    head, _, rest = page.read_text().partition(BEGIN)
    table, _, tail = rest.partition(END)
    lines = {
        match[1]: match[0] for match in re.finditer(r"^\| \[.*/broken/([a-z0-9-]+)/.*$", table, re.MULTILINE)
    }
    for name, found in rows.items():
        message = html.escape(found.message.partition("\n")[0], quote=False)
        message = textwrap.shorten(message, _LONGEST, placeholder=" ...").replace("|", "\\|")
        how = f"[{read(name).broken}](../../tests/cases/broken/{name}/case.yaml)"
        lines[name] = f"| {how} | `{found.check}` | {message} | {found.seconds:.1f} |"
    top = ["| broken on purpose | caught by | message | seconds |", "|---|---|---|---:|"]
    text = [*top, *(lines[name] for name in names() if name in lines)]
    page.write_text("\n".join((f"{head}{BEGIN}", *text, f"{END}{tail}")))


def _alter(
    nodes: Mapping[str, NodeChange], reference: str, engine: Engine, cluster: ContainerCluster
) -> None:
    """Break single nodes that run already."""
    for index, change in nodes.items():
        container = cluster.nodes[int(index)].container
        if change.root:
            code, output = container.exec_run(["sh", "-euc", change.root], user="0:0")
            assert code == 0, output
        if change.network:
            # From a container of its own: the node itself has no right to change its network.
            engine.client.containers.run(
                reference,
                entrypoint=["sh", "-euc"],
                command=[change.network],
                user="0:0",
                cap_add=["NET_ADMIN"],
                network_mode=f"container:{container.id}",
                remove=True,
            )


def _lists(value: Any) -> Any:
    """Give the engine's SDK lists, which it insists on; what is read from YAML here has tuples."""
    if isinstance(value, dict):
        return {key: _lists(entry) for key, entry in value.items()}
    return [_lists(entry) for entry in value] if isinstance(value, tuple) else value


def _derive(name: str, sound: ImageRecord, change: Change, layer: bytes, store: Store) -> ImageRecord:
    """Make config and manifest of the sound image with one more layer."""
    config = json.loads(store.blob(sound.config).read_bytes())
    manifest = json.loads(store.blob(sound.manifest).read_bytes())
    packed = gzip.compress(layer, mtime=0)
    digest, size = store.put_bytes(packed)
    record = LayerRecord(
        digest=digest,
        diff_id=f"sha256:{hashlib.sha256(layer).hexdigest()}",
        size=size,
        unpacked=len(layer),
        media_type=_LAYER_TYPE,
    )
    run = config["config"]
    run["Labels"] |= change.labels
    variables = dict(entry.split("=", 1) for entry in run["Env"]) | change.env
    run["Env"] = [f"{key}={value}" for key, value in sorted(variables.items())]
    if change.entrypoint:
        run["Entrypoint"] = list(change.entrypoint)
    config["rootfs"]["diff_ids"].append(record.diff_id)
    config["history"].append({"created_by": "broken on purpose"})
    config_digest, config_size = store.put_bytes(json.dumps(config).encode())
    manifest["config"] = {"mediaType": CONFIG_TYPE, "digest": config_digest, "size": config_size}
    manifest["layers"].append({"mediaType": _LAYER_TYPE, "digest": digest, "size": size})
    assert manifest["mediaType"] == MANIFEST_TYPE
    manifest_digest, manifest_size = store.put_bytes(json.dumps(manifest).encode())
    # No record of it in the store: to `cache prune` these few kilobytes are nobody's.
    return ImageRecord(
        name=name,
        manifest=manifest_digest,
        config=config_digest,
        size=sound.size + manifest_size + size,
        tag="broken",
        tags=("broken", sound.lock[:12]),
        lock=sound.lock,
        layers=(*sound.layers, ImageLayer(record=record, title="broken on purpose", component="test")),
    )


def _layer(name: str, base: str, change: Change, engine: Engine) -> bytes:
    """Write the layer: an uncompressed tar."""
    folder = CASES / name
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def put(member: tarfile.TarInfo, data: bytes) -> None:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

        for path, file in change.add.items():
            put(_member(path), (folder / file).read_bytes())
        for path, file in change.compile.items():
            put(_member(path), _compiled((folder / file).read_bytes(), Path(path).name, engine))
        for path in (*change.append, *change.edit, *change.modes):
            member, data = _taken(base, path, engine)
            if path in change.append:
                data += (folder / change.append[path]).read_bytes()
            data = _edited(data, change.edit.get(path, ()), path)
            member.mode = int(change.modes.get(path, f"{member.mode:o}"), 8)
            put(member, data)
        for path in change.remove:
            _taken(base, path, engine)  # it has to be there
            place = Path(path)
            put(_member(str(place.with_name(f".wh.{place.name}"))), b"")
    return buffer.getvalue()


def _member(path: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path.lstrip("/"))
    member.mode = 0o755
    return member


def _taken(base: str, path: str, engine: Engine) -> tuple[tarfile.TarInfo, bytes]:
    """Take a file out of the sound image, or a folder's own entry."""
    container = engine.client.containers.create(base)
    try:
        # To its end: an engine that is left waiting for a reader lets nobody else near the container.
        archive = b"".join(container.get_archive(path)[0])
    finally:
        container.remove(force=True)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r|") as tar:
        member = next(iter(tar))
        file = tar.extractfile(member) if member.isreg() else None
        data = file.read() if file else b""
    member.name = path.lstrip("/")
    return member, data


def _edited(data: bytes, replacements: Sequence[Replacement], path: str) -> bytes:
    for replacement in replacements:
        old, new = replacement.old.encode(), replacement.new.encode()
        assert data.count(old) == 1, f"{path} holds `{replacement.old}` {data.count(old)} times, not once"
        data = data.replace(old, new)
    return data


def _compiled(source: bytes, name: str, engine: Engine) -> bytes:
    """Make a shared library of a C file, in a container that has a compiler."""
    command = ["-shared", "-fPIC", "-o", f"/tmp/{name}", "/tmp/source.c"]
    container = engine.client.containers.create(_COMPILER, entrypoint=["gcc"], command=command)
    try:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            member = tarfile.TarInfo("source.c")
            member.size = len(source)
            tar.addfile(member, io.BytesIO(source))
        container.put_archive("/tmp", buffer.getvalue())
        container.start()
        code = container.wait()["StatusCode"]
        assert code == 0, container.logs().decode()
        pieces, _ = container.get_archive(f"/tmp/{name}")
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces)), mode="r|") as tar:
            file = tar.extractfile(next(iter(tar)))
            assert file is not None
            return file.read()
    finally:
        container.remove(force=True)
