"""Read what an image knows of itself, from its config: in the store, in a local engine or in a registry."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from imagebuilder import catalog
from imagebuilder.core import labels as label_names
from imagebuilder.core import platforms
from imagebuilder.core.reference import Reference, parse, parse_image
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import InputError, RegistryError, StoreError
from imagebuilder.smoke.target import SmokeTarget, from_labels

if TYPE_CHECKING:
    from imagebuilder.catalog import Launcher
    from imagebuilder.host.engine import Engine
    from imagebuilder.host.site import Site
    from imagebuilder.store import ImageRecord, Store

# useradd's rule, which the recipe's model has too.
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_ID = re.compile(r"[0-9]{1,10}(?::[0-9]{1,10})?")
_LARGEST_UID = 2**31 - 1
_FOLDER = re.compile(r"/[\x21-\x7e]{0,4000}|/")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_COMPONENT = re.compile(r"[A-Za-z0-9._-]{1,100}")
_VERSION = re.compile(r"[A-Za-z0-9._+~:-]{1,100}")
# An index has one entry for each platform; an attack has more.
_MOST_PLATFORMS = 64


@dataclass(frozen=True, kw_only=True)
class LaunchImage:
    """The image of a job.

    Attributes:
        reference: what a node pulls, `REGISTRY/NAME@sha256:...`; an engine's image id if no registry has it.
        pullable: whether the reference names a registry.
        recipe: the recipe's name; may be empty.
        user, uid, home: of the image's processes; the group is 0.
        port: sshd's.
        workdir: where commands start.
        command: what the image runs by itself; empty for an ssh node.
        pins: component and version, sorted.
        env: its variables.
        baked_keys: an ssh key is in a layer, so a job needs none.
        tested: what the smoke test knows of it.

    """

    reference: str
    pullable: bool
    recipe: str
    user: str
    uid: int
    port: int
    workdir: str
    command: tuple[str, ...]
    pins: tuple[tuple[str, str], ...]
    env: tuple[tuple[str, str], ...]
    baked_keys: bool
    tested: SmokeTarget

    @property
    def home(self) -> str:
        return "/root" if self.uid == 0 else f"/home/{self.user}"

    @property
    def state(self) -> str:
        """The private folder in which the entrypoint keeps the job's keys and sshd's configuration."""
        return "/run/imagebuilder" if self.uid == 0 else f"/tmp/imagebuilder-{self.user}"  # noqa: S108

    @property
    def repository(self) -> str:
        """The reference without its digest."""
        return self.reference.partition("@")[0]

    @property
    def digest(self) -> str:
        return self.reference.rpartition("@")[2]

    @property
    def uses_gpus(self) -> bool:
        return "cuda" in dict(self.pins)

    @property
    def mpi(self) -> str:
        """The component that has the image's `mpirun`; empty if there is none."""
        return next((name for name in ("openmpi", "mpich") if name in dict(self.pins)), "")

    @property
    def launchers(self) -> dict[str, Launcher]:
        """The launchers of its frameworks that can start a job, by the name of their program."""
        return {
            framework.launcher.command[0]: framework.launcher
            for name, framework in catalog.frameworks().items()
            if name in dict(self.pins) and framework.launcher and framework.launcher.job
        }

    def needs(self, of: str) -> str:
        """Say which `driver` or `gpus` the image's components need; empty if the catalog has no limit."""
        found = [
            limit
            for name, version in self.pins
            if (component := catalog.load().get(name))
            for limit in component.limits
            if limit.of == of and limit.strict and catalog.matches(version, limit.version)
        ]
        least = max((limit.least for limit in found if limit.least), key=catalog.numbers, default="")
        most = min((limit.most for limit in found if limit.most), key=catalog.numbers, default="")
        return " to ".join(filter(None, (least, most))) if most else f"{least} or newer" if least else ""


def from_config(reference: str, config: Mapping[str, Any], *, pullable: bool) -> LaunchImage:
    """Make the image from its config's `config`, as the OCI image specification and Docker write it.

    Raises:
        InputError: it is not an image of imagebuilder, or a field of it is damaged.

    """
    labels = config.get("Labels")
    texts = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
    target = from_labels(reference, texts)
    user = str(config.get("User") or "0:0")
    workdir = str(config.get("WorkingDir") or "/")
    if not _ID.fullmatch(user) or int(user.partition(":")[0]) > _LARGEST_UID:
        raise _damaged(reference, f"its user is `{printable(user)}`, which is not a number")
    if not _USER.fullmatch(target.ssh_user):
        raise _damaged(reference, f"its label `{label_names.SSH_USER}` is not a user's name")
    if not _FOLDER.fullmatch(workdir):
        raise _damaged(reference, f"its working folder is `{printable(workdir)}`")
    uid = int(user.partition(":")[0])
    if (uid == 0) != (target.ssh_user == "root"):
        raise _damaged(reference, f"it runs as uid {uid}, and its ssh user is `{target.ssh_user}`")
    return LaunchImage(
        reference=reference,
        pullable=pullable,
        recipe=texts.get(label_names.RECIPE, ""),
        user=target.ssh_user,
        uid=uid,
        port=target.ssh_port,
        workdir=workdir,
        command=tuple(_words(reference, config.get("Cmd"))),
        pins=_pins(reference, target),
        env=tuple(sorted(_variables(reference, config.get("Env")))),
        baked_keys=target.baked_keys,
        tested=target,
    )


