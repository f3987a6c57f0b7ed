"""What an image was built from, kept beside it in its repository, and taken from there."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from imagebuilder.core.progress import LineProgress
from imagebuilder.errors import FetchError, InputError
from imagebuilder.fetch import locked
from imagebuilder.host.site import Site
from imagebuilder.lock.model import Build, Lock, ProjectBuild, Source
from imagebuilder.publish import inputs
from imagebuilder.publish import push as publishing
from imagebuilder.publish.attest import bundle, published
from imagebuilder.registry import Client, Destination, Options, parse, reader
from imagebuilder.registry.cache import Cache
from imagebuilder.registry.credentials import ANONYMOUS
from imagebuilder.store import ImageRecord, Store
from tests.support.fake_registry import FakeRegistry, serve
from tests.support.proven import put_proven
from tests.support.pushing import push
from tests.unit import samples

OPTIONS = Options(session=requests.Session(), credentials=ANONYMOUS, attempts=1)
# Nothing but the registry can be reached.
NOWHERE = Site(
    index="http://127.0.0.1:9/", apt_mirror="http://127.0.0.1:9", apt_security_mirror="http://127.0.0.1:9"
)


@pytest.fixture(params=[True, False], ids=["referrers", "tag"])
def registry(request: pytest.FixtureRequest) -> Iterator[FakeRegistry]:
    with serve(FakeRegistry(lists_referrers=request.param)) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def put(store: Store, name: str) -> dict[str, object]:
    """Put a file into the store; gives the size and hash that a lock has of it."""
    data = f"the bytes of {name}".encode()
    sha256 = hashlib.sha256(data).hexdigest()
    place = store.download(sha256)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return {"size": len(data), "sha256": sha256}


def lock(store: Store) -> Lock:
    """A lock with a file of each kind, all of them in the store."""
    layer = samples.base_layer()
    file = put(store, "layer")
    layer = layer.model_copy(update={"digest": f"sha256:{file['sha256']}", "size": file["size"]})
    source = Source.model_validate(
        {"name": "x", "version": "1.0", "file": "x-1.0.tar.gz", **put(store, "source")}
    )
    gcc, tool, numpy, torch, bash = (
        samples.deb("gcc").model_copy(update=put(store, "gcc")),
        samples.wheel("tool").model_copy(update=put(store, "tool")),
        samples.wheel("numpy").model_copy(update=put(store, "numpy")),
        samples.wheel("hatchling").model_copy(update=put(store, "hatchling")),
        samples.deb("bash").model_copy(update=put(store, "bash")),
    )
    build = Build(
        component="x", version="1.0", packages=(), system=(), debs=(gcc,), wheels=(tool,), sources=(source,)
    )
    return samples.lock(
        debs=(bash,),
        wheels=(numpy,),
        builds=(build,),
        image=samples.base_image(layers=(layer,)),
        project=ProjectBuild(name="mine", requires=("hatchling",), wheels=(torch,)),
    )


def keep(registry: FakeRegistry, store: Store) -> tuple[ImageRecord, Lock, str]:
    image, _ = put_proven(store)
    name = f"{registry.host}/team/x"
    push(image, store, name, ["one"], options=OPTIONS)
    made = lock(store)
    destination = Destination(reference=name, options=OPTIONS)
    digest = inputs.attach(destination, bundle.subject_of(image, store), made, store, lambda _count: None)
    return image, made, digest


def test_every_file_of_the_lock_is_a_blob_that_the_artefact_names(
    registry: FakeRegistry, store: Store
) -> None:
    image, made, digest = keep(registry, store)
    assert made.image is not None
    client = Client(parse(f"{registry.host}/team/x:one"), OPTIONS)
    assert [item.digest for item in reader.referrers(client, image.manifest)] == [digest]
    _, manifest = reader.image_manifest(client, digest)
    assert manifest.artifact_type == "application/vnd.imagebuilder.inputs.v1"
    assert {item.annotations["org.opencontainers.image.title"] for item in manifest.layers} == {
        "bash_1.0-1_amd64.deb", "gcc_1.0-1_amd64.deb", "numpy-1.0-py3-none-any.whl", "x-1.0.tar.gz",
        "tool-1.0-py3-none-any.whl", "hatchling-1.0-py3-none-any.whl", made.image.layers[0].digest,
    }  # fmt: skip
    for item in manifest.layers:
        assert registry.blobs["team/x", item.digest] == store.download(item.digest[7:]).read_bytes()
    # Other readers of the image see it as an attachment of a kind that they do not read.
    assert published.read(client).others == ("application/vnd.imagebuilder.inputs.v1",)


def test_keeping_again_sends_nothing(registry: FakeRegistry, store: Store) -> None:
    _, _, digest = keep(registry, store)
    opened = registry.opened
    assert keep(registry, store)[2] == digest
    assert registry.opened == opened


def test_a_fresh_store_is_filled_from_the_registry_alone(
    registry: FakeRegistry, store: Store, tmp_path: Path
) -> None:
    _, made, _ = keep(registry, store)
    packages = (*made.image.layers, *made.files) if made.image else ()
    fresh = Store(tmp_path / "fresh")
    cache = Cache(f"{registry.host}/team/x", NOWHERE, pytest.fail)
    locked.fetch(
        packages, made, fresh, NOWHERE, cache=cache, advance=lambda _k, _c: None, finished=lambda _k: None
    )
    assert locked.absent(packages, fresh) == ()


def test_other_bytes_under_a_digest_are_not_taken(
    registry: FakeRegistry, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made, _ = keep(registry, store)
    (deb,) = made.debs
    place = ("team/x", f"sha256:{deb.sha256}")
    registry.blobs[place] = b"?" * len(registry.blobs[place])
    fresh, warnings = Store(tmp_path / "fresh"), list[str]()
    monkeypatch.setattr("imagebuilder.fetch.download._PAUSE", 0.001)
    with pytest.raises(FetchError, match="bash_1"):
        locked.fetch(
            (deb,),
            made,
            fresh,
            NOWHERE,
            cache=Cache(f"{registry.host}/team/x", NOWHERE, warnings.append),
            advance=lambda _k, _c: None,
            finished=lambda _k: None,
        )
    assert len(warnings) == 1
    assert not fresh.download(deb.sha256).exists()


def test_what_the_store_lost_is_downloaded_before_anything_is_sent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(locked, "fetch", lambda packages, *_words, **_more: asked.append(packages))
    made, progress = lock(store), LineProgress(io.StringIO())
    inputs.bring(made, store, NOWHERE, progress)
    assert asked == []
    store.download(made.wheels[0].sha256).unlink()
    inputs.bring(made, store, NOWHERE, progress)
    assert asked == [made.wheels]


def test_sources_without_recipe_and_lock_are_of_no_use(store: Store) -> None:
    request = publishing.PushRequest(target="x", repository="r.example/x", sources=True, attach=False)
    with pytest.raises(InputError) as caught:
        publishing.prepare(request, store)
    assert str(caught.value) == (
        "--sources: nobody could build from the sources: --no-attach leaves out the recipe and the lock\n"
        "  -> leave out --no-attach"
    )
