"""The search for secrets: every planted one is found, wherever it lies, and none is told."""

from __future__ import annotations

import base64
import bz2
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import random
import signal
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import certifi
import pydantic
import pytest

from imagebuilder import recipe, workflow
from imagebuilder.errors import GateError, InputError, LockError, StoreError
from imagebuilder.host.site import Site
from imagebuilder.publish import push
from imagebuilder.publish.attest import bundle
from imagebuilder.publish.attest.bundle import ImageDocument
from imagebuilder.publish.gates import (
    Gate,
    Waiver,
    pass_all,
    require_no_baked_keys,
    require_no_secrets,
    review,
)
from imagebuilder.publish.leaks import Mark, Scan, host, marks, rules, scan, scan_documents
from imagebuilder.publish.leaks.checks import entropy, github, pem
from imagebuilder.publish.leaks.image import _begin
from imagebuilder.publish.leaks.layer import scan_layer
from imagebuilder.publish.leaks.text import Search, TextPlace
from imagebuilder.recipe import NotSecret
from imagebuilder.store import ImageRecord, Store
from imagebuilder.workflow.source import RecipeSource, remember
from tests.support.images import noise, put_image
from tests.support.planted import Maker, Planted
from tests.support.planted_more import tarred, zipped
from tests.support.proven import put_proven

# As large as what is read at once, so that what follows lies across the border.
CHUNK = 1 << 18


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Planted]:
    return Maker(11, tmp_path_factory.mktemp("keys")).all()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def search(store: Store, *layers: Mapping[str, bytes], known: Sequence[Mark] = ()) -> Scan:
    return scan(put_image(store, layers), store, known, workers=1)


def found(result: Scan) -> set[tuple[str, str]]:
    return {(finding.path, finding.rule) for _, finding in result.findings}


def with_config(store: Store, image: ImageRecord, **config: object) -> ImageRecord:
    """The same image with another config."""
    data = json.loads(store.blob(image.config).read_bytes())
    digest, _ = store.put_bytes(json.dumps({**data, **config}).encode())
    return ImageRecord(**{**vars(image), "config": digest})


# --- finding


def test_every_planted_secret_is_found_and_nothing_is_told(
    store: Store, planted: Mapping[str, Planted]
) -> None:
    assert len(planted) >= 130
    result = search(store, {item.path: item.text for item in planted.values()})
    missed = [name for name, item in planted.items() if (item.path, item.rule) not in found(result)]
    assert missed == []
    told = "\n".join(str(finding) for _, finding in result.findings) + repr(result)
    assert [name for name, item in planted.items() if item.secret.decode() in told] == []


def test_every_rule_is_tried_by_a_planted_secret(planted: Mapping[str, Planted]) -> None:
    assert {item.rule for item in planted.values()} == {item.rule.name for item in rules.load().formats}


def test_lookalikes_are_left_alone(store: Store) -> None:
    dashes = "-" * 5
    files = {
        "a.py": f'BEGIN = "{dashes}BEGIN PRIVATE KEY{dashes}"\nEND = "{dashes}END PRIVATE KEY{dashes}"\n',
        "doc.md": f"{dashes}BEGIN RSA PRIVATE KEY{dashes}\n... your key here, at least 32 characters ...\n"
        f"{dashes}END RSA PRIVATE KEY{dashes}\n",
        "public.pem": f"{dashes}BEGIN PUBLIC KEY{dashes}\n{'TUlJ' * 30}\n{dashes}END PUBLIC KEY{dashes}\n",
        "aws.md": "AKIAIOSFODNN7EXAMPLE and AKIAAAAAAAAAAAAAAAAA",
        "github.md": "ghp_" + "a" * 36 + " ghp_" + "aB3" * 12,
        "pip.conf": "index-url = https://user:password@example.org/\nproxy = http://${USER}:${PASS}@proxy/\n",
        "compose.yaml": "password: ${DB_PASSWORD}\ntoken: changeme-changeme\nsecret: <your secret>\n",
        "etc/shadow": "root:*:19000:0:99999:7:::\ndaemon:!:1:0:::\n",
        "x.json": '{"auth": "none", "token": "null", "password": "********"}',
        "not.jwt": "eyJhbGciOiJI.eyJzdWIiOiIx.no",
        "netrc.txt": "machine learning is fun, the login page wants a password for it",
    }
    result = search(store, {path: text.encode() for path, text in files.items()})
    assert [str(finding) for _, finding in result.findings] == []


