"""Write the files of a job: all of them or none, and never over others without being told to."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError
from imagebuilder.launch.job import Job
from imagebuilder.launch.targets import Manifest, Script, Target
from imagebuilder.plan import sshkeys

KEYS_FOLDER = "keys"
KEYS_FILE = "keys.yaml"


def needs_keys(target: Target, job: Job) -> bool:
    """Whether the job's nodes log in to each other with keys that nobody else makes."""
    return bool(target.header.keys) and job.uses_mpi and not job.image.baked_keys


def text(files: Sequence[Script | Manifest], target: Target, job: Job) -> str:
    """Return the job as one text, for a pipe.

    Raises:
        InputError: it needs more than one file.

    """
    if len(files) != 1 or needs_keys(target, job):
        found = [file.name for file in files] + (["the job's keys"] if needs_keys(target, job) else [])
        raise InputError(
            f"the target {target.name} writes {' and '.join(found)}",
            where="imagebuilder launch",
            hint="name a folder for them: --output DIR",
        )
    return files[0].text


def write(
    files: Sequence[Script | Manifest], target: Target, job: Job, folder: Path, *, force: bool = False
) -> list[Path]:
    """Write the files into a folder in one step; return their paths.

    Args:
        files: the result of `fill`.
        target: their target.
        job: their job.
        folder: does not exist yet, or is empty.
        force: replace a folder that an earlier call has written.

    Raises:
        InputError: the folder exists and is not empty, or cannot be written.
        EnvironmentFault: ssh-keygen is not installed.

    """
    known = {file.name for file in files} | {KEYS_FOLDER, KEYS_FILE}
    try:
        present = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
        if folder.is_symlink() or (present and not (force and present <= known)):
            raise InputError(
                "exists and is not an empty folder",
                where=printable(str(folder)),
                hint="name another one" if force else "name another one, or replace it with --force",
            )
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as place:
            made = Path(place) / "new"
            made.mkdir()
            for file in files:
                path = made / file.name
                path.write_text(file.text, encoding="utf-8")
                path.chmod(0o755 if isinstance(file, Script) else 0o644)
            if needs_keys(target, job):
                _add_keys(made, target, job)
            if present:
                folder.rename(Path(place) / "old")
            # Renaming replaces an empty folder, but nothing else.
            made.rename(folder)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}",
            where=printable(str(folder)),
            hint="is the folder writable?",
        ) from error
    return [folder / name for name in sorted(entry.name for entry in folder.iterdir())]


def _add_keys(folder: Path, target: Target, job: Job) -> None:
    outer = folder / KEYS_FOLDER
    outer.mkdir(mode=0o700)
    keys = outer / "job"
    sshkeys.make_keys(keys, name=job.name)
    if target.header.keys == "secret":
        path = folder / KEYS_FILE
        path.touch(mode=0o600)
        path.write_text(sshkeys.secret_manifest(keys, job.keys_name, job.namespace), encoding="utf-8")
        shutil.rmtree(outer)
        return
    # The container's user may not be this one. Nobody else can enter the folder above.
    keys.chmod(0o755)
    for file in keys.iterdir():
        file.chmod(0o644)
