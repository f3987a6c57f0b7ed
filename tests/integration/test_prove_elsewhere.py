"""Two hosts as two stores: one builds and pushes a candidate, the other proves it and has nothing else."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker import DockerClient
from docker.errors import APIError

from imagebuilder.core.process import Result, run
from imagebuilder.store import Store
from tests.integration.conftest import Built
from tests.support.answers import one_image, result

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes" / "cpu-mpi.yaml"
PROGRAM = Path(sys.executable).parent / "imagebuilder"


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """What the two hosts have, and the image between them.

    Attributes:
        builder: folder with the recipe, its lock, `lab.pub`, and the store.
        lab: folder with `lab.key` and a store that is empty.
        repository: in the registry that both reach.
        digest: of the candidate.

    """

    builder: Path
    lab: Path
    repository: str
    digest: str

    @property
    def name(self) -> str:
        return f"{self.repository}@{self.digest}"

    @property
    def recipe(self) -> Path:
        return self.builder / "cpu-mpi.yaml"


def imagebuilder(folder: Path, *words: str | Path, check: bool = True) -> Result:
    """Run a command on the host whose folder this is."""
    return run([PROGRAM, *words], cwd=folder, timeout=300, check=check)


@pytest.fixture(scope="module")
def hosts(
    built: Built, store: Store, registry: str, engine: DockerClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hosts]:
    """Build the shipped recipe with demands of its own, of layers that are there already, and push it."""
    built(RECIPE)
    builder, lab = tmp_path_factory.mktemp("builder"), tmp_path_factory.mktemp("lab")
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    run(["openssl", "genpkey", *curve, "-out", lab / "lab.key"], timeout=60)
    run(["openssl", "pkey", "-in", lab / "lab.key", "-pubout", "-out", builder / "lab.pub"], timeout=60)
    demands = "proof: {mode: cpu, nodes: 2, signed_by: [lab.pub]}\n"
    (builder / "cpu-mpi.yaml").write_text(RECIPE.read_text(encoding="utf-8") + demands, encoding="utf-8")
    shutil.copy(RECIPE.with_suffix(".lock"), builder)
    (builder / "store").mkdir()
    for kind in ("blobs", "downloads", "layers"):
        if (store.root / kind).exists():
            (builder / "store" / kind).symlink_to(store.root / kind)
    words = ("--store", builder / "store", "--progress", "lines")
    imagebuilder(builder, "build", "cpu-mpi.yaml", "--locked", *words)
    repository = f"{registry}/elsewhere/cpu-mpi"
    pushed = imagebuilder(builder, "push", "cpu-mpi.yaml", repository, "--candidate", "--json", *words)
    found = Hosts(builder=builder, lab=lab, repository=repository, digest=result(pushed.stdout)["digest"])
    try:
        yield found
    finally:
        with suppress(APIError):
            engine.images.remove(found.name, force=True)


def tags(hosts: Hosts) -> list[str]:
    return list(one_image(imagebuilder(hosts.lab, "inspect", hosts.name, "--json").stdout)["tags"])


def test_a_candidate_is_proven_elsewhere_and_promoted(hosts: Hosts, engine: DockerClient) -> None:
    candidate = f"candidate-{hosts.digest[7:19]}"
    assert tags(hosts) == [candidate]
    refused = imagebuilder(hosts.builder, "push", "cpu-mpi.yaml", hosts.repository, check=False)
    assert refused.code != 0
    missing = imagebuilder(hosts.builder, "promote", hosts.name, "--recipe", "cpu-mpi.yaml", check=False)
    assert missing.code == 10
    assert f"error: {hosts.name}: no smoke-test report is attached\n" in missing.stderr

    # The host that proves it has the image's name and a key.
    assert [path.name for path in hosts.lab.iterdir()] == ["lab.key"]
    own = ("--store", hosts.lab / "store")
    engine.images.pull(hosts.name)
    tested = imagebuilder(
        hosts.lab, "smoke-test", hosts.name, "--mode", "cpu", "--attach", "--report", "report.json", *own
    )
    assert "attached sha256:" in tested.stderr
    unsigned = imagebuilder(hosts.builder, "promote", hosts.name, "--recipe", "cpu-mpi.yaml", check=False)
    assert (unsigned.code, tags(hosts)) == (10, [candidate])
    assert f"error: {hosts.name}: it is not signed with lab.pub\n" in unsigned.stderr

    # A report of another digest is not attached here; the same report again, now signed, is still one.
    report = json.loads((hosts.lab / "report.json").read_text())
    assert report["digest"] == hosts.digest
    (hosts.lab / "other.json").write_text(json.dumps({**report, "digest": f"sha256:{'0' * 64}"}))
    foreign = imagebuilder(hosts.lab, "report", "other.json", "--attach", hosts.name, *own, check=False)
    assert foreign.code == 3
    assert f"the report is about another image, sha256:{'0' * 64}" in foreign.stderr
    signing = ("--attach", hosts.name, "--sign-key", "lab.key", *own)
    assert "with a new signature" in imagebuilder(hosts.lab, "report", "report.json", *signing).stderr
    # A second host's report does not replace the first.
    (hosts.lab / "second.json").write_text(json.dumps({**report, "nodes": 3}))
    imagebuilder(hosts.lab, "report", "second.json", "--attach", hosts.repository, *own)

    listed = imagebuilder(hosts.builder, "inspect", hosts.name, "--signed-by", "lab.pub").stdout
    assert 'demands    {"signed_by":["lab.pub"]}' in listed
    assert f"proof      cpu, 2 nodes, {report['started']}, signed by lab.pub\n" in listed
    assert f"no proof   cpu, 3 nodes, {report['started']}, not signed\n" in listed

    promoted = imagebuilder(hosts.builder, "promote", hosts.name, "--recipe", "cpu-mpi.yaml").stdout
    assert f"promoted  {hosts.name}\n" in promoted
    assert len(tags(hosts)) == 3
    verified = imagebuilder(hosts.lab, "verify", hosts.name, *own, check=False)
    assert "it is not signed with lab.pub" in verified.stdout
    verified = imagebuilder(hosts.builder, "verify", hosts.name, "--signed-by", "lab.pub", *own)
    assert verified.stdout.endswith("verified\n")
    pulled = engine.images.pull(f"{hosts.repository}:openmpi5.0.7-py3.13-trixie")
    assert hosts.name in pulled.attrs["RepoDigests"]
