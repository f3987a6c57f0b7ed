"""Proofs that travel: reports are attached to a digest, listed, and decide what is promoted."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from imagebuilder.cli import app
from imagebuilder.errors import GateError, ImagebuilderError, InputError, RegistryError
from imagebuilder.publish.attest import bundle
from imagebuilder.recipe.proof import ProofPolicy, of_label
from imagebuilder.registry import Client, Options, artefacts, parse, reader
from imagebuilder.registry.credentials import ANONYMOUS
from imagebuilder.registry.reader import Descriptor
from imagebuilder.smoke import report as reports
from imagebuilder.smoke import verdict
from imagebuilder.smoke.report import Report
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow import read_plans
from imagebuilder.workflow import source as sources
from tests.support.fake_registry import FakeRegistry, Handler, serve
from tests.support.proven import RECIPE, put_both, put_built, report_of

pytestmark = pytest.mark.slow

DEMANDS = "{mode: multi-gpu, nodes: 4, transport: ib, min_busbw: 100, signed_by: [lab.pub]}"


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """Two hosts and a registry: one builds and pushes candidates; the other has keys and an empty store.

    Attributes:
        folder: with `lab.key` and `lab.pub`, `other.key` and `other.pub`.
        registry: what both reach.
        recipe: on the host that builds.
        store: of the host that builds; has the image and no report.
        image: in that store.

    """

    folder: Path
    registry: FakeRegistry
    recipe: Path
    store: Store
    image: ImageRecord

    @property
    def repository(self) -> str:
        return f"{self.registry.host}/team/cpu-mpi"

    @property
    def name(self) -> str:
        return f"{self.repository}@{self.image.manifest}"

    @property
    def tags(self) -> dict[str, str]:
        """Every tag of an image, and the digest of what it points to."""
        from imagebuilder.core.documents import digest_of

        return {
            tag: digest_of(data)
            for (_, tag), (_, data) in self.registry.manifests.items()
            if not tag.startswith(("sha256:", "sha256-"))
        }

    def candidate(self) -> None:
        run("push", self.recipe, self.repository, "--candidate", "--store", self.store.root)

    def attach(self, *words: str | Path, **changes: Any) -> tuple[str, str]:
        """Attach a report from a host that has neither recipe nor store."""
        path = self.folder / "report.json"
        path.write_text(reports.dumps(self.report(**changes)), encoding="utf-8")
        return run("report", path, "--attach", self.repository, "--store", self.folder / "empty", *words)

    def report(self, **changes: Any) -> Report:
        """Make a report of a laboratory: all that `DEMANDS` asks for, or with changes."""
        made = report_of(self.image)
        if "digest" in changes:  # another image has another config
            made = made.model_copy(update={"config": ""})
        (collectives,) = [check for check in made.checks if check.name == "mpirun"]
        seen = {
            "collectives": {"sweep": [row(1.0), row(changes.pop("busbw", 187.5))]},
            "transport": {f"node{n} rank {n}": {"network": changes.get("network", "IB")} for n in range(2)},
        }
        changes.pop("network", None)
        extra = tuple(
            collectives.model_copy(update={"name": name, "required": False, "evidence": evidence})
            for name, evidence in seen.items()
        )
        host = made.host.model_copy(update={"gpus": ("NVIDIA H100",) * 4, "driver": "570.86.15"})
        fields = {"mode": "multi-gpu", "nodes": 4, "host": host, "checks": (*made.checks, *extra)}
        return made.model_copy(update={**fields, **changes})

    def forge(self, report: Report | bytes) -> None:
        """Attach anything as a report, as everybody who may push can."""
        data = report if isinstance(report, bytes) else reports.dumps(report).encode()
        document = bundle.ImageDocument(kind=bundle.REPORT, files={bundle.REPORT.files[0][0]: data})
        artefacts.attach(self.client(), [document.artefact(bundle.subject_of(self.image, self.store))])

    def client(self) -> Client:
        return Client(parse(self.repository), Options(credentials=ANONYMOUS), "pull,push")


def row(busbw: float) -> dict[str, Any]:
    return {"bytes": 1 << 26, "dtype": "float32", "seconds": 1.0, "algbw_gbs": 1.0, "busbw_gbs": busbw}


def run(*words: str | Path) -> tuple[str, str]:
    """Run the command line in this process; returns what it printed."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def refusal(kind: type[ImagebuilderError], *words: str | Path) -> list[str]:
    """Run a command line that is refused; returns its messages, each with where it is about."""
    with pytest.raises(kind) as caught:
        CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert type(caught.value) is kind or kind is GateError
    return [problem.message for problem in caught.value.problems]


