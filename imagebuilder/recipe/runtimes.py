"""Which container runtimes can pull what `push` sends, for those that a recipe states (`hosts: runtimes:`).

Sources of the versions are in docs/how-to/pull.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.version import Version

# The first version that reads layers packed with zstd; "" if it is not known.
ZSTD = {
    "docker": "23.0",
    "containerd": "1.5",
    "podman": "1.6.2",
    "cri-o": "1.15.3",
    "buildah": "1.11.3",
    "skopeo": "0.1.40",
    "enroot": "4.0",
    "apptainer": "1.5",
    "singularity": "",
}
# What helps an older version besides gzip.
_INSTEAD = {
    "enroot": "set ENROOT_GZIP_PROGRAM=zstd where enroot imports the image, or ",
    "apptainer": "give it a file of `imagebuilder build --output IMAGE.sqsh`, or ",
}
_GZIP = "push with --compression gzip"
# Before it, SOCI reads only the first gzip member of a layer.
_SOCI = "0.14"
NAMES = (*ZSTD, "soci")


def warnings(stated: Sequence[str], *, zstd: bool) -> Iterator[str]:
    """Yield a sentence for each stated runtime that cannot read an image.

    Args:
        stated: name and version of each, as in `docker 20.10`.
        zstd: whether the layers are packed with zstd, and not with gzip.

    """
    for runtime in stated:
        name, _, version = runtime.partition(" ")
        least = ZSTD.get(name)
        if zstd and least == "":
            yield f"whether {runtime} can pull layers packed with zstd is not known: try it, or {_GZIP}"
        elif zstd and least and Version(version) < Version(least):
            ways = f"{_INSTEAD.get(name, '')}{_GZIP}"
            yield f"{runtime} cannot pull layers packed with zstd ({least} can): {ways}"
        if not zstd and name == "soci" and Version(version) < Version(_SOCI):
            yield f"{runtime} makes an index of these layers that nobody can read: make none before {_SOCI}"
