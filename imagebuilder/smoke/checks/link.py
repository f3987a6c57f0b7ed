"""Compiled parts fit together: the loader finds all libraries, packages import, a convolution works."""

from __future__ import annotations

from imagebuilder.smoke.report import Finding
from imagebuilder.smoke.session import Check, CheckFailed, Passed, Session

_SECONDS = 180


def run(session: Session) -> Passed:
    # All nodes run one image, so one node is enough, with a GPU for the convolution if there is one.
    env = session.rank_env(0)
    outcome = session.run(0, session.script("link.py", "--device", session.device), timeout=_SECONDS, env=env)
    session.require_ok([outcome])
    said = session.said(outcome)
    if not said:
        raise CheckFailed("the script that checks the libraries gave no answer", node=session.nodes[0].name)
    found = said[-1]
    findings = [
        *(
            _finding(
                session,
                text,
                "the image's C or C++ library is older than the one that a wheel was built for: take a "
                "newer base, or an older wheel",
            )
            for text in found["versions"]
        ),
        *(
            _finding(
                session,
                f"{path} needs {', '.join(names)}, which the image lacks",
                "add the Debian package that has it under `apt:`, or the wheel under `pip:`",
            )
            for path, names in found["broken"].items()
        ),
        *(
            _finding(session, f"`import {name}` fails: {why}", "the report has the whole output")
            for name, why in found["imports"].items()
        ),
    ]
    if found["convolution"] not in ("", "ok"):
        findings.append(
            _finding(
                session,
                f"a convolution {found['convolution']}",
                "parts of cuDNN of different releases, or an older "
                "copy first on LD_LIBRARY_PATH, do this; compare with the pin",
            )
        )
    if findings:
        raise CheckFailed.because(*findings)
    convolved = ", a convolution runs forward and backward" if found["convolution"] else ""
    left = (
        f" ({found['of'] - found['swept']} not checked, for lack of time)"
        if found["of"] > found["swept"]
        else ""
    )
    return Passed(
        summary=f"{found['swept']} shared objects resolve{left}, compiled packages import{convolved}",
        evidence={key: found[key] for key in ("swept", "of", "plugins", "convolution")},
    )


def _finding(session: Session, message: str, remedy: str) -> Finding:
    return Finding(node=session.nodes[0].name, message=message, remedy=remedy)


CHECK = Check(
    name="link",
    order=40,
    title="ldd over the venv, import of every package with compiled parts, a convolution",
    criterion="no extension module misses a library or a symbol version; every import works; the gradients "
    "of a convolution are right",
    run=run,
)
