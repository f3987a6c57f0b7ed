"""A recipe for several platforms, from the recipe to an index in a registry; nothing is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from imagebuilder import plan as plans
from imagebuilder.catalog import select
from imagebuilder.cli import app
from imagebuilder.core import platforms
from imagebuilder.engines import embedded
from imagebuilder.errors import EnvironmentFault, GateError, ImagebuilderError, InputError, LockError
from imagebuilder.host import emulation
from imagebuilder.image import layout
from imagebuilder.lock import file as lockfile
from imagebuilder.lock import model as locks
from imagebuilder.lock.file import LockFile
from imagebuilder.plan import BytecodeLayer, OsPart
from imagebuilder.registry.reader import OCI_INDEX, OCI_MANIFEST
from imagebuilder.smoke import report as reports
from imagebuilder.store import Store, cache
from imagebuilder.workflow import (
    built_image,
    join_images,
    last_images,
    read_locks,
    read_plan,
    read_plans,
    read_recipe,
    require_in_step,
)
from imagebuilder.workflow import source as sources
from tests.support.fake_registry import FakeRegistry, serve
from tests.support.images import put_image
from tests.support.proven import put_both, put_built, report_of, two_platforms
from tests.support.pushing import push
from tests.unit import samples

pytestmark = pytest.mark.slow

BOTH = ("linux/amd64", "linux/arm64")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def recipe(tmp_path: Path, store: Store) -> Path:
    """A recipe whose images are in the store, proven and joined."""
    return put_both(tmp_path, store)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serve(FakeRegistry()) as running:
        yield running


def document(store: Store, digest: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(store.blob(digest).read_bytes())
    return loaded


def command(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, ImagebuilderError):
        return result.exception.exit_code, result.stdout, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


# The recipe and its plan


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("aarch64", "perhaps you meant `linux/arm64`"),
        ("linux/arm64/v8", "perhaps you meant `linux/arm64`"),
        ("linux/x86_64", "perhaps you meant `linux/amd64`"),
        ("windows/amd64", "perhaps you meant `linux/amd64`"),
        ("linux/rm64", "perhaps you meant `linux/arm64`"),
        ("linux/riscv64", "known: linux/amd64, linux/arm64"),
    ],
)
def test_an_unknown_platform_is_refused_with_what_was_meant(word: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        platforms.check(word)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("machine", "platform"),
    [("x86_64", "linux/amd64"), ("aarch64", "linux/arm64"), ("arm64", "linux/arm64"), ("riscv64", "")],
)
def test_the_host_s_own_platform(machine: str, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert platforms.own() == platform


def test_the_order_of_platforms_and_one_more_change_no_checksum() -> None:
    plain, both = samples.recipe(), samples.recipe(platforms=("linux/arm64", "linux/amd64"))
    assert both.platforms == BOTH
    assert plain.platforms == ("linux/amd64",)
    assert plain.checksum() == both.checksum()


def test_the_example_is_a_recipe() -> None:
    found, inputs = read_recipe(samples.ROOT / "examples" / "recipes" / "two-platforms.yaml")
    assert found.recipe.platforms == tuple(sorted(inputs)) == BOTH


def test_a_platform_of_several_is_planned_as_if_it_were_alone(tmp_path: Path) -> None:
    path = two_platforms(tmp_path)
    both = dict(zip(BOTH, read_plans(path), strict=True))
    alone = tmp_path / "alone.yaml"
    alone.write_text(path.read_text().replace("platforms: [linux/arm64, linux/amd64]\n", ""))
    lockfile.write(LockFile(sections=(both["linux/amd64"][0],)), locks.path_for(alone))
    lock, plan = read_plan(alone)
    assert lock == both["linux/amd64"][0]
    assert replace(plan, siblings=BOTH) == both["linux/amd64"][1]
    keys = {name: [layer.key for layer in plan.layers] for name, (_, plan) in both.items()}
    assert keys["linux/amd64"][0] != keys["linux/arm64"][0]
    assert keys["linux/amd64"][-1] == keys["linux/arm64"][-1], "what is only files is the same layer"


def test_which_platform_is_meant_has_to_be_said(tmp_path: Path) -> None:
    path = two_platforms(tmp_path)
    with pytest.raises(InputError, match="linux/amd64 or linux/arm64"):
        read_plan(path)
    assert read_plan(path, "linux/arm64")[1].architecture == "arm64"
    single = tmp_path / "single.yaml"
    single.write_text(path.read_text().replace("[linux/arm64, linux/amd64]", "[linux/amd64]"))
    lockfile.write(LockFile(sections=(read_plan(path, "linux/amd64")[0],)), locks.path_for(single))
    with pytest.raises(InputError, match="is not for linux/arm64"):
        read_plan(single, "linux/arm64")


def test_a_lock_for_fewer_platforms_is_out_of_step(tmp_path: Path) -> None:
    path = two_platforms(tmp_path)
    path.write_text(path.read_text().replace("[linux/arm64, linux/amd64]", "[linux/arm64]"))
    with pytest.raises(LockError, match="also has linux/amd64"):
        read_plans(path)


def test_one_tag_cannot_stand_for_two_versions() -> None:
    recipe = samples.recipe(platforms=BOTH)
    amd = samples.lock()
    arm = samples.lock(architecture="arm64", pins={**amd.pins, "torch": "2.9.1"})
    file = LockFile(sections=(amd, arm))
    with pytest.raises(InputError, match="one tag cannot be") as caught:
        plans.index_tags(select(recipe), file)
    assert "pin the version in full" in str(caught.value)
    coarse = samples.recipe(platforms=BOTH, tags=("torch{torch:1}", "{lock}"))
    assert plans.index_tags(select(coarse), file) == ("torch2", file.checksum[:12])


def test_plan_and_render_know_the_platforms(tmp_path: Path) -> None:
    path = two_platforms(tmp_path)
    code, out, _ = command("plan", path, "--json")
    assert [image["platform"] for image in json.loads(out)["result"]["images"]] == list(BOTH)
    assert code == 0
    (image,) = json.loads(command("plan", path, "--platform", "linux/arm64", "--json")[1])["result"]["images"]
    assert (image["name"], image["platform"]) == ("both", "linux/arm64")
    assert command("render", path)[0] == InputError.exit_code
    assert command("render", path, "--output", tmp_path / "x.Dockerfile")[0] == 0
    names = sorted(file.name for file in tmp_path.glob("*.Dockerfile"))
    assert names == ["x.amd64.Dockerfile", "x.arm64.Dockerfile"]
    amd, arm = ((tmp_path / name).read_text() for name in names)
    assert "docker buildx build --platform linux/arm64 --file both.arm64.Dockerfile" in arm
    assert "docker buildx build --file both.Dockerfile" in amd


# Running another machine's programs

ENTRY = """enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: {flags}
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""


