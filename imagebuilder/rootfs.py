"""What an image holds as plain files of ours: the entrypoint, and settings of ssh, sshd and login shells.

The files are in `rootfs_files/`, some as templates; docs/explanation/ssh.md describes what they do together.
All that goes from a recipe into one of them passes a filter that quotes it for the reader of that file.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined

from imagebuilder.keys import NODE_ALIAS
from imagebuilder.plan import BAKED_KEYS, PATH, VENV, Entry
from imagebuilder.recipe import Recipe

_FOLDER = "rootfs_files"
# Where each file ends up, and its mode.
_FILES = (
    ("entrypoint.bash", "/usr/local/bin/imagebuilder-entrypoint", 0o755),
    ("mpi-node.sh", "/usr/local/bin/imagebuilder-mpi-node", 0o755),
    ("settings.j2", "/etc/imagebuilder/settings", 0o644),
    ("sshd_config.j2", "/etc/imagebuilder/sshd_config", 0o644),
    ("sshd_direct.conf.j2", "/etc/ssh/sshd_config.d/imagebuilder.conf", 0o644),
    ("ssh_config.j2", "/etc/ssh/ssh_config.d/imagebuilder.conf", 0o644),
    ("profile.sh.j2", "/etc/profile.d/imagebuilder.sh", 0o644),
)


def image_files(recipe: Recipe, environment: Mapping[str, str]) -> tuple[Entry, ...]:
    """Make the plain files of an image. Pure: reads nothing but this package's own data.

    Args:
        recipe: whose `ssh` says which user and port the nodes use.
        environment: all variables of the image, as in its config; login shells get the same.

    """
    values = {
        "user": recipe.ssh.user,
        "home": "/root" if recipe.ssh.user == "root" else f"/home/{recipe.ssh.user}",
        "port": recipe.ssh.port,
        "alias": NODE_ALIAS,
        "state": state_folder(recipe.ssh.user),
        "baked": BAKED_KEYS if recipe.ssh.keys == "baked" else "",
        "environment": sorted(environment.items()),
        "venv": VENV,
        "path": environment.get("PATH", PATH),
    }
    templates = _templates()
    files = (
        Entry(path=path, kind="file", mode=mode, text=_text(templates, name, values))
        for name, path, mode in _FILES
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


def _text(templates: Environment, name: str, values: Mapping[str, object]) -> str:
    if name.endswith(".j2"):
        return templates.get_template(name).render(values)
    # Scripts are the same in every image, and no template: `${#line}` begins a comment of Jinja's.
    return (resources.files("imagebuilder") / _FOLDER / name).read_text(encoding="utf-8")


@cache
def _templates() -> Environment:
    environment = Environment(  # noqa: S701 no HTML: each value is quoted for its own kind of file
        loader=PackageLoader("imagebuilder", _FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(sh=shlex.quote, sshd=sshd_quoted)
    return environment
