from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
import yaml

from imagebuilder.core import process
from imagebuilder.errors import EnvironmentFault, InputError
from imagebuilder.plan import sshkeys

FILES = {
    "id_ed25519",
    "id_ed25519.pub",
    "id_ed25519-cert.pub",
    "ssh_host_ed25519_key",
    "ssh_host_ed25519_key.pub",
    "ssh_host_ed25519_key-cert.pub",
    "authorized_keys",
    "known_hosts",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sshkeys.make_keys(tmp_path / "job", name="job-7", days=2)
    return tmp_path / "job"


def certificate(file: Path) -> str:
    return subprocess.run(("ssh-keygen", "-L", "-f", file), capture_output=True, check=True, text=True).stdout


def test_a_set_is_complete_private_and_all_there_is(folder: Path) -> None:
    assert {file.name for file in folder.iterdir()} == FILES
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    # Nothing is left beside it: no authority, no half-made folder.
    assert [entry.name for entry in folder.parent.iterdir()] == ["job"]


def test_certificates_say_for_what_and_how_long(folder: Path) -> None:
    user = certificate(folder / "id_ed25519-cert.pub")
    host = certificate(folder / "ssh_host_ed25519_key-cert.pub")
    assert "user certificate" in user
    assert "host certificate" in host
    assert [line.strip() for line in user.split("Principals:")[1].splitlines()][1] == "job-7"
    assert [line.strip() for line in host.split("Principals:")[1].splitlines()][1:3] == [
        sshkeys.NODE_ALIAS,
        "*",
    ]
    assert "forever" not in user + host


def test_both_sides_trust_the_authority_and_no_key_alone(folder: Path) -> None:
    authority = (folder / "known_hosts").read_text().split()
    assert authority[:2] == ["@cert-authority", f"{sshkeys.NODE_ALIAS},*"]
    option, kind, key, *_ = (folder / "authorized_keys").read_text().split()
    assert option == 'cert-authority,principals="job-7"'
    assert [kind, key] == authority[2:4]
    assert key not in (folder / "id_ed25519.pub").read_text()


def test_two_sets_have_nothing_in_common(folder: Path, tmp_path: Path) -> None:
    sshkeys.make_keys(tmp_path / "other", name="job-7")
    for name in FILES:
        assert (folder / name).read_bytes() != (tmp_path / "other" / name).read_bytes()


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir(mode=0o755)
    sshkeys.make_keys(tmp_path / "job", name="x")
    assert {file.name for file in (tmp_path / "job").iterdir()} == FILES
    assert (tmp_path / "job").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_nothing_is_overwritten(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "job"
    match kind:
        case "folder":
            place.mkdir()
            (place / "precious").touch()
        case "file":
            place.touch()
        case "link":
            place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="not an empty folder"):
        sshkeys.make_keys(place, name="x")
    assert {entry.name for entry in tmp_path.iterdir()} == {"job"}


@pytest.mark.parametrize("name", ["", "two words", 'quo"te', "a\nb", "-n", "x" * 64])
def test_a_name_that_would_need_quoting_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a job's name"):
        sshkeys.make_keys(tmp_path / "job", name=name)
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_days_have_bounds(days: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be valid for"):
        sshkeys.make_keys(tmp_path / "job", name="x", days=days)


def test_without_ssh_keygen_the_fault_is_the_host_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="`ssh-keygen` is not installed"):
        sshkeys.make_keys(tmp_path / "job", name="x")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_halfway_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = process.run

    def no_signing(argv: tuple[str, ...], *, timeout: float) -> process.Result:
        return run(("false",) if "-s" in argv else argv, timeout=timeout)

    monkeypatch.setattr(process, "run", no_signing)
    with pytest.raises(process.CommandError):
        sshkeys.make_keys(tmp_path / "job", name="x")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="file/job"):
        sshkeys.make_keys(tmp_path / "file" / "job", name="x")


def test_a_secret_holds_every_file(folder: Path) -> None:
    manifest = yaml.safe_load(sshkeys.secret_manifest(folder, "job-7-keys"))
    assert (manifest["kind"], manifest["metadata"]) == ("Secret", {"name": "job-7-keys"})
    assert {name: base64.b64decode(value) for name, value in manifest["data"].items()} == {
        file.name: file.read_bytes() for file in folder.iterdir()
    }


def test_a_secret_needs_a_proper_name_and_a_set_of_keys(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a Secret's name"):
        sshkeys.secret_manifest(folder, "No_Name")
    with pytest.raises(InputError, match="has no id_ed25519"):
        sshkeys.secret_manifest(tmp_path, "fine")