@pytest.fixture
def binfmt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An x86-64 host whose kernel has binfmt_misc, and nothing registered."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    folder = tmp_path / "binfmt_misc"
    folder.mkdir()
    (folder / "register").touch()
    (folder / "status").write_text("enabled\n")
    return folder


def test_a_host_runs_its_own_programs(binfmt: Path) -> None:
    emulation.require("linux/amd64", binfmt)
    assert not emulation.runs("linux/arm64", binfmt)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no emulator is registered"),
        (ENTRY.format(flags="OC"), "lacks the flag F"),
        (ENTRY.format(flags="F").replace("enabled", "disabled"), "no emulator is registered"),
        (ENTRY.format(flags="F").replace("0200b700", "0200f300"), "no emulator is registered"),
        (ENTRY.format(flags="F").replace("magic 7f", "magic zz"), "no emulator is registered"),
        ("enabled\nextension .exe\nflags: F\n", "no emulator is registered"),
    ],
)
def test_what_is_no_emulator_that_helps(binfmt: Path, text: str, reason: str) -> None:
    (binfmt / "entry").write_text(text)
    with pytest.raises(EnvironmentFault, match=reason) as caught:
        emulation.require("linux/arm64", binfmt)
    assert "qemu-user-static" in str(caught.value)
    assert "--platform linux/arm64" in str(caught.value)


def test_an_emulator_under_any_name(binfmt: Path) -> None:
    (binfmt / "anything").write_text(ENTRY.format(flags="POF"))
    emulation.require("linux/arm64", binfmt)


def test_without_binfmt_misc_the_error_says_so(binfmt: Path, tmp_path: Path) -> None:
    assert binfmt.exists()
    with pytest.raises(EnvironmentFault, match="binfmt_misc is not mounted"):
        emulation.require("linux/arm64", tmp_path / "nothing")


