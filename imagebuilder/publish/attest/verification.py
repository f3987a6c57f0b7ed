"""Check a published image: its documents exist, are about this image, are signed, and agree with each other.

Digests bind the documents to the image, and a signature binds them to a key. But only building the image
again (rebuild.py) shows that recipe and lock really give these bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from imagebuilder import __version__
from imagebuilder.core import labels as label_names
from imagebuilder.core.yamlfile import printable
from imagebuilder.errors import GateError, ImagebuilderError, RegistryError
from imagebuilder.image import oci
from imagebuilder.lock import file as lockfile
from imagebuilder.lock.model import Lock
from imagebuilder.plan import KeysLayer, Plan, Project
from imagebuilder.publish import proof
from imagebuilder.publish.attest import provenance, reports, sbom
from imagebuilder.publish.attest.bundle import CYCLONEDX, PROVENANCE, REPORT, SOURCE, SPDX, DocumentKind
from imagebuilder.publish.attest.provenance import LOCK, RECIPE, Claim
from imagebuilder.publish.attest.published import Attachment, Published
from imagebuilder.publish.attest.reports import AttachedReport
from imagebuilder.registry import reader
from imagebuilder.registry.client import Client
from imagebuilder.store import Store
from imagebuilder.workflow.source import RecipeSource

Status = Literal["passed", "failed", "not checked"]
_Found = TypeVar("_Found")


@dataclass(frozen=True, kw_only=True)
class VerifyCheck:
    """One check and its result."""

    name: str
    status: Status
    detail: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The results of all checks.

    Attributes:
        reference, digest: of the image.
        checks: in the order to show them.
        reports: all that are attached.
        waivers: gates that were waived when the image was pushed.
        source: recipe and lock as attached; None if none can be trusted.

    """

    reference: str
    digest: str
    checks: tuple[VerifyCheck, ...]
    reports: tuple[AttachedReport, ...]
    waivers: tuple[str, ...]
    source: RecipeSource | None

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.status != "failed" for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class VerifyTask:
    """An image to verify, and what to verify it against.

    Attributes:
        published: the image as read, with the key if there is one.
        keyed: whether signatures count: then documents without one are ignored.
        own: a recipe and lock that the image must be made from; None for the attached ones.
        store: its layers are compared with the image's, if this host made the same ones.
        base: of a derived image: the verified image that it must begin with; None if none was named.

    """

    published: Published
    keyed: bool
    own: RecipeSource | None
    store: Store
    base: Published | None = None


class _RefusedError(Exception):
    """A document is wrong; the message says why."""


def verify(task: VerifyTask, client: Client) -> Verification:
    """Verify an image. Failed checks are in the result; they raise nothing.

    Raises:
        RegistryError: the registry cannot be reached.

    """
    image = task.published
    checks = [signature_check(signed=image.signed, signed_for=image.signed_for, keyed=task.keyed)]
    if image.on_top:
        return _derived(task, client, checks)
    source, check = _only(task, SOURCE, lambda found: _source(found, task.published))
    checks.append(check)
    lock = source[1] if source else None
    plan: Plan | None = None
    tool = _tool(task)
    if source:
        plan, check = _plan(task, source[0], tool)
        checks.append(check)
    if task.own is not None:
        checks.append(_own(task.own, source[0] if source else None, task.published))
    claims, check = _claims(task, source[0] if source else None, plan)
    checks += [check, _attestation(task)]
    for kind in (SPDX, CYCLONEDX):
        _, check = _only(task, kind, lambda found: _bill(found, task.published, lock, plan, claims))
        checks.append(check)
    report, check = _only(task, REPORT, lambda found: _report(found, task))
    checks += [check, _blobs(task, client, plan)]
    used = [claim for claim in claims if report in claim.byproducts.values()] or claims
    return Verification(
        reference=f"{task.published.reference.name}@{task.published.digest}",
        digest=task.published.digest,
        checks=tuple(checks),
        reports=reports.attached(task.published, keyed=task.keyed),
        waivers=used[-1].waivers if used else (),
        source=source[0] if source else None,
    )


def _derived(task: VerifyTask, client: Client, checks: list[VerifyCheck]) -> Verification:
    """Verify an image that another builder made on top of one of imagebuilder.

    It has no recipe, lock, provenance and bills of materials of its own; its base's are verified there.
    """
    image = task.published
    checks.append(_begins_with(task.base, image))
    policy = proof.policy_of((task.base or image).labels, str(image.reference))
    _, check = _only(task, REPORT, lambda found: _report(found, task))
    checks += [check, _blobs(task, client, None)]
    return Verification(
        reference=f"{image.reference.name}@{image.digest}",
        digest=image.digest,
        checks=tuple(checks),
        reports=reports.attached(image, policy, keyed=task.keyed),
        waivers=(),
        source=None,
    )


