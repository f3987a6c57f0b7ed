"""The examples for CI services run from their first line to their last, each job on a fresh runner.

Actions, `gh` and sudo have stand-ins, and a local registry with a password stands for the service's. All else
runs as it is written: pip installs the wheel of this checkout, and packages are fetched.
"""

from __future__ import annotations

import configparser
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import uv
import yaml

from imagebuilder.core import process
from imagebuilder.host.site import detect
from imagebuilder.smoke.engine import Engine
from tests.integration.conftest import ROOT, remove_images
from tests.support import workflows
from tests.support.servers import HTPASSWD, PASSWORD, USER, RegistryServer

EXAMPLES = ROOT / "examples" / "ci"
# What `git push` and `docker login` of the jobs see.
REPOSITORY = "team/images"
GITHUB: dict[str, object] = {
    "github.repository": REPOSITORY,
    "github.repository_owner": "team",
    "github.actor": USER,
    "github.token": "unused: gh is a stand-in",
    "github.event.repository.name": "images",
    "github.event.repository.owner.type": "Organization",
    "secrets.GITHUB_TOKEN": PASSWORD,
    "secrets.SIGN_KEY_PASSWORD": "",
}
PUSHED = {"github.event_name": "push", "github.ref": "refs/heads/main"}
ASKED = {"github.event_name": "pull_request", "github.ref": "refs/pull/1/merge"}
# The repository has another name than the recipe.
PROMOTED = "cpu-mpi-openmpi5.0.7-py3.13-trixie"
PROGRAMS = {
    # As sudo does: another user's home, and another path.
    "sudo": 'exec env PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$HOME/root" "$@"',
    "gh": 'echo "$*" >> "$HOME/asked"',
}


@dataclass(frozen=True, kw_only=True)
class Service:
    """What all runners share.

    Attributes:
        folder: for runners and checkouts.
        programs: stand-ins of programs.
        pip: the settings of pip, which find the wheel of this checkout.
        origin: the repository that the jobs check out.
        registry: the service's registry.
        key: private key, and the public one beside it.

    """

    folder: Path
    programs: Path
    pip: Path
    origin: Path
    registry: RegistryServer
    key: Path

    def runner(self, **env: str) -> workflows.Machine:
        """Start a fresh runner, without a checkout."""
        place = self.folder / secrets.token_hex(4)
        settings = {"PIP_CONFIG_FILE": str(self.pip), **detect().proxy_environment()}
        return workflows.machine(place / "images", place / "home", self.programs, **settings, **env)

    def read(self, name: str, **replaced: str) -> Any:
        """Read an example as a user changes it: other names of registry and recipe, and no more."""
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        for old, new in {"ghcr.io": self.registry.host, **replaced}.items():
            text = text.replace(old, new)
        return yaml.safe_load(text)

    def checkout(self, runner: workflows.Machine, _: Mapping[str, str] | None = None) -> None:
        process.run(["git", "clone", "--quiet", self.origin, runner.checkout], timeout=60)

    def setup_python(self, runner: workflows.Machine, _: Mapping[str, str]) -> None:
        venv = runner.temp / "python"
        process.run([sys.executable, "-m", "venv", venv], timeout=120)
        runner.env["PATH"] = f"{venv}/bin:{runner.env['PATH']}"

    @property
    def actions(self) -> dict[str, workflows.Action]:
        return {
            "actions/checkout": self.checkout,
            "actions/setup-python": self.setup_python,
            "actions/upload-artifact": workflows.keep,
        }

    def job(
        self, workflow: Mapping[str, Any], name: str, context: Mapping[str, object]
    ) -> tuple[workflows.Machine, dict[str, str]]:
        """Run one job on a fresh runner."""
        runner = self.runner()
        if not any("actions/checkout" in step.get("uses", "") for step in workflow["jobs"][name]["steps"]):
            runner.checkout.mkdir(parents=True)
        outputs = workflows.run_job(runner, workflow, name, {**GITHUB, **context}, self.actions)
        return runner, outputs

    def tags(self, repository: str) -> list[str]:
        """List the image's tags in the registry; none if the repository does not exist."""
        address = f"{self.registry.url}/v2/{repository}/tags/list"
        found = requests.get(address, auth=(USER, PASSWORD), timeout=10)
        names = found.json().get("tags") or [] if found.ok else []
        # The others stand for lists of what is attached to an image.
        return sorted(name for name in names if not name.startswith("sha256-"))