def test_what_a_virtual_machine_runs_is_not_known_here(binfmt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    emulation.require("linux/arm64", binfmt)
    assert not emulation.runs("linux/arm64", binfmt)


def test_nothing_is_fetched_where_a_platform_cannot_be_built(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = two_platforms(tmp_path)

    def refuse(platform: str) -> None:
        if platform == "linux/arm64":
            raise EnvironmentFault("not here")

    monkeypatch.setattr(emulation, "require", refuse)
    monkeypatch.setattr(embedded, "build", lambda *_: pytest.fail("something was built"))
    assert command("build", path, "--store", store.root)[0] == EnvironmentFault.exit_code


def test_what_needs_no_running_needs_no_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "require", lambda _platform: pytest.fail("nothing is run here"))
    _, plan = read_plan(two_platforms(tmp_path), "linux/arm64")
    executed = OsPart | BytecodeLayer
    embedded.require_possible(layer for layer in plan.layers if not isinstance(layer, executed))


# The index in the store


def test_the_index_names_each_platform_s_image(recipe: Path, store: Store) -> None:
    index = store.index("both")
    assert index is not None
    found = document(store, index.manifest)
    assert found["mediaType"] == OCI_INDEX
    named = {(item["platform"]["os"], item["platform"]["architecture"]): item for item in found["manifests"]}
    assert sorted(named) == [("linux", "amd64"), ("linux", "arm64")]
    for image in index.images:
        entry = named["linux", platforms.architecture(image.platform)]
        assert entry["digest"] == image.manifest
        assert entry["size"] == store.blob(image.manifest).stat().st_size
        config = document(store, image.config)
        assert platforms.of(config["architecture"]) == image.platform
    file = read_locks(recipe).file
    assert found["annotations"]["org.imagebuilder.lock"] == file.checksum
    assert found["annotations"]["org.opencontainers.image.title"] == "both"
    assert index.tags == ("openmpi5.0.7-py3.13-trixie", file.checksum[:12])


def test_joining_again_gives_the_same_index(recipe: Path, store: Store) -> None:
    before = store.index("both")
    assert join_images(read_locks(recipe), store) == before


def test_an_index_waits_for_all_its_images(tmp_path: Path, store: Store) -> None:
    path = two_platforms(tmp_path)
    put_built(read_plan(path, "linux/arm64")[1], store)
    assert join_images(read_locks(path), store) is None
    for target in (str(path), "both"):
        with pytest.raises(LockError, match="its image for linux/amd64 is not in the store"):
            last_images(target, store)
    found = last_images(str(path), store, "linux/arm64")
    assert found is not None
    assert found.is_part
    put_built(read_plan(path, "linux/amd64")[1], store)
    with pytest.raises(LockError, match="no image index that joins its images"):
        last_images(str(path), store)
    assert join_images(read_locks(path), store) is not None


def test_images_are_found_by_recipe_name_and_platform(
    recipe: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target in (str(recipe), "both"):
        found = last_images(target, store)
        assert found is not None
        assert found.platforms == BOTH
        assert found.whole == store.index("both")
        for platform in BOTH:
            image = built_image(target, store, platform)
            assert image is not None
            assert image.platform == platform
        monkeypatch.setattr("platform.machine", lambda: "aarch64")
        own = built_image(target, store)
        assert own is not None
        assert own.platform == "linux/arm64"
    with pytest.raises(InputError, match="is not a platform"):
        built_image("both", store, "linux/mips")


def test_a_platform_that_left_the_recipe_leaves_the_store(recipe: Path, store: Store) -> None:
    lock, plan = read_plan(recipe, "linux/amd64")
    recipe.write_text(recipe.read_text().replace("[linux/arm64, linux/amd64]", "[linux/amd64]"))
    lockfile.write(LockFile(sections=(lock,)), locks.path_for(recipe))
    assert join_images(read_locks(recipe), store) is None
    assert store.index("both") is None
    assert [image.platform for image in store.images("both")] == ["linux/amd64"]
    require_in_step(str(recipe), store)
    assert built_image("both", store) == put_built(plan, store)


def test_a_layout_holds_both_and_their_index(recipe: Path, store: Store, tmp_path: Path) -> None:
    assert recipe.exists()
    index = store.index("both")
    assert index is not None
    layout.export(index, store, tmp_path / "layout")
    (entry,) = json.loads((tmp_path / "layout" / "index.json").read_bytes())["manifests"]
    assert (entry["mediaType"], entry["digest"]) == (OCI_INDEX, index.manifest)
    written = {path.name for path in (tmp_path / "layout" / "blobs" / "sha256").iterdir()}
    assert written == {digest.removeprefix("sha256:") for digest in layout.blobs(index)}
    assert {image.manifest for image in index.images} <= set(layout.blobs(index))


def test_pruning_keeps_an_index_with_its_images_and_drops_it_with_them(recipe: Path, store: Store) -> None:
    assert recipe.exists()
    size = cache.usage(store).total
    cache.prune(store, size)
    assert store.index("both") is not None
    assert cache.verify(store, lambda _: None) == ()
    cache.prune(store, 0)
    assert store.index("both") is None
    assert not list((store.root / "indexes").glob("*"))


# The index in a registry


def pushed(registry: FakeRegistry, recipe: Path, store: Store, *more: object) -> dict[str, Any]:
    code, out, err = command(
        "push", recipe, f"{registry.host}/team/both", "--store", store.root, "--json", *more
    )
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)["result"]
    return found


def test_all_images_then_the_index_then_the_tags(registry: FakeRegistry, recipe: Path, store: Store) -> None:
    found = pushed(registry, recipe, store, "--no-attach")
    index = store.index("both")
    assert index is not None
    assert found["digest"] == index.manifest
    assert found["platforms"] == [
        {"platform": image.platform, "digest": image.manifest} for image in index.images
    ]
    puts = [
        line.rpartition("/")[2] for line in registry.log if line.startswith("PUT") and "/manifests/" in line
    ]
    assert puts == [*(image.manifest for image in index.images), index.manifest, *index.tags]
    for tag in index.tags:
        assert registry.manifests["team/both", tag] == (OCI_INDEX, store.blob(index.manifest).read_bytes())
    assert pushed(registry, recipe, store, "--no-attach")["pushed_blobs"] == 0


def test_a_tag_of_an_index_moves_within_its_recipe_alone(
    registry: FakeRegistry, recipe: Path, store: Store
) -> None:
    tag = pushed(registry, recipe, store, "--no-attach")["tags"][0]
    stranger = put_image(store, [{"a": b"1"}], name="stranger")
    with pytest.raises(GateError, match="of the recipe `both`, and this one is of `stranger`"):
        push(stranger, store, f"{registry.host}/team/both:{tag}", own=(tag,))
    same = put_image(store, [{"a": b"2"}], name="both")
    result = push(same, store, f"{registry.host}/team/both:{tag}", own=(tag,))
    assert [moved for moved, _ in result.moved] == [tag]


def test_every_recipe_has_its_own_tag_in_one_repository(
    registry: FakeRegistry, recipe: Path, store: Store
) -> None:
    code, out, err = command(
        "push", recipe, f"{registry.host}/team/images", "--store", store.root, "--json", "--no-attach"
    )
    assert code == 0, err
    assert json.loads(out)["result"]["tags"][0] == "both-openmpi5.0.7-py3.13-trixie"


def test_documents_go_with_each_platform(registry: FakeRegistry, recipe: Path, store: Store) -> None:
    pushed(registry, recipe, store)
    for image in store.images("both"):
        listed = registry.manifests["team/both", image.manifest.replace(":", "-")]
        kinds = {entry["artifactType"] for entry in json.loads(listed[1])["manifests"]}
        assert "application/spdx+json" in kinds
        assert "application/vnd.imagebuilder.smoke-report.v1+json" in kinds
    code, out, err = command(
        "verify", f"{registry.host}/team/both:openmpi5.0.7-py3.13-trixie", "--store", store.root
    )
    assert (code, out.splitlines()[-1]) == (0, "verified"), out + err
    assert out.count("source ") == 2
    assert "linux/amd64 and linux/arm64, of one recipe and lock" in out


def test_a_platform_without_a_proof_keeps_all_from_being_pushed(
    registry: FakeRegistry, tmp_path: Path, store: Store
) -> None:
    recipe = put_both(tmp_path, store, proven=["linux/amd64"])
    words = ("push", recipe, f"{registry.host}/team/both", "--store", store.root)
    code, _, err = command(*words)
    assert code == GateError.exit_code
    assert "on linux/arm64: both was not tested" in err
    assert "on linux/amd64" not in err
    assert not registry.manifests
    code, _, err = command(*words, "--untested-on", "linux/amd64")
    assert code == GateError.exit_code
    found = pushed(registry, recipe, store, "--untested-on", "linux/arm64")
    (waiver,) = found["waivers"]
    assert (waiver["gate"], waiver["reason"].startswith("on linux/arm64: ")) == ("smoke-test", True)
    for image in store.images("both"):
        code, out, _ = command("verify", f"{registry.host}/team/both@{image.manifest}", "--store", store.root)
        assert ("waived: smoke-test" in out) == (image.platform == "linux/arm64")


def test_one_platform_is_pushed_under_tags_of_its_own(
    registry: FakeRegistry, recipe: Path, store: Store
) -> None:
    found = pushed(registry, recipe, store, "--platform", "linux/arm64", "--no-attach")
    (image,) = (image for image in store.images("both") if image.platform == "linux/arm64")
    assert found["digest"] == image.manifest
    assert found["tags"] == [f"{tag}-arm64" for tag in image.tags]
    assert registry.manifests["team/both", found["tags"][0]][0] == OCI_MANIFEST


def test_what_two_hosts_pushed_is_joined_to_the_same_index(
    registry: FakeRegistry, recipe: Path, store: Store
) -> None:
    name = f"{registry.host}/team/both"
    tags = [pushed(registry, recipe, store, "--platform", platform)["tags"][0] for platform in BOTH]
    code, out, err = command("join", *(f"{name}:{tag}" for tag in tags), "--json")
    assert code == 0, err
    index = store.index("both")
    assert index is not None
    found = json.loads(out)["result"]
    assert found["digest"] == index.manifest
    assert found["tags"] == list(index.tags)
    assert registry.manifests["team/both", index.tag][1] == store.blob(index.manifest).read_bytes()
    code, out, _ = command("inspect", f"{name}:{index.tag}", "--json")
    shown = json.loads(out)["result"]
    assert [item["platform"] for item in shown["images"]] == list(BOTH)
    assert all(item["verdict"] == "passed" for item in shown["images"])
    assert shown["index"]["tags"] == sorted(index.tags)
    code, out, _ = command("inspect", f"{name}:{index.tag}", "--platform", "linux/arm64", "--json")
    assert [item["platform"] for item in json.loads(out)["result"]["images"]] == ["linux/arm64"]
    assert command("inspect", f"{name}:{tags[0]}", "--platform", "linux/arm64")[0] == InputError.exit_code
    assert command("verify", f"{name}:{index.tag}", "--store", store.root)[0] == 0


def test_what_may_not_be_joined(registry: FakeRegistry, tmp_path: Path, store: Store) -> None:
    recipe = put_both(tmp_path, store, proven=["linux/amd64"])
    name = f"{registry.host}/team/both"
    amd, arm = (
        f"{name}@{pushed(registry, recipe, store, '--platform', platform, '--untested')['digest']}"
        for platform in BOTH
    )
    code, _, err = command("join", amd)
    assert (code, "one image needs no index" in err) == (InputError.exit_code, True)
    code, _, err = command("join", amd, amd)
    assert (code, "both are for linux/amd64" in err) == (InputError.exit_code, True)
    code, _, err = command("join", amd, f"{registry.host}/other@sha256:{'0' * 64}")
    assert (code, "different repositories" in err) == (InputError.exit_code, True)
    code, _, err = command("join", amd, arm)
    assert (code, "on linux/arm64: no smoke-test report" in err) == (GateError.exit_code, True)
    code, out, _ = command("join", amd, arm, "--untested", "--tag", "mine", "--json")
    assert (code, json.loads(out)["result"]["tags"]) == (0, ["mine"])


def signing_key(path: Path) -> Path:
    kind, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, plain))
    return path