def _begins_with(base: Published | None, image: Published) -> VerifyCheck:
    """Compare a derived image with its base: the layers below, and what its labels promise."""
    name = "base"
    steps = printable("; ".join(image.on_top))
    count = f"{len(image.on_top)} step{'s' if image.on_top[1:] else ''} on top"
    if base is None:
        recipe = printable(image.labels.get(label_names.RECIPE, "an image of imagebuilder"))
        detail = f"derived from {recipe}, {count}: {steps}; name the image below as --base REPOSITORY@DIGEST"
        return VerifyCheck(name=name, status="failed", detail=detail)
    below = base.diff_ids
    if not below or image.diff_ids[: len(below)] != below:
        detail = f"its lower layers are not those of {base.reference.name}@{base.digest}"
        return VerifyCheck(name=name, status="failed", detail=detail)
    changed = [
        key
        for key in sorted({*base.labels, *image.labels})
        if key.startswith(label_names.OWN) and base.labels.get(key) != image.labels.get(key)
    ]
    if changed:
        detail = f"its labels differ from its base's: {printable(', '.join(changed))}"
        return VerifyCheck(name=name, status="failed", detail=detail)
    detail = f"{len(below)} layers of {base.reference.name}@{base.digest}, {count}: {steps}"
    return VerifyCheck(name=name, status="passed", detail=detail)


def _only(
    task: VerifyTask, kind: DocumentKind, look: Callable[[Attachment], tuple[_Found, str]]
) -> tuple[_Found | None, VerifyCheck]:
    """Return the first valid document of a kind. Invalid ones may be attached by anybody who may push."""
    for found, detail in _good(task, kind, look):
        if found is not None:
            return found, VerifyCheck(name=kind.name, status="passed", detail=detail)
        return None, VerifyCheck(name=kind.name, status="failed", detail=detail)
    raise AssertionError(kind.name)


def _good(
    task: VerifyTask, kind: DocumentKind, look: Callable[[Attachment], tuple[_Found, str]]
) -> Iterator[tuple[_Found | None, str]]:
    """Return the valid documents of a kind; or, if there are none, the reason."""
    there = [found for found in task.published.attachments if found.kind == kind]
    counted = [found for found in there if found.signed or found.signed_by or not task.keyed]
    reasons = []
    for attachment in counted:
        try:
            yield look(attachment)
        except (_RefusedError, ValueError, RegistryError) as error:
            reasons.append(str(error))
        except GateError as error:
            reasons.append(error.problems[0].message)
    if reasons:
        yield None, "; ".join(dict.fromkeys(reasons))
    elif not counted:
        yield None, "it is attached, but not signed with this key" if there else "none is attached"


def signature_check(*, signed: bool, signed_for: tuple[str, ...], keyed: bool) -> VerifyCheck:
    """Check the signature of an image or of an index.

    Args:
        signed: there is a valid signature.
        signed_for: the repositories that the key has signed it for.
        keyed: whether the signature must be of a given key.

    """
    name = "signature"
    if not keyed:
        detail = "there is one; --key checks whose" if signed else "there is none, and no --key asks for one"
        return VerifyCheck(name=name, status="not checked", detail=detail)
    if signed:
        return VerifyCheck(name=name, status="passed", detail="made with this key")
    detail = "there is none of this key"
    if signed_for:
        detail = f"this key signed it for {' and '.join(signed_for)}, not for the repository that it is in: "
        detail += f"if the image is meant to be a copy, add --signed-for {signed_for[0]}"
    return VerifyCheck(name=name, status="failed", detail=detail)


def _source(found: Attachment, published: Published) -> tuple[tuple[RecipeSource, Lock], str]:
    try:
        source = RecipeSource(recipe=found.files[RECIPE].decode(), lock=found.files[LOCK].decode())
        lock = lockfile.loads(source.lock, LOCK).section(published.platform)
    except ImagebuilderError as error:
        raise _RefusedError(str(error.problems[0])) from None
    if lock is None:
        raise _RefusedError(f"the lock has nothing for {printable(published.platform)}")
    if lock.checksum != published.labels.get(label_names.LOCK):
        raise _RefusedError("the lock is not the one that the image names in its labels")
    detail = f"lock {lock.checksum[:12]}, {len(lock.debs)} Debian packages, {len(lock.wheels)} wheels"
    return (source, lock), detail


