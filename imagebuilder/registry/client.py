"""One registry over HTTP(S): sign-in, retries, redirects, and errors that say what to do.

The protocol is the OCI distribution specification (https://github.com/opencontainers/distribution-spec); the
sign-in with tokens is described in https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import requests

import imagebuilder
from imagebuilder.errors import RegistryError
from imagebuilder.registry import body as bodies
from imagebuilder.registry import certificates, faults
from imagebuilder.registry.auth import Message, SignIn
from imagebuilder.registry.certificates import Trust
from imagebuilder.registry.credentials import Credentials
from imagebuilder.registry.reference import Reference, is_loopback
from imagebuilder.yamlfile import printable

log = logging.getLogger(__name__)

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
# The specification's limit for what a registry must take (4 MiB).
MANIFEST_LIMIT = 4 * 1024 * 1024
CONNECT_SECONDS = 15.0
REPLY_SECONDS = 120.0
# A registry hashes a layer again, or copies it inside its storage, before it answers.
BLOB_REPLY_SECONDS = 900.0
_LONGEST_PAUSE = 60.0
_REDIRECTS = 5
_SENT_ON = frozenset({301, 302, 303, 307, 308})
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

Body = Callable[[], Iterable[bytes]]
_Given = TypeVar("_Given")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to reach a registry.

    Attributes:
        session: the site's session, with its proxies and certificate authorities.
        insecure: allow plain HTTP where the host is not this one; certificates are still checked.
        credentials: used instead of what `docker login` left.
        trust: certificates for registries, by host and port, over those in `certificates.folders`.
        home: home folder of the user, where their Docker or Podman keeps certificates.
        attempts: how often a request is tried while the registry is away, overloaded or cut off.
        chunk: bytes of a layer in one request, where sending it in one go has failed: a connection that
            breaks every minute brings a large layer there all the same.
        pause: seconds before the second try; each further pause is twice as long.

    """

    session: requests.Session = field(default_factory=requests.Session)
    insecure: bool = False
    credentials: Credentials | None = None
    trust: Mapping[str, Trust] = field(default_factory=dict)
    home: Path = field(default_factory=Path.home)
    attempts: int = 8
    chunk: int = 16 * 1024 * 1024
    pause: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest as a registry keeps it: its bytes, checked against its digest."""

    digest: str
    media_type: str
    data: bytes


class Client:
    """Requests to one repository; safe to use from several threads.

    Args:
        reference: names the repository; tag and digest do not count.
        options: how to reach it.
        actions: what to sign in for, `pull` or `pull,push`.
        sources: other repositories of the same registry to read from.

    """

    def __init__(
        self, reference: Reference, options: Options, actions: str = "pull", sources: tuple[str, ...] = ()
    ) -> None:
        self.reference = reference
        self.stopped = threading.Event()
        self.attempts = options.attempts
        self.chunk = options.chunk
        self.retries = 0
        self._options = options
        scopes = (f"repository:{reference.path}:{actions}", *(f"repository:{path}:pull" for path in sources))
        self._sign_in = SignIn(reference, options.credentials, scopes, self._exchange)
        self._origin = ""
        self._opening = threading.Lock()
        self._trusted: dict[str, tuple[Trust, str]] = {}
        self._trusting = threading.Lock()

    def head_manifest(self, name: str) -> str:
        """Return the digest that a tag (or digest) stands for; "" when there is no such manifest."""
        reply = self.request(
            "HEAD", f"manifests/{name}", wanted=(200, 404), headers={"Accept": ", ".join(MANIFEST_TYPES)}
        )
        if reply.status_code != requests.codes.ok:
            return ""
        told = reply.headers.get("Docker-Content-Digest", "")
        # What is no digest is not believed, and not shown to anybody either.
        return told if _DIGEST.fullmatch(told) else self.get_manifest(name).digest

    def get_manifest(self, name: str) -> Manifest:
        """Read a manifest by tag or digest.

        Raises:
            RegistryError: there is none, it is larger than 4 MiB, or is not what its digest says.

        """
        reply, data = self._read_manifest(name)
        if len(data) > MANIFEST_LIMIT:
            raise RegistryError("the manifest is larger than 4 MiB", where=self._where(name))
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        promised = name if name.startswith("sha256:") else reply.headers.get("Docker-Content-Digest", digest)
        if promised != digest:
            raise RegistryError(
                f"the registry gave a manifest with the digest {digest}, not {printable(promised)}",
                where=self._where(name),
                hint="something between here and the registry changes what passes; try without the proxy",
            )
        media_type = reply.headers.get("Content-Type", "").partition(";")[0].strip()
        return Manifest(digest=digest, media_type=media_type, data=data)

    def request(
        self,
        method: str,
        place: str,
        *,
        wanted: tuple[int, ...] = (200,),
        headers: Mapping[str, str] | None = None,
        body: Body | bytes = b"",
        reply_seconds: float = REPLY_SECONDS,
        attempts: int = 0,
        stream: bool = False,
    ) -> requests.Response:
        """Send one request, again where that may help, and return a reply with a wanted status.

        Args:
            method: of HTTP.
            place: path below the repository (`manifests/latest`), or a URL that the registry gave.
            wanted: the statuses to return; any other one is an error.
            headers: of the request, besides the sign-in.
            body: bytes, or what makes a fresh iterator over them for each try.
            reply_seconds: how long to wait for the registry to answer.
            attempts: how often to try; 0 for what the options say.
            stream: leave the body of the reply to the caller to read.

        Raises:
            RegistryError: the registry refused, broke or cannot be reached.

        """
        url = self.url(place)
        limit = attempts or self.attempts
        message = Message(
            method=method, url=url, headers=headers or {}, reply_seconds=reply_seconds, stream=stream
        )
        attempt, renewed = 1, False
        while True:
            used = self._patiently(self._sign_in.authorization, limit) if self._is_own(url) else ""
            try:
                reply = self._follow(replace(message, body=body() if callable(body) else body), used)
            except requests.RequestException as error:
                if attempt >= limit or faults.is_lasting(error):
                    raise faults.unreachable(error, url, str(self.reference)) from error
                self.pause(attempt, f"{type(error).__name__} of {method} {urlsplit(url).path}")
                attempt += 1
                continue
            if reply.status_code in wanted:
                return reply
            with reply:
                if stream:
                    with contextlib.suppress(requests.RequestException):
                        bodies.keep(reply)
                if reply.status_code == requests.codes.unauthorized and self._is_own(url) and not renewed:
                    # A token may have run out since the last request; a password is asked for once.
                    renewed = self._sign_in.renew(reply, used)
                    if renewed:
                        continue
                if reply.status_code not in faults.PASSING or attempt >= limit:
                    raise faults.refused(reply, method, self.reference)
                self.pause(attempt, f"status {reply.status_code}", faults.retry_after(reply))
                attempt += 1

    def url(self, place: str) -> str:
        """Make a full URL; one that the registry gave stays, but never leads from TLS back to plain HTTP."""
        self._patiently(self._open, self.attempts)
        url = self._joined(f"{self._origin}/v2/{self.reference.path}/", place)
        # A registry behind a proxy that ends TLS often takes itself for one of plain HTTP.
        plain, secure = f"http://{self.reference.endpoint}/", f"https://{self.reference.endpoint}/"
        if self._origin.startswith("https:") and url.startswith(plain):
            url = secure + url.removeprefix(plain)
        return self._kept_secure(self._origin, url)

    def pause(self, failures: int, reason: str, asked: float = 0.0) -> None:
        """Wait before another try: the longer, the more have failed.

        Args:
            failures: how many tries have failed.
            reason: of the last one.
            asked: the seconds that the registry wants.

        Raises:
            RegistryError: the whole push was stopped meanwhile.

        """
        with self._opening:
            self.retries += 1
        seconds = min(max(asked, self._options.pause * 2 ** (failures - 1)), _LONGEST_PAUSE)
        seconds *= 1 + random.random() / 4  # noqa: S311  spreads the retries of parallel uploads, no secret
        log.warning("%s: %s; trying again in %.1f s", self.reference.host, reason, seconds)
        if self.stopped.wait(seconds):
            raise RegistryError("stopped", where=str(self.reference))

    def _patiently(self, action: Callable[[], _Given], limit: int) -> _Given:
        """Do what may be interrupted, again where that may help; who was never there is not waited for."""
        attempt = 1
        while True:
            try:
                return action()
            except faults.Interrupted as error:
                if attempt >= limit or (isinstance(error, faults.Absent) and not self._origin):
                    raise
                self.pause(attempt, error.problems[0].message)
                attempt += 1

    def _read_manifest(self, name: str) -> tuple[requests.Response, bytes]:
        """Read a manifest's bytes, anew where they break off; never more than one above the limit."""
        accepted = {"Accept": ", ".join(MANIFEST_TYPES)}

        def read() -> tuple[requests.Response, bytes]:
            reply = self.request("GET", f"manifests/{name}", headers=accepted, stream=True)
            try:
                with reply:
                    return reply, bodies.read(reply, MANIFEST_LIMIT)
            except requests.RequestException as error:
                raise faults.unreachable(error, reply.url, str(self.reference)) from error

        return self._patiently(read, self.attempts)

    def _where(self, name: str) -> str:
        return f"{self.reference.name}{'@' if name.startswith('sha256:') else ':'}{name}"

    def _open(self) -> None:
        """Find out, once, whether the registry is there, speaks TLS, and how one signs in."""
        with self._opening:
            if self._origin:
                return
            host = self.reference.endpoint
            schemes = ("https", "http") if self._options.insecure else ("https",)
            if self.reference.is_loopback:
                # Plain first: many servers never answer a TLS greeting that they do not understand.
                schemes = ("http", "https")
            earlier: requests.RequestException | None = None
            for scheme in schemes:
                try:
                    reply = self._exchange(Message(method="GET", url=f"{scheme}://{host}/v2/"))
                except requests.RequestException as error:
                    if scheme == schemes[-1] or faults.is_refused(error):
                        # A server without TLS was asked the right way before: why that broke counts.
                        cause = earlier if earlier and faults.is_plain(error) else error
                        raise faults.unreachable(cause, f"{scheme}://{host}/", str(self.reference)) from error
                    earlier = error
                    continue
                if reply.status_code in faults.PASSING or reply.status_code in {200, 401, 403}:
                    self._origin = f"{scheme}://{host}"
                    self._sign_in.learn(reply)
                    return
                # 400 is what servers say to plain HTTP at a port for TLS.
                if reply.status_code != requests.codes.bad_request:
                    break
            raise RegistryError(
                f"{host} is not a registry: it answers {reply.status_code} to GET /v2/",
                where=str(self.reference),
                hint="check the host and the port",
            )

    def _follow(self, message: Message, authorization: str) -> requests.Response:
        """Follow redirects of reading requests; another host never gets the credentials."""
        for _ in range(_REDIRECTS):
            own = {"Authorization": authorization} if authorization and self._is_own(message.url) else {}
            reply = self._exchange(replace(message, headers={**message.headers, **own}))
            target = reply.headers.get("Location", "")
            if reply.status_code not in _SENT_ON or message.method not in {"GET", "HEAD"} or not target:
                return reply
            reply.close()
            url = self._kept_secure(message.url, self._joined(message.url, target))
            message = replace(message, url=url)
        raise RegistryError(f"the registry sends on more than {_REDIRECTS} times", where=str(self.reference))

    def _joined(self, base: str, place: str) -> str:
        """Complete a URL that the registry gave."""
        try:
            url = urljoin(base, place)
            if urlsplit(url).scheme in {"http", "https"} and urlsplit(url).hostname:
                return url
        except ValueError:
            pass  # what a bracket does in the wrong place
        raise RegistryError(
            f"the registry names a place that is no URL: {printable(place)}", where=str(self.reference)
        )

    def _kept_secure(self, base: str, url: str) -> str:
        """Refuse what leads from TLS to plain HTTP: layers are not for everybody on the way to read."""
        if base.startswith("https:") and not url.startswith("https:"):
            raise RegistryError(
                f"the registry sends on from TLS to plain HTTP, at {printable(urlsplit(url).netloc)}",
                where=str(self.reference),
                hint="its storage or its proxy is set up wrongly",
            )
        return url

    def _exchange(self, message: Message) -> requests.Response:
        """Do one exchange, without redirects, sign-in or second try."""
        reply = self._sent(message)
        if not message.stream and not bodies.keep(reply):
            raise RegistryError(
                f"the answer to {message.method} has more than {bodies.SMALL} bytes, where a few are due",
                where=str(self.reference),
                hint="is it a registry, or a proxy in front of one?",
            )
        return reply

    def _sent(self, message: Message) -> requests.Response:
        host = urlsplit(message.url).netloc
        trust, verify = self._trust(host)
        try:
            return self._requested(message, host, trust, verify)
        except requests.RequestException:
            raise
        except ValueError as error:
            # requests looks where a redirect leads, though it is not to follow it.
            raise RegistryError(
                f"the registry names a place that is no URL ({printable(str(error))})",
                where=str(self.reference),
            ) from error

    def _requested(self, message: Message, host: str, trust: Trust, verify: str | None) -> requests.Response:
        return self._options.session.request(
            message.method,
            message.url,
            headers={
                "User-Agent": f"imagebuilder/{imagebuilder.__version__}",
                # Bytes as they are: what is packed may unpack to any size.
                "Accept-Encoding": "identity",
                **message.headers,
            },
            data=message.body or None,
            # An `auth` of our own, though it adds nothing, keeps requests from reading ~/.netrc.
            auth=lambda prepared: prepared,
            # No proxy leads to this very host; elsewhere the session's and the environment's hold.
            proxies={"http": "", "https": ""} if is_loopback(host) else None,
            verify=verify,
            cert=(str(trust.client[0]), str(trust.client[1])) if trust.client else None,
            timeout=(CONNECT_SECONDS, message.reply_seconds),
            allow_redirects=False,
            stream=True,
        )

    def _trust(self, host: str) -> tuple[Trust, str | None]:
        """Choose certificates and CA bundle: with each request, for the environment's would outrank them."""
        site = self._options.session.verify
        with self._trusting:
            if host not in self._trusted:
                named = self._options.trust.get(host)
                trust = named or certificates.find(host, certificates.folders(self._options.home))
                verify = site if isinstance(site, str) else ""
                if trust.authorities:
                    joined = certificates.bundle(trust, verify)
                    weakref.finalize(self, joined.unlink, missing_ok=True)
                    verify = str(joined)
                self._trusted[host] = trust, verify
            trust, verify = self._trusted[host]
        return trust, verify or None

    def _is_own(self, url: str) -> bool:
        return url.startswith(f"{self._origin}/")