def test_a_deleted_file_is_still_found(store: Store, planted: Mapping[str, Planted]) -> None:
    item = planted[".netrc"]
    result = search(store, {item.path: item.text}, {"root/.wh..netrc": b""})
    assert found(result) == {(item.path, item.rule)}


@pytest.mark.parametrize("before", [0, 100, 512, 1024, 1500, 2048, 70_000])
def test_a_secret_across_a_border_is_found_once(
    store: Store, planted: Mapping[str, Planted], before: int
) -> None:
    item = planted["PKCS#1 key"]
    filler = noise(3, CHUNK - before)
    result = search(store, {"filler": filler, item.path: item.text, "after": filler})
    assert [finding.path for _, finding in result.findings] == [item.path]


def test_a_secret_deep_in_a_large_file_is_found(store: Store, planted: Mapping[str, Planted]) -> None:
    item = planted["Hugging Face token"]
    data = noise(4, CHUNK + 12_345) + b"\n" + item.text + noise(5, 3 * CHUNK)
    result = search(store, {"opt/model.bin": data})
    assert found(result) == {("opt/model.bin", item.rule)}


def test_packed_files_are_looked_into(store: Store, planted: Mapping[str, Planted]) -> None:
    item = planted["pip.conf"]
    result = search(store, {"usr/share/doc/x.gz": gzip.compress(item.text)})
    assert found(result) == {("usr/share/doc/x.gz", item.rule)}


def test_long_paths_are_told_in_full(store: Store, planted: Mapping[str, Planted]) -> None:
    item, path = planted["GitHub token"], "deep/" * 60 + "file.txt"
    assert found(search(store, {path: item.text})) == {(path, item.rule)}


def test_the_line_is_told_where_there_are_lines(store: Store, planted: Mapping[str, Planted]) -> None:
    item = planted["AWS access key"]
    result = search(store, {"a.txt": b"one\ntwo\n" + item.text, "b.bin": b"\0\0\n" + item.text})
    assert {finding.path: finding.line for _, finding in result.findings} == {"a.txt": 4, "b.bin": 0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("config", {"Env": ["PATH=/bin", "API_TOKEN={secret}"]}),
        ("config", {"Labels": {"org.example.password": "{secret}"}}),
        ("config", {"Cmd": ["run", "--url", "https://me:{secret}@host.example"]}),
        ("history", [{"created_by": "ENV x"}, {"created_by": "RUN curl https://me:{secret}@host.example/"}]),
        ("history", [{"comment": "password={secret}"}]),
    ],
)
def test_the_config_is_searched_too(store: Store, tmp_path: Path, key: str, value: object) -> None:
    secret = Maker(5, tmp_path).word(24)
    image = put_image(store, [{"a": b"a"}])
    changed = with_config(store, image, **{key: json.loads(json.dumps(value).replace("{secret}", secret))})
    result = scan(changed, store, workers=1)
    assert [title for title, _ in result.findings] == ["config"]
    assert secret not in repr(result)


# --- this host's own


def test_paths_of_the_builder_are_found_also_in_names(store: Store) -> None:
    known = marks(Site(), Path("/home/somebody"), Path("/var/cache/our-store"))
    files = {
        "a.pyc": b"\0\1/home/somebody/src/x.py\0",
        "var/cache/our-store/blobs/x": b"1",
        "b": b"/home/some/",
    }
    result = search(store, files, known=known)
    assert found(result) == {("a.pyc", "host-path"), ("var/cache/our-store/blobs/x", "host-path")}


def test_roots_home_is_in_every_image_and_says_nothing() -> None:
    assert [mark.data for mark in marks(Site(), Path("/root"), Path("/root/.cache/x"))] == [b"/root/.cache/x"]