def _tool(task: VerifyTask) -> str:
    """Return the version of imagebuilder that made the image, from its provenance; "" if unknown."""
    for attachment in task.published.attachments:
        if attachment.kind == PROVENANCE and (attachment.signed or not task.keyed):
            try:
                return _claim(attachment).tool
            except (ValueError, RegistryError):
                continue
    return ""


def _plan(task: VerifyTask, source: RecipeSource, tool: str) -> tuple[Plan | None, VerifyCheck]:
    """Lay out the image again, and compare everything but the layers' bytes."""
    name = "plan"
    try:
        _, planned = source.read(task.published.platform, Project.of_labels(task.published.labels))
    except ImagebuilderError as error:
        if tool and tool != __version__:
            detail = f"made by imagebuilder {tool}, this is {__version__}"
            return None, VerifyCheck(name=name, status="not checked", detail=detail)
        return None, VerifyCheck(name=name, status="failed", detail=error.problems[0].message)
    plan = planned.of_image({title.removeprefix(oci.CREATED_BY) for title in task.published.titles})
    for layer in planned.layers:
        made = None if layer in plan.layers else task.store.layer(layer.key)
        if made is not None and not made.is_empty:
            detail = f"the image lacks `{layer.title}`, which this host made from the same recipe and lock"
            return None, VerifyCheck(name=name, status="failed", detail=detail)
    wanted = oci.image_config(plan, task.published.diff_ids)
    found = dict(task.published.config)
    if wanted == found:
        detail = f"recipe and lock give this config and {len(plan.layers)} layers"
        return plan, VerifyCheck(name=name, status="passed", detail=detail)
    if tool and tool != __version__:
        detail = f"made by imagebuilder {tool}, this is {__version__}, which lays images out differently"
        return None, VerifyCheck(name=name, status="not checked", detail=detail)
    differing = sorted(key for key in {*wanted, *found} if wanted.get(key) != found.get(key))
    detail = f"recipe and lock give another config: {', '.join(differing)} differ"
    return None, VerifyCheck(name=name, status="failed", detail=detail)


def _own(own: RecipeSource, attached: RecipeSource | None, published: Published) -> VerifyCheck:
    name = "own recipe"
    if attached is None:
        return VerifyCheck(name=name, status="failed", detail="there is nothing to compare it with")
    try:
        project = Project.of_labels(published.labels)
        same = own.read(published.platform, project) == attached.read(published.platform, project)
    except ImagebuilderError as error:
        return VerifyCheck(name=name, status="failed", detail=str(error.problems[0]))
    if same:
        return VerifyCheck(name=name, status="passed", detail="the image is made from it and its lock")
    return VerifyCheck(name=name, status="failed", detail="the image is made from another recipe or lock")


def _claim(found: Attachment) -> Claim:
    return provenance.read(reader.json_object(found.data, "provenance"))


def _claims(
    task: VerifyTask, source: RecipeSource | None, plan: Plan | None
) -> tuple[tuple[Claim, ...], VerifyCheck]:
    """Return all valid statements: a later push of the same image may have added another."""

    def look(found: Attachment) -> tuple[Claim, str]:
        return _statement(found, task.published, source, plan)

    answers = list(_good(task, PROVENANCE, look))
    claims = tuple(claim for claim, _ in answers if claim is not None)
    detail = answers[len(claims) - 1][1] if claims else answers[-1][1]
    return claims, VerifyCheck(name=PROVENANCE.name, status="passed" if claims else "failed", detail=detail)


def _statement(
    found: Attachment, published: Published, source: RecipeSource | None, plan: Plan | None
) -> tuple[Claim, str]:
    claim = _claim(found)
    if claim.subject != published.digest:
        raise _RefusedError("it is about another image")
    if source is not None and (claim.recipe, claim.lock) != (_sha256(source.recipe), _sha256(source.lock)):
        raise _RefusedError("it is about another recipe or lock than those attached")
    digests = tuple(layer.digest for layer in published.manifest.layers)
    if tuple(layer.digest for layer in claim.layers) != digests:
        raise _RefusedError("it names other layers than the image has")
    if tuple(layer.diff_id for layer in claim.layers) != published.diff_ids:
        raise _RefusedError("it names other layers than the image's config has")
    if plan is not None and [layer.key for layer in claim.layers] != [layer.key for layer in plan.layers]:
        raise _RefusedError("its layers are not those of recipe and lock")
    # The reasons of the gates are long; they are shown with the waivers.
    gates = ", ".join(waiver.partition(":")[0] for waiver in claim.waivers)
    waived = f"; waived: {gates}" if gates else ""
    layers = f"{len(digests)} layers"
    return claim, f"made by imagebuilder {claim.tool}, engine {claim.engine}; {layers} as it says{waived}"


