"""The smoke test on nodes that run already, by ssh: two containers that somebody else started."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from imagebuilder.core import process
from imagebuilder.plan.sshkeys import NODE_ALIAS, make_keys
from imagebuilder.smoke.report import read
from imagebuilder.store import Store
from tests.integration.conftest import ROOT, Built
from tests.support.pods import Pods, docker, pods

PROGRAM = Path(sys.executable).parent / "imagebuilder"
HOSTS = ("worker-0", "worker-1")


def reach(job: Pods, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Start the nodes, and let `ssh HOST` here lead to them, as a user's own ~/.ssh/config would."""
    make_keys(folder / "keys", name=job.job)
    mounted = shutil.copytree(folder / "keys", folder / "mounted")
    for path in (mounted, *mounted.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    lines = [f"HostKeyAlias {NODE_ALIAS}", f"UserKnownHostsFile {folder}/keys/known_hosts"]
    lines += ["User trainer", "Port 2222", f"IdentityFile {folder}/keys/id_ed25519", "IdentitiesOnly yes"]
    names = []
    for host in HOSTS:
        options = ("-v", f"{mounted}:/run/secrets/imagebuilder:ro", "--shm-size=1g")
        names.append(job.start(host, *options))
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = docker("inspect", "-f", form, names[-1]).stdout.strip()
        lines += [f"Host {host}", f"    HostName {address}"]
    (folder / "config").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "bin").mkdir()
    program = folder / "bin" / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return names


def left(names: list[str]) -> list[str]:
    """List the test's folders and processes in the nodes."""
    script = "ls -d /tmp/imagebuilder-smoke* 2>/dev/null; grep -l imagebuilder-smoke /proc/[0-9]*/cmdline"
    said = [docker("exec", name, "sh", "-c", script, check=False).stdout for name in names]
    # grep finds itself.
    return [line for text in said for line in text.splitlines() if not line.startswith("/proc/")]


def test_two_nodes_that_run_are_tested_and_nothing_is_left(
    built: Built, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    report = tmp_path / "report.json"
    command: list[str | Path] = [
        PROGRAM,
        "smoke-test",
        "--runtime",
        "ssh",
        "--store",
        store.root,
        "--report",
        report,
    ]
    with pods(built(ROOT / "recipes" / "cpu-mpi.yaml")) as job:
        names = reach(job, tmp_path, monkeypatch)
        result = process.run([*command, "--hosts", ",".join(HOSTS)], timeout=600, check=False)
        assert report.exists(), result.stderr
        assert left(names) == []
        (tmp_path / "keys" / "known_hosts").write_text("", encoding="utf-8")
        stranger = process.run([*command, "--hosts", ",".join(HOSTS)], timeout=120, check=False)
    found = read(report)
    checks = {check.name: check for check in found.checks}
    assert {name: check.findings for name, check in checks.items() if check.status == "failed"} == {}
    assert result.code == 0, result.stdout
    assert (found.runtime, found.nodes, found.digest) == ("ssh", 2, "")
    assert checks["ssh"].summary == "2 logins between nodes as trainer, host keys checked strictly"
    assert checks["mpirun"].summary == "2 ranks on 2 hosts, exact sum through mpi4py"
    assert checks["names"].summary == "2 host names resolve to addresses in a network on every node"
    assert checks["contents"].reason == "the nodes run already, with settings of their own"
    assert [note.partition(",")[0] for note in found.caveats if " is worker-" in note] == [
        f"{host} is {host}" for host in HOSTS
    ]
    assert stranger.code == 2
    assert "worker-0: beginning failed: Host key verification failed." in stranger.stderr