@functools.cache
def pair(_name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def write_keys(folder: Path) -> None:
    for name in ("lab", "other", "team"):
        key = pair(name)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{name}.key").write_bytes(private)
        kind = serialization.PublicFormat.SubjectPublicKeyInfo
        public = key.public_key().public_bytes(serialization.Encoding.PEM, kind)
        (folder / f"{name}.pub").write_bytes(public)


def build(folder: Path, demands: str, store: Store) -> tuple[Path, ImageRecord]:
    """Put an image of a recipe with these demands into a store, without a report."""
    recipe = folder / "cpu-mpi.yaml"
    text = RECIPE.read_text(encoding="utf-8")
    recipe.write_text(f"{text}proof: {demands}\n" if demands else text, encoding="utf-8")
    recipe.with_suffix(".lock").write_bytes(RECIPE.with_suffix(".lock").read_bytes())
    ((_, plan),) = read_plans(recipe)
    image = put_built(plan, store)
    sources.remember(store, image.manifest, sources.of_recipe(recipe))
    store.report(image.manifest).unlink()
    return recipe, image


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], World]]:
    """Make a world whose recipe has these demands; the current folder has the keys."""
    monkeypatch.chdir(tmp_path)
    write_keys(tmp_path)
    with serve(FakeRegistry()) as registry:

        def made(demands: str = DEMANDS) -> World:
            store = Store(tmp_path / "store")
            recipe, image = build(tmp_path, demands, store)
            return World(folder=tmp_path, registry=registry, recipe=recipe, store=store, image=image)

        yield made


@pytest.fixture
def world(make: Callable[[str], World]) -> World:
    return make(DEMANDS)


def test_a_candidate_has_one_tag_and_is_promoted_once_it_is_proven(world: World) -> None:
    digest = world.image.manifest
    out, _ = run("push", world.recipe, world.repository, "--candidate", "--store", world.store.root)
    candidate = f"candidate-{digest[7:19]}"
    assert world.tags == {candidate: digest}
    assert f"next:   imagebuilder smoke-test --attach {world.name}, on a host that can prove it" in out
    assert f"        imagebuilder promote {world.name}" in out
    _, err = world.attach("--sign-key", "lab.key")
    assert err.endswith(f"to {world.name}, with a new signature\n")
    out, _ = run("promote", world.name, "--signed-by", "lab.pub")
    tags = {"openmpi5.0.7-py3.13-trixie", world.image.lock[:12]}
    assert world.tags == {candidate: digest, **dict.fromkeys(tags, digest)}
    assert out == (
        f"promoted  {world.name}\n"
        "proof     multi-gpu, 4 nodes, 4 x NVIDIA H100, driver 570.86.15, over ib, 187.50 GB/s, "
        "2026-01-02T03:04:05Z, signed by lab.pub\n"
        f"tags      openmpi5.0.7-py3.13-trixie, {world.image.lock[:12]}\n"
    )
    # The keys of the recipe's folder do as well, and a second time changes nothing.
    assert "tags " in run("promote", f"{world.repository}:{candidate}", "--recipe", world.recipe)[0]


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"mode": "cpu"}, ["mode cpu instead of multi-gpu"]),
        ({"mode": "one-gpu-shared"}, ["mode one-gpu-shared instead of multi-gpu"]),
        ({"nodes": 3}, ["3 nodes instead of 4"]),
        ({"network": "Socket"}, ["transport socket instead of ib"]),
        ({"busbw": 99.9}, ["a bus bandwidth of 99.90 GB/s instead of 100"]),
        (
            {"mode": "cpu", "nodes": 2, "network": "Else", "busbw": 0.5},
            [
                "mode cpu instead of multi-gpu",
                "2 nodes instead of 4",
                "transport Else instead of ib",
                "a bus bandwidth of 0.50 GB/s instead of 100",
            ],
        ),
    ],
)
def test_a_weaker_proof_is_refused_demand_by_demand(
    world: World, changes: dict[str, Any], messages: list[str]
) -> None:
    world.candidate()
    world.attach("--sign-key", "lab.key", **changes)
    assert refusal(GateError, "promote", world.name, "--signed-by", "lab.pub") == messages
    assert len(world.tags) == 1