def _attestation(task: VerifyTask) -> VerifyCheck:
    """Compare the statements in envelopes, which cosign and policies read, with the attached one."""
    name = "attestation"
    if not task.keyed:
        return VerifyCheck(name=name, status="not checked", detail="--key checks whose envelope it is in")
    # The same key may also attest scans, reviews, and builds by other tools.
    signed = [statement for statement in task.published.statements if _is_ours(statement)]
    if not signed:
        detail = "no provenance stands in an envelope of this key"
        return VerifyCheck(name=name, status="not checked", detail=detail)
    attached = [found.data for found in task.published.attachments if found.kind == PROVENANCE]
    if any(statement in attached for statement in signed):
        detail = "this key has signed the provenance in an envelope, for cosign and policies"
        return VerifyCheck(name=name, status="passed", detail=detail)
    detail = "this key has signed a provenance in an envelope, but it is not the attached one"
    return VerifyCheck(name=name, status="failed", detail=detail)


def _is_ours(statement: bytes) -> bool:
    try:
        provenance.read(reader.json_object(statement, "statement"))
    except (ValueError, RegistryError):
        return False
    return True


def _bill(
    found: Attachment,
    published: Published,
    lock: Lock | None,
    plan: Plan | None,
    claims: tuple[Claim, ...],
) -> tuple[int, str]:
    document = reader.json_object(found.data, found.kind.name)
    if sbom.subject(document) != published.digest:
        raise _RefusedError("it is about another image")
    packages = sbom.contents(document)
    if lock is None:
        raise _RefusedError("there is no lock to compare it with")
    layers = [(layer.digest, layer.size) for layer in published.manifest.layers]
    wanted = sbom.expected(lock, sbom.own_parts(plan, layers, "") if plan else ())
    if plan is None:  # which layers have the user's own files is not known
        packages = frozenset(item for item in packages if not sbom.is_own(item[0]))
    if packages != wanted:
        lacking, extra = len(wanted - packages), len(packages - wanted)
        raise _RefusedError(f"it lacks {lacking} packages of the lock, and has {extra} that are not in it")
    _require_named(found.data, claims)
    return len(packages), f"{len(packages)} packages, each as the lock has it"


def _report(found: Attachment, task: VerifyTask) -> tuple[str, str]:
    """Judge a report. No provenance has to name it: whoever proves the image later attaches another one."""
    policy = proof.policy_of((task.base or task.published).labels, str(task.published.reference))
    report, refusals = reports.judged(found, task.published, policy, keyed=task.keyed)
    if refusals:
        raise _RefusedError(", ".join(refusals))
    return _sha256(found.data), report.summary


def _require_named(data: bytes, claims: tuple[Claim, ...]) -> None:
    if not any(_sha256(data) in claim.byproducts.values() for claim in claims):
        raise _RefusedError("no statement of provenance names it")


def _blobs(task: VerifyTask, client: Client, plan: Plan | None) -> VerifyCheck:
    """Ask the registry for every layer, and compare with those that this host made from the same plan."""
    manifest = task.published.manifest
    missing = [
        layer.digest
        for layer in (manifest.config, *manifest.layers)
        if client.request("HEAD", f"blobs/{layer.digest}", wanted=(200, 404)).status_code != 200
    ]
    if missing:
        detail = f"the registry has lost {len(missing)} of them, {missing[0]} first"
        return VerifyCheck(name="layers", status="failed", detail=detail)
    detail = f"all {len(manifest.layers)} are in the registry"
    if plan is not None and len(plan.layers) == len(manifest.layers) == len(task.published.diff_ids):
        # A baked key is different on every host.
        made = [
            None if isinstance(layer, KeysLayer) else task.store.layer(layer.key) for layer in plan.layers
        ]
        rows = zip(made, manifest.layers, task.published.diff_ids, strict=True)
        pairs = [
            # Packed in another way, the tar is the same.
            (mine.digest, layer.digest) if mine.media_type == layer.media_type else (mine.diff_id, diff_id)
            for mine, layer, diff_id in rows
            if mine
        ]
        if any(mine != theirs for mine, theirs in pairs):
            detail = "this host's store has made other bytes from the same recipe and lock"
            return VerifyCheck(name="layers", status="failed", detail=detail)
        if pairs:
            detail += f"; {len(pairs)} of them are what this host's store made itself"
    return VerifyCheck(name="layers", status="passed", detail=detail)


def _sha256(data: str | bytes) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()
