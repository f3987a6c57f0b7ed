"""Images and jobs for the tests of `launch`."""

from __future__ import annotations

from typing import Any

from imagebuilder.launch import image as images
from imagebuilder.launch.image import LaunchImage
from imagebuilder.launch.job import Job
from imagebuilder.launch.targets import Manifest, Target

DIGEST = f"sha256:{'a' * 64}"
REFERENCE = f"registry.example/team/cuda12@{DIGEST}"
# Every word that a shell, Kubernetes, Compose or YAML could take for something of its own.
ODD = (
    *("python", "train.py", "", " ", "a b", "it's", '"quoted"', "$HOME", "$(id)", "$$", "`id`", "${A:-b}"),
    *(
        "\\",
        "\\n",
        "two\nlines\n",
        "\ttab",
        "*",
        "~",
        "#no",
        "- x",
        "a: b",
        "{{ job }}",
        "{% x %}",
        "!value 0",
    ),
    *("y", "1e3", "0o17", "null", "1:20", "--", "-x", "@file", "%d", "\u00e9\u4e2d\U0001f600", "\x7f\x1b[0m"),
    *("'$(touch pwned)'", "; touch pwned", "&& touch pwned", "\n touch pwned\n", "\u2028", "end\\"),
)
LABELS = {
    "org.imagebuilder.lock": "0" * 64,
    "org.imagebuilder.recipe": "cuda12-torch",
    "org.imagebuilder.ssh.port": "22",
    "org.imagebuilder.ssh.user": "root",
    "org.imagebuilder.pin.cuda": "12.8.90",
    "org.imagebuilder.pin.openmpi": "5.0.7-1",
    "org.imagebuilder.pin.torch": "2.10.0+cu128",
}


def config(*, labels: dict[str, str] | None = None, **changed: Any) -> dict[str, Any]:
    """The config of cuda12-torch, with changes."""
    return {
        "User": "0:0",
        "Env": ["PATH=/opt/venv/bin:/usr/bin:/bin"],
        "Cmd": None,
        "WorkingDir": "/root",
        "Labels": {**LABELS, **(labels or {})},
        **changed,
    }


def image(**changed: Any) -> LaunchImage:
    return images.from_config(REFERENCE, config(**changed), pullable=True)


def trainer() -> LaunchImage:
    """The same image with a user other than root."""
    labels = {"org.imagebuilder.ssh.port": "2222", "org.imagebuilder.ssh.user": "trainer"}
    return image(labels=labels, User="1000:0", WorkingDir="/home/trainer")


def job(target: Target | None = None, **changed: Any) -> Job:
    """A job of two nodes with two ranks each, as a target needs it."""
    header = target.header if target else None
    values: dict[str, Any] = {
        "name": "fit",
        "image": image(),
        "nodes": 2,
        "ranks": 2,
        "launcher": "torchrun" if header is None or "framework" in header.launchers else "mpirun",
        "command": ("python", "train.py"),
        "gpus": 2,
        **changed,
    }
    if header:
        values.setdefault("variant", next(iter(header.variants), ""))
        values.setdefault("host_network", header.network == "host")
        if "hosts" in header.options:
            values.setdefault("hosts", tuple(f"gpu{number}" for number in range(values["nodes"])))
    return Job(**values)


def only(files: Any) -> Manifest:
    """The only file of a target, which is a manifest."""
    (file,) = files
    assert isinstance(file, Manifest)
    return file
