"""Reading, showing and checking what was published: good, damaged, forged and hostile."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from imagebuilder import __version__
from imagebuilder.cli import app
from imagebuilder.core import documents
from imagebuilder.errors import InputError, RegistryError
from imagebuilder.host.site import Site
from imagebuilder.image import oci
from imagebuilder.plan import Project
from imagebuilder.publish.attest import (
    bundle,
    envelope,
    inspection,
    publish,
    published,
    signature,
    verification,
)
from imagebuilder.publish.attest.verification import Verification, VerifyTask
from imagebuilder.publish.verify import Verified, VerifyRequest, rebuild_check, verify
from imagebuilder.registry import Client, Options, artefacts, parse, reader
from imagebuilder.registry.credentials import ANONYMOUS
from imagebuilder.registry.reader import OCI_INDEX, OCI_MANIFEST
from imagebuilder.smoke import report as reports
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow.project import Copied, CopiedFolder
from imagebuilder.workflow.rebuild import Rebuilt
from imagebuilder.workflow.source import RecipeSource
from tests.support.fake_registry import FakeRegistry, serve
from tests.support.proven import put_proven, report_of
from tests.support.pushing import push

pytestmark = pytest.mark.slow

OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
KEY = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
OPTIONS = Options(session=requests.Session(), credentials=ANONYMOUS, attempts=3, pause=0.01)
NAMES = ("signature", "source", "plan", "provenance", "attestation", "SPDX", "CycloneDX", "report", "layers")


@functools.cache
def documents_of(world: World, waivers: tuple[str, ...] = ()) -> tuple[bundle.ImageDocument, ...]:
    """Make the documents of an image, once for all tests that leave the store as it is."""
    return bundle.documents(world.image, world.store, world.source, waivers)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """A registry with an image in it, and the store that it came from.

    Attributes:
        pushed: what an empty registry holds after a push; a push takes 200 requests, so each is made once.

    """

    registry: FakeRegistry
    store: Store
    image: ImageRecord
    source: RecipeSource
    pushed: dict[object, tuple[dict[Any, Any], dict[Any, Any]]] = dataclasses.field(default_factory=dict)

    @property
    def repository(self) -> str:
        return f"{self.registry.host}/team/cpu"

    def client(self) -> Client:
        return published.open_image(f"{self.repository}@{self.image.manifest}", OPTIONS)

    def push(self, key: ec.EllipticCurvePrivateKey | None = KEY, waivers: tuple[str, ...] = ()) -> None:
        state = (id(key), waivers, self.registry.lists_referrers)
        empty = not self.registry.manifests and not self.registry.blobs
        if empty and state in self.pushed:
            blobs, manifests = self.pushed[state]
            self.registry.blobs.update(blobs)
            self.registry.manifests.update(manifests)
            return
        documents = documents_of(self, waivers)
        subject = bundle.subject_of(self.image, self.store)
        publish.attach(Client(parse(self.repository), OPTIONS, "pull,push"), subject, documents, key)
        push(self.image, self.store, self.repository, ["latest", "one"], options=OPTIONS)
        if empty:
            self.pushed[state] = (dict(self.registry.blobs), dict(self.registry.manifests))

    def verify(
        self, key: ec.EllipticCurvePrivateKey | None = KEY, own: RecipeSource | None = None
    ) -> Verification:
        client = self.client()
        public = key.public_key() if key else None
        task = VerifyTask(
            published=published.read(client, public), keyed=key is not None, own=own, store=self.store
        )
        return verification.verify(task, client)

    def forge(self, kind: bundle.DocumentKind, change: Callable[[Any], None]) -> None:
        """Replace what is attached of a kind by a changed copy, as whoever may push can."""
        (document,) = [document for document in documents_of(self) if document.kind == kind]
        name = kind.files[0][0]
        data = json.loads(document.files[name])
        change(data)
        files = {**document.files, name: json.dumps(data).encode()}
        forged = bundle.ImageDocument(kind=kind, files=files)
        self.remove(kind)
        subject = bundle.subject_of(self.image, self.store)
        artefacts.attach(Client(parse(self.repository), OPTIONS, "push"), [forged.artefact(subject)])

    def remove(self, kind: bundle.DocumentKind) -> None:
        tag = ("team/cpu", reader.fallback_tag(self.image.manifest))
        index = json.loads(self.registry.manifests[tag][1])
        index["manifests"] = [r for r in index["manifests"] if r["artifactType"] != kind.artifact_type]
        self.registry.manifests[tag] = (OCI_INDEX, json.dumps(index).encode())


@pytest.fixture
def own(tmp_path: Path) -> Iterator[World]:
    """A world whose store the test changes."""
    store = Store(tmp_path / "store")
    image, source = put_proven(store)
    with serve(FakeRegistry()) as registry:
        yield World(registry=registry, store=store, image=image, source=source)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    store = Store(tmp_path_factory.mktemp("shared") / "store")
    image, source = put_proven(store)
    with serve(FakeRegistry()) as registry:
        yield World(registry=registry, store=store, image=image, source=source)


@pytest.fixture
def world(shared: World) -> World:
    """The world that all share, its registry emptied."""
    shared.registry.manifests.clear()
    shared.registry.blobs.clear()
    shared.registry.lists_referrers = False
    return shared


def statuses(result: Verification) -> Mapping[str, str]:
    return {check.name: check.status for check in result.checks}


def detail(result: Verification, name: str) -> str:
    return next(check.detail for check in result.checks if check.name == name)


def test_all_is_well(world: World) -> None:
    world.push()
    result = world.verify(own=world.source)
    assert result.passed
    assert statuses(result) == dict.fromkeys((*NAMES, "own recipe"), "passed")
    assert "12 of them are what this host's store made itself" in detail(result, "layers")
    assert result.waivers == ()


def test_without_a_key_signatures_are_not_checked(world: World) -> None:
    world.push()
    result = world.verify(None)
    assert result.passed
    unchecked = {"signature": "not checked", "attestation": "not checked"}
    assert statuses(result) == {**dict.fromkeys(NAMES, "passed"), **unchecked}
    assert "--key checks whose" in detail(result, "signature")


def test_with_the_referrers_api(world: World) -> None:
    world.registry.lists_referrers = True
    world.push()
    assert world.verify().passed


def test_another_key_believes_nothing(world: World) -> None:
    world.push()
    result = world.verify(OTHER)
    assert not result.passed
    assert statuses(result)["signature"] == "failed"
    for name in ("source", "provenance", "SPDX", "CycloneDX", "report"):
        assert detail(result, name) == "it is attached, but not signed with this key"


def test_nothing_attached(world: World) -> None:
    push(world.image, world.store, world.repository, ["one"], options=OPTIONS)
    result = world.verify(None)
    assert not result.passed
    assert detail(result, "source") == "none is attached"
    assert statuses(result)["layers"] == "passed"


def test_waivers_are_told(world: World) -> None:
    world.push(waivers=("untested",))
    assert world.verify().waivers == ("untested",)
    assert "waived: untested" in detail(world.verify(), "provenance")


def test_a_later_push_with_a_proof_counts(own: World) -> None:
    report = own.store.report(own.image.manifest)
    text = report.read_text()
    report.unlink()
    own.push(waivers=("untested",))
    result = own.verify()
    assert (result.passed, detail(result, "report")) == (False, "none is attached")
    report.write_text(text)
    own.push()
    result = own.verify()
    assert result.passed
    assert result.waivers == ()


def test_another_recipe_than_mine(world: World) -> None:
    world.push()
    other = RecipeSource(
        recipe=world.source.recipe.replace("port: 2222", "port: 2223"), lock=world.source.lock
    )
    assert "out of step" in detail(world.verify(own=other), "own recipe")
    lock, _ = world.source.read()
    from imagebuilder.lock import file as lockfile

    first = lock.wheels[0]
    bytes_ = lock.model_copy(
        update={"wheels": (first.model_copy(update={"sha256": "0" * 64}), *lock.wheels[1:])}
    )
    fewer = lock.model_copy(update={"wheels": lock.wheels[1:]})
    for changed, said in (
        (bytes_, "the image is made from another recipe or lock"),
        (fewer, f"does not have {first.name}"),
    ):
        other = RecipeSource(
            recipe=world.source.recipe, lock=lockfile.dumps(lockfile.LockFile(sections=(changed,)))
        )
        result = world.verify(own=other)
        assert said in detail(result, "own recipe")
        assert not result.passed


def drop_package(document: Any) -> None:
    del document["packages"][1]


def add_component(document: Any) -> None:
    document["components"].append({**document["components"][0], "purl": "pkg:pypi/evil@1"})


def other_subject(document: Any) -> None:
    document["subject"][0]["digest"]["sha256"] = "0" * 64


def other_layer(document: Any) -> None:
    document["predicate"]["runDetails"]["byproducts"][0]["digest"]["sha256"] = "0" * 64


def other_diff_id(document: Any) -> None:
    document["predicate"]["runDetails"]["byproducts"][0]["annotations"]["diff_id"] = "sha256:0"


def other_key(document: Any) -> None:
    document["predicate"]["runDetails"]["byproducts"][0]["annotations"]["key"] = "0"


def other_recipe(document: Any) -> None:
    document["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"]["sha256"] = "0" * 64


def other_report(document: Any) -> None:
    document["digest"] = document["config"] = f"sha256:{'0' * 64}"


def lying_report(document: Any) -> None:
    document["checks"][0]["status"] = "failed"


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (bundle.SPDX, drop_package, "lacks 1 packages of the lock, and has 0 that are not in it"),
        (bundle.SPDX, lambda d: d["packages"][1].update(checksums=[]), "not a bill of materials"),
        (bundle.CYCLONEDX, add_component, "lacks 0 packages of the lock, and has 1 that are not in it"),
        (bundle.CYCLONEDX, lambda d: d["metadata"]["component"].update(hashes=[]), "about another image"),
        (bundle.CYCLONEDX, lambda d: d.update(version=2), "no statement of provenance names it"),
        (bundle.PROVENANCE, other_subject, "about another image"),
        (bundle.PROVENANCE, other_layer, "names other layers than the image has"),
        (bundle.PROVENANCE, other_diff_id, "other layers than the image's config has"),
        (bundle.PROVENANCE, other_key, "layers are not those of recipe and lock"),
        (bundle.PROVENANCE, other_recipe, "another recipe or lock than those attached"),
        (bundle.PROVENANCE, lambda d: d.update(_type="x"), "not a statement"),
        (bundle.REPORT, other_report, "about another image"),
        (bundle.REPORT, lying_report, "the smoke test failed"),
    ],
)
def test_forgeries_are_found_without_a_key(
    world: World, kind: bundle.DocumentKind, change: Callable[[Any], None], words: str
) -> None:
    world.push()
    world.forge(kind, change)
    result = world.verify(None)
    assert statuses(result)[kind.name] == "failed"
    assert words in detail(result, kind.name)
    keyed = world.verify()
    assert detail(keyed, kind.name) == "it is attached, but not signed with this key"


def test_a_forgery_beside_the_real_one_changes_nothing(world: World) -> None:
    world.push()
    index = ("team/cpu", reader.fallback_tag(world.image.manifest))
    before = json.loads(world.registry.manifests[index][1])["manifests"]
    world.forge(bundle.SPDX, drop_package)
    after = json.loads(world.registry.manifests[index][1])["manifests"]
    rows = [after[-1], *before]
    whole = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": rows}
    world.registry.manifests[index] = (OCI_INDEX, json.dumps(whole).encode())
    assert world.verify(None).passed
    assert world.verify().passed


def test_a_failed_report_is_no_proof(tmp_path: Path) -> None:
    store = Store(tmp_path / "failed")
    image, source = put_proven(store, passed=False)
    with serve(FakeRegistry()) as registry:
        world = World(registry=registry, store=store, image=image, source=source)
        world.push(waivers=("untested",))
        assert detail(world.verify(), "report") == "the smoke test failed"
        assert inspection.from_registry(world.client(), world.store).verdict == "failed"


def test_a_lost_layer(world: World) -> None:
    world.push()
    del world.registry.blobs["team/cpu", world.image.layers[1].record.digest]
    assert "lost 1 of them" in detail(world.verify(), "layers")


def test_layers_that_this_host_makes_otherwise(own: World) -> None:
    own.push()
    _, plan = own.source.read()
    own.store.put_layer(plan.layers[1].key, own.image.layers[0].record)
    result = own.verify()
    assert "made other bytes" in detail(result, "layers")


def test_an_image_without_bytecode_that_this_host_has_made(own: World) -> None:
    """Which layers are empty follows from the wheels: that an image lacks one is checked where it can be."""
    own.push()
    _, plan = own.source.read()
    (lacking,) = {layer.title for layer in plan.layers} - {layer.title for layer in own.image.layers}
    (layer,) = [layer for layer in plan.layers if layer.title == lacking]
    own.store.layer_path(layer.key).unlink()
    assert own.verify().passed
    own.store.put_layer(layer.key, own.image.layers[0].record)
    result = own.verify()
    assert detail(result, "plan") == (
        f"the image lacks `{lacking}`, which this host made from the same recipe and lock"
    )
    assert not result.passed


def test_a_config_that_the_recipe_does_not_give(own: World) -> None:
    blob = own.store.blob(own.image.config)
    config = json.loads(blob.read_bytes())
    config["config"]["Env"].append("LD_PRELOAD=/tmp/evil.so")
    digest, size = own.store.put_bytes(json.dumps(config).encode())
    manifest = json.loads(own.store.blob(own.image.manifest).read_bytes())
    manifest["config"].update(digest=digest, size=size)
    other, _ = own.store.put_bytes(json.dumps(manifest).encode())
    image = dataclasses.replace(own.image, manifest=other, config=digest)
    dataclasses.replace(own, image=image).push()
    result = dataclasses.replace(own, image=image).verify()
    assert "give another config: config differ" in detail(result, "plan")
    assert not result.passed


def test_an_image_of_another_version(own: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagebuilder.publish.attest.provenance.__version__", "9.9")
    own.push()
    monkeypatch.undo()
    assert own.verify().passed
    recipe = own.source.recipe.replace("port: 2222", "port: 2223")
    documents = bundle.documents(own.image, own.store, own.source)
    assert documents
    source = bundle.ImageDocument(
        kind=bundle.SOURCE,
        files={"recipe.yaml": recipe.encode(), "recipe.lock": own.source.lock.encode()},
    )
    own.remove(bundle.SOURCE)
    subject = bundle.subject_of(own.image, own.store)
    artefacts.attach(Client(parse(own.repository), OPTIONS, "push"), [source.artefact(subject)])
    result = own.verify(None)
    assert statuses(result)["plan"] == "not checked"
    assert detail(result, "plan") == f"made by imagebuilder 9.9, this is {__version__}"


def test_signatures_stand_beside_each_other(world: World) -> None:
    world.push()
    world.push()
    digest = world.image.manifest
    tag = ("team/cpu", signature.tag_of(digest))
    assert len(json.loads(world.registry.manifests[tag][1])["layers"]) == 1
    world.push(OTHER)
    assert len(json.loads(world.registry.manifests[tag][1])["layers"]) == 2
    assert world.verify(OTHER).passed
    assert world.verify(KEY).passed


def test_a_signature_of_another_image_is_none(world: World) -> None:
    world.push()
    elsewhere = f"sha256:{'e' * 64}"
    client = Client(parse(world.repository), OPTIONS, "push")
    world.registry.manifests["team/cpu", signature.tag_of(elsewhere)] = world.registry.manifests[
        "team/cpu", signature.tag_of(world.image.manifest)
    ]
    assert signature.is_signed(client, world.image.manifest, KEY.public_key())
    assert not signature.is_signed(client, elsewhere, KEY.public_key())


def test_only_what_is_listed_before_the_upload_is_attached(world: World) -> None:
    """A gate that looks at `bundle.documents` has seen all that goes up beside the image."""
    listed = {
        documents.digest_of(data) for document in documents_of(world) for data in document.files.values()
    }
    world.push()
    manifests = [json.loads(data) for _, data in world.registry.manifests.values()]
    attached = [manifest for manifest in manifests if "subject" in manifest]
    assert {layer["digest"] for manifest in attached for layer in manifest["layers"]} == listed
    client = world.client()
    (statement,) = envelope.statements(client, world.image.manifest, KEY.public_key())
    assert documents.digest_of(statement) in listed


def copied(world: World, path: str) -> str:
    """Copy all of a repository into another one of the registry, as whoever may push there can."""
    for (_, name), manifest in tuple(world.registry.manifests.items()):
        world.registry.manifests[path, name] = manifest
    for (_, name), blob in tuple(world.registry.blobs.items()):
        world.registry.blobs[path, name] = blob
    return f"{world.registry.host}/{path}"


def test_a_signature_counts_in_the_repository_that_it_was_made_for(world: World, tmp_path: Path) -> None:
    world.push()
    name = f"{copied(world, 'other/cpu')}@{world.image.manifest}"
    key, store = ("--key", written(tmp_path, KEY)), ("--store", world.store.root)
    code, out, _ = command("verify", name, *key, *store)
    assert (code, out.splitlines()[-1]) == (1, "NOT verified")
    assert f"this key signed it for {world.repository}, not for the repository that it is in" in out
    assert f"add --signed-for {world.repository}" in out
    code, out, _ = command("verify", name, *key, *store, "--signed-for", world.repository)
    assert (code, out.splitlines()[-1]) == (0, "verified")
    assert command("verify", name, *key, *store, "--signed-for", f"{world.repository}x")[0] == 1
    refused = CliRunner().invoke(app, ["verify", name, "--signed-for", world.repository]).exception
    assert isinstance(refused, InputError)
    # Whoever signs the copy signs it for its repository.
    client = published.open_image(name, OPTIONS)
    assert signature.sign(client, world.image.manifest, KEY)
    assert not signature.sign(client, world.image.manifest, KEY)
    assert published.read(client, KEY.public_key()).signed


@pytest.mark.parametrize(
    ("told", "repository"),
    [
        ("registry.example/team/x", "registry.example/team/x"),
        ("registry.example/team/x:latest", "registry.example/team/x"),
        ("index.docker.io/library/x", "docker.io/library/x"),
        ("x", "docker.io/library/x"),
        ("not a name\x1b", "not a name\\x1b"),
    ],
)
def test_repositories_as_other_tools_write_them(told: str, repository: str) -> None:
    assert signature._repository(told) == repository


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer["annotations"].clear(),
        lambda layer: layer["annotations"].update({signature.ANNOTATION: "%%%"}),
        lambda layer: layer["annotations"].update({signature.ANNOTATION: "AAAA"}),
        lambda layer: layer.update(mediaType="text/plain"),
        lambda layer: layer.update(size=1 << 40),
        lambda layer: layer.update(digest=f"sha256:{'0' * 64}"),
    ],
)
def test_broken_signatures_are_none(world: World, change: Callable[[Any], None]) -> None:
    world.push()
    tag = ("team/cpu", signature.tag_of(world.image.manifest))
    manifest = json.loads(world.registry.manifests[tag][1])
    change(manifest["layers"][0])
    world.registry.manifests[tag] = (OCI_MANIFEST, json.dumps(manifest).encode())
    assert statuses(world.verify())["signature"] == "failed"


def test_rubbish_that_is_attached_is_passed_over(world: World) -> None:
    world.push()
    tag = ("team/cpu", reader.fallback_tag(world.image.manifest))
    index = json.loads(world.registry.manifests[tag][1])
    rubbish = json.dumps({"schemaVersion": 2, "config": {}}).encode()
    foreign = artefacts.Artefact(
        artifact_type="application/x.\x1b[31mred",
        subject=bundle.subject_of(world.image, world.store),
        parts=(),
    ).manifest()
    stray = artefacts.Artefact(
        artifact_type=bundle.SPDX.artifact_type,
        subject=reader.Descriptor(media_type=OCI_MANIFEST, digest=f"sha256:{'9' * 64}", size=1),
        parts=(),
    ).manifest()
    bare = artefacts.Artefact(
        artifact_type=bundle.SPDX.artifact_type,
        subject=bundle.subject_of(world.image, world.store),
        parts=(),
    ).manifest()
    rows = []
    for data in (rubbish, foreign, stray, bare):
        digest = documents.digest_of(data)
        world.registry.manifests["team/cpu", digest] = (OCI_MANIFEST, data)
        rows.append({"mediaType": OCI_MANIFEST, "digest": digest, "size": len(data)})
    gone = {"mediaType": OCI_MANIFEST, "digest": f"sha256:{'8' * 64}", "size": 5}
    index["manifests"] = [gone, *rows, *index["manifests"]]
    world.registry.manifests[tag] = (OCI_INDEX, json.dumps(index).encode())
    assert world.verify().passed
    found = inspection.from_registry(world.client(), world.store)
    assert [document.kind for document in found.documents] == [
        kind.name
        for kind in (
            bundle.SPDX,
            bundle.CYCLONEDX,
            bundle.REPORT,
            bundle.PROVENANCE,
            bundle.SOURCE,
        )
    ]
    assert found.others == (
        "(cannot be read)",
        "(cannot be read)",
        "application/x.\x1b[31mred",
        "(cannot be read)",
    )


def test_inspection_of_a_registry(world: World) -> None:
    world.push(waivers=("untested",))
    found = inspection.from_registry(published.open_image(f"{world.repository}:latest", OPTIONS), world.store)
    assert (found.digest, found.size, found.lock) == (
        world.image.manifest,
        world.image.size,
        world.image.lock,
    )
    assert found.tags == ("latest", "one")
    assert found.pins["openmpi"] == "5.0.7"
    assert [(layer.title, layer.component, layer.size) for layer in found.layers] == [
        (layer.title, layer.component, layer.record.size) for layer in world.image.layers
    ]
    assert (found.verdict, found.signature, found.waivers) == ("passed", "present", ("untested",))
    assert {document.kind for document in found.documents} == {kind.name for kind in bundle.KINDS}
    assert all(document.signed for document in found.documents)


def test_inspection_of_what_others_made(world: World) -> None:
    push(world.image, world.store, world.repository, ["one"], options=OPTIONS)
    manifest = json.loads(world.registry.manifests["team/cpu", "one"][1])
    for config in (b"{}", b'{"config": 1, "history": [1], "rootfs": []}'):
        digest = documents.digest_of(config)
        world.registry.blobs["team/cpu", digest] = config
        manifest["config"].update(digest=digest, size=len(config))
        world.registry.manifests["team/cpu", "foreign"] = (OCI_MANIFEST, json.dumps(manifest).encode())
        found = inspection.from_registry(
            published.open_image(f"{world.repository}:foreign", OPTIONS), world.store
        )
        assert (found.name, found.pins, found.verdict, found.signature) == ("", {}, "none", "none")
        assert [layer.title for layer in found.layers] == [""] * len(world.image.layers)
    world.registry.blobs["team/cpu", digest] = b"[]" + b" " * (len(config) - 2)
    with pytest.raises(RegistryError, match="other bytes"):
        inspection.from_registry(published.open_image(f"{world.repository}:foreign", OPTIONS), world.store)


def test_inspection_of_the_store(own: World) -> None:
    found = inspection.from_store("cpu-mpi", own.image, own.store)
    assert (found.place, found.digest, found.verdict) == ("store", own.image.manifest, "passed")
    assert found.pins["openmpi"] == "5.0.7"
    above = ["python", "python", "python", "settings"]
    assert [layer.component for layer in found.layers] == [*["debian"] * 8, *above]
    own.store.report(own.image.manifest).write_text("{}")
    assert inspection.from_store("x", own.image, own.store).report.startswith("is not a smoke report")
    own.store.report(own.image.manifest).unlink()
    assert inspection.from_store("x", own.image, own.store).report == "not tested"


def test_an_image_needs_a_tag_or_a_digest() -> None:
    with pytest.raises(InputError, match="not an image"):
        published.open_image("registry.example/team/x", OPTIONS)


def command(*words: str | Path) -> tuple[int, str, str]:
    """Run the command line in this process: exit code, standard output and standard error."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


