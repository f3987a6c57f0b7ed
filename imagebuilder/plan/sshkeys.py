"""The ssh keys of one job: made before it, mounted into its containers, useless after it."""

from __future__ import annotations

import base64
import logging
import re
import tempfile
from pathlib import Path

import yaml

from imagebuilder.core import process
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import EnvironmentFault, InputError

log = logging.getLogger(__name__)

# The name that a job's host certificate is made for, and that ssh in the image looks for (HostKeyAlias): the
# nodes get their own names only when a job starts. OpenSSH before 10.3 takes no certificate for `*`, and from
# 10.3 on it takes none for no name at all (its release notes).
NODE_ALIAS = "imagebuilder-node"

# A job's name is the principal of its user certificate and stands in authorized_keys: nothing to quote in it.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62})")
# What Kubernetes allows as the name of a Secret: a DNS label, the strictest of its names.
_SECRET_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SECONDS = 60


def make_keys(folder: Path, *, name: str, days: int = 30) -> None:
    """Make the set of keys that a job's containers mount at `/run/secrets/imagebuilder`.

    One pair for users and one for hosts, Ed25519, each certified by an authority whose private key is thrown
    away when this returns: nobody can certify another key, and after `days` the two here are worthless.

        id_ed25519, .pub, -cert.pub            what a node logs in with
        ssh_host_ed25519_key, .pub, -cert.pub  what a node proves itself with, under any host name
        authorized_keys                        lets in what the authority certified for this job
        known_hosts                            trusts what the authority certified (`@cert-authority`)

    Args:
        folder: made with mode 0700, or empty; it is complete or does not exist.
        name: the job, in certificates and comments.
        days: how long the certificates hold.

    Raises:
        InputError: the folder holds something, or an argument is wrong.
        EnvironmentFault: there is no ssh-keygen, or the place cannot be written.

    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"`{printable(name)}` is not a name of a job",
            hint="use up to 63 letters, digits, `.`, `-` and `_`",
        )
    if not 1 <= days <= 3650:
        raise InputError(f"keys cannot hold for {days} days", hint="give 1 to 3650")
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise InputError(
            "is there and not an empty folder; keys are not overwritten",
            where=str(folder),
            hint="name another folder, or remove this one if no job needs its keys",
        )
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as work:
            _fill(Path(work) / "keys", Path(work), name, days)
            # A rename replaces an empty folder, and nothing else.
            (Path(work) / "keys").rename(folder)
    except OSError as error:
        raise EnvironmentFault(f"cannot be written: {error.strerror}", where=str(folder)) from error
    log.info("made keys for %s in %s, good for %d days", name, folder, days)


def make_pair(path: Path, comment: str) -> None:
    """Make one pair without a passphrase: the private key at `path`, the public one beside it in `.pub`.

    Raises:
        EnvironmentFault: there is no ssh-keygen.

    """
    _keygen("-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path)


def secret_manifest(folder: Path, name: str) -> str:
    """Write a folder of keys as the YAML of a Kubernetes Secret, to be mounted as a volume.

    Args:
        folder: what `make_keys` made.
        name: of the Secret.

    Raises:
        InputError: the folder holds no such set, or the name is none that Kubernetes takes.

    """
    check_secret_name(name)
    if not (folder / "id_ed25519").is_file():
        raise InputError("holds no id_ed25519", where=str(folder), hint="make one with `imagebuilder keys`")
    try:
        data = {
            file.name: base64.b64encode(file.read_bytes()).decode()
            for file in sorted(folder.iterdir())
            if file.is_file()
        }
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(error.filename)) from error
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "Opaque",
        "data": data,
    }
    text: str = yaml.safe_dump(manifest, sort_keys=False, width=1_000_000)
    return text


def check_secret_name(name: str) -> None:
    """Refuse what Kubernetes would: worth doing before keys are made for it.

    Raises:
        InputError: the name is none that Kubernetes takes.

    """
    if not _SECRET_NAME.fullmatch(name):
        raise InputError(
            f"`{printable(name)}` is not a name of a Secret",
            hint="use up to 63 lower-case letters, digits and `-`",
        )


def _fill(keys: Path, work: Path, name: str, days: int) -> None:
    keys.mkdir(mode=0o700)
    authority, user, host = work / "authority", keys / "id_ed25519", keys / "ssh_host_ed25519_key"
    for file, comment in ((authority, f"authority of {name}"), (user, name), (host, f"host of {name}")):
        make_pair(file, comment)
    # Valid from an hour ago: the clocks of a cluster differ.
    sign = ("-q", "-s", authority, "-I", name, "-V", f"-1h:+{days}d")
    # The principal of users is the job, not a login name: the same keys do for root and for other users.
    _keygen(*sign, "-n", name, f"{user}.pub")
    _keygen(*sign, "-h", "-n", f"{NODE_ALIAS},*", f"{host}.pub")
    public = authority.with_suffix(".pub").read_text().strip()
    (keys / "authorized_keys").write_text(f'cert-authority,principals="{name}" {public}\n')
    (keys / "known_hosts").write_text(f"@cert-authority {NODE_ALIAS},* {public}\n")
    for file in keys.iterdir():
        file.chmod(0o600)


def _keygen(*arguments: str | Path) -> None:
    process.run(("ssh-keygen", *arguments), timeout=_SECONDS)