def test_no_report_no_promotion(world: World) -> None:
    world.candidate()
    with pytest.raises(GateError) as caught:
        CliRunner().invoke(app, ["promote", world.name, "--recipe", "cpu-mpi.yaml"], catch_exceptions=False)
    assert str(caught.value) == (
        f"{world.name}: no smoke-test report is attached\n"
        f"  -> where it can be shown, run: imagebuilder smoke-test --attach --sign-key FILE {world.name}"
    )
    assert caught.value.exit_code == 10


def test_who_signed_decides(world: World) -> None:
    world.candidate()
    world.attach()
    unsigned = ["it is not signed with lab.pub"]
    assert refusal(GateError, "promote", world.name, "--recipe", world.recipe) == unsigned
    with pytest.raises(GateError) as caught:
        CliRunner().invoke(app, ["promote", world.name], catch_exceptions=False)
    assert str(caught.value) == (
        f"{world.name}: it is not signed with lab.pub\n"
        "  -> give the recipe with --recipe, or its keys: --signed-by lab.pub"
    )
    world.attach("--sign-key", "other.key")
    assert refusal(GateError, "promote", world.name, "--recipe", world.recipe) == unsigned
    # Whoever promotes decides which keys count.
    assert refusal(GateError, "promote", world.name, "--signed-by", "team.pub") == [
        "it is not signed with team.pub"
    ]
    assert "signed by other.pub" in run("promote", world.name, "--signed-by", "other.pub")[0]


def test_a_signature_for_another_repository_is_none(world: World) -> None:
    """Who may push here copies a signed report, and its signature, from another repository."""
    world.candidate()
    elsewhere = f"{world.registry.host}/other/cpu-mpi"
    run("push", world.recipe, elsewhere, "--candidate", "--store", world.store.root)
    path = world.folder / "report.json"
    path.write_text(reports.dumps(world.report()), encoding="utf-8")
    run("report", path, "--attach", elsewhere, "--sign-key", "lab.key")
    for documents in (world.registry.manifests, world.registry.blobs):
        copied: dict[Any, Any] = {
            ("team/cpu-mpi", name): data
            for (place, name), data in documents.items()
            if place == "other/cpu-mpi"
        }
        documents.update(copied)
    assert refusal(GateError, "promote", world.name, "--signed-by", "lab.pub") == [
        "it is not signed with lab.pub"
    ]


