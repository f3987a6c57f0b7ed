"""Edits of a lock as an attacker would make them, to get another image than its recipe asks for.

A good lock is changed in what it says, not in its syntax: a field takes the value that another package has, a
package moves, is dropped or comes from another lock, a section appears. `Judge` says whether an edit that was
not refused changes what is built.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagebuilder.core import files
from imagebuilder.errors import LockError
from imagebuilder.layers.system import debs as order
from imagebuilder.lock import model as locks
from imagebuilder.lock.model import Deb, Lock, Wheel
from imagebuilder.plan import Plan, render
from imagebuilder.resolve import closure
from imagebuilder.workflow import read_locks, read_plan
from tests.fuzz.mutation import TOKENS

# Fields that only a download can hold: whoever changes them has to offer the bytes under the same name.
_BYTES = {"sha256": "0" * 64, "size": 0}
_MOST = 3
# How many edits change the section of a platform; the rest change any part of the file.
_OF_A_SECTION = 0.9


def edit(rng: random.Random, seed: bytes, seeds: Sequence[bytes]) -> bytes:
    """Change a lock of `{"recipe": text, "lock": {...}}` in one to three places."""
    case = json.loads(seed)
    others = [json.loads(other)["lock"] for other in seeds]
    for _ in range(rng.randint(1, _MOST)):
        lock, other = case["lock"], rng.choice(others)
        if rng.random() < _OF_A_SECTION:
            lock, other = _section(lock), _section(other)
        rng.choice(_EDITS)(rng, lock, other)
    return json.dumps(case).encode()


def _section(lock: Any) -> Any:
    """Return the section of a lock file's first platform; the file itself once that section is damaged."""
    sections = lock.get("platforms")
    first = next(iter(sections.values()), None) if isinstance(sections, dict) else None
    return first if isinstance(first, dict) and first else lock


def _places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """List the path of every value below a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, item in items:
        found += [(*path, key), *_places(item, (*path, key))]
    return found


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        value = value[key]
    return value


def _pick(rng: random.Random, lock: Any) -> tuple[Any, Any]:
    """Choose a value: first a key of the lock, so that short sections have their turn."""
    key = rng.choice(sorted(lock))
    path = rng.choice([(key,), *((key, *below) for below in _places(lock[key]))])
    return _at(lock, path[:-1]), path[-1]


def _values(lock: Any, key: str | int) -> list[Any]:
    return [_at(lock, path) for path in _places(lock) if path[-1] == key]


def _value(rng: random.Random, lock: Any, other: Any) -> None:
    """Give a field the value that it has elsewhere."""
    holder, key = _pick(rng, lock)
    pool = _values(other, key) if isinstance(key, str) else list(holder)
    if pool:
        holder[key] = copy.deepcopy(rng.choice(pool))


def _token(rng: random.Random, lock: Any, _other: Any) -> None:
    holder, key = _pick(rng, lock)
    words = ["evil", "1.0", "0" * 64, 0, None, True, [], {}, rng.choice(TOKENS).decode(errors="replace")]
    holder[key] = rng.choice(words)


def _version(rng: random.Random, lock: Any, _other: Any) -> None:
    """Move a package to another version in every field that names it."""
    items = [*lock.get("wheels", []), *lock.get("debs", [])]
    if items and isinstance(item := rng.choice(items), dict) and isinstance(old := item.get("version"), str):
        for key, value in item.items():
            if isinstance(value, str):
                item[key] = value.replace(old, f"{old}.1") if key != "sha256" else value


def _hash(rng: random.Random, lock: Any, _other: Any) -> None:
    """Name other bytes for a package."""
    items = [*lock.get("wheels", []), *lock.get("debs", [])]
    if items and isinstance(item := rng.choice(items), dict):
        item["sha256"] = f"{rng.getrandbits(256):064x}"
        if rng.random() < 0.5:
            item["size"] = rng.randrange(1 << 30)


def _name(rng: random.Random, lock: Any, _other: Any) -> None:
    """Put another package in a package's place, in every field that names it."""
    items = [*lock.get("wheels", []), *lock.get("debs", [])]
    if items and isinstance(item := rng.choice(items), dict) and isinstance(item.get("name"), str):
        old = item["name"]
        for key in ("name", "file", "path"):
            if isinstance(item.get(key), str):
                item[key] = item[key].replace(old, "evil").replace(old.replace("-", "_"), "evil")


def _drop(rng: random.Random, lock: Any, _other: Any) -> None:
    holder, key = _pick(rng, lock)
    del holder[key]


def _double(rng: random.Random, lock: Any, _other: Any) -> None:
    holder, key = _pick(rng, lock)
    if isinstance(holder, list):
        holder.insert(rng.randint(0, len(holder)), copy.deepcopy(holder[key]))


def _swap(rng: random.Random, lock: Any, _other: Any) -> None:
    """Exchange two values, or one field of two packages."""
    holder, key = _pick(rng, lock)
    if isinstance(holder, list) and len(holder) > 1:
        second = rng.randrange(len(holder))
        one, two = holder[key], holder[second]
        fields = sorted(one.keys() & two.keys()) if isinstance(one, dict) and isinstance(two, dict) else []
        if fields and rng.random() < 0.7:
            name = rng.choice(fields)
            one[name], two[name] = two[name], one[name]
        else:
            holder[key], holder[second] = two, one


def _move(rng: random.Random, lock: Any, _other: Any) -> None:
    lists = [holder for path in [(), *_places(lock)] if isinstance(holder := _at(lock, path), list)]
    source, target = rng.choice(lists), rng.choice(lists)
    if source:
        target.append(source.pop(rng.randrange(len(source))))