@pytest.fixture(scope="module")
def service(connected: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("ci")
    programs, wheels, origin, storage = (folder / name for name in ("bin", "wheels", "origin", "registry"))
    for each in (programs, storage):
        each.mkdir()
    for name, script in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)
    command: list[str | Path] = [uv.find_uv_bin(), "build", "--wheel", "--quiet", "--out-dir", wheels, ROOT]
    process.run(command, timeout=300, env=detect().environment())
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    process.run(["openssl", "genpkey", *curve, "-out", folder / "sign.key"], timeout=60)
    public: list[str | Path] = [
        "openssl",
        "pkey",
        "-in",
        folder / "sign.key",
        "-pubout",
        "-out",
        folder / "sign.pub",
    ]
    process.run(public, timeout=60)
    (folder / "htpasswd").write_text(HTPASSWD)
    users: dict[str, object] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    registry = RegistryServer(storage, extra={"auth": users})
    registry.start()
    fill(origin, folder / "sign.pub")
    try:
        yield Service(
            folder=folder,
            programs=programs,
            pip=pip_settings(folder / "pip.conf", wheels),
            origin=origin,
            registry=registry,
            key=folder / "sign.key",
        )
    finally:
        registry.stop()
        remove_images(connected.client, "cpu-mpi")


def pip_settings(path: Path, wheels: Path) -> Path:
    """Write this host's settings of pip, with one more folder of wheels."""
    site = detect()
    if site.ca_bundle:
        shutil.copy(site.ca_bundle, path.parent / "ca.crt")
    found = configparser.ConfigParser()
    found["global"] = {
        "index-url": site.index,
        "extra-index-url": "\n".join(["", *site.extra_indexes]),
        "find-links": "\n".join(["", str(wheels), *site.wheel_folders]),
        **({"cert": str(path.parent / "ca.crt")} if site.ca_bundle else {}),
    }
    with path.open("w") as file:
        found.write(file)
    return path


