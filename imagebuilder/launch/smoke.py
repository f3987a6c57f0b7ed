"""The command of `launch --smoke`: the smoke test's own scripts, as one word of Python.

Its other checks need a cluster that they can start and end, and stay with `imagebuilder smoke-test`.
"""

from __future__ import annotations

from importlib import resources

from imagebuilder import catalog
from imagebuilder.errors import InputError
from imagebuilder.launch.image import LaunchImage

_PAYLOAD = resources.files("imagebuilder.smoke").joinpath("payload")
# Checked before the script runs: variables of the launcher, and what they must be.
_PROGRAM = """\
import os, sys, types
wanted = {wanted!r}
found = {{name: os.environ.get(name) for name in wanted}}
if found != wanted:
    sys.exit(f"launch: this rank should have {{wanted}}, but has {{found}}")
module = types.ModuleType("common")
exec({common!r}, module.__dict__)
sys.modules["common"] = module
sys.argv = {argv!r}
if {peer!r}:
    sys.argv += ["--peer", os.environ[{peer!r}]]
exec({script!r}, {{"__name__": "__main__"}})
"""
_MIB = 1 << 20


def command(image: LaunchImage, launcher: str, nodes: int, ranks: int, *, on_gpus: bool) -> tuple[str, ...]:
    """Return the command: exact collectives for a framework, an exact sum for mpirun.

    Raises:
        InputError: the image's framework has no script for this.

    """
    if launcher == "mpirun":
        # rank.sh has checked the number of ranks.
        return _python("mpi_sum.py", {}, (), "")
    scripts = [
        framework.payloads["collectives"]
        for name, framework in catalog.frameworks("collectives").items()
        if name in dict(image.pins) and framework.launcher and framework.launcher.command[0] == launcher
    ]
    if not scripts:
        raise InputError(f"not yet for {launcher}: it has no script with collectives", where="--smoke")
    options = ("--device", "cuda" if on_gpus else "cpu")
    limits = (f"--largest={4 * _MIB}", f"--sweep={64 * _MIB}", "--seconds=60", "--each=120")
    wanted = {"WORLD_SIZE": str(nodes * ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return _python(scripts[0], wanted, (*options, *limits), "MASTER_ADDR")


def _python(name: str, wanted: dict[str, str], options: tuple[str, ...], peer: str) -> tuple[str, ...]:
    program = _PROGRAM.format(
        wanted=wanted,
        common=_PAYLOAD.joinpath("common.py").read_text(encoding="utf-8"),
        script=_PAYLOAD.joinpath(name).read_text(encoding="utf-8"),
        argv=[name, "--nonce=launch", *options],
        peer=peer,
    )
    return ("python", "-c", program)
