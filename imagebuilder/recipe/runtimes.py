"""Which container runtimes can pull what `push` sends, for those that a recipe states (`hosts: runtimes:`).

Sources of the versions are in docs/how-to/pull.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.version import Version

# The first version that reads layers packed with zstd. Podman, CRI-O, Buildah and Skopeo read them by
# containers/image, since 2019; these are their first releases of 2020 and later that surely have it.
ZSTD = {
    "docker": "23.0",
    "containerd": "1.5",
    "podman": "2.0",
    "cri-o": "1.18",
    "buildah": "1.15",
    "skopeo": "1.0",
    "apptainer": "1.0",
}
# enroot unpacks all layers with one program.
_ENROOT = "set ENROOT_GZIP_PROGRAM=zstd where enroot imports the image, or push with --compression gzip"
# Before it, SOCI reads only the first gzip member of a layer.
_SOCI = "0.14"
NAMES = (*ZSTD, "enroot", "soci")


def warnings(stated: Sequence[str], *, zstd: bool) -> Iterator[str]:
    """Yield a sentence for each stated runtime that cannot read an image.

    Args:
        stated: name and version of each, as in `docker 20.10`.
        zstd: whether the layers are packed with zstd, and not with gzip.

    """
    for runtime in stated:
        name, _, version = runtime.partition(" ")
        least = ZSTD.get(name, "")
        if zstd and least and Version(version) < Version(least):
            yield f"{runtime} cannot pull layers packed with zstd ({least} can): push with --compression gzip"
        if zstd and name == "enroot":
            yield f"{runtime} does not unpack zstd by itself: {_ENROOT}"
        if not zstd and name == "soci" and Version(version) < Version(_SOCI):
            yield f"{runtime} makes an index of these layers that nobody can read: make none before {_SOCI}"