def from_store(image: ImageRecord, store: Store, repository: str) -> LaunchImage:
    """Read an image of the store, which was or will be pushed to this repository.

    Raises:
        InputError: no repository is given, or its name is wrong.
        StoreError: the image's config cannot be read.

    """
    if not repository:
        raise InputError(
            "is in the store, where no other host can pull it",
            where=image.name,
            hint="push it, and name it as the registry does: --repository registry.example/team/name",
        )
    reference = parse(repository)
    if reference.tag or reference.digest:
        raise InputError("must be a repository: the digest is the image's own", where=printable(repository))
    blob = store.blob(image.config)
    try:
        config = json.loads(blob.read_bytes())["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"the config of `{image.name}` cannot be read: {error}", where=str(blob), hint="build it again"
        ) from error
    return from_config(f"{reference.name}@{image.manifest}", config, pullable=True)


def from_engine(engine: Engine, name: str, repository: str) -> LaunchImage:
    """Read an image of a local engine; without a repository, its id is its name.

    Raises:
        InputError: there is no such image, or it is not one of imagebuilder.

    """
    from imagebuilder.smoke.engine import require_image  # late: it needs the engine's SDK

    image = require_image(engine, name)
    wanted = parse(repository).name if repository else ""
    known = [
        str(parse(entry))
        for entry in sorted(image.attrs.get("RepoDigests") or ())
        if not wanted or parse(entry).name == wanted
    ]
    if wanted and not known:
        raise InputError(
            f"{engine.kind} does not know its digest in {wanted}",
            where=printable(name),
            hint=f"push it there, or name it as the registry does: {wanted}:TAG",
        )
    config = image.attrs.get("Config") or {}
    # An id is no name in a registry: only an engine that has the image can run it.
    if known:
        return from_config(known[0], config, pullable=True)
    return from_config(str(image.id), config, pullable=False)


def from_registry(
    text: str, site: Site, *, platform: str = "", one: bool = False, plain_http: bool = False
) -> LaunchImage:
    """Read an image in a registry, and turn its tag into its digest.

    An index stays an index, so that nodes of every platform find theirs, unless one platform is named, or
    `one` asks for one image: a report is about one.

    Raises:
        InputError: the name is wrong, or the image is not one of imagebuilder, or has not that platform.
        RegistryError: the registry does not have it or cannot be read, or it is damaged.

    """
    from imagebuilder.registry import options_for, reader
    from imagebuilder.registry.client import Client

    reference = parse_image(text)
    client = Client(reference, options_for(site, reference.host, plain_http=plain_http))
    name = reference.digest or reference.tag
    joined = reader.image_index(client, name)
    digest = ""
    if joined is not None:
        raw, index = joined
        name = _of_platform(reference, index.manifests, platform)
        digest = raw.digest if not (platform or one) else name
    raw, manifest = reader.image_manifest(client, name)
    found = f"{reference.name}@{digest or raw.digest}"
    document = reader.json_object(reader.blob(client, manifest.config), f"{found}: config")
    own = f"{document.get('os', '')}/{document.get('architecture', '')}"
    if platform and platform != own:
        raise InputError(f"is for {printable(own)}, not for {printable(platform)}", where=found)
    config = document.get("config")
    return from_config(found, config if isinstance(config, dict) else {}, pullable=True)


def _of_platform(reference: Reference, entries: Sequence[Any], platform: str) -> str:
    """Choose an index's entry: the named platform's, or any, this host's if it is there."""
    found = {
        str(entry.platform): str(entry.digest)
        for entry in entries[:_MOST_PLATFORMS]
        if entry.platform is not None and entry.platform.os != "unknown"
    }
    if not found:
        raise RegistryError("names no images for any platform", where=str(reference))
    if platform and platform not in found:
        raise InputError(
            f"has no image for {printable(platform)}",
            where=str(reference),
            hint=f"it has {printable(' and '.join(sorted(found)))}",
        )
    return found[platform] if platform else found.get(platforms.own(), found[min(found)])


def _pins(reference: str, target: SmokeTarget) -> tuple[tuple[str, str], ...]:
    for name, version in target.pins:
        if not re.fullmatch(r"[A-Za-z0-9._+~:-]{1,100}", version) or not _VARIABLE.fullmatch(
            name.replace("-", "_")
        ):
            raise _damaged(reference, f"its label `{label_names.PIN}{printable(name)}` is not a version")
    return target.pins


def _words(reference: str, value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise _damaged(reference, "its command is not a list of texts")
    return [str(word) for word in value]


def _variables(reference: str, value: object) -> list[tuple[str, str]]:
    pairs = [word.partition("=") for word in _words(reference, value)]
    return [(name, text) for name, _, text in pairs if _VARIABLE.fullmatch(name)]


def _damaged(reference: str, why: str) -> InputError:
    return InputError(why, where=printable(reference), hint="use an image that `imagebuilder build` made")
