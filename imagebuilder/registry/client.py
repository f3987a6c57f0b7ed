"""One registry over HTTP(S): sign-in, retries, redirects, and errors that say what to do.

The protocol is the OCI distribution specification (https://github.com/opencontainers/distribution-spec); the
sign-in with tokens is described in https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests

import imagebuilder
from imagebuilder.core.documents import digest_of
from imagebuilder.core.reference import Reference, is_loopback, parse
from imagebuilder.core.retries import Budget
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import RegistryError
from imagebuilder.host import http
from imagebuilder.host.site import Site
from imagebuilder.registry import body as bodies
from imagebuilder.registry import certificates, faults
from imagebuilder.registry.auth import Message, SignIn
from imagebuilder.registry.certificates import Trust
from imagebuilder.registry.credentials import Credentials

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
_REDIRECTS = 5
_SENT_ON = frozenset({301, 302, 303, 307, 308})
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PORT = re.compile(r":[0-9]+$")

Body = Callable[[], Iterable[bytes]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to reach a registry.

    Attributes:
        session: the site's session, with its proxies and certificate authorities, and no retries of its own.
        insecure: speak plain HTTP with a registry on another host, if it does not speak TLS; an untrusted
            certificate is still an error.
        credentials: used instead of those of `docker login` and `podman login`.
        trust: certificates for registries, by host and port, over those in `certificates.folders`.
        home: home folder of the user, where their Docker or Podman keeps certificates.
        attempts: how often one piece of work (a manifest, a layer) is tried while the registry is away,
            overloaded or cut off; a try that gets a layer further than before does not count.
        seconds: no further try begins later than this after the first failure.
        chunk: bytes of a layer in one request, after sending it in one request has failed: a large layer then
            gets through even if the connection breaks every minute.
        pause: seconds before the second try; each further pause is twice as long.
        patience: the most seconds to wait for a connection, for an answer, or for more of it.

    """

    session: requests.Session = field(default_factory=requests.Session)
    insecure: bool = False
    credentials: Credentials | None = None
    trust: Mapping[str, Trust] = field(default_factory=dict)
    home: Path = field(default_factory=Path.home)
    attempts: int = 8
    seconds: float = 600.0
    chunk: int = 16 * 1024 * 1024
    pause: float = 0.5
    patience: float = BLOB_REPLY_SECONDS


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """The optional parts of a request.

    Attributes:
        headers: headers besides the sign-in.
        body: bytes, or a function that returns a new iterator over them for each try.
        reply_seconds: how long to wait for the registry's answer.
        stream: whether the caller reads the body of the reply.

    """

    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body | bytes = b""
    reply_seconds: float = REPLY_SECONDS
    stream: bool = False


