"""Sign in to a registry as its challenge asks: without credentials, with basic authentication or a token.

The challenge is described in RFC 9110 section 11.6.1, the token flow in
https://distribution.github.io/distribution/spec/auth/token/ and .../spec/auth/oauth/ (identity tokens).
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

import requests

from imagebuilder.core import jsontext
from imagebuilder.core.reference import Reference, is_loopback
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import RegistryError
from imagebuilder.registry import credentials, faults
from imagebuilder.registry.credentials import Credentials

# Match only at the start of a word: otherwise a long word without `=` is tried again from every letter.
_PARAMETER = re.compile(r'(?<![A-Za-z_])([A-Za-z_]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))')
# A challenge has a few hundred characters, a token a few thousand. A longer one is an attack.
_LONGEST = 8192
_LONGEST_TOKEN = 65_536
_TOKEN = re.compile(rf"[!-~]{{1,{_LONGEST_TOKEN}}}")


@dataclass(frozen=True, kw_only=True)
class Message:
    """One HTTP request as it goes out; `reply_seconds` is how long the answer may take to begin."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Iterable[bytes] | bytes = b""
    reply_seconds: float = 30.0
    stream: bool = False


Exchange = Callable[[Message], requests.Response]
"""Sends one message, without redirects and without credentials of its own."""


class SignIn:
    """Makes the Authorization header for one registry; thread-safe.

    Args:
        reference: names the registry.
        given: credentials to use; None for those of `docker login` or `podman login`, read only if the
            registry asks.
        scopes: the rights to ask a token for.
        exchange: talks to the token server.

    """

    def __init__(
        self, reference: Reference, given: Credentials | None, scopes: tuple[str, ...], exchange: Exchange
    ) -> None:
        self._reference = reference
        self._given = given
        self._scopes = scopes
        self._exchange = exchange
        self._challenge = ""
        self._header = ""
        self._plain = False
        self._lock = threading.Lock()

    def learn(self, reply: requests.Response) -> None:
        """Record the registry's challenge, if it has one, and whether it speaks TLS."""
        self._plain = reply.url.startswith("http:")
        if reply.status_code == requests.codes.unauthorized:
            self._challenge = reply.headers.get("WWW-Authenticate", "")[:_LONGEST]

    @property
    def login_of(self) -> str:
        """Whose credentials were sent; empty if none were."""
        known = self._given or Credentials()
        return known.user or ("a stored token" if known.identity_token else "")

    def authorization(self) -> str:
        """Return the header's value; empty if the registry does not ask for credentials."""
        with self._lock:
            if self._challenge and not self._header:
                self._header = self._answer()
            return self._header

    def renew(self, reply: requests.Response, used: str) -> bool:
        """Sign in again after a 401. Return False if the registry has refused these very credentials.

        Args:
            reply: the 401.
            used: the header's value in the refused request; another thread may have renewed it since.

        """
        with self._lock:
            if used != self._header:
                return True
            self._challenge = reply.headers.get("WWW-Authenticate", "")[:_LONGEST]
            if not self._challenge:
                return False
            self._header = self._answer()
            return bool(self._header) and self._header != used

    def _answer(self) -> str:
        scheme, _, rest = self._challenge.partition(" ")
        fields = {name.lower(): quoted or plain for name, quoted, plain in _PARAMETER.findall(rest)}
        if scheme.lower() == "bearer" and fields.get("realm"):
            return f"Bearer {self._token(fields)}"
        if scheme.lower() == "basic":
            known = self._credentials()
            return _basic(known) if known.user else ""
        raise RegistryError(
            f"the registry asks for a sign-in of a kind that is not known here: {printable(scheme)}",
            where=str(self._reference),
        )

    def _token(self, fields: dict[str, str]) -> str:
        """Ask the token server in the challenge for a token."""
        realm, host = fields["realm"], _host(fields["realm"])
        if not host:
            raise RegistryError(
                f"the registry names a token server with an invalid URL: {printable(realm)}",
                where=str(self._reference),
            )
        if not realm.startswith("https://") and not self._may_be_plain(host):
            raise RegistryError(
                f"the registry wants the password sent over plain HTTP, to {printable(realm)}",
                where=str(self._reference),
                hint="its token server needs TLS",
            )
        known = self._credentials()
        service = [("service", fields["service"])] if fields.get("service") else []
        headers: dict[str, str] = {}
        if known.identity_token:
            form = [
                ("grant_type", "refresh_token"),
                ("refresh_token", known.identity_token),
                ("client_id", "imagebuilder"),
                ("scope", " ".join(self._scopes)),
                *service,
            ]
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            message = Message(method="POST", url=realm, headers=headers, body=urlencode(form).encode())
        else:
            query = urlencode([*service, *(("scope", scope) for scope in self._scopes)])
            if known.user:
                headers["Authorization"] = _basic(known)
            url = f"{realm}{'&' if '?' in realm else '?'}{query}"
            message = Message(method="GET", url=url, headers=headers)
        try:
            reply = self._exchange(message)
        except requests.RequestException as error:
            raise faults.unreachable(error, realm, str(self._reference)) from error
        if reply.status_code != requests.codes.ok:
            raise faults.refused(reply, "sign-in", self._reference, self.login_of)
        try:
            data = jsontext.loads(reply.content, limit=_LONGEST_TOKEN * 2)
            token = data.get("token") or data["access_token"]
        except (ValueError, KeyError, AttributeError):
            raise RegistryError(
                f"the token server of the registry, {printable(host)}, gave no token",
                where=str(self._reference),
            ) from None
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise RegistryError(
                f"the token server of the registry, {printable(host)}, gave a broken token",
                where=str(self._reference),
            )
        return token

    def _may_be_plain(self, host: str) -> bool:
        """Return whether the password may go to a token server over plain HTTP.

        Only if the registry itself speaks plain HTTP. A registry on this host may name only a token server on
        this host. For a registry on another host the user has allowed plain HTTP.
        """
        return self._plain and (is_loopback(host) or not self._reference.is_loopback)

    def _credentials(self) -> Credentials:
        if self._given is None:
            self._given = credentials.find(self._reference.host, path=self._reference.path)
        return self._given


def _basic(known: Credentials) -> str:
    return "Basic " + base64.b64encode(f"{known.user}:{known.password}".encode()).decode()


def _host(url: str) -> str:
    """Return the host of a URL; empty if the URL is malformed."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