def test_a_foreign_or_failed_report_proves_nothing(make: Callable[[str], World]) -> None:
    world = make("")
    world.candidate()
    other = f"sha256:{'0' * 64}"
    world.forge(world.report(digest=other))
    assert refusal(GateError, "promote", world.name) == [f"it is about another image, {other}"]
    failed = world.report(checks=report_of(world.image, passed=False).checks, passed=False)
    world.forge(failed)
    messages = refusal(GateError, "promote", world.name)
    assert [message.partition(": ")[2] for message in messages] == [
        f"it is about another image, {other}",
        "the smoke test failed",
    ]
    # `passed: true` says nothing, and neither do fewer pins than the image has.
    (lying,) = [json.loads(reports.dumps(failed))]
    world.forge(json.dumps({**lying, "passed": True}).encode())
    first = [check for check in world.report().checks if check.name != "failure"]
    world.forge(world.report(checks=tuple(first), pins={}))
    assert [message.partition(": ")[2] for message in refusal(GateError, "promote", world.name)][2:] == [
        "the smoke test failed",
        "required checks did not run: failure",
    ]
    assert len(world.tags) == 1
    # One good report among them is enough.
    world.attach()
    assert len(world.tags) == 1
    run("promote", world.name)
    assert len(world.tags) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda plain: plain.update(mode="multi-gpu\x1b[31m"),
            "mode multi-gpu\\x1b[31m instead of multi-gpu",
        ),
        (lambda plain: plain.update(nodes=-(10**18)), f"-{10**18} nodes instead of 4"),
        (
            lambda plain: plain["checks"][-2]["evidence"]["sweep"][-1].update(busbw_gbs="Infinity"),
            "a bus bandwidth of 0.00 GB/s instead of 100",
        ),
        (
            lambda plain: plain["checks"][-2].update(status="skipped"),
            "a bus bandwidth of 0.00 GB/s instead of 100",
        ),
        (
            lambda plain: plain["checks"][-1]["evidence"]["node0 rank 0"].update(network="Socket"),
            "transport unknown instead of ib",
        ),
        (
            lambda plain: plain["host"].update(driver="5" * 201),
            "is not a smoke report: String should have at most 200 characters",
        ),
        (
            lambda plain: plain["host"].update(gpus=["H100"] * 4097),
            "is not a smoke report: Tuple should have at most 4096 items after validation, not 4097",
        ),
        (
            lambda plain: plain.update(Passed=True),
            "is not a smoke report: it has an object in which a key is given twice",
        ),
    ],
)
def test_a_hostile_report_is_refused(world: World, change: Callable[[Any], None], message: str) -> None:
    world.candidate()
    plain = json.loads(reports.dumps(world.report()))
    change(plain)
    world.forge(json.dumps(plain).encode())
    found = [item for item in refusal(GateError, "promote", world.name) if "signed" not in item]
    assert found == [message]
    out, _ = run("inspect", world.name)
    assert "no proof" in out
    assert "\x1b" not in out


def test_the_demands_are_in_the_digest_and_not_in_the_attached_recipe(world: World) -> None:
    """Who may push attaches a recipe that demands nothing, and takes the real one off the list."""
    world.candidate()
    weaker = world.recipe.read_text(encoding="utf-8").partition("proof:")[0]
    lock = world.recipe.with_suffix(".lock").read_text(encoding="utf-8")
    files = {"recipe.yaml": weaker.encode(), "recipe.lock": lock.encode()}
    names = [name for name, _ in bundle.SOURCE.files]
    document = bundle.ImageDocument(kind=bundle.SOURCE, files=dict(zip(names, files.values(), strict=True)))
    artefacts.attach(world.client(), [document.artefact(bundle.subject_of(world.image, world.store))])
    world.forge(world.report(mode="cpu"))
    assert refusal(GateError, "promote", world.name) == [
        "mode cpu instead of multi-gpu",
        "it is not signed with lab.pub",
    ]
    # Nor does it choose the tags.
    world.attach("--sign-key", "lab.key")
    assert refusal(InputError, "promote", world.name, "--signed-by", "lab.pub") == [
        "several recipes are attached to it, so its tags are unknown"
    ]
    run("promote", world.name, "--signed-by", "lab.pub", "--tag", "mine")
    assert world.tags["mine"] == world.image.manifest


def test_the_callers_recipe_overrides_the_label(make: Callable[[str], World]) -> None:
    world = make("")
    world.candidate()
    world.attach(mode="cpu")
    stricter = world.folder / "stricter"
    stricter.mkdir()
    text = world.recipe.read_text(encoding="utf-8")
    (stricter / "cpu-mpi.yaml").write_text(f"{text}proof: {{mode: multi-gpu}}\n", encoding="utf-8")
    (stricter / "cpu-mpi.lock").write_bytes(world.recipe.with_suffix(".lock").read_bytes())
    path = stricter / "cpu-mpi.yaml"
    assert refusal(GateError, "promote", world.name, "--recipe", path) == ["mode cpu instead of multi-gpu"]
    run("promote", world.name)
    other = RECIPE.parent / "cuda12-torch.yaml"
    assert refusal(GateError, "promote", world.name, "--recipe", other) == [
        f"it was not made from {other} and its lock"
    ]


