"""From the site's settings to a client of one registry, or of the mirror that stands in for it."""

from __future__ import annotations

from imagebuilder.registry.certificates import Trust
from imagebuilder.registry.client import Client, Options
from imagebuilder.registry.reference import Reference, parse
from imagebuilder.site import Site


def options(site: Site, host: str, *, plain_http: bool = False) -> Options:
    """Say how to reach a registry; `plain_http` allows it besides what the site's settings allow."""
    own = dict(site.registries)
    trust = {
        name: Trust(authorities=(item.ca,) if item.ca else (), client=item.client)
        for name, item in own.items()
        if item.ca or item.client
    }
    insecure = plain_http or (host in own and own[host].plain_http)
    return Options(session=site.session(), insecure=insecure, trust=trust)


def reader_of(reference: Reference, site: Site) -> Client:
    """Make a client that reads a repository, from the site's mirror of its registry where there is one."""
    mirror = next((item.mirror for host, item in site.registries if host == reference.host), "")
    where = parse(f"{mirror}/{reference.path}") if mirror else reference
    return Client(where, options(site, where.host))
