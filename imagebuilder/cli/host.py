"""Verbs on the host: keys, doctor."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from imagebuilder.cli.answer import answer
from imagebuilder.cli.base import Json, app, err, out
from imagebuilder.errors import EnvironmentFault


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder to create; it must not exist yet.")],
    name: Annotated[str, typer.Option("--name", help="The job's name, for the keys' comments.")] = "job",
    days: Annotated[
        int, typer.Option("--days", min=1, max=3650, help="How many days the certificates are valid.")
    ] = 30,
    secret: Annotated[
        str,
        typer.Option(
            "--secret", metavar="NAME", help="Also print the keys as a Kubernetes Secret with this name."
        ),
    ] = "",
) -> None:
    """Make the ssh keys of one job. Mount them into its containers at /run/secrets/imagebuilder."""
    from imagebuilder.plan import FIRST_UID
    from imagebuilder.plan.sshkeys import check_secret_name, make_keys, secret_manifest

    if secret:
        check_secret_name(secret)
    make_keys(folder, name=name, days=days)
    if secret:
        out(secret_manifest(folder, secret).rstrip())
        return
    out(f"wrote {folder}: keys and certificates for {days} days; the key that signed them was deleted")
    if os.getuid() != FIRST_UID:
        out("for an image whose user is not root, first (its number is what `id -u` says in the image):")
        out(f"      sudo chown -R {FIRST_UID} {shlex.quote(str(folder.absolute()))}")
    out(f"next: docker run -v {folder.absolute()}:/run/secrets/imagebuilder:ro ...")


@app.command()
def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Install the Debian packages that are missing (root).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what this host lacks. For each verb, and how to fix it."""
    from imagebuilder.workflow import doctor as doctors

    if fix:
        for line in doctors.fix():
            err(line)
    findings = doctors.examine()
    if as_json:
        from imagebuilder.cli import results

        answer(results.DoctorResult(findings=tuple(findings)))
    else:
        for line in doctors.lines(findings):
            out(line)
    if any(finding.status == "missing" for finding in findings):
        raise typer.Exit(EnvironmentFault.exit_code)
