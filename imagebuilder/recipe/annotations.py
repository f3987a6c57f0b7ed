"""The block `about:` of a recipe: labels `org.opencontainers.image.*` that only a person can fill in."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from pydantic import AfterValidator, Field

from imagebuilder.core import yamlfile
from imagebuilder.core.model import Strict


def _text(value: str) -> str:
    if not value.isprintable():
        raise yamlfile.Invalid("holds control characters", "keep it on one line of printable text")
    return value


def _url(value: str) -> str:
    try:
        parts = urlsplit(_text(value))
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and not re.search(r"\s", value)
    except ValueError:
        valid = False
    if not valid:
        raise yamlfile.Invalid(f"`{yamlfile.printable(value)}` is not a URL", "write https://host/path")
    if parts.username is not None:
        raise yamlfile.Invalid("holds a user name or a password", "everyone who pulls the image can read it")
    return value


def _licenses(value: str) -> str:
    try:
        return canonicalize_license_expression(value)
    except InvalidLicenseExpression:
        raise yamlfile.Invalid(
            f"`{yamlfile.printable(value)}` is not an SPDX licence expression",
            'write it as in "Apache-2.0 AND BSD-3-Clause"; outside SPDX\'s list: LicenseRef-NAME',
        ) from None


Text = Annotated[str, AfterValidator(_text)]
Url = Annotated[str, AfterValidator(_url)]


class About(Strict):
    """Labels `org.opencontainers.image.*` of the image, under the same names.

    Every image also has these: `title` and `version` (by default from the recipe's name and the lock),
    `created` (the newest time in the lock) and `base.name`.
    """

    title: Annotated[Text, Field(description="Title of the image. Default: the recipe's name.")] = ""
    description: Annotated[Text, Field(description="What the image is for, in a sentence.")] = ""
    version: Annotated[Text, Field(description="Version of the image. Default: made of the pins.")] = ""
    licenses: Annotated[
        str,
        AfterValidator(_licenses),
        Field(description="Licences of what the image holds, as an SPDX expression."),
    ] = ""
    source: Annotated[Url, Field(description="URL of the sources that the image is built from.")] = ""
    revision: Annotated[Text, Field(description="Revision of those sources.")] = ""
    documentation: Annotated[Url, Field(description="URL of its documentation.")] = ""
    url: Annotated[Url, Field(description="URL of a page about the image.")] = ""
    vendor: Annotated[Text, Field(description="Who distributes it.")] = ""
    authors: Annotated[Text, Field(description="Who maintains it, and how to reach them.")] = ""