def test_the_sites_own_authority_is_found_as_pem_and_as_der(store: Store, tmp_path: Path) -> None:
    der = noise(9, 900)
    text = base64.encodebytes(der).replace(b"\n", b"")
    lines = b"\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    pem_text = b"-----BEGIN CERTIFICATE-----\n" + lines + b"\n-----END CERTIFICATE-----\n"
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(Path(certifi.where()).read_bytes() + pem_text)
    known = marks(Site(ca_bundle=bundle), Path("/root"), Path("/"))
    assert {mark.kind for mark in known} == {"site-authority"}
    public = Path(certifi.where()).read_bytes()
    result = search(store, {"ca.crt": pem_text, "ca.der": der, "public.crt": public}, known=known)
    assert found(result) == {("ca.crt", "site-authority"), ("ca.der", "site-authority")}


def test_passwords_of_the_site_are_found_wherever_they_are(store: Store) -> None:
    site = Site(
        proxies=(("https", "http://me:p%40ssword1@proxy.example"),),
        index="https://me:index-pass@i.example",
        apt_options=(("Acquire::http::Proxy", "http://me:apt-passwd@p.example"),),
    )
    known = marks(site, Path("/root"), Path("/"))
    files = {"a": b"\0p@ssword1\0", "b": b"p%40ssword1", "c": b"xindex-passx", "d": b"apt-passwd"}
    result = search(store, files, known=known)
    assert {finding.path for _, finding in result.findings} == set(files)
    assert "ssword1" not in repr(result) + repr(known)


# --- remembering


def test_a_layer_is_read_once(store: Store, planted: Mapping[str, Planted]) -> None:
    item = planted[".netrc"]
    image = put_image(store, [{"a": noise(1, 1000)}, {item.path: item.text}])
    first, second = (scan(image, store, workers=1) for _ in range(2))
    assert (first.read, second.read) == (2, 0)
    assert first.findings == second.findings
    assert (first.files, first.bytes) == (second.files, second.bytes)


def test_other_rules_or_another_host_count_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    image = put_image(store, [{"a": b"1"}])
    assert scan(image, store, workers=1).read == 1
    known = marks(Site(), Path("/home/other"), Path("/"))
    assert scan(image, store, known, workers=1).read == 1
    assert scan(image, store, known, workers=1).read == 0
    other = rules.load()
    monkeypatch.setattr(rules, "load", lambda: rules.SecretRules(**{**vars(other), "version": "x"}))
    assert scan(image, store, known, workers=1).read == 1


def test_a_damaged_record_counts_as_none(store: Store) -> None:
    image = put_image(store, [{"a": b"1"}])
    scan(image, store, workers=1)
    for path in (store.root / "scans").iterdir():
        path.write_text("{")
    assert scan(image, store, workers=1).read == 1


def test_several_processes_find_the_same(
    store: Store, planted: Mapping[str, Planted], monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [{f"{number}/{item.path}": item.text} for number, item in enumerate(planted.values())]
    image = put_image(store, layers)
    alone = scan(image, store, workers=1)
    for path in (store.root / "scans").iterdir():
        path.unlink()
    monkeypatch.setattr("imagebuilder.publish.leaks.image._ALONE", 0)
    together = scan(image, store, workers=2)
    assert together.read == alone.read == len(image.layers)
    assert together.findings == alone.findings


@pytest.mark.parametrize(
    ("parent", "worker"),
    [(signal.SIG_IGN, signal.SIG_IGN), (signal.default_int_handler, signal.SIG_DFL)],
)
def test_ctrl_c_ends_a_worker_unless_its_parent_ignores_it(parent: Any, worker: Any) -> None:
    """As under nohup, or in the background of a script: what is ignored there stays ignored in workers."""
    before = signal.signal(signal.SIGINT, parent)
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin, initargs=((),)) as pool:
            assert pool.submit(signal.getsignal, signal.SIGINT).result(timeout=60) == worker
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_layer_that_is_none_says_so(store: Store) -> None:
    image = put_image(store, [{"a": noise(1, 5000)}])
    blob = store.blob(image.layers[0].record.digest)
    data = blob.read_bytes()
    blob.unlink()
    blob.write_bytes(data[:-3000])
    with pytest.raises(StoreError, match="cannot be searched"):
        scan(image, store, workers=1)


