"""Variables that belong to a job or a host, not to an image. jobsettings.yaml lists them, with reasons."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from imagebuilder.core import yamlfile
from imagebuilder.core.model import Strict

_FILE = Path(__file__).with_name("jobsettings.yaml")
# A name of Open MPI's parameter files, as the variable that sets the same parameter.
_PARAMETER = re.compile(r"[a-z][a-z0-9_]{0,200}")


@dataclass(frozen=True, kw_only=True)
class JobSetting:
    """Variables that an image must not set.

    Attributes:
        name: of the variable; `*` stands for any text.
        but: names that the pattern does not mean.
        why: why they belong to a job or a host.
        empty: what an empty value does; an empty text if it does nothing.

    """

    name: str
    why: str
    but: tuple[str, ...] = ()
    empty: str = ""


class AllowedVariable(Strict):
    """A variable that belongs to a job or a host, and that the image sets on purpose."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,199}$", description="The variable's name.")]
    reason: Annotated[
        str,
        Field(
            min_length=8,
            max_length=500,
            description="Why every job and every host may have it, for those who use the image.",
        ),
    ]


@cache
def load() -> tuple[JobSetting, ...]:
    """Return the list."""
    rows = yamlfile.read(_FILE).data
    return tuple(
        JobSetting(
            name=row["name"], why=row["why"], but=tuple(row.get("but", ())), empty=row.get("empty", "")
        )
        for row in rows
    )


def reason(name: str, *, is_empty: bool = False) -> str:
    """Say why a variable belongs to a job or a host; empty if it may be in an image (with an empty value).

    >>> reason("RANK"), reason("NCCL_VERSION"), reason("PATH"), reason("RANK", is_empty=True)
    ("it is one rank's number", '', '', '')
    """
    found = (each for each in load() if fnmatchcase(name, each.name) and name not in each.but)
    return next((each.empty if is_empty else each.why for each in found), "")


def of_parameter(line: str) -> str:
    """Return the variable that sets the same as a line of openmpi-mca-params.conf; empty if it sets nothing.

    >>> of_parameter(" btl_tcp_if_include = eth0 "), of_parameter("# btl_tcp_if_include = eth0")
    ('OMPI_MCA_btl_tcp_if_include', '')
    """
    name, _, value = line.partition("=")
    return f"OMPI_MCA_{name.strip()}" if value.strip() and _PARAMETER.fullmatch(name.strip()) else ""