def test_an_image_that_the_key_did_not_sign_is_not_promoted(make: Callable[[str], World]) -> None:
    world = make("")
    world.candidate()
    world.attach("--sign-key", "team.key")
    words = ("promote", world.name, "--key", "team.pub")
    assert refusal(GateError, *words) == ["it is not signed with this key for its repository"]
    signing = ("--candidate", "--sign-key", "team.key", "--store", world.store.root)
    run("push", world.recipe, world.repository, *signing)
    run(*words)
    assert len(world.tags) == 3


def test_a_damaged_label_demands_nothing_that_can_be_met(make: Callable[[str], World]) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        of_label("{")
    with pytest.raises(ValueError, match="holds no demands on a report: nodes: Input should be greater"):
        of_label('{"nodes": 1}')
    with pytest.raises(ValueError, match="holds no demands on a report: hosts: Extra inputs"):
        of_label('{"hosts": 1}')
    policy = ProofPolicy(mode="multi-gpu", nodes=4, signed_by=("lab.pub",))
    assert policy.label() == '{"mode":"multi-gpu","nodes":4,"signed_by":["lab.pub"]}'
    assert of_label(policy.label()) == policy
    assert (ProofPolicy().label(), of_label("")) == ("", ProofPolicy())
    # An image without demands has no label, and so the digest that it always had.
    world = make("")
    assert b"imagebuilder.proof" not in world.store.blob(world.image.config).read_bytes()


def test_a_tag_that_was_set_in_between_stays(world: World) -> None:
    """Somebody else sets the recipe's tag after it was looked at and before it is set."""
    world.candidate()
    world.attach("--sign-key", "lab.key")
    foreign = artefacts.Artefact(
        artifact_type="application/x",
        subject=Descriptor(media_type=reader.OCI_MANIFEST, digest=f"sha256:{'1' * 64}", size=1),
        parts=(),
    ).manifest()
    tag = "openmpi5.0.7-py3.13-trixie"
    asked: list[str] = []

    def interfere(handler: Handler) -> bool:
        if handler.path.endswith(f"/manifests/{tag}"):
            asked.append(handler.command)
            if len(asked) == 2:
                world.registry.manifests["team/cpu-mpi", tag] = (reader.OCI_MANIFEST, foreign)
        return False

    world.registry.interfere = interfere
    (message,) = refusal(GateError, "promote", world.name, "--signed-by", "lab.pub")
    assert message.startswith(f"the tag {tag} points to another image, sha256:")
    assert "PUT" not in asked


def test_a_candidate_that_is_replaced_meanwhile_is_not_promoted(
    make: Callable[[str], World],
) -> None:
    """The tag is read once: the digest that was judged gets the tags."""
    world = make("")
    world.candidate()
    world.attach()
    tag = f"candidate-{world.image.manifest[7:19]}"

    def interfere(handler: Handler) -> bool:
        if "/referrers/" in handler.path or "/manifests/sha256-" in handler.path:
            world.registry.manifests["team/cpu-mpi", tag] = (reader.OCI_MANIFEST, b"{}")
        return False

    world.registry.interfere = interfere
    run("promote", f"{world.repository}:{tag}")
    assert world.tags[world.image.lock[:12]] == world.image.manifest


