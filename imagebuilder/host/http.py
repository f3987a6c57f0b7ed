"""Make HTTP sessions with the site's proxies, CA and credentials, and with retries and time limits."""

from __future__ import annotations

import functools
import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_netrc_auth

import imagebuilder
from imagebuilder.core.retries import Budget
from imagebuilder.core.yamlfile import printable

# Seconds to connect, and seconds between two pieces of a reply.
_LIMITS = (15.0, 60.0)
_CONNECTIONS = 16
# Tries of one request; seconds before the second try; seconds after the first failure until the last try.
_ATTEMPTS = 4
_RETRY_PAUSE = 0.5
_RETRY_SECONDS = 120.0
_PASSING = frozenset({429, 500, 502, 503, 504})
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})

# Words in the libraries' messages, and what they mean; the first match counts.
_TROUBLES = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "no known CA vouches for the server: set SSL_CERT_FILE, or `ca:` for --site",
    ),
    ("ProxyError", "the proxy refuses, or does not answer"),
    ("NameResolutionError", "the host's name is unknown"),
    ("timed out", "the server does not answer"),
    ("refused", "the connection is refused"),
    ("reset", "the connection was reset"),
    ("Connection broken", "the connection broke off"),
)


def session(
    proxies: Mapping[str, str], ca_bundle: Path | None, indexes: Iterable[str], *, retries: bool = True
) -> requests.Session:
    """Open a session.

    Args:
        proxies: `http`, `https` and `no_proxy`.
        ca_bundle: the CAs to trust.
        indexes: URLs whose user and password go to their own host.
        retries: retry requests after passing failures; False if the caller retries itself.

    """
    made = _Session()
    # With trust_env, requests prefers REQUESTS_CA_BUNDLE to the session's own bundle, and reads the
    # environment again for each request. Our arguments already hold those settings.
    made.trust_env = False
    made.verify = str(ca_bundle) if ca_bundle else True
    made.headers["User-Agent"] = f"imagebuilder/{imagebuilder.__version__}"
    made.auth = _Credentials(indexes)
    made.proxies.update({key: url for key, url in proxies.items() if key != "no_proxy" and url})
    adapter = _Adapter(proxies.get("no_proxy", ""), _ATTEMPTS if retries else 1)
    made.mount("http://", adapter)
    made.mount("https://", adapter)
    return made


def bypasses_proxy(host: str, no_proxy: str) -> bool:
    """Return whether a host needs no proxy: `no_proxy` lists names, domains, addresses and networks.

    >>> bypasses_proxy("a.example.org", "localhost, .example.org"), bypasses_proxy("10.1.2.3", "10.0.0.0/8")
    (True, True)
    """
    for item in filter(None, re.split(r"[,\s]+", no_proxy.lower())):
        name = item.lstrip("*").lstrip(".")
        if item == "*" or host.lower() == name or host.lower().endswith(f".{name}"):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(item, strict=False):
                return True
        except ValueError:
            continue
    return False


def in_words(error: Exception) -> str:
    """Return a few plain words for an error of the HTTP libraries."""
    text = str(error)
    return next((words for sign, words in _TROUBLES if sign in text), printable(text))


class _Session(requests.Session):
    """Raises an error of requests, not a ValueError, for an invalid redirect."""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        try:
            return super().send(request, **kwargs)
        except requests.RequestException:
            raise
        except ValueError as error:
            raise requests.exceptions.InvalidURL(
                f"the server redirects to an invalid URL: {error}"
            ) from error


class _Adapter(HTTPAdapter):
    """Applies `no_proxy`, which requests does only with trust_env, and a default time limit."""

    def __init__(self, no_proxy: str, attempts: int) -> None:
        self._no_proxy = no_proxy
        self._attempts = attempts
        super().__init__(max_retries=0, pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS)

    def send(  # noqa: PLR0917 - the signature is requests'
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        direct = bypasses_proxy(origin(request.url or "")[1] or "", self._no_proxy)
        once = functools.partial(
            super().send,
            request,
            stream=stream,
            timeout=timeout or _LIMITS,
            verify=verify,
            cert=cert,
            proxies={} if direct else proxies,
        )
        reply = self._tried(request, once)
        if reply.is_redirect:
            # requests would read the body of the redirect, which may be long and is not needed.
            reply.close()
            reply._content = b""  # noqa: SLF001 - no public way to mark the body as read
        return reply

    def _tried(
        self, request: requests.PreparedRequest, once: Callable[[], requests.Response]
    ) -> requests.Response:
        """Send a request, and retry it after a passing failure.

        urllib3's own retries have no limits: it waits as long as a server says, and reads the whole body of
        each reply that it discards.
        """
        budget = Budget(attempts=self._attempts, seconds=_RETRY_SECONDS, pause=_RETRY_PAUSE)
        while True:
            try:
                reply = once()
            except (requests.ConnectionError, requests.Timeout) as error:
                lasting = "CERTIFICATE_VERIFY_FAILED" in str(error) or request.method not in _REPEATABLE
                pause = None if lasting else budget.spend()
                if pause is None:
                    raise
            else:
                passing = reply.status_code in _PASSING and request.method in _REPEATABLE
                pause = budget.spend() if passing else None
                if pause is None:
                    return reply
                reply.close()
            time.sleep(pause)


class _Credentials(AuthBase):
    """Sends a user and a password to the host that they are for: from the URL, the index's URL, or ~/.netrc.

    requests drops the header when it follows a redirect to another host.
    """

    def __init__(self, indexes: Iterable[str]) -> None:
        self._known: dict[tuple[str, str | None, int | None], tuple[str, str]] = {}
        for url in indexes:
            parts = urlsplit(url)
            if parts.username:
                self._known[origin(url)] = (unquote(parts.username), unquote(parts.password or ""))

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        url = request.url or ""
        parts = urlsplit(url)
        if parts.username:
            pair: tuple[str, str] | None = (unquote(parts.username), unquote(parts.password or ""))
        else:
            pair = self._known.get(origin(url)) or get_netrc_auth(url)
        if pair:
            HTTPBasicAuth(*pair)(request)
        return request


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of a URL. A malformed redirect target has no host."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", None, None
