"""Find or make the image with the tools: one that has them, or Debian's with the tools installed."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
from docker.errors import DockerException, ImageNotFound

from imagebuilder.errors import EnvironmentFault
from imagebuilder.host.engine import Engine, explained
from imagebuilder.host.site import apt_conf, redact

if TYPE_CHECKING:
    from imagebuilder.host.site import Site
    from imagebuilder.host.tools import Sandbox
    from imagebuilder.host.tools.container import ContainerSandbox

log = logging.getLogger(__name__)

REPOSITORY = "imagebuilder-tools"
# Installed into an image that lacks the tools. mmdebstrap has Debian trixie's version, or a security update
# of it. There is a keyring for each distribution in suites.yaml.
PACKAGES = (
    "mmdebstrap=1.5.7-*",
    "mount",
    "ca-certificates",
    "debian-archive-keyring",
    "ubuntu-keyring",
)
_FORMAT = 1
_INSTALL_LIMIT = 900.0  # seconds; some 40 MB of packages and the index of a suite
_SETTING = (
    "name another in the site file, `tools: {image: ...}`: Debian's, or one that has mmdebstrap and apt"
)
_TAIL = 12  # lines of apt's that an error shows
_CA = "/run/imagebuilder-ca.pem"
_LIST = "/run/imagebuilder.list"
_CONF = "/run/imagebuilder-apt.conf"
_INSTALL = ("install", "--yes", "-qq", "--no-install-recommends", *PACKAGES)
_MIRROR_OPTIONS = [f"-oDir::Etc::SourceList={_LIST}", "-oDir::Etc::SourceParts=/dev/null"]
_MIRROR_SOURCE = (
    'umask 077; . /etc/os-release; echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] '
    f'$MIRROR $VERSION_CODENAME main" >{_LIST}'
)
_PROBE = "for tool in apt-get dpkg-deb mmdebstrap unshare; do command -v $tool >/dev/null || echo $tool; done"


def find(engine: Engine, name: str, platform: str) -> str:
    """Return the id of the image that the site names. Pulls it if the engine does not have it.

    Raises:
        EnvironmentFault: the engine does not have it and cannot pull it.

    """
    try:
        present = engine.client.images.get(name)
        if present.attrs.get("Architecture", "") == platform.partition("/")[2]:
            return str(present.id)
    except ImageNotFound:
        log.info("pulling %s", name)
    except (DockerException, requests.RequestException) as error:
        raise EnvironmentFault(f"{engine.kind} cannot say whether it has {name}: {error}") from error
    try:
        pulled: Any = engine.client.images.pull(name, platform=platform)
    except (DockerException, requests.RequestException) as error:
        said = getattr(error, "explanation", None) or error
        raise EnvironmentFault(
            f"apt, dpkg and mmdebstrap are to run in a container of `{name}`, which {engine.kind} does not "
            f"have and cannot pull: {said}",
            hint=_SETTING,
        ) from error
    return str((pulled[0] if isinstance(pulled, list) else pulled).id)


def made_from(engine: Engine, base: str) -> str | None:
    """Return the image that an earlier run made from a base; None if there is none."""
    name = _name(base)
    try:
        engine.client.images.get(name)
    except ImageNotFound:
        return None
    except (DockerException, requests.RequestException) as error:
        raise EnvironmentFault(f"{engine.kind} cannot say whether it has {name}: {error}") from error
    return name


def lacks(sandbox: Sandbox) -> tuple[str, ...]:
    """Return the names of the tools that a container lacks."""
    return tuple(sandbox.run(["sh", "-c", _PROBE], timeout=60).stdout.split())


def make(base: str, sandbox: ContainerSandbox, site: Site) -> str:
    """Install the tools in a container of the base, and commit it as an image. Returns the image's name.

    Uses the site's proxies, CA and mirror; the image does not contain them.

    Raises:
        EnvironmentFault: the packages cannot be installed; the message quotes apt.

    """
    if "apt-get" in lacks(sandbox):
        raise EnvironmentFault(f"the image `{site.tools.image}` has no apt-get", hint=_SETTING)
    log.warning("installing mmdebstrap into an image made from %s, once", site.tools.image)
    env = {**site.proxy_environment(), "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    options = [pair for pair in site.apt_options if not Path(pair[1]).is_absolute()]
    if site.ca_bundle:
        sandbox.put(_CA, site.ca_bundle.read_bytes(), mode=0o644)  # apt reads it as the user _apt
        options.append(("Acquire::https::CaInfo", _CA))
    sandbox.put(_CONF, apt_conf(options).encode())
    # The mirror may lack the image's distribution: then try the image's own sources.
    sources = [_MIRROR_OPTIONS, []] if site.apt_mirror.startswith("http") else [[]]
    if len(sources) > 1:
        sandbox.run(["sh", "-c", _MIRROR_SOURCE], timeout=60, env={"MIRROR": site.apt_mirror})
    said = ""
    for chosen in sources:
        for words in (("update", "-qq", "--error-on=any"), _INSTALL):
            result = sandbox.run(
                ["apt-get", "-c", _CONF, *chosen, *words], timeout=_INSTALL_LIMIT, env=env, check=False
            )
            if result.code != 0:
                said = redact(result.stderr.strip() or result.stdout.strip())
                break
        else:
            break
    else:
        raise EnvironmentFault(
            f"mmdebstrap could not be installed in a container of `{site.tools.image}`:\n"
            + "\n".join(said.splitlines()[-_TAIL:]),
            hint=f"check the proxy and the mirror, or {_SETTING}",
        )
    sandbox.run(["sh", "-c", f"apt-get clean; rm -rf /var/lib/apt/lists/* {_CA} {_LIST} {_CONF}"], timeout=60)
    name = _name(base)
    repository, _, tag = name.partition(":")
    with explained("keeping the image of the tools"):
        sandbox.engine.client.api.commit(sandbox.container, repository=repository, tag=tag)
    return name


def _name(base: str) -> str:
    words = "\n".join((str(_FORMAT), base, *PACKAGES))
    return f"{REPOSITORY}:{hashlib.sha256(words.encode()).hexdigest()[:16]}"
