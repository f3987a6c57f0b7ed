"""Settings of a job or a host that are baked into the image, where they would hold for every job and host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from imagebuilder.recipe import jobsettings
from imagebuilder.smoke.checks import container_reason
from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 30
_FILE = "@file "
# The files in which NCCL, Open MPI and logins look for the same settings. PREFIX: of the mpirun on PATH.
_SCRIPT = f"""
prefix=$(command -v mpirun 2>/dev/null) && prefix=${{prefix%/bin/mpirun}}
for file in /etc/environment /etc/nccl.conf ~/.nccl.conf ~/.openmpi/mca-params.conf \
    /etc/openmpi/openmpi-mca-params.conf "$prefix/etc/openmpi-mca-params.conf"; do
    [ -f "$file" ] && [ -r "$file" ] || continue
    echo "{_FILE}$file"
    head -c 65536 "$file" && echo
done
true
"""
_REMEDY = (
    "leave it out of the image and give it to the job; if every job and host may have it, allow it in the "
    "recipe: `allow_env: [{name: NAME, reason: ...}]`"
)


def run(session: Session) -> Passed:
    outcome = session.run(0, ("sh", "-c", _SCRIPT), timeout=_SECONDS)
    session.require_ok([outcome])
    own = [("the image's ENV", name, value) for name, value in session.environment.items()]
    found = [*own, *in_files(outcome.stdout)]
    allowed = dict(session.target.allowed_env)
    findings = judge(found, allowed)
    if findings:
        raise CheckFailed.because(*findings)
    used = {name: allowed[name] for _, name, _ in found if name in allowed}
    said = f"; allowed by the recipe: {', '.join(used)}" if used else ""
    return Passed(summary=f"no setting of a job or a host in the image{said}", evidence={"allowed": used})


def judge(found: Iterable[tuple[str, str, str]], allowed: Mapping[str, str]) -> list[Finding]:
    """Return those variables that belong to a job or a host; `found`: where each is set, name and value."""
    reasons = {
        (place, name): jobsettings.reason(name, is_empty=not value)
        for place, name, value in found
        if name not in allowed
    }
    return [
        Finding(node="", message=f"{place} sets {name}: {why}", remedy=_REMEDY.replace("NAME", name))
        for (place, name), why in reasons.items()
        if why
    ]


def in_files(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield file, name and value of every variable that is set in the files that the script printed."""
    path = ""
    for line in text.splitlines():
        if line.startswith(_FILE):
            path = line.removeprefix(_FILE)
        elif path.endswith("mca-params.conf"):
            if name := jobsettings.of_parameter(line):
                yield path, name, line.partition("=")[2].strip()
        elif path:
            name, equals, value = line.removeprefix("export ").partition("=")
            if equals and name.isidentifier() and name.isascii():
                yield path, name, value.strip().strip("\"'")


CHECK = Check(
    name="settings",
    order=15,
    title="variables of the image's config and of the files that NCCL, Open MPI and logins read",
    criterion="none belongs to a job or a host (NCCL_*, GLOO_*, MASTER_ADDR, ...), except those that the "
    "recipe allows",
    run=run,
    skip=container_reason,
    required=lambda promise: promise.started,
)