def fill(origin: Path, public: Path) -> None:
    """Make a user's repository: one recipe with its lock, and one whose proof has to be signed."""
    recipes = origin / "recipes"
    recipes.mkdir(parents=True)
    text = (ROOT / "recipes" / "cpu-mpi.yaml").read_text(encoding="utf-8")
    (recipes / "cpu-mpi.yaml").write_text(text, encoding="utf-8")
    demands = "proof: {mode: cpu, nodes: 2, signed_by: [lab.pub]}\n"
    (recipes / "cpu-lab.yaml").write_text(text + demands, encoding="utf-8")
    for name in ("cpu-mpi", "cpu-lab"):
        (recipes / f"{name}.lock").write_bytes((ROOT / "recipes" / "cpu-mpi.lock").read_bytes())
    (recipes / "lab.pub").write_bytes(public.read_bytes())
    git: list[str | Path] = ["git", "-C", origin, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    process.run(["git", "init", "--quiet", "--initial-branch", "main", origin], timeout=60)
    process.run([*git, "add", "."], timeout=60)
    process.run([*git, "commit", "--quiet", "--message", "Recipes"], timeout=60)


def names(job: Mapping[str, Any]) -> list[str]:
    """List the steps of a job as the runner names them."""
    return [step.get("name", step.get("uses", "").partition("@")[0]) for step in job["steps"]]


def test_a_pull_request_is_proven_and_the_main_branch_is_pushed(service: Service) -> None:
    workflow = service.read("github-actions.yml")
    asked, _ = service.job(workflow, "prove", ASKED)
    assert asked.ran == names(workflow["jobs"]["prove"])
    assert asked.kept == {"smoke-test-cpu-mpi": {"report.json", "junit.xml", "report.html"}}
    assert "cpu-mpi: passed" in asked.said
    repository = f"{REPOSITORY}/cpu-mpi"
    assert (service.tags(repository), service.tags(f"{REPOSITORY}/cache")) == ([], []), "it wrote something"

    context = {**PUSHED, "secrets.SIGN_KEY": service.key.read_text().rstrip("\n")}
    pushed, _ = service.job(workflow, "publish", context)
    assert pushed.ran == names(workflow["jobs"]["publish"])
    assert not (pushed.temp / "sign.key").exists()
    assert "openmpi5.0.7-py3.13-trixie" in service.tags(repository)
    assert service.tags(f"{REPOSITORY}/cache")
    (listing,) = (pushed.temp / "asked").read_text().splitlines()
    assert listing.startswith("api --paginate orgs/team/packages/container/images%2Fcache/versions ")
    image = f"{service.registry.host}/{repository}:openmpi5.0.7-py3.13-trixie"
    verified = pushed.sh(f"imagebuilder verify {image} --key {service.key.with_suffix('.pub')}")
    assert verified.endswith("verified\n")

    again, _ = service.job(workflow, "prove", ASKED)
    assert "installing" in asked.said
    assert "installing" not in again.said, "the cache has every layer"


def test_the_action_builds_and_proves(service: Service) -> None:
    runner = service.runner()
    service.checkout(runner)
    service.setup_python(runner, {})
    outputs = workflows.run_composite(runner, ROOT, {"recipe": "recipes/cpu-mpi.yaml"})
    assert runner.ran == ["Install", "Check", "Build", "Prove", "Bound the store"]
    assert re.fullmatch("sha256:[0-9a-f]{64}", outputs["digest"])
    assert "cpu-mpi: passed" in runner.said


def test_an_image_is_built_proven_and_promoted_by_three_jobs(service: Service) -> None:
    changes = {"recipes/cuda12-torch": "recipes/cpu-lab", "cuda12-torch": "cpu-lab"}
    workflow = service.read("github-prove-elsewhere.yml", **changes)
    _, outputs = service.job(workflow, "build", PUSHED)
    repository, needed = f"{REPOSITORY}/cpu-lab", {"needs.build.outputs.digest": outputs["digest"]}
    assert service.tags(repository) == [f"candidate-{outputs['digest'][7:19]}"]
    context = {**GITHUB, **PUSHED, **needed}
    lab = service.runner()
    lab.checkout.mkdir(parents=True)
    (lab.temp / "lab.key").write_bytes(service.key.read_bytes())
    workflows.run_job(lab, workflow, "prove", context, service.actions)
    assert lab.kept == {"smoke-test": {"junit.xml"}}
    service.job(workflow, "promote", {**PUSHED, **needed})
    assert PROMOTED in service.tags(repository)


def test_an_update_is_proposed(service: Service) -> None:
    workflow = service.read("github-update.yml")
    runner, _ = service.job(workflow, "update", PUSHED)
    assert runner.ran == names(workflow["jobs"]["update"])
    changed = "imagebuilder-update" in process.run(["git", "-C", service.origin, "branch"], timeout=60).stdout
    asked = (runner.temp / "asked").read_text() if (runner.temp / "asked").exists() else ""
    assert asked.startswith("pr create") == changed, "a pull request, if a pin or a package moved"


@pytest.fixture(scope="module")
def debian(service: Service) -> Iterator[Callable[[workflows.Machine], workflows.Machine]]:
    """Give a job a container of the image that it names, made here of Debian's packages."""
    image = f"ci-examples:{secrets.token_hex(4)}"
    made = service.folder / "debian.tar"
    process.run(["mmdebstrap", "--quiet", "--variant=minbase", "trixie", made], timeout=600)
    process.run(["docker", "import", made, image], timeout=300)
    made.unlink()
    site = detect()
    # The files of an index may lie beside the folder of its pages.
    indexes = [index.removeprefix("file://").rstrip("/") for index in site.extra_indexes if "file:" in index]
    shared = {str(service.folder), *site.wheel_folders, *(index.rpartition("/")[0] for index in indexes)}
    shared = {path for path in shared if Path(path).is_dir()}

    def start(runner: workflows.Machine) -> workflows.Machine:
        # This host's, in place of docker:dind.
        engine = runner.env["DOCKER_HOST"].removeprefix("unix://")
        command = ["docker", "run", "--rm", "--privileged", "--network=host", f"--volume={engine}:{engine}"]
        command += [f"--volume={path}:{path}" for path in sorted(shared)]
        runner.container = (*command, f"--workdir={runner.checkout}", image)
        if (service.folder / "ca.crt").exists():
            names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
            runner.env |= dict.fromkeys(names, str(service.folder / "ca.crt"))
        runner.env["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return runner

    yield start
    process.run(["docker", "image", "rm", "--force", image], timeout=60)


def gitlab(service: Service, branch: str) -> dict[str, str]:
    """Return the variables that GitLab sets."""
    host = service.registry.host
    return {
        "CI_REGISTRY": host,
        "CI_REGISTRY_IMAGE": f"{host}/gitlab/images",
        "CI_REGISTRY_USER": USER,
        "CI_REGISTRY_PASSWORD": PASSWORD,
        "CI_COMMIT_BRANCH": branch,
        "CI_DEFAULT_BRANCH": "main",
    }


def test_gitlab_checks_the_recipes(
    service: Service, debian: Callable[[workflows.Machine], workflows.Machine]
) -> None:
    pipeline, runner = service.read("gitlab-ci.yml"), debian(service.runner())
    assert pipeline["default"]["image"] == "debian:trixie"
    service.checkout(runner)
    workflows.run_gitlab(runner, pipeline, "check", gitlab(service, "change"))
    assert "recipes/cpu-mpi.yaml: ok, locked" in runner.said


def test_gitlab_pushes_from_the_main_branch_alone(
    service: Service, debian: Callable[[workflows.Machine], workflows.Machine]
) -> None:
    pipeline = service.read("gitlab-ci.yml")
    for branch in ("change", "main"):
        runner = debian(service.runner())
        service.checkout(runner)
        workflows.run_gitlab(runner, pipeline, "image", gitlab(service, branch))
        assert runner.kept["image"] == {"report.json", "junit.xml", "report.html"}
        assert bool(service.tags("gitlab/images/cpu-mpi")) == (branch == "main")
    assert service.tags("gitlab/images/cache")


def test_gitlab_proves_on_another_runner(
    service: Service, debian: Callable[[workflows.Machine], workflows.Machine]
) -> None:
    changes = {"recipes/cuda12-torch": "recipes/cpu-lab", "cuda12-torch": "cpu-lab"}
    pipeline = service.read("gitlab-prove-elsewhere.yml", **changes)
    variables = gitlab(service, "main")
    build, lab, promote = debian(service.runner()), service.runner(), debian(service.runner())
    for runner in (build, lab, promote):
        service.checkout(runner)
    workflows.run_gitlab(build, pipeline, "build", variables)
    passed = dict(line.split("=", 1) for line in (build.checkout / "build.env").read_text().splitlines())
    (lab.temp / "lab.key").write_bytes(service.key.read_bytes())
    workflows.run_gitlab(lab, pipeline, "prove", {**variables, **passed})
    assert lab.kept["prove"] == {"junit.xml"}
    workflows.run_gitlab(promote, pipeline, "promote", {**variables, **passed})
    assert PROMOTED in service.tags("gitlab/images/cpu-lab")