def _import(rng: random.Random, lock: Any, other: Any) -> None:
    """Take a package of another lock, where the order wants it, or all of a section."""
    key = rng.choice(sorted(other))
    if not isinstance(other[key], list) or not other[key] or rng.random() < 0.2:
        lock[key] = copy.deepcopy(other[key])
        return
    item = copy.deepcopy(rng.choice(other[key]))
    if not isinstance(lock.get(key), list):
        return
    name = item.get("name") if isinstance(item, dict) else None
    names = [held.get("name") if isinstance(held, dict) else None for held in lock[key]]
    if name in names and name is not None:
        lock[key][names.index(name)] = item
    else:
        lock[key].append(item)
        lock[key].sort(key=lambda held: str(held.get("name")) if isinstance(held, dict) else str(held))


_EDITS = (_value, _value, _token, _version, _hash, _name, _drop, _double, _swap, _move, _import, _import)


class Judge:
    """What the locks of good cases mean, for comparison with edited ones.

    The packages' metadata is made up from the good locks: every package that nobody asks for by name is
    required by one that somebody does. A package whose hash no good lock has is what the edited lock says.
    """

    def __init__(self, cases: Sequence[Mapping[str, Any]], folder: Path) -> None:
        self._template = files.template("Dockerfile.j2")
        self._good: dict[str, tuple[Lock, str]] = {}
        self._requires: dict[str, dict[str, tuple[str, ...]]] = {}
        self._depends: dict[str, dict[str, tuple[str, ...]]] = {}
        self._debs: dict[str, Deb] = {}
        self._wheels: dict[str, Wheel] = {}
        for case in cases:
            path = write(case, folder)
            lock, plan = read_plan(path)
            recipe = case["recipe"]
            self._good[recipe] = (lock, self._image(plan))
            asked = read_locks(path).request(plan.platform).components
            direct = self._direct(path, plan.platform)
            self._requires[recipe] = _dependants(lock, asked, direct)
            wanted = {package.partition("=")[0] for package in lock.packages}
            rest = tuple(deb.name for deb in lock.debs if deb.name not in wanted)
            self._depends[recipe] = {next(d.name for d in lock.debs if d.name in wanted): rest}
            self._debs |= {deb.sha256: deb for deb in lock.debs}
            self._wheels |= {wheel.sha256: wheel for wheel in lock.wheels}

    def changes(self, case: Mapping[str, Any], path: Path) -> str:
        """Say what an edited lock that `check` and a build take changes; "" for nothing.

        Raises:
            LockError: it is refused, now or once its bytes are at hand.

        """
        lock, plan = read_plan(path)
        self._build(case["recipe"], lock, path, plan)
        good, image = self._good[case["recipe"]]
        if self._image(plan) == image:
            return ""
        if _plain(lock, _BYTES) == _plain(good, _BYTES):
            return "bytes"
        decided = {**_BYTES, "version": "", "file": "", "path": "", "architecture": ""}
        if lock.pins == good.pins and _plain(lock, decided) == _plain(good, decided):
            return "versions that the recipe leaves open"
        return "what is built"

    def _image(self, plan: Plan) -> str:
        keys = [layer.key for layer in plan.layers]
        return json.dumps([keys, str(plan.config), plan.tags, render.render(plan, self._template)])

    def _direct(self, path: Path, platform: str) -> frozenset[str]:
        wanted = read_locks(path).request(platform).of_wheels
        return frozenset(canonicalize_name(Requirement(text).name) for text in wanted)

    def _build(self, recipe: str, lock: Lock, path: Path, plan: Plan) -> None:
        """Do what a build does once it has the packages."""
        asked = closure.of_image(read_locks(path).request(plan.platform), lock)
        graph = self._requires[recipe]
        requires = {
            wheel.name: tuple(
                Requirement(name) for name in graph.get(self._wheels.get(wheel.sha256, wheel).name, ())
            )
            for wheel in lock.wheels
        }
        for wheel in lock.wheels:
            real = self._wheels.get(wheel.sha256, wheel)
            _refuse(
                []
                if (real.name, real.version) == (wheel.name, wheel.version)
                else [f"METADATA of {wheel.file}"]
            )
        closure.require(lock.wheels, requires, asked, "wheels")
        real_debs = [self._debs.get(deb.sha256, deb) for deb in lock.debs]
        packages = tuple(
            order.parse_package(
                f"Package: {deb.name}\nVersion: {deb.version}\nArchitecture: {deb.architecture}\n"
                f"Depends: {', '.join(self._depends[recipe].get(deb.name, ()))}\n"
            )
            for deb in real_debs
        )
        _refuse(order.problems(packages, lock.debs))
        if lock.image is None:
            names = [package.partition("=")[0] for package in lock.packages]
            _refuse(order.closure_problems(packages, names))


def write(case: Mapping[str, Any], folder: Path) -> Path:
    """Write recipe and lock of a case into a folder; returns the recipe's path."""
    path = folder / "x.yaml"
    path.write_text(case["recipe"], encoding="utf-8")
    locks.path_for(path).write_text(json.dumps(case["lock"]), encoding="utf-8")
    return path


def _dependants(
    lock: Lock, components: Mapping[str, str], direct: frozenset[str]
) -> dict[str, tuple[str, ...]]:
    """Let each wheel that nobody asks for be required by one of its component that somebody does."""
    found: dict[str, tuple[str, ...]] = {}
    for wheel in lock.wheels:
        if wheel.name not in direct:
            root = next(name for name in sorted(direct) if components.get(name, "python") == wheel.component)
            found[root] = (*found.get(root, ()), wheel.name)
    return found


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise LockError(problems[0])


def _plain(lock: Lock, values: Mapping[str, Any]) -> Any:
    """Write down what a lock says, but for these fields of its packages."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: values[key] if key in values else plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return plain(lock.knowing(()).model_dump(mode="json"))