def public_key(path: Path) -> Path:
    key = serialization.load_pem_private_key(path.read_bytes(), None).public_key()
    made = path.with_suffix(".pub")
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    made.write_bytes(key.public_bytes(serialization.Encoding.PEM, kind))
    return made


def test_only_what_is_signed_is_joined_under_a_signature(
    registry: FakeRegistry, recipe: Path, store: Store, tmp_path: Path
) -> None:
    """Who may push could else supply one platform's image, and have it signed with the others."""
    team, other = signing_key(tmp_path / "team.key"), signing_key(tmp_path / "other.key")
    name, (amd64, arm64) = f"{registry.host}/team/both", BOTH
    amd = f"{name}@{pushed(registry, recipe, store, '--platform', amd64, '--sign-key', team)['digest']}"
    arm = f"{name}@{pushed(registry, recipe, store, '--platform', arm64)['digest']}"
    before = dict(registry.manifests)
    code, _, err = command("join", amd, arm, "--sign-key", team)
    assert (code, "on linux/arm64: the image is not signed with this key" in err) == (
        GateError.exit_code,
        True,
    )
    assert "on linux/amd64" not in err
    for words in (["--sign-key", other], ["--key", public_key(team)], ["--unsigned-parts", arm64]):
        assert command("join", amd, arm, *words)[0] != 0
    words = ["--sign-key", team, "--unsigned-parts", amd64]
    assert command("join", amd, arm, *words)[0] == GateError.exit_code, "it was named for another platform"
    assert registry.manifests == before

    code, out, err = command("join", amd, arm, "--sign-key", team, "--unsigned-parts", arm64, "--json")
    assert (code, json.loads(out)["result"]["signed"]) == (0, 1)
    assert "warning: --unsigned-parts: on linux/arm64: the image is not signed" in err
    pushed(registry, recipe, store, "--platform", arm64, "--sign-key", other)
    assert command("join", amd, arm, "--sign-key", team)[0] == GateError.exit_code, "by another key"
    pushed(registry, recipe, store, "--platform", arm64, "--sign-key", team)
    code, _, err = command("join", amd, arm, "--sign-key", team)
    assert (code, err) == (0, "")
    code, _, err = command("join", amd, arm, "--sign-key", other, "--key", public_key(team))
    assert (code, err) == (0, "")


