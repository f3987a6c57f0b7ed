"""All errors that a user can see, and the exit code of each kind.

    ImagebuilderError
    ├── TestFailure        1   a test ran and failed
    ├── EnvironmentFault   2   this host lacks something: an engine, a tool, a permission
    ├── InputError         3   a recipe, site file or argument is wrong
    ├── ConflictError      4   pins that cannot be used together
    ├── LockError          5   the lock is missing or does not agree with its recipe
    ├── FetchError         6   a download failed, or gave other bytes than the locked ones
    ├── BuildError         7   making a layer or an image failed
    ├── StoreError         8   the store is damaged, full or not writable
    ├── RegistryError      9   a registry refused a request or failed
    └── GateError         10   the rules forbid this push

Every message says what is wrong; `where` says in which file, line and key; `hint` says what to do next.
Ctrl-C ends with 130, as shells expect.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong: `where` is `file:line: key.path` as far as it is known."""

    message: str
    where: str = ""
    hint: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  -> {self.hint}" if self.hint else head


class ImagebuilderError(Exception):
    """The base class. `problems` holds every problem, not only the first."""

    exit_code = 70

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.problems: tuple[Problem, ...] = (Problem(message=message, where=where, hint=hint),)

    @classmethod
    def of(cls, problems: list[Problem] | tuple[Problem, ...]) -> ImagebuilderError:
        """Join several problems into one error, in the order given."""
        error = cls(problems[0].message)
        error.problems = tuple(problems)
        return error

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class TestFailure(ImagebuilderError):
    exit_code = 1
    __test__ = False  # tells pytest that this is not a test case


class EnvironmentFault(ImagebuilderError):
    exit_code = 2


class InputError(ImagebuilderError):
    exit_code = 3


class ConflictError(ImagebuilderError):
    exit_code = 4


class LockError(ImagebuilderError):
    exit_code = 5


class FetchError(ImagebuilderError):
    exit_code = 6


class BuildError(ImagebuilderError):
    exit_code = 7


class StoreError(ImagebuilderError):
    exit_code = 8


class RegistryError(ImagebuilderError):
    exit_code = 9


class GateError(ImagebuilderError):
    exit_code = 10


INTERRUPTED = 130