PLAIN = RequestOptions()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest as a registry keeps it: its bytes, checked against its digest."""

    digest: str
    media_type: str
    data: bytes


class Client:
    """Requests to one repository; safe to use from several threads.

    Args:
        reference: names the repository; tag and digest are ignored.
        options: how to reach it.
        actions: what to sign in for, `pull` or `pull,push`.
        sources: other repositories of the same registry to read from.

    """

    def __init__(
        self, reference: Reference, options: Options, actions: str = "pull", sources: tuple[str, ...] = ()
    ) -> None:
        self.reference = reference
        self.stopped = threading.Event()
        self.chunk = options.chunk
        self.retries = 0
        self._options = options
        scopes = (f"repository:{reference.path}:{actions}", *(f"repository:{path}:pull" for path in sources))
        self._sign_in = SignIn(reference, options.credentials, scopes, self._exchange)
        self._origin = ""
        self._opening = threading.Lock()
        self._trusted: dict[str, tuple[Trust, str]] = {}
        self._trusting = threading.Lock()

    def budget(self, attempts: int = 0) -> Budget:
        """Return a budget for one piece of work: as many tries as given, by default those of the options."""
        own = self._options
        return Budget(attempts=attempts or own.attempts, seconds=own.seconds, pause=own.pause)

    def head_manifest(self, name: str, budget: Budget | None = None) -> str:
        """Return the digest that a tag (or digest) refers to; "" if there is no such manifest."""
        budget = budget or self.budget()
        options = RequestOptions(headers={"Accept": ", ".join(MANIFEST_TYPES)})
        reply = self.request("HEAD", f"manifests/{name}", wanted=(200, 404), options=options, budget=budget)
        if reply.status_code != requests.codes.ok:
            return ""
        told = reply.headers.get("Docker-Content-Digest", "")
        # An invalid digest is neither trusted nor shown.
        return told if _DIGEST.fullmatch(told) else self.get_manifest(name, budget).digest

    def get_manifest(self, name: str, budget: Budget | None = None) -> Manifest:
        """Read a manifest by tag or digest.

        Raises:
            RegistryError: there is none, it is larger than 4 MiB, or it does not match its digest.

        """
        accepted = {"Accept": ", ".join(MANIFEST_TYPES)}
        reply, data = self.read(f"manifests/{name}", MANIFEST_LIMIT, headers=accepted, budget=budget)
        if len(data) > MANIFEST_LIMIT:
            raise RegistryError("the manifest is larger than 4 MiB", where=self._where(name))
        digest = digest_of(data)
        promised = name if name.startswith("sha256:") else reply.headers.get("Docker-Content-Digest", digest)
        if promised != digest:
            raise RegistryError(
                f"the registry gave a manifest with the digest {digest}, not {printable(promised)}",
                where=self._where(name),
                hint="something between here and the registry changes what passes; try without the proxy",
            )
        media_type = reply.headers.get("Content-Type", "").partition(";")[0].strip()
        return Manifest(digest=digest, media_type=media_type, data=data)

    def read(
        self,
        place: str,
        limit: int,
        *,
        wanted: tuple[int, ...] = (200,),
        headers: Mapping[str, str] | None = None,
        budget: Budget | None = None,
    ) -> tuple[requests.Response, bytes]:
        """Read a small answer, with retries if it breaks off; at most one byte more than the limit.

        Raises:
            RegistryError: the registry refused, broke or cannot be reached.

        """
        budget = budget or self.budget()
        options = RequestOptions(headers=headers or {}, stream=True)
        while True:
            reply = self.request("GET", place, wanted=wanted, options=options, budget=budget)
            try:
                with reply:
                    return reply, bodies.read(reply, limit)
            except requests.RequestException as error:
                self.wait(budget, faults.unreachable(error, reply.url, str(self.reference)))

    def request(
        self,
        method: str,
        place: str,
        *,
        wanted: tuple[int, ...] = (200,),
        options: RequestOptions = PLAIN,
        budget: Budget | None = None,
    ) -> requests.Response:
        """Send one request, with retries where they may help, and return a reply with a wanted status.

        Args:
            method: the HTTP method.
            place: path below the repository (`manifests/latest`), or a URL that the registry gave.
            wanted: the statuses to return; any other one is an error.
            options: headers, body and how to wait.
            budget: the budget of the work that this request is part of; None if it is the whole work.

        Raises:
            RegistryError: the registry refused, broke or cannot be reached.

        """
        budget = budget or self.budget()
        url = self.url(place, budget)
        message = Message(
            method=method,
            url=url,
            headers=options.headers,
            reply_seconds=options.reply_seconds,
            stream=options.stream,
        )
        while True:
            try:
                return self._answered(message, options.body, wanted)
            except faults.Interrupted as failure:
                self.wait(budget, failure)

    def url(self, place: str, budget: Budget | None = None) -> str:
        """Return a full URL. A URL from the registry is kept, but never leads from TLS to plain HTTP."""
        budget = budget or self.budget()
        while not self._origin:
            try:
                self._open()
            except faults.Interrupted as failure:
                self.wait(budget, failure)
        url = self._joined(f"{self._origin}/v2/{self.reference.path}/", place)
        # A registry behind a proxy that terminates TLS often gives URLs of plain HTTP.
        plain, secure = f"http://{self.reference.endpoint}/", f"https://{self.reference.endpoint}/"
        if self._origin.startswith("https:") and url.startswith(plain):
            url = secure + url.removeprefix(plain)
        return self._kept_secure(self._origin, url)

    def wait(self, budget: Budget, failure: RegistryError) -> None:
        """Wait before another try, longer after each failure.

        Args:
            budget: the budget of the work that has failed.
            failure: the error of the last try.

        Raises:
            RegistryError: the failure, if it is permanent or the budget is spent; or the push was stopped.

        """
        # Do not wait for a registry that has never answered.
        absent = isinstance(failure, faults.Absent) and not self._origin
        if absent or not isinstance(failure, faults.Interrupted):
            raise failure
        seconds = budget.spend(failure.asked)
        if seconds is None:
            raise faults.given_up(failure, budget)
        with self._opening:
            self.retries += 1
        reason = failure.problems[0].message
        log.warning("%s: %s; trying again in %.1f s", self.reference.host, reason, seconds)
        if self.stopped.wait(seconds):
            raise RegistryError("stopped", where=str(self.reference))

    def _answered(self, message: Message, body: Body | bytes, wanted: tuple[int, ...]) -> requests.Response:
        """Send a request once; a second time only to sign in again, if the registry asks for it."""
        own, renewed = self._is_own(message.url), False
        while True:
            used = self._sign_in.authorization() if own else ""
            try:
                reply = self._follow(replace(message, body=body() if callable(body) else body), used)
            except requests.RequestException as error:
                raise faults.unreachable(error, message.url, str(self.reference)) from error
            if reply.status_code in wanted:
                return reply
            with reply:
                if message.stream:
                    with contextlib.suppress(requests.RequestException):
                        bodies.keep(reply)
                if reply.status_code == requests.codes.unauthorized:
                    # The password is for the registry, not for a host that it redirects to.
                    if not self._is_own(reply.url):
                        raise faults.asks_elsewhere(reply, self.reference)
                    # A token may have expired since the last request; a password is tried once.
                    renewed = not renewed and self._sign_in.renew(reply, used)
                    if renewed:
                        continue
                raise faults.refused(reply, message.method, self.reference, self._sign_in.login_of)

    def _where(self, name: str) -> str:
        return f"{self.reference.name}{'@' if name.startswith('sha256:') else ':'}{name}"

    def _open(self) -> None:
        """Find out once whether the registry answers, speaks TLS, and how to sign in."""
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
                    if scheme == schemes[-1] or not self._leads_on(scheme, error):
                        # The other scheme failed before, and its error is the relevant one.
                        cause = earlier if earlier and faults.is_plain(error) else error
                        raise faults.unreachable(cause, f"{scheme}://{host}/", str(self.reference)) from error
                    earlier = error
                    continue
                if reply.status_code in faults.PASSING or reply.status_code in {200, 401, 403}:
                    self._origin = f"{scheme}://{host}"
                    self._sign_in.learn(reply)
                    return
                # 400 is what servers say to plain HTTP at a port for TLS.
                if scheme == "https" or reply.status_code != requests.codes.bad_request:
                    break
            raise RegistryError(
                f"{host} is not a registry: it answers {reply.status_code} to GET /v2/",
                where=str(self.reference),
                hint="check the host and the port",
            )

    def _leads_on(self, scheme: str, error: requests.RequestException) -> bool:
        """Return whether the other scheme may be tried after a failure.

        From TLS to plain HTTP only if the server does not speak TLS at all. After an untrusted certificate, a
        timeout or a broken connection, plain HTTP could give the password to an attacker in between.
        """
        if scheme == "http":
            return not faults.is_refused(error)
        # Without a port in its name, a host has one for each scheme.
        return faults.is_plain(error) or (
            faults.is_refused(error) and not _PORT.search(self.reference.endpoint)
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
            pass  # for example, a misplaced bracket
        raise RegistryError(
            f"the registry sent an invalid URL: {printable(place)}", where=str(self.reference)
        )

    def _kept_secure(self, base: str, url: str) -> str:
        """Refuse a URL that leads from TLS to plain HTTP, where others could read the layers."""
        if base.startswith("https:") and not url.startswith("https:"):
            raise RegistryError(
                f"the registry sends on from TLS to plain HTTP, at {printable(urlsplit(url).netloc)}",
                where=str(self.reference),
                hint="its storage or its proxy is set up wrongly",
            )
        return url

    def _exchange(self, message: Message) -> requests.Response:
        """Do one exchange, without redirects, sign-in or retries."""
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
            # requests parses the target of a redirect even if it must not follow it.
            raise RegistryError(
                f"the registry sent an invalid URL ({printable(str(error))})",
                where=str(self.reference),
            ) from error

    def _requested(self, message: Message, host: str, trust: Trust, verify: str | None) -> requests.Response:
        return self._options.session.request(
            message.method,
            message.url,
            headers={
                "User-Agent": f"imagebuilder/{imagebuilder.__version__}",
                # No compression: a compressed answer may unpack to any size.
                "Accept-Encoding": "identity",
                **message.headers,
            },
            data=message.body or None,
            # An `auth` of our own, though it adds nothing, keeps requests from reading ~/.netrc.
            auth=lambda prepared: prepared,
            # No proxy for this host itself; for others, the session's and the environment's proxies.
            proxies={"http": "", "https": ""} if is_loopback(host) else None,
            verify=verify,
            cert=(str(trust.client[0]), str(trust.client[1])) if trust.client else None,
            timeout=(
                min(CONNECT_SECONDS, self._options.patience),
                min(message.reply_seconds, self._options.patience),
            ),
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
        """Whether a URL leads to the registry itself: the same scheme, host and port."""
        return http.origin(url) == http.origin(self._origin)


def options_for(site: Site, host: str, *, plain_http: bool = False) -> Options:
    """Say how to reach a registry; `plain_http` allows it besides what the site's settings allow."""
    own = dict(site.registries)
    trust = {
        name: Trust(authorities=(item.ca,) if item.ca else (), client=item.client)
        for name, item in own.items()
        if item.ca or item.client
    }
    insecure = plain_http or (host in own and own[host].plain_http)
    return Options(session=site.session(retries=False), insecure=insecure, trust=trust)


def reader_of(reference: Reference, site: Site) -> Client:
    """Return a client that reads a repository, from the site's mirror of its registry if there is one."""
    mirror = next((item.mirror for host, item in site.registries if host == reference.host), "")
    where = parse(f"{mirror}/{reference.path}") if mirror else reference
    return Client(where, options_for(site, where.host))