def test_an_unsigned_document_of_a_signed_part_does_not_count(
    registry: FakeRegistry, tmp_path: Path, store: Store
) -> None:
    """The report of the untested image was attached by somebody without the key."""
    recipe = put_both(tmp_path, store, proven=["linux/amd64"])
    team = signing_key(tmp_path / "team.key")
    amd, arm = (
        f"{registry.host}/team/both@"
        + pushed(registry, recipe, store, "--platform", name, "--sign-key", team, "--untested")["digest"]
        for name in BOTH
    )
    (image,) = (image for image in store.images("both") if image.platform == "linux/arm64")
    reports.write(report_of(image), store.report(image.manifest))
    pushed(registry, recipe, store, "--platform", "linux/arm64")
    assert command("join", amd, arm)[0] == 0
    code, _, err = command("join", amd, arm, "--sign-key", team)
    assert (code, "on linux/arm64: no smoke-test report" in err) == (GateError.exit_code, True)


def test_images_of_different_locks_are_not_joined(registry: FakeRegistry, recipe: Path, store: Store) -> None:
    name = f"{registry.host}/team/both"
    amd = pushed(registry, recipe, store, "--platform", "linux/amd64")["digest"]
    recipe.write_text(recipe.read_text() + "env: {A: b}\n")
    source = sources.of_recipe(recipe)
    path = two_platforms(recipe.parent)
    path.write_text(source.recipe)
    relock(path)
    for _, plan in read_plans(path):
        sources.remember(store, put_built(plan, store).manifest, sources.of_recipe(path))
    join_images(read_locks(path), store)
    arm = pushed(registry, path, store, "--platform", "linux/arm64")["digest"]
    words = ("join", f"{name}@{amd}", f"{name}@{arm}")
    code, _, err = command(*words)
    assert (code, "different recipes or locks" in err) == (GateError.exit_code, True)
    assert command(*words, "--out-of-step")[0] == InputError.exit_code, "no recipe, no tags"
    assert command(*words, "--out-of-step", "--tag", "odd")[0] == 0
    code, out, _ = command("verify", f"{name}:odd", "--store", store.root)
    assert (code, "do not all have the same recipe and lock attached" in out) == (1, True)


def relock(path: Path) -> None:
    """Give a recipe's lock the checksums that the recipe has now."""
    _, inputs = read_recipe(path)
    file = lockfile.read(locks.path_for(path))
    sections = tuple(
        lock.model_copy(update={"inputs": inputs[name]})
        for name, lock in zip(file.platforms, file.sections, strict=True)
    )
    lockfile.write(LockFile(sections=sections), locks.path_for(path))


def test_an_index_with_one_image_exchanged_is_found_out(
    registry: FakeRegistry, recipe: Path, store: Store
) -> None:
    pushed(registry, recipe, store)
    index = store.index("both")
    assert index is not None
    forged = document(store, index.manifest)
    first, second = forged["manifests"]
    second.update(digest=first["digest"], size=first["size"])
    registry.manifests["team/both", "forged"] = (OCI_INDEX, json.dumps(forged).encode())
    code, out, _ = command("verify", f"{registry.host}/team/both:forged", "--store", store.root)
    assert (code, "the index says linux/arm64, its config linux/amd64" in out) == (1, True)