def written(folder: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    path = folder / "cosign.pub"
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    path.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, kind))
    return path


def test_the_command_that_verifies(world: World, tmp_path: Path) -> None:
    world.push(waivers=("untested",))
    name, key = f"{world.repository}:one", written(tmp_path, KEY)
    store = ("--store", world.store.root)
    code, out, err = command("verify", name, "--key", key, *store)
    assert (code, out.splitlines()[-1]) == (0, "verified")
    assert out.startswith(f"{world.repository}@{world.image.manifest}\n")
    assert "these gates were waived when the image was pushed: untested" in err
    code, out, _ = command("verify", name, "--key", written(tmp_path, OTHER), *store, "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["error"]) == (1, False, {"code": 1, "problems": []})
    (image,) = found["result"]["images"]
    assert (image["passed"], image["digest"]) == (False, world.image.manifest)
    # Nothing is ever made from a recipe that the key did not sign.
    code, out, _ = command("verify", name, "--key", tmp_path / "cosign.pub", "--rebuild", *store)
    assert (code, "there is no recipe and lock to build it from" in out) == (1, True)


def test_a_rebuild_proves_an_image_by_its_digest(world: World) -> None:
    world.push()
    image = published.read(world.client(), KEY.public_key())
    asked: list[tuple[str, str]] = []

    def check(digest: str) -> tuple[str, str]:
        def rebuild(
            _: RecipeSource, platform: str, distribution: str, project: Project, kept: str, zstd: bool
        ) -> Rebuilt:
            assert (project, kept, zstd) == (Project(), "", False)
            asked.append((platform, distribution))
            layers = (image.manifest.layers[0].digest, f"sha256:{64 * '1'}")
            return Rebuilt(digest=digest, layers=layers, seconds=1.5)

        made = rebuild_check(world.source, image, rebuild)
        return made.status, made.detail

    assert check(image.digest) == ("passed", "the same digest, in 1.5 s")
    other = f"sha256:{64 * '0'}"
    told = f"recipe and lock give {other} here; 1 of 2 layers are the same"
    assert check(other) == ("failed", told)
    assert asked == [("linux/amd64", "debian")] * 2
    lock = re.sub(r'"inputs": "[0-9a-f]+"', f'"inputs": "{64 * "0"}"', world.source.lock)
    stale = dataclasses.replace(world.source, lock=lock)
    assert rebuild_check(stale, image, lambda *_: pytest.fail("built")).status == "failed"


def test_a_rebuild_needs_the_user_s_own_files(world: World) -> None:
    world.push()
    labels = {
        "org.imagebuilder.project": "a b",
        "org.imagebuilder.package": "trainer c",
        "org.opencontainers.image.revision": "3f9c",
    }
    image = published.read(world.client(), KEY.public_key())
    image = dataclasses.replace(image, config={**image.config, "config": {"Labels": labels}})

    def said(project: Project | None) -> str:
        folders = tuple(
            CopiedFolder(source=source, target="/x", names=(), bytes=0) for source in ("one", "two", "..")
        )
        copied = Copied(project=project, folders=folders) if project else None
        check = rebuild_check(world.source, image, lambda *_: pytest.fail("built"), copied)
        assert check.status == "not checked"
        return check.detail

    assert said(None) == (
        "it contains files of yours, which are not attached: check them out at revision 3f9c, and give the "
        "recipe beside them with --recipe"
    )
    assert said(Project(checksums=("a", "x"), package="y")) == (
        "it contains other files of yours than are here in two and ..: check them out at revision 3f9c"
    )
    assert said(Project(checksums=("a",))) == (
        "it contains 3 folders of yours, and the recipe given copies 1"
    )


def test_the_command_that_inspects_shows_no_escapes(world: World) -> None:
    push(world.image, world.store, world.repository, ["one"], options=OPTIONS)
    config = json.loads(world.store.blob(world.image.config).read_bytes())
    red = "\x1b[31mred\x07\u202e"
    config["config"]["Labels"] = {f"org.imagebuilder.pin.{red}": red, "org.opencontainers.image.title": red}
    config["history"] = [{"created_by": red} for _ in world.image.layers]
    manifest = json.loads(world.registry.manifests["team/cpu", "one"][1])
    data = json.dumps(config).encode()
    manifest["config"].update(digest=documents.digest_of(data), size=len(data))
    world.registry.blobs["team/cpu", documents.digest_of(data)] = data
    world.registry.manifests["team/cpu", "odd"] = (OCI_MANIFEST, json.dumps(manifest).encode())
    for words in (("inspect",), ("inspect", "--json"), ("verify",), ("verify", "--json")):
        code, out, err = command(*words, f"{world.repository}:odd", "--store", world.store.root)
        assert code == (0 if words[0] == "inspect" else 1)
        assert not {"\x1b", "\x07", "\u202e"} & set(out + err)
    assert "\\x1b[31mred" in command("inspect", f"{world.repository}:odd")[1]


def test_the_command_that_inspects_the_store(world: World) -> None:
    code, out, _ = command("inspect", "cpu-mpi", "--store", world.store.root)
    assert code == 0
    assert f"digest     {world.image.manifest}" in out
    assert "openmpi 5.0.7" in out
    with pytest.raises(InputError, match="not an image in the store"):
        CliRunner().invoke(app, ["inspect", "nothing-here"], catch_exceptions=False)


def derive(world: World, change: Callable[[dict[str, Any], dict[str, Any]], None] | None = None) -> str:
    """Put an image of `FROM` the pushed one and two steps into another repository, with a report on it.

    `change` gets config and manifest.
    """
    repository, shop = "team/mytrain", world.registry
    manifest = json.loads(shop.manifests["team/cpu", world.image.manifest][1])
    config = json.loads(shop.blobs["team/cpu", manifest["config"]["digest"]])
    layer = b"a layer of somebody else's"
    digest = documents.digest_of(layer)
    config["history"] += [
        {"created_by": "RUN pip install mytrain", "created": "2026-01-01T00:00:00Z"},
        {"created_by": "ENV A=1", "empty_layer": True},
    ]
    config["rootfs"]["diff_ids"].append(digest)
    manifest["layers"].append({"mediaType": OCI_LAYER, "digest": digest, "size": len(layer)})
    if change:
        change(config, manifest)
    data = json.dumps(config).encode()
    manifest["config"] |= {"digest": documents.digest_of(data), "size": len(data)}
    for blob in (layer, data):
        shop.blobs[repository, documents.digest_of(blob)] = blob
    for entry in manifest["layers"]:
        shop.blobs.setdefault(
            (repository, entry["digest"]), shop.blobs.get(("team/cpu", entry["digest"]), b"")
        )
    raw = json.dumps(manifest).encode()
    name = documents.digest_of(raw)
    shop.manifests[repository, name] = (OCI_MANIFEST, raw)
    report = report_of(dataclasses.replace(world.image, manifest=name))
    attached = bundle.ImageDocument(
        kind=bundle.REPORT, files={bundle.REPORT.files[0][0]: reports.dumps(report).encode()}
    )
    subject = reader.Descriptor(media_type=OCI_MANIFEST, digest=name, size=len(raw))
    client = Client(parse(f"{world.registry.host}/{repository}"), OPTIONS, "pull,push")
    artefacts.attach(client, [attached.artefact(subject)])
    return f"{world.registry.host}/{repository}@{name}"


def verify_derived(world: World, image: str, base: str = "") -> Verified:
    request = VerifyRequest(target=image, base=base)
    return verify(request, world.store, Site())


def test_a_derived_image_is_not_verified_without_its_base(world: World) -> None:
    world.push(None)
    found = verify_derived(world, derive(world))
    assert not found.passed
    (result,) = found.images
    assert statuses(result) == {
        "signature": "not checked",
        "base": "failed",
        "report": "passed",
        "layers": "passed",
    }
    assert detail(result, "base") == (
        "derived from cpu-mpi, 2 steps on top: RUN pip install mytrain; ENV A=1; name the image below as "
        "--base REPOSITORY@DIGEST"
    )


def test_a_derived_image_is_verified_with_its_base(world: World) -> None:
    world.push(None)
    base = f"{world.repository}@{world.image.manifest}"
    below, result = verify_derived(world, derive(world), base).images
    assert (below.passed, result.passed) == (True, True)
    assert below.reference == base
    assert detail(result, "base") == f"12 layers of {base}, 2 steps on top: RUN pip install mytrain; ENV A=1"
    world.remove(bundle.PROVENANCE)
    assert not verify_derived(world, derive(world), base).passed


def other_layers(config: dict[str, Any], _manifest: dict[str, Any]) -> None:
    config["rootfs"]["diff_ids"][3] = "sha256:" + "0" * 64


def other_pins(config: dict[str, Any], _manifest: dict[str, Any]) -> None:
    config["config"]["Labels"]["org.imagebuilder.pin.openmpi"] = "6.0.0"


def weaker_demands(config: dict[str, Any], _manifest: dict[str, Any]) -> None:
    config["config"]["Labels"]["org.imagebuilder.proof"] = "{}"


def hidden_steps(config: dict[str, Any], _manifest: dict[str, Any]) -> None:
    for row in config["history"][-2:]:
        row["created_by"] = oci.CREATED_BY + "more settings"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_layers, "its lower layers are not those of "),
        (other_pins, "its labels differ from its base's: org.imagebuilder.pin.openmpi"),
        (weaker_demands, "its labels differ from its base's: org.imagebuilder.proof"),
    ],
)
def test_a_derived_image_that_is_not_what_it_says(
    world: World, change: Callable[[dict[str, Any], dict[str, Any]], None], said: str
) -> None:
    world.push(None)
    found = verify_derived(world, derive(world, change), f"{world.repository}@{world.image.manifest}")
    assert not found.passed
    assert detail(found.images[-1], "base").startswith(said)


def test_steps_under_our_name_need_our_documents(world: World) -> None:
    world.push(None)
    image = derive(world, hidden_steps)
    (result,) = verify_derived(world, image).images
    assert statuses(result)["source"] == "failed"
    with pytest.raises(InputError, match="so it has no such base"):
        verify_derived(world, image, f"{world.repository}@{world.image.manifest}")
