"""What an image says of itself: the labels `org.opencontainers.image.*` that only a person can fill."""

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
            'write it as in "Apache-2.0 AND BSD-3-Clause"; what is not on the list is LicenseRef-NAME',
        ) from None


Text = Annotated[str, AfterValidator(_text)]
Url = Annotated[str, AfterValidator(_url)]


class About(Strict):
    """What the labels `org.opencontainers.image.*` say of the image, where only a person knows it.

    The labels of the same name are in every image: `title` and `version` made from the recipe's name and the
    lock where they are not given here, `created` (the epoch, as all times in the image) and `base.name`.
    """

    title: Annotated[Text, Field(description="Name for people. Without it: the recipe's.")] = ""
    description: Annotated[Text, Field(description="What the image is for, in a sentence.")] = ""
    version: Annotated[Text, Field(description="Version of the image. Without it: made of the pins.")] = ""
    licenses: Annotated[
        str,
        AfterValidator(_licenses),
        Field(description="Licences of what the image holds, as an SPDX expression."),
    ] = ""
    source: Annotated[Url, Field(description="URL of the sources that the image is built from.")] = ""
    revision: Annotated[Text, Field(description="Revision of those sources.")] = ""
    documentation: Annotated[Url, Field(description="URL of its documentation.")] = ""
    url: Annotated[Url, Field(description="URL where one finds out more.")] = ""
    vendor: Annotated[Text, Field(description="Who distributes it.")] = ""
    authors: Annotated[Text, Field(description="Who answers for it, with a way to reach them.")] = ""
