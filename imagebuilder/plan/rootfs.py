"""Make this tool's own files in an image: the entrypoint, and settings of ssh, sshd and login shells.

The files are in `plan/files/`, some as templates; docs/explanation/ssh.md describes how they work together.
Values from a recipe are quoted for the program that reads the file, unless the recipe's model allows only
characters that need no quotes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import resources
from string import Template

from imagebuilder.plan import BAKED_KEYS, PATH, VENV, Entry, slim
from imagebuilder.plan.sshkeys import NODE_ALIAS
from imagebuilder.recipe import Recipe

_FOLDER = "files"
COMPAT = "/etc/imagebuilder/cuda-compat.sh"
# Each file's path in the image, and its mode.
_FILES = (
    ("entrypoint.bash", "/usr/local/bin/imagebuilder-entrypoint", 0o755),
    ("mpi-node.sh", "/usr/local/bin/imagebuilder-mpi-node", 0o755),
    ("await.sh", "/usr/local/bin/imagebuilder-await", 0o755),
    ("cuda-compat.sh", COMPAT, 0o644),
    ("settings.template", "/etc/imagebuilder/settings", 0o644),
    ("sshd_config.template", "/etc/imagebuilder/sshd_config", 0o644),
    ("sshd_direct.conf.template", "/etc/ssh/sshd_config.d/imagebuilder.conf", 0o644),
    ("ssh_config.template", "/etc/ssh/ssh_config.d/imagebuilder.conf", 0o644),
    ("profile.sh.template", "/etc/profile.d/imagebuilder.sh", 0o644),
)
_NAMES = "/var/lib/extrausers/passwd"
_SLIM = "/etc/dpkg/dpkg.cfg.d/imagebuilder-slim"
_SSH_PORT = 22  # ssh's default
# The end of the settings of an image with a baked-in key.
_BAKED = """\
# The key that is baked in counts where the job brings none.
if [ -z "${{IMAGEBUILDER_KEYS-}}" ] && [ ! -d /run/secrets/imagebuilder ]; then
    IMAGEBUILDER_KEYS={folder}
fi
"""


def image_files(recipe: Recipe, environment: Mapping[str, str]) -> tuple[Entry, ...]:
    """Make the plain files of an image. Pure: reads only this package's own data.

    Args:
        recipe: its `ssh` has the user and the port.
        environment: all variables of the image's config; login shells get the same.

    """
    user, port = recipe.ssh.user, recipe.ssh.port
    variables = sorted(environment.items())
    # Valid user names, and so their home folders, need no quotes anywhere.
    values = {
        "user": user,
        "home": "/root" if user == "root" else f"/home/{user}",
        "port": port,
        "port_line": "" if port == _SSH_PORT else f"    Port {port}\n",
        "alias": NODE_ALIAS,
        "state": state_folder(user),
        "strict": "yes" if user == "root" else "no",
        "baked": _BAKED.format(folder=shlex.quote(BAKED_KEYS)) if recipe.ssh.keys == "baked" else "",
        "venv": VENV,
        "path": shlex.quote(environment.get("PATH", PATH)),
        "exports": "".join(_export(name, value) for name, value in variables if name != "PATH"),
        "variables": "".join(f" {sshd_quoted(f'{name}={value}')}" for name, value in variables),
    }
    files = tuple(
        Entry(path=path, kind="file", mode=mode, text=_text(name, values)) for name, path, mode in _FILES
    )
    # sshd's folder for privilege separation, for an sshd that is started without the entrypoint.
    folder = Entry(path="/run/sshd", kind="dir", mode=0o755)
    if recipe.slim:
        files = (*files, Entry(path=_SLIM, kind="file", mode=0o644, text=slim.dpkg_settings()))
    if user == "root":
        return (*files, folder)
    # Where libnss-extrausers looks for users: the entrypoint writes a user id that the cluster chose there.
    # Everywhere else the link leads nowhere.
    names = Entry(path=_NAMES, kind="link", mode=0o777, text=f"{state_folder(user)}/passwd")
    return (*files, folder, names)


def state_folder(user: str) -> str:
    """Return the container's private folder for keys and sshd settings; made at start, mode 0700.

    It is not in the home folder, which nodes of a cluster may share. It has a fixed name for ssh_config,
    because ssh in `docker exec` does not have the entrypoint's variables.
    """
    return "/run/imagebuilder" if user == "root" else f"/tmp/imagebuilder-{user}"  # noqa: S108 in the image


def sshd_quoted(text: str) -> str:
    r"""Quote one argument for sshd_config, whose parser accepts `\\` and `\"` in quotes (misc.c).

    >>> print(sshd_quoted('A=say "hi" $HOME # C:\\'))
    "A=say \"hi\" $HOME # C:\\"
    """
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Template(Template):
    """A template with `%{name}`, because `$` is the shell's."""

    delimiter = "%"


def _text(name: str, values: Mapping[str, object]) -> str:
    text = (resources.files("imagebuilder.plan") / _FOLDER / name).read_text(encoding="utf-8")
    # Scripts are the same in every image. They are not templates, so they may use `%`.
    return _Template(text).substitute(values) if name.endswith(".template") else text


def _export(name: str, value: str) -> str:
    """Return the shell line that sets a variable unless it is set already."""
    return f'[ -n "${{{name}+set}}" ] || export {name}={shlex.quote(value)}\n'
