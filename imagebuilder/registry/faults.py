"""Errors of registries: what went wrong, and what to do about it."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import requests

from imagebuilder.core import jsontext
from imagebuilder.core.reference import DOCKER_HUB, Reference
from imagebuilder.core.retries import Budget
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import RegistryError

# Statuses after which another try may succeed.
PASSING = frozenset({408, 429, 500, 502, 503, 504})
_REASON = re.compile(r"certificate verify failed: ([^(]*[^( ])")
# OpenSSL's reasons if the server does not answer with TLS.
_PLAIN = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
_LONGEST = 300
_LARGEST = 65_536

# The error codes of the OCI distribution specification, and the statuses of proxies in front of a registry:
# what it means, and what to do. `{login}` is the command that signs in, `{name}` the repository.
_MEANINGS: dict[str, tuple[str, str]] = {
    "UNAUTHORIZED": ("the registry wants a sign-in", "sign in: {login}"),
    "DENIED": (
        "the registry does not let this account do that",
        "check that the account may write to {name}, or sign in as another one: {login}",
    ),
    "NAME_UNKNOWN": (
        "the registry has no such repository",
        "check the spelling of {name}; some registries want a repository or project made first",
    ),
    "NAME_INVALID": ("the registry does not take that repository's name", "choose another one than {name}"),
    "MANIFEST_UNKNOWN": ("the registry has no such image", "check the tag or the digest"),
    "MANIFEST_BLOB_UNKNOWN": (
        "the registry misses a layer that it had said to have",
        "push again; its storage may have been cleaned",
    ),
    "BLOB_UPLOAD_UNKNOWN": ("the registry forgot an upload", "push again"),
    "DIGEST_INVALID": (
        "the registry received other bytes than were sent",
        "something in between changes what passes; push again",
    ),
    "TAG_INVALID": ("the registry does not take that tag", "choose another one"),
    "TOOMANYREQUESTS": ("the registry has had too many requests", "wait a while and push again"),
    "413": (
        "a proxy in front of the registry refuses large layers",
        "raise its limit (nginx: client_max_body_size 0)",
    ),
    "404": ("the registry has no such repository", "check the spelling of {name}"),
    "405": (
        "the registry is read-only",
        "is it a mirror or a pull-through cache? push to the registry behind it",
    ),
    "507": ("the registry's disk is full", "its administrator has to free some space"),
}
_BY_STATUS = {
    401: "UNAUTHORIZED",
    403: "DENIED",
    404: "404",
    405: "405",
    413: "413",
    429: "TOOMANYREQUESTS",
    507: "507",
}


class Interrupted(RegistryError):
    """The registry was away, overloaded or cut off; trying again later may help.

    Attributes:
        asked: the seconds that the registry wants us to wait.

    """

    asked: float = 0.0


class Absent(Interrupted):
    """Nothing answers at this name and port: worth waiting for only if a registry answered there before."""


def refused(reply: requests.Response, action: str, reference: Reference, login_of: str = "") -> RegistryError:
    """Make an error from a reply with an unwanted status.

    Args:
        reply: with an unwanted status.
        action: the request: an HTTP method, or words.
        reference: of the image.
        login_of: whose credentials were sent; empty if none were.

    """
    code, said = _first_error(reply)
    key = code if code in _MEANINGS else _BY_STATUS.get(reply.status_code, "")
    hub = reference.host == DOCKER_HUB
    login = "docker login" if hub else f"docker login {reference.host}"
    meaning, hint = _MEANINGS.get(key, ("the registry failed", "its own log says more; push again later"))
    if key == "UNAUTHORIZED" and login_of:
        who = printable(login_of)
        meaning = f"the registry refuses the login of `{who}`: it may have expired, or lack this right"
        hint = "sign in again: {login}"
    detail = (
        f"{action}: status {reply.status_code}"
        + (f", {code}" if code else "")
        + (f": {said}" if said else "")
    )
    message, hint = f"{meaning} ({detail})", hint.format(login=login, name=reference.name)
    if reply.status_code not in PASSING:
        return RegistryError(message, where=str(reference), hint=hint)
    passing = Interrupted(message, where=str(reference), hint=hint)
    passing.asked = retry_after(reply)
    return passing


def asks_elsewhere(reply: requests.Response, reference: Reference) -> RegistryError:
    """Make an error from a 401 of a host that the registry redirects to."""
    host = printable(urlsplit(reply.url).netloc)
    return RegistryError(
        f"the registry sends on to {host}, which asks for a password; none was sent",
        where=str(reference),
        hint="credentials go to the registry alone; ask who runs it how its storage is set up",
    )


def given_up(failure: Interrupted, budget: Budget) -> Interrupted:
    """Add to a failure how often it was tried."""
    if budget.failures > 1:
        first, *others = failure.problems
        message = f"{first.message}; gave up after {budget}"
        failure.problems = (replace(first, message=message), *others)
    return failure


def unreachable(error: requests.RequestException, url: str, where: str) -> RegistryError:
    """Explain why no reply came."""
    host, text = printable(urlsplit(url).netloc), str(error)
    if is_lasting(error):
        return _lasting(text, host, where)
    if isinstance(error, requests.exceptions.ProxyError):
        return Interrupted(
            f"the proxy does not lead to {host}",
            where=where,
            hint="check the proxy settings (--site), or name the registry in no_proxy",
        )
    if isinstance(error, requests.Timeout):
        return Interrupted(
            f"{host} does not answer in time", where=where, hint="check the network; push again"
        )
    if is_refused(error):
        return Absent(
            f"nothing listens at {host}", where=where, hint="check the port, and that the registry runs"
        )
    if "resolve" in text or "Name or service" in text:
        return Absent(f"there is no host {host}", where=where, hint="check the spelling, and DNS")
    return Interrupted(
        f"the connection to {host} broke ({type(error).__name__})",
        where=where,
        hint="check the network; a push goes on where it stopped",
    )


def _lasting(text: str, host: str, where: str) -> RegistryError:
    reason = _REASON.search(text)
    if reason:
        return RegistryError(
            f"the certificate of {host} is not trusted: {printable(reason[1])}",
            where=where,
            hint="name its certificate authority in the site file (`ca:`), or put it at "
            f"/etc/docker/certs.d/{host}/ca.crt, where Docker looks too",
        )
    return RegistryError(
        f"{host} does not speak TLS",
        where=where,
        hint="if it is a registry of plain HTTP and you trust the network, say --plain-http",
    )


def is_lasting(error: requests.RequestException) -> bool:
    """Return whether another try cannot help: after a bad certificate, or an answer in plain HTTP."""
    lasting = ("certificate verify failed", *_PLAIN)
    return isinstance(error, requests.exceptions.SSLError) and any(word in str(error) for word in lasting)


def is_plain(error: requests.RequestException) -> bool:
    """Return whether the server answered TLS with something else."""
    return isinstance(error, requests.exceptions.SSLError) and any(word in str(error) for word in _PLAIN)


def is_refused(error: requests.RequestException) -> bool:
    """Return whether nothing listens on the port."""
    return "Connection refused" in str(error)


def retry_after(reply: requests.Response) -> float:
    """Return how many seconds the registry asks to wait; 0 if it does not say (RFC 9110 section 10.2.3)."""
    value = reply.headers.get("Retry-After", "")
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(parsedate_to_datetime(value[:64]).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError, OSError):
        # The errors for dates outside the calendar.
        return 0.0


def _first_error(reply: requests.Response) -> tuple[str, str]:
    """Take code and message from the reply's JSON, safe to show and short; empty when it has none."""
    try:
        first = jsontext.loads(reply.content, limit=_LARGEST)["errors"][0]
        code, message = str(first.get("code", "")), str(first.get("message", ""))
    except (ValueError, LookupError, TypeError, AttributeError, requests.RequestException):
        return "", ""
    return printable(code)[:_LONGEST], printable(message)[:_LONGEST]
