"""Make the ssh keys of one job, to be mounted into its containers; they expire after it."""

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

# The name in a job's host certificate, which ssh in the image expects (HostKeyAlias): the nodes' own names
# are known only when a job starts. OpenSSH before 10.3 refuses certificates for `*`, and newer ones refuse
# certificates without a name (release notes).
NODE_ALIAS = "imagebuilder-node"

# A job's name is the principal of its user certificate and is in authorized_keys, so it must need no quotes.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62})")
# What Kubernetes allows as the name of a Secret: a DNS label, the strictest of its names.
_SECRET_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SECONDS = 60


def make_keys(folder: Path, *, name: str, days: int = 30) -> None:
    """Make the set of keys that a job's containers mount at `/run/secrets/imagebuilder`.

    There is an Ed25519 pair for users and one for hosts, each certified by an authority. The authority's
    private key is deleted at once, so nobody can certify another key, and after `days` these two are
    worthless.

        id_ed25519, .pub, -cert.pub            the key that a node logs in with
        ssh_host_ed25519_key, .pub, -cert.pub  the host key of every node, valid for any host name
        authorized_keys                        accepts keys that the authority certified for this job
        known_hosts                            trusts hosts that the authority certified (`@cert-authority`)

    Args:
        folder: does not exist or is empty; made in one step, with mode 0700.
        name: the job's name, for certificates and comments.
        days: how long the certificates are valid.

    Raises:
        InputError: the folder is not empty, or an argument is wrong.
        EnvironmentFault: ssh-keygen is not installed, or the folder cannot be written.

    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"`{printable(name)}` is not a job's name",
            hint="use up to 63 letters, digits, `.`, `-` and `_`",
        )
    if not 1 <= days <= 3650:
        raise InputError(f"keys cannot be valid for {days} days", hint="give 1 to 3650")
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise InputError(
            "exists and is not an empty folder; keys are not overwritten",
            where=str(folder),
            hint="name another folder, or remove this one if no job needs its keys",
        )
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as work:
            _fill(Path(work) / "keys", Path(work), name, days)
            # Renaming replaces an empty folder, but nothing else.
            (Path(work) / "keys").rename(folder)
    except OSError as error:
        raise EnvironmentFault(f"cannot be written: {error.strerror}", where=str(folder)) from error
    log.info("made keys for %s in %s, valid for %d days", name, folder, days)


def make_pair(path: Path, comment: str) -> None:
    """Make one pair without a passphrase: the private key at `path`, the public one beside it in `.pub`.

    Raises:
        EnvironmentFault: ssh-keygen is not installed.

    """
    _keygen("-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path)


def secret_manifest(folder: Path, name: str, namespace: str = "") -> str:
    """Return a folder of keys as the YAML of a Kubernetes Secret, to be mounted as a volume.

    Args:
        folder: made by `make_keys`.
        name: name of the Secret.
        namespace: of the Secret; empty for the user's own.

    Raises:
        InputError: the folder has no such keys, or the name is not valid in Kubernetes.

    """
    check_secret_name(name)
    if not (folder / "id_ed25519").is_file():
        raise InputError("has no id_ed25519", where=str(folder), hint="make one with `imagebuilder keys`")
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
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "type": "Opaque",
        "data": data,
    }
    text: str = yaml.safe_dump(manifest, sort_keys=False, width=1_000_000)
    return text


def check_secret_name(name: str) -> None:
    """Refuse a name that Kubernetes would refuse. Call this before making the keys.

    Raises:
        InputError: the name is not valid in Kubernetes.

    """
    if not _SECRET_NAME.fullmatch(name):
        raise InputError(
            f"`{printable(name)}` is not a Secret's name",
            hint="use up to 63 lower-case letters, digits and `-`",
        )


def _fill(keys: Path, work: Path, name: str, days: int) -> None:
    keys.mkdir(mode=0o700)
    authority, user, host = work / "authority", keys / "id_ed25519", keys / "ssh_host_ed25519_key"
    for file, comment in ((authority, f"authority of {name}"), (user, name), (host, f"host of {name}")):
        make_pair(file, comment)
    # Valid from one hour ago, because the clocks of a cluster differ.
    sign = ("-q", "-s", authority, "-I", name, "-V", f"-1h:+{days}d")
    # The principal of users is the job, not a login name: the same keys work for root and other users.
    _keygen(*sign, "-n", name, f"{user}.pub")
    _keygen(*sign, "-h", "-n", f"{NODE_ALIAS},*", f"{host}.pub")
    public = authority.with_suffix(".pub").read_text().strip()
    (keys / "authorized_keys").write_text(f'cert-authority,principals="{name}" {public}\n')
    (keys / "known_hosts").write_text(f"@cert-authority {NODE_ALIAS},* {public}\n")
    for file in keys.iterdir():
        file.chmod(0o600)


def _keygen(*arguments: str | Path) -> None:
    process.run(("ssh-keygen", *arguments), timeout=_SECONDS)