@pytest.mark.parametrize("seed", range(40))
def test_a_hostile_tar_ends_in_a_result_or_in_an_error_of_ours(store: Store, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  no secret
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("a.sh", "b/" * 80 + "c.gz", ".npmrc"):
            info = tarfile.TarInfo(name)
            info.size = 700
            tar.addfile(info, io.BytesIO(gzip.compress(noise(seed, 600)).ljust(700, b"x")[:700]))
    data = bytearray(buffer.getvalue())
    for _ in range(chance.randrange(1, 30)):
        data[chance.randrange(4096)] = chance.choice(
            (0, 0x30, 0x37, 0x4C, 0x78, 0x80, 0xFF, chance.randrange(256))
        )
    path = store.root / "hostile.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if chance.random() < 0.5 else gzip.compress(data))
    with contextlib.suppress(StoreError):
        assert scan_layer(path, Search(rules.load(), ())).bytes == len(data)


@pytest.mark.parametrize(("kind", "maps"), [(b"S", 0), (b"S", 1), (b"S", 3), (b"D", 0), (b"Z", 0)])
def test_the_content_of_unusual_entries_is_searched_too(
    tmp_path: Path, planted: Mapping[str, Planted], kind: bytes, maps: int
) -> None:
    """A sparse file of GNU's, whose map may be longer than its header, and entries of kinds nobody knows."""
    secret, after = planted["GitHub token"], planted["npm token"]
    info = tarfile.TarInfo("opt/app/sparse.py")
    info.type, info.size = kind, len(secret.text)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[482] = bool(maps)
    header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * 32)
    longer = b"".join(bytes(504) + bytes([number < maps]) + bytes(7) for number in range(1, maps + 1))
    path = tmp_path / "layer.tar"
    content = secret.text.ljust(-(-len(secret.text) // 512) * 512, b"\0")
    path.write_bytes(bytes(header) + longer + content + tarred({after.path: after.text}))
    scanned = scan_layer(path, Search(rules.load(), ()))
    expected = {("opt/app/sparse.py", secret.rule), (after.path, after.rule)}
    assert {(finding.path, finding.rule) for finding in scanned.findings} == expected


def test_a_sparse_file_s_map_has_an_end(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.type = b"S"
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1
    path = tmp_path / "layer.tar"
    path.write_bytes(bytes(header) + (bytes(504) + b"\1" + bytes(7)) * 3000)
    with pytest.raises(StoreError, match="too long"):
        scan_layer(path, Search(rules.load(), ()))


# --- the known, and the checks


def test_a_known_example_is_no_finding(
    store: Store, planted: Mapping[str, Planted], monkeypatch: pytest.MonkeyPatch
) -> None:
    item = planted["Slack token"]
    digest = search(store, {item.path: item.text}).findings[0][1].sha256
    given = rules.load()
    known = rules.SecretRules(
        **{**vars(given), "known": frozenset({("*/notes3.py", digest)}), "version": "k"}
    )
    monkeypatch.setattr(rules, "load", lambda: known)
    result = search(store, {item.path: item.text, "elsewhere.py": item.text})
    assert [finding.path for _, finding in result.findings] == ["elsewhere.py"]


def test_the_checksum_of_a_github_token() -> None:
    # From GitHub's own description of the format; split, so that no scanner takes it for a token.
    assert github(b"zQWBuTSOoRi4A9spHcVY5ncnsDkxk" + b"J0mLq17")
    assert not github(b"zQWBuTSOoRi4A9spHcVY5ncnsDkxk" + b"J0mLq18")


def test_no_match_hides_another() -> None:
    """What overlaps, lies inside or is the same as another match is found, as looking at each place says."""
    words = [b"abab", b"ba", b"bab", b"bab", b"abc", b"cab", b"b"]
    known = [Mark(kind="host-path", about="", hint="", data=word) for word in words]
    tried = Search(rules.load(), known)
    for length in (1, 3, 50, 400):
        data = bytes(random.Random(length).choices(b"abc.", k=length))  # noqa: S311
        everywhere = [(at, word) for at in range(length) for word in words if data.startswith(word, at)]
        hits = [(hit.position, hit.what.data) for hit in tried.hits(data) if isinstance(hit.what, Mark)]
        assert sorted(hits) == sorted(everywhere)


def test_entropy_and_pem() -> None:
    assert entropy(b"") == 0
    assert entropy(bytes(range(256))) == 8
    assert not pem(b"\nnot a key at all, but long enough to be one\n")


# --- the gates


def no(error: Exception) -> Gate:
    def check() -> None:
        raise error

    return Gate(name="recipe" if isinstance(error, LockError) else "smoke-test", check=check)


def test_gates_tell_all_that_they_refuse() -> None:
    gates = (no(LockError("stale")), no(GateError("unproven")), Gate(name="secrets", check=lambda: None))
    with pytest.raises(GateError, match=r"stale[\s\S]*unproven"):
        pass_all(gates, ())
    with pytest.raises(LockError):
        pass_all(gates, ["smoke-test"])
    assert pass_all(gates, ["recipe", "smoke-test", "secrets"]) == (
        Waiver(gate="recipe", flag="--out-of-step", reason="stale"),
        Waiver(gate="smoke-test", flag="--untested", reason="unproven"),
    )


def test_a_gate_that_is_waived_without_need_leaves_no_waiver() -> None:
    assert pass_all((Gate(name="secrets", check=lambda: None),), ["secrets"]) == ()


def test_keys_where_ssh_looks_have_a_gate_of_their_own(store: Store, planted: Mapping[str, Planted]) -> None:
    baked = search(store, {item.path: item.text for item in (planted["OpenSSH key"], planted["host key"])})
    require_no_secrets(baked.findings)
    with pytest.raises(GateError, match="--allow-baked-keys") as caught:
        require_no_baked_keys(baked.findings)
    assert len(caught.value.problems) == 2
    other = search(store, {"opt/app/key.pem": planted["PKCS#8 key"].text})
    require_no_baked_keys(other.findings)
    with pytest.raises(GateError, match="not_secret:"):
        require_no_secrets(other.findings)


def test_the_version_of_marks_depends_on_all_of_them() -> None:
    one, two = (marks(Site(), Path(f"/home/user{number}"), Path("/store-x")) for number in range(2))
    assert host.version(one) != host.version(two)
    assert host.version(one) == host.version(one[::-1])


# --- archives


def packed(depth: int, data: bytes) -> bytes:
    for _ in range(depth):
        data = zipped({"inside": data})
    return data


def test_archives_in_archives_are_opened(store: Store, planted: Mapping[str, Planted]) -> None:
    item = planted["Hugging Face token"]
    result = search(store, {"opt/a.bin": packed(4, item.text)})
    assert [(finding.path, finding.inside) for _, finding in result.findings] == [
        ("opt/a.bin", "inside/inside/inside/inside")
    ]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("too deep", packed(9, b"x")),
        ("too many bytes", gzip.compress(bytes(80 << 20), 9)),
        ("too many bytes of bzip2", bz2.compress(bytes(80 << 20))),
        ("too many bytes in a zip", zipped({f"{number}": bytes(9 << 20) for number in range(8)})),
    ],
)
def test_a_bomb_is_a_finding_and_ends_soon(store: Store, name: str, data: bytes) -> None:
    started = time.monotonic()
    (placed,) = search(store, {f"opt/{name}": data}).findings
    assert placed[1].rule == "archive-bounds"
    assert placed[1].file == hashlib.sha256(data).hexdigest()
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_archive_is_a_note(store: Store, planted: Mapping[str, Planted], seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  no secret
    text = planted["Hugging Face token"].text * 30 + noise(seed, 3000)
    ways: list[Callable[[bytes], bytes]] = [
        gzip.compress,
        bz2.compress,
        lzma.compress,
        lambda data: zipped({"a": data}),
        lambda data: tarred({"a": data}),
    ]
    whole = chance.choice(ways)(text)
    data = bytearray(whole[: chance.randrange(20, len(whole))])
    for _ in range(chance.randrange(4)):
        data[chance.randrange(10, len(data))] = chance.randrange(256)
    result = search(store, {"opt/a": bytes(data), "after": text})
    assert ("after", "hugging-face-token") in found(result)


def test_an_archive_that_is_cut_says_so(store: Store) -> None:
    result = search(store, {"opt/a.gz": gzip.compress(noise(1, 5000))[:2000]})
    assert [str(note) for note in result.notes] == [
        "opt/a.gz: could not be searched completely: it ends in the middle"
    ]
    image = store.image("sample")
    assert image
    assert scan(image, store, workers=1).notes == result.notes


# --- what is no secret, and who says so


def test_a_recipe_names_a_file_by_path_and_content(store: Store, planted: Mapping[str, Planted]) -> None:
    item = planted["zip"]
    findings = search(store, {item.path: item.text, "other.zip": item.text}).findings
    digest = hashlib.sha256(item.text).hexdigest()
    assert {finding.file for _, finding in findings} == {digest}
    known = NotSecret(path=item.path, sha256=digest, reason="a test key of the vendor")
    stale = NotSecret(path="other.zip", sha256="0" * 64, reason="another content")
    result = review(findings, (known, stale))
    assert [finding.path for _, finding in result.findings] == ["other.zip"]
    assert result.unused == (stale,)
    assert result.waivers == (
        Waiver(
            gate="secrets",
            flag="not_secret",
            reason=f"{item.path} (sha256 {digest}): a test key of the vendor",
        ),
    )


def test_the_refusal_says_what_to_paste_into_the_recipe(
    store: Store, planted: Mapping[str, Planted], tmp_path: Path
) -> None:
    item = planted["Anthropic key"]
    findings = search(store, {item.path: item.text}).findings
    with pytest.raises(GateError) as caught:
        require_no_secrets(findings)
    text = caught.value.problems[-1].message.partition("\n")[2]
    path = tmp_path / "r.yaml"
    path.write_text(f'name: x\nbase: debian:trixie\npython: "3.13"\n{text}\n')
    with pytest.raises(InputError, match="reason"):
        recipe.load(path, frozenset())
    path.write_text(path.read_text().replace('reason: ""', "reason: a key of the vendor's tests"))
    loaded = recipe.load(path, frozenset())
    assert review(findings, loaded.not_secret).findings == ()
    assert loaded.checksum() == loaded.model_copy(update={"not_secret": ()}).checksum()


def test_what_is_attached_is_searched_too(planted: Mapping[str, Planted]) -> None:
    item = planted["GitHub token"]
    files = {"recipe.yaml": b"# " + item.text, "recipe.lock": b"{}"}
    (finding,) = scan_documents(files, ())
    assert (finding.path, finding.rule) == ("(attached)/recipe.yaml", item.rule)
    assert finding.file == hashlib.sha256(files["recipe.yaml"]).hexdigest()


def test_nothing_is_found_in_shipped_recipes_and_locks() -> None:
    folder = Path(__file__).parents[2] / "recipes"
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert [str(finding) for finding in scan_documents(files, ())] == []


def test_nothing_is_found_in_installed_packages() -> None:
    """A sample; tests/soak has twenty thousand files."""
    root = Path(pydantic.__file__).parent
    tried = Search(rules.load(), ())
    paths = sorted(root.rglob("*.py"))
    wrong = [
        str(finding)
        for path in paths
        # As if it were somebody's own code, which is searched more strictly than a package.
        for finding in tried.text(path.read_bytes(), TextPlace.of(f"opt/app/{path.relative_to(root)}"))
    ]
    assert wrong == []
    assert len(paths) > 80


def test_a_push_searches_what_it_attaches(store: Store, planted: Mapping[str, Planted]) -> None:
    """What goes with a shipped recipe's image holds nothing; a token in a report is found."""
    image, source = put_proven(store)
    documents = {image.manifest: bundle.documents(image, store, source)}
    push.search_documents(documents, (), store, Site())
    text = planted["GitHub token"].text
    report = ImageDocument(kind=bundle.REPORT, files={"smoke-report.json": text})
    with pytest.raises(GateError, match=r"\(attached\)/smoke-report.json:2: token of GitHub"):
        push.search_documents({image.manifest: (report,)}, (), store, Site())
    known = NotSecret(
        path="(attached)/smoke-report.json", sha256=hashlib.sha256(text).hexdigest(), reason="a test of ours"
    )
    push.search_documents({image.manifest: (report,)}, (known,), store, Site())


def test_a_push_takes_the_reviewed_files_of_the_recipe_or_of_the_built_image(store: Store) -> None:
    image, source = put_proven(store)
    last = workflow.last_images(image.name, store)
    assert last
    assert push.reviewed_files(image.name, last, store) == ()
    text = f"{source.recipe}\nnot_secret: [{{path: opt/a, sha256: '{64 * '0'}', reason: a test key}}]\n"
    remember(store, image.manifest, RecipeSource(recipe=text, lock=source.lock))
    assert [item.path for item in push.reviewed_files(image.name, last, store)] == ["opt/a"]