def test_reports_of_several_hosts_are_listed_each_once(world: World) -> None:
    world.candidate()
    world.attach("--sign-key", "lab.key")
    world.attach("--sign-key", "lab.key")
    host = report_of(world.image).host
    world.attach(mode="cpu", nodes=2, host=host, checks=report_of(world.image).checks)
    out, _ = run("inspect", world.name, "--signed-by", "lab.pub")
    demands = '{"min_busbw":100,"mode":"multi-gpu","nodes":4,"signed_by":["lab.pub"],"transport":"ib"}'
    lines = out.splitlines()
    assert f"demands    {demands}" in lines
    start = lines.index(f"demands    {demands}") + 1
    best = "multi-gpu, 4 nodes, 4 x NVIDIA H100, driver 570.86.15, over ib, 187.50 GB/s"
    short = "mode cpu instead of multi-gpu, 2 nodes instead of 4, transport unknown instead of ib"
    short += ", a bus bandwidth of 0.00 GB/s instead of 100, it is not signed with lab.pub"
    assert lines[start : start + 3] == [
        f"proof      {best}, 2026-01-02T03:04:05Z, signed by lab.pub",
        "no proof   cpu, 2 nodes, 2026-01-02T03:04:05Z, not signed",
        f"           {short}",
    ]
    assert sum("report" in line and "attached" in line for line in lines) == 2
    (image,) = json.loads(run("inspect", world.name, "--json")[0])["result"]["images"]
    told, weaker = image["reports"]
    assert (told["verdict"], told["gpus"], told["busbw"]) == ("passed", ["NVIDIA H100"] * 4, 187.5)
    assert (told["signed"], told["signed_by"], weaker["signed"]) == (True, [], False)


def test_verify_lists_them_and_holds_the_image_to_its_demands(world: World) -> None:
    signing = ("--candidate", "--sign-key", "team.key", "--store", world.store.root)
    run("push", world.recipe, world.repository, *signing)
    store = ("--store", world.store.root)
    keyed = ("verify", world.name, "--key", "team.pub", *store)
    result = CliRunner().invoke(app, list(map(str, keyed)))
    assert "report       failed       none is attached" in result.stdout
    world.attach("--sign-key", "lab.key")
    out = CliRunner().invoke(app, list(map(str, keyed))).stdout
    assert "report       failed       it is attached, but not signed with this key" in out
    out, _ = run(*keyed, "--signed-by", "lab.pub")
    count = len(world.report().checks)
    assert f"report       passed       {count} passed on 4 nodes, mode multi-gpu" in out
    assert "proof      multi-gpu, 4 nodes, 4 x NVIDIA H100" in out
    assert out.endswith("verified\n")


def test_push_itself_holds_an_image_to_its_demands(make: Callable[[str], World]) -> None:
    world = make("{nodes: 4, signed_by: [lab.pub]}")
    words = ("push", world.recipe, world.repository, "--store", world.store.root)
    reports.write(world.report(nodes=2), world.store.report(world.image.manifest))
    assert refusal(GateError, *words) == [
        "cpu-mpi passed, but not as its recipe demands: 2 nodes instead of 4, it is not signed with lab.pub"
    ]
    reports.write(world.report(), world.store.report(world.image.manifest))
    unsigned = ["cpu-mpi passed, but not as its recipe demands: it is not signed with lab.pub"]
    assert refusal(GateError, *words) == unsigned
    assert refusal(GateError, *words, "--sign-key", "team.key") == unsigned
    assert world.tags == {}
    run(*words, "--sign-key", "lab.key")
    assert len(world.tags) == 2
    out, _ = run("cache", "ls", "--store", world.store.root)
    assert "(proven, but not as its recipe demands)" in out


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--tag", "mine"), "the tag mine"),
        (("--untested",), "--untested"),
        (("--untested-on", "linux/amd64"), "--untested"),
    ],
)
def test_a_candidate_gets_no_other_tag(world: World, words: tuple[str, ...], wrong: str) -> None:
    message = f"a candidate has one tag, made of its digest, and needs no test yet: leave out {wrong}"
    command = ("push", world.recipe, world.repository, "--candidate", "--store", world.store.root)
    assert refusal(InputError, *command, *words) == [message]
    assert world.tags == {}


def test_the_other_gates_hold_for_a_candidate(world: World) -> None:
    text = world.recipe.read_text(encoding="utf-8").replace("nodes: 4", "nodes: 8")
    world.recipe.write_text(text, encoding="utf-8")
    with pytest.raises(ImagebuilderError, match="does not match its recipe any more"):
        world.candidate()
    assert world.tags == {}


