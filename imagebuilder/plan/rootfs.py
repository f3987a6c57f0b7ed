"""What an image holds as plain files of ours: the entrypoint, and settings of ssh, sshd and login shells.

The files are in `plan/files/`, some as templates; docs/explanation/ssh.md describes what they do together.
All that goes from a recipe into one of them is quoted for the reader of that file, unless the recipe's model
takes nothing that would need it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from importlib import resources
from string import Template

from imagebuilder.plan import BAKED_KEYS, PATH, VENV, Entry
from imagebuilder.plan.sshkeys import NODE_ALIAS
from imagebuilder.recipe import Recipe

_FOLDER = "files"
# Where each file ends up, and its mode.
_FILES = (
    ("entrypoint.bash", "/usr/local/bin/imagebuilder-entrypoint", 0o755),
    ("mpi-node.sh", "/usr/local/bin/imagebuilder-mpi-node", 0o755),
    ("settings.template", "/etc/imagebuilder/settings", 0o644),
    ("sshd_config.template", "/etc/imagebuilder/sshd_config", 0o644),
    ("sshd_direct.conf.template", "/etc/ssh/sshd_config.d/imagebuilder.conf", 0o644),
    ("ssh_config.template", "/etc/ssh/ssh_config.d/imagebuilder.conf", 0o644),
    ("profile.sh.template", "/etc/profile.d/imagebuilder.sh", 0o644),
)
_SSH_PORT = 22  # ssh's own, where nothing is said
# The end of the settings, where a key is baked in.
_BAKED = """\
# The key that is baked in counts where the job brings none.
if [ -z "${{IMAGEBUILDER_KEYS-}}" ] && [ ! -d /run/secrets/imagebuilder ]; then
    IMAGEBUILDER_KEYS={folder}
fi
"""


def image_files(recipe: Recipe, environment: Mapping[str, str]) -> tuple[Entry, ...]:
    """Make the plain files of an image. Pure: reads nothing but this package's own data.

    Args:
        recipe: whose `ssh` says which user and port the nodes use.
        environment: all variables of the image, as in its config; login shells get the same.

    """
    user, port = recipe.ssh.user, recipe.ssh.port
    variables = sorted(environment.items())
    # The names of users that a recipe may have, and so their folders, need no quotes anywhere.
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
    files = (
        Entry(path=path, kind="file", mode=mode, text=_text(name, values)) for name, path, mode in _FILES
    )
    # sshd's folder for privilege separation, for an sshd that is started without the entrypoint.
    return (*files, Entry(path="/run/sshd", kind="dir", mode=0o755))


def state_folder(user: str) -> str:
    """Name the container's private folder of keys and sshd settings, mode 0700, made at start.

    Not in the home folder, which a cluster may share between nodes; and one that ssh_config can name, for ssh
    in `docker exec` has none of the entrypoint's variables.
    """
    return "/run/imagebuilder" if user == "root" else f"/tmp/imagebuilder-{user}"  # noqa: S108 in the image


def sshd_quoted(text: str) -> str:
    r"""Quote one argument for sshd_config, whose reader knows `\\` and `\"` inside of quotes (misc.c).

    >>> print(sshd_quoted('A=say "hi" $HOME # C:\\'))
    "A=say \"hi\" $HOME # C:\\"
    """
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Template(Template):
    """Text with `%{name}` in it: `$` is the shell's."""

    delimiter = "%"


def _text(name: str, values: Mapping[str, object]) -> str:
    text = (resources.files("imagebuilder.plan") / _FOLDER / name).read_text(encoding="utf-8")
    # Scripts are the same in every image, and no template: `%` is for them to use.
    return _Template(text).substitute(values) if name.endswith(".template") else text


def _export(name: str, value: str) -> str:
    """Write the line of a login shell that sets a variable unless it is set."""
    return f'[ -n "${{{name}+set}}" ] || export {name}={shlex.quote(value)}\n'
