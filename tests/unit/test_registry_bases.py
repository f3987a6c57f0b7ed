"""A base from a registry in recipe, lock, plan, Dockerfile and what is attached to an image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packageurl import PackageURL

from imagebuilder import catalog, recipe
from imagebuilder import plan as plans
from imagebuilder.catalog import limits, select
from imagebuilder.core import files, tarstream
from imagebuilder.core.progress import no_advance
from imagebuilder.errors import BuildError, InputError
from imagebuilder.image import diff, oci
from imagebuilder.layers.imported import import_layer
from imagebuilder.lock import file as lockfile
from imagebuilder.lock.file import LockFile
from imagebuilder.lock.model import BaseLayer, Lock
from imagebuilder.plan import ImportedLayer, Plan, UpperOsLayer
from imagebuilder.plan.render import render
from imagebuilder.publish.attest import provenance, sbom
from imagebuilder.recipe import Recipe
from imagebuilder.resolve import basefit
from imagebuilder.resolve.request import ArchivePin, request
from imagebuilder.store import LayerRecord, Store
from tests.support import standin_base
from tests.unit import samples

IMAGE = {"image": "nvidia/cuda:12.8.1-base-debian13"}
DIGEST = f"sha256:{'b' * 64}"


def loaded(folder: Path, text: str) -> Recipe:
    path = folder / "r.yaml"
    path.write_text(f'name: r\npython: "3.13"\n{text}', encoding="utf-8")
    return recipe.load(path, catalog.names())


def locked(**changes: object) -> Lock:
    return samples.lock(image=samples.base_image(**changes))


def planned(user: str = "root", **changes: object) -> Plan:
    return plans.plan(
        select(samples.recipe(base=IMAGE, ssh={"user": user, "port": 2222})), locked(**changes), ()
    )


def test_a_base_is_a_suite_or_an_image(tmp_path: Path) -> None:
    image = loaded(tmp_path, f'base: {{image: "registry.example:5000/a/b:1@{DIGEST}"}}\n').image
    assert image is not None
    assert (image.name, image.pinned) == ("registry.example:5000/a/b:1", DIGEST)
    assert loaded(tmp_path, "base: debian:trixie\n").image is None


@pytest.mark.parametrize(
    ("base", "message", "hint"),
    [
        ('{image: "nvidia/cuda"}', "base.image: `nvidia/cuda` names a repository", "`nvidia/cuda:TAG`"),
        ('{image: "https://x.example/a:1"}', "it holds a scheme", "write `x.example/a:1`"),
        ('{image: "a:1", digest: "sha256:12"}', "base.digest: `sha256:12` is not a digest", "64 hexadecimal"),
        (
            f'{{image: "a:1@{DIGEST}", digest: "sha256:{"c" * 64}"}}',
            "gives two different digests",
            "keep one",
        ),
        ('{image: "a:1", tag: "2"}', "base.tag: `tag` is not a known key", "known here: digest, image"),
        (f'{{digest: "{DIGEST}"}}', "base.image: `image` is missing", "add `image:`"),
        ("{image: [a]}", "base.image: must be text, not a list", "quotes"),
        ("[a]", "base: must be text, not a list", "quotes"),
        ("nvidia/cuda:12.8.1", "base: `nvidia/cuda:12.8.1` is not a base", '{image: "nvidia/cuda:12.8.1"}'),
    ],
)
def test_a_wrong_base_is_refused_where_it_stands(base: str, message: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        loaded(tmp_path, f"base: {base}\n")
    (problem,) = caught.value.problems
    assert message in str(problem)
    assert "r.yaml:3: base" in problem.where
    assert hint in problem.hint


def test_nothing_is_compiled_on_a_base(tmp_path: Path) -> None:
    text = 'base: {image: "debian:trixie-slim"}\npins: {openmpi: "5.0.7"}\nbuild: [openmpi]\n'
    with pytest.raises(InputError, match="the base has to be a suite"):
        loaded(tmp_path, text)


def test_a_lock_with_a_base_is_the_same_after_writing_and_reading() -> None:
    lock = locked()
    text = lockfile.dumps(LockFile(sections=(lock,)))
    assert lockfile.loads(text, "x.lock").sections[0] == lock
    # A package a line, as everywhere in a lock; others say nothing of bases.
    assert text.count('\n     {"name": ') == len(samples.base_image().packages)
    assert '"image"' not in lockfile.dumps(LockFile(sections=(samples.lock(),)))
    assert '"archive"' not in text


def test_added_packages_replace_those_of_the_base() -> None:
    below = (samples.installed("bash"), samples.installed("openmpi-bin", "4.0-1"))
    versions = {package.name: package.version for package in locked(packages=below).installed}
    assert versions["openmpi-bin"] == "5.0.7-1"
    assert versions["bash"] == "1.0-1"


def test_the_base_s_layers_come_first_and_the_packages_are_a_difference_to_them() -> None:
    plan = planned()
    first, second, system = plan.layers[:3]
    assert isinstance(first, ImportedLayer)
    assert isinstance(second, ImportedLayer)
    assert isinstance(system, UpperOsLayer)
    assert system.below == (first.blob, second.blob)
    other = planned(layers=(samples.base_layer("e"),)).layers[1]
    assert other.key != system.key
    # What the base is called says nothing about bytes.
    assert [layer.key for layer in planned(name="other:1").layers] == [layer.key for layer in plan.layers]


def test_variables_of_the_base_lie_under_the_image_s_own() -> None:
    env = dict(
        planned(
            env={"HOME": "/base", "CUDA_VERSION": "12.8.1", "LANG": "C", "PATH": "/x:/usr/bin"}
        ).config.env
    )
    assert env["PATH"] == f"{plans.PATH}:/x"
    assert (env["CUDA_VERSION"], env["LANG"]) == ("12.8.1", "C.UTF-8")
    assert "HOME" not in env
    own = samples.recipe(base=IMAGE, env={"LD_LIBRARY_PATH": "/own"})
    assert plans.environment(select(own), locked())["LD_LIBRARY_PATH"] == "/own:/usr/local/nvidia/lib"


def test_the_drivers_that_the_base_runs_on_hold_unless_another_cuda_is_forced() -> None:
    drivers = "cuda>=12.8 brand=tesla,driver>=535,driver<536"
    image = samples.base_image(env={"CUDA_VERSION": "12.8.1", "NVIDIA_REQUIRE_CUDA": drivers})
    lock = samples.lock(image=image, pins={"cuda": "12.8.90"})

    def required(**more: object) -> str:
        recipe = samples.recipe(base=IMAGE, pins={"cuda": "12.8"}, **more)
        return plans.environment(select(recipe), lock)["NVIDIA_REQUIRE_CUDA"]

    assert required() == drivers
    assert required(env={"NVIDIA_REQUIRE_CUDA": "cuda>=12"}) == "cuda>=12"
    assert required(override=("cuda",)) == "cuda>=12.8"


SERVED = "the branches 535, 550, with which the base's cuda-compat works"
DRIVERS = "cuda>=12.8 brand=tesla,driver>=535,driver<536 brand=unknown,driver>=550,driver<551"


@pytest.mark.parametrize(
    ("driver", "changes", "hint"),
    [
        ("535.183.06", {}, ""),
        ("550.54", {}, ""),
        ("570.86", {}, ""),
        (
            "560.28",
            {},
            f'give the hosts driver 570.26 or one of {SERVED}, or set cuda: "12.6"',
        ),
        ("535.183.06", {"packages": ()}, 'give the hosts driver 570.26, or set cuda: "12.2"'),
        (
            "535.183.06",
            {"env": {"CUDA_VERSION": "12.8.1"}},
            'give the hosts driver 570.26, or set cuda: "12.2"',
        ),
    ],
)
def test_an_older_driver_is_right_where_the_base_s_cuda_compat_works_with_it(
    driver: str, changes: dict[str, object], hint: str
) -> None:
    packages = (samples.installed("cuda-compat-12-8", "570.211.01-1"),)
    env = {"CUDA_VERSION": "12.8.1", "NVIDIA_REQUIRE_CUDA": DRIVERS}
    image = samples.base_image(**{"env": env, "packages": packages, **changes})
    selection = select(samples.recipe(base=IMAGE, pins={"cuda": "12.8"}, hosts={"driver": driver}))
    older = basefit.older_drivers(selection, image)
    assert [problem.hint for problem in limits.problems(selection, {}, older)] == ([hint] if hint else [])
    notes = [f"cuda 12.8, driver {driver}: works by the base's cuda-compat alone, on data-center GPUs"]
    assert limits.notes(selection, {}, older or ()) == (notes if not hint and driver != "570.86" else [])
    # Before the base was read, nobody knows.
    assert limits.problems(selection, {}, basefit.older_drivers(selection, None)) == []


def test_a_recipe_that_copies_cuda_compat_names_the_drivers_itself() -> None:
    fields = {"pins": {"cuda": "12.8"}, "hosts": {"driver": "535.183.06"}}
    selection = select(samples.recipe(**fields, env={"NVIDIA_REQUIRE_CUDA": DRIVERS}))
    assert limits.problems(selection, {}, basefit.older_drivers(selection, None)) == []
    selection = select(samples.recipe(**fields))
    assert len(limits.problems(selection, {}, basefit.older_drivers(selection, None))) == 1


def test_labels_name_the_base_and_keep_its_own() -> None:
    labels = dict(planned().config.labels)
    assert labels["maintainer"] == "somebody"
    assert labels["org.opencontainers.image.base.name"] == IMAGE["image"]
    assert labels["org.opencontainers.image.base.digest"] == DIGEST


def test_a_lock_hands_down_no_more_than_a_base() -> None:
    """Whatever a lock says: pins and engine cannot be forged, and nothing is loaded into every program."""
    labels = {
        "org.imagebuilder.engine": "docker",
        "org.imagebuilder.pin.other": "1",
        "maintainer": "somebody",
    }
    env = {"LD_PRELOAD": "/x.so", "BASH_ENV": "/x", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib"}
    config = planned(labels=labels, env=env).config
    assert not {"org.imagebuilder.engine", "org.imagebuilder.pin.other"} & dict(config.labels).keys()
    assert not {"LD_PRELOAD", "BASH_ENV"} & dict(config.env).keys()
    assert dict(config.env)["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib"
    own = samples.recipe(base=IMAGE, env={"LD_PRELOAD": "/meant.so"})
    assert plans.environment(select(own), locked(env=env))["LD_PRELOAD"] == "/meant.so"


def test_the_user_s_number_is_one_that_the_base_does_not_have() -> None:
    assert planned("me", accounts={"ubuntu": 1000}).config.user == "1001:0"
    assert planned("ubuntu", accounts={"ubuntu": 1000, "b": 1001}).config.user == "1000:0"
    assert planned("me").config.user == "1000:0"


def test_the_dockerfile_starts_from_the_very_image() -> None:
    text = render(planned(), files.template("Dockerfile.j2"))
    assert f"\nFROM {IMAGE['image']}@{DIGEST} AS os\nUSER 0:0\n" in text
    assert "openmpi-bin=5.0.7-1" in text


def test_what_torch_loads_comes_from_wheels_and_the_rest_from_the_base() -> None:
    pins = {"cuda": "12.8", "nccl": "2.27.5"}
    alone = request(select(samples.recipe(base=IMAGE, pins=pins)))
    assert [pin.package for pin in alone.deb_pins if isinstance(pin, ArchivePin)] == [
        "cuda-cudart-12-8",
        "libnccl2",
    ]
    assert [pin.ending for pin in alone.deb_pins if isinstance(pin, ArchivePin)] == ["", "+cuda12.8"]
    loaded_by_torch = request(select(samples.recipe(base=IMAGE, pins={**pins, "torch": "2.10.0"})))
    assert {pin.package for pin in loaded_by_torch.wheel_pins} >= {
        "nvidia-nccl-cu12",
        "nvidia-cuda-runtime-cu12",
    }
    assert loaded_by_torch.linked == ()
    chosen = request(
        select(samples.recipe(base=IMAGE, pins={**pins, "torch": "2.10.0"}, providers={"nccl": "apt"}))
    )
    (linked,) = chosen.linked
    assert (linked.wheel.package, linked.package, linked.place) == (
        "nvidia-nccl-cu12",
        "libnccl2",
        "pins.nccl",
    )


def test_an_older_lock_s_checksum_holds_where_nothing_new_is_used() -> None:
    plain, with_empty = samples.recipe(), samples.recipe(providers={})
    assert request(select(plain)).checksum() == request(select(with_empty)).checksum()


def test_bills_of_materials_name_packages_of_the_base_without_a_hash() -> None:
    lock = locked()
    material = sbom.Material(name="x", digest=DIGEST, tag="x", lock=lock, debs={}, wheels={})
    for document in (json.loads(sbom.spdx(material)), json.loads(sbom.cyclonedx(material))):
        found = sbom.contents(document)
        assert found == sbom.expected(lock)
        assert ("pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=trixie", "") in found


def test_provenance_names_the_base_as_the_purl_specification_does() -> None:
    (row,) = provenance._base(locked())
    assert row["uri"] == f"pkg:oci/cuda@{DIGEST}"
    assert PackageURL.from_string(row["uri"]).to_string() == row["uri"]


def test_a_difference_counts_the_base_s_layers_before_they_were_fetched(tmp_path: Path) -> None:
    one, two = locked(), locked(layers=(samples.base_layer("a"), samples.base_layer("e")))
    plain = samples.recipe(base=IMAGE)
    store = Store(tmp_path)
    sides = [diff.of_plan("x", lock, plans.plan(select(plain), lock, ()), store) for lock in (one, two)]
    found = diff.compare(*sides)
    assert found.shared_bytes >= 1000
    assert f"sha256:{'e' * 64}" in {part.identity for part in found.new or ()}


@pytest.mark.parametrize("kind", ["gzip", "zstd", "tar"])
def test_a_layer_of_the_base_is_taken_over_byte_for_byte(kind: str, tmp_path: Path) -> None:
    made = standin_base.layer(standin_base.tar_of({"a": b"1"}), kind)
    store = Store(tmp_path)
    blob = BaseLayer(
        digest=standin_base.digest(made.blob),
        diff_id=made.diff_id,
        size=len(made.blob),
        media_type="application/vnd.oci.image.layer.v1.tar+zstd",
    )
    store.download(blob.sha256).parent.mkdir(parents=True)
    store.download(blob.sha256).write_bytes(made.blob)
    layer = ImportedLayer(blob=blob, title="base")
    record = import_layer(layer, store, no_advance)
    assert isinstance(record, LayerRecord)
    assert store.blob(record.digest).read_bytes() == made.blob
    assert (record.diff_id, record.media_type) == (made.diff_id, blob.media_type)
    with tarstream.open_layer(store.blob(record.digest)) as stream:
        assert standin_base.digest(stream.read()) == made.diff_id
    lying = blob.model_copy(update={"diff_id": DIGEST})
    with pytest.raises(BuildError, match="holds a tar with the digest"):
        import_layer(ImportedLayer(blob=lying, title="base"), store, no_advance)


def test_an_image_s_config_lists_the_base_s_tars_first() -> None:
    config = oci.image_config(planned(), ["sha256:1", "sha256:2", "sha256:3"])
    assert config["history"][0]["created_by"].endswith("layer 1 of 2")