def test_a_report_is_attached_to_its_own_image_alone(world: World) -> None:
    world.candidate()
    path = world.folder / "report.json"
    other = f"sha256:{'0' * 64}"

    def refused(report: Report | str, image: str) -> list[str]:
        path.write_text(report if isinstance(report, str) else reports.dumps(report), encoding="utf-8")
        return refusal(InputError, "report", path, "--attach", image)

    tag = f"{world.repository}:candidate-{world.image.manifest[7:19]}"
    assert refused(world.report(digest=other), tag) == [f"the report is about another image, {other}"]
    assert refused(world.report(digest=other), world.name) == [f"the report is about another image, {other}"]
    assert refused(world.report(digest=other), world.repository) == [
        "the repository does not have the image that the report is about"
    ]
    assert refused(world.report(digest=""), world.repository) == ["does not say which image it is about"]
    assert refused(world.report(digest="sha256:../../x"), world.repository) == [
        "`sha256:../../x` is not a digest"
    ]
    assert refused("{}", world.repository) == ["is not a report of this version: Field required"]
    path.write_text(reports.dumps(world.report()), encoding="utf-8")
    assert refusal(InputError, "report", path, "--sign-key", "lab.key") == [
        "--sign-key has no effect without --attach"
    ]
    gone = f"{world.repository}:gone"
    (message,) = refusal(RegistryError, "report", path, "--attach", gone)
    assert "404" in message or "no such" in message or "does not have" in message
    assert len([name for _, name in world.registry.manifests if name.startswith("sha256:")]) == 6


def test_a_secret_in_a_report_stays_here(world: World) -> None:
    world.candidate()
    before = dict(world.registry.manifests)
    path = world.folder / "report.json"
    key = (world.folder / "lab.key").read_text(encoding="ascii")
    made = world.report(mode_reason=key)
    path.write_text(reports.dumps(made), encoding="utf-8")
    messages = refusal(GateError, "report", path, "--attach", world.repository)
    assert any("private key" in message for message in messages)
    assert world.registry.manifests == before


def test_smoke_test_refuses_what_cannot_be_attached_before_it_runs(world: World) -> None:
    assert refusal(InputError, "smoke-test", world.recipe, "--attach", "--store", world.store.root) == [
        "name the image as registry.example/team/name@DIGEST: the report is attached there"
    ]
    assert refusal(InputError, "smoke-test", world.name, "--attach", "--check", "ssh") == [
        "a report of single checks proves nothing: leave out --check"
    ]
    assert refusal(InputError, "smoke-test", world.name, "--sign-key", "lab.key") == [
        "--sign-key has no effect without --attach"
    ]


def test_an_index_is_promoted_when_all_its_images_are_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_keys(tmp_path)
    store = Store(tmp_path / "store")
    recipe = put_both(tmp_path, store, proven=())
    with serve(FakeRegistry()) as registry:
        repository = f"{registry.host}/team/both"
        out, _ = run("push", recipe, repository, "--candidate", "--store", store.root, "--json")
        pushed = json.loads(out)["result"]
        index = f"{repository}@{pushed['digest']}"
        for image in store.images("both"):
            lacking = refusal(GateError, "promote", index)
            assert f"on {image.platform}: no smoke-test report is attached" in lacking
            path = tmp_path / "report.json"
            path.write_text(reports.dumps(report_of(image)), encoding="utf-8")
            run("report", path, "--attach", index)
        out, _ = run("promote", index, "--json")
        promoted = json.loads(out)["result"]
        assert promoted["digest"] == pushed["digest"]
        assert sorted(promoted["proofs"]) == ["linux/amd64", "linux/arm64"]
        (amd,) = [image for image in store.images("both") if image.platform == "linux/amd64"]
        out, _ = run("promote", f"{repository}@{amd.manifest}", "--json")
        assert all(tag.endswith("-amd64") for tag in json.loads(out)["result"]["tags"])


def test_a_report_says_what_was_seen() -> None:
    digest = "sha256:" + "a" * 64
    image = ImageRecord(
        name="x", manifest=digest, config=digest, size=1, tag="x", tags=("x",), lock="", layers=()
    )
    plain = report_of(image)
    found = verdict.read(reports.dumps(plain).encode())
    assert (found.transport, found.busbw, found.host.driver, found.started) == ("", 0.0, "", plain.started)
