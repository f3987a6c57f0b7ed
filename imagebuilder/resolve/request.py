"""What a recipe asks of the resolvers: the recipe and the catalog put together, nothing looked up yet."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass

from packaging.version import Version

from imagebuilder import catalog, platforms
from imagebuilder.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """A pin and the package whose version it fixes: a wheel's distribution, or a Debian package."""

    pin: str
    value: str
    package: str

    @property
    def requirement(self) -> str:
        """The pin as a Python requirement: a prefix of the release, so that `9.10` takes 9.10.2.21."""
        version = Version(self.value)
        exact = version.is_prerelease or version.local or version.is_postrelease
        return f"{self.package}=={self.value}" + ("" if exact else ".*")


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that decides a lock.

    Attributes:
        recipe: its name, for messages.
        distribution, suite, architecture: the base, in Debian's words (`debian`, `trixie`, `amd64`).
        python: major.minor of the image's Python.
        wheel_pins: pins that wheels provide.
        requirements: Python requirements besides the pins.
        pip: those of them that stand in the recipe, in its order, for messages.
        owners: normalised distribution name and the component that brought it in.
        overrides: pins of wheels to force.
        deb_pins: pins that Debian packages provide.
        packages: Debian packages, `name` or `name=version`, sorted.

    """

    recipe: str
    distribution: str
    suite: str
    architecture: str
    python: str
    wheel_pins: tuple[Pinned, ...]
    requirements: tuple[str, ...]
    pip: tuple[str, ...]
    owners: tuple[tuple[str, str], ...]
    overrides: tuple[str, ...]
    deb_pins: tuple[Pinned, ...]
    packages: tuple[str, ...]

    def checksum(self, recipe: Recipe) -> str:
        """Hash what a lock was made from: the recipe and what the catalog made of it. Hex sha256."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(f"{recipe.checksum()}\n{text}".encode()).hexdigest()


def request(recipe: Recipe, platform: str = "") -> Request:
    """Put recipe and catalog together, for one platform of the recipe's; without a name for its first.

    Raises:
        ConflictError: a component is needed and not pinned, or nobody provides it.

    """
    wheel_pins, deb_pins, packages, requirements = [], [], set(recipe.apt), list(recipe.pip)
    owners: dict[str, str] = {}
    for part in catalog.parts(recipe):
        name, provider, version = part.component.name, part.provider, part.pin
        if provider.wheel:
            package = catalog.fill(provider.wheel, version)
            wheel_pins.append(Pinned(pin=name, value=version, package=package))
            owners[package] = name
        for extra in provider.wheels:
            requirements.append(catalog.fill(extra, version))
            owners.setdefault(extra, name)
        names = [catalog.fill(package, version) for package in provider.apt]
        packages.update(names)
        if names and version:
            deb_pins.append(Pinned(pin=name, value=version, package=names[0]))
    return Request(
        recipe=recipe.name,
        distribution=recipe.distribution,
        suite=recipe.suite,
        architecture=platforms.architecture(platform or recipe.platforms[0]),
        python=recipe.python_minor,
        wheel_pins=tuple(wheel_pins),
        requirements=tuple(sorted(set(requirements))),
        pip=recipe.pip,
        owners=tuple(sorted(owners.items())),
        overrides=tuple(sorted(recipe.override)),
        deb_pins=tuple(deb_pins),
        packages=tuple(sorted(packages)),
    )
