"""Manifests of every target: they fit their schemas, and mistakes in them are refused."""

from __future__ import annotations

import copy
import gzip
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagebuilder.core import yamlfile
from imagebuilder.errors import InputError
from imagebuilder.launch import job as jobs
from imagebuilder.launch import overlay, pods, schema, smoke, targets
from imagebuilder.launch.commands import Raw
from imagebuilder.launch.targets import Manifest
from tests.unit import launching

MANIFESTS = [name for name in targets.names() if targets.load(name).header.schemas]
PODS = [name for name in MANIFESTS if "tolerations" in targets.load(name).header.options]
WORDS = {"framework": "torchrun", "mpirun": "mpirun"}
CASES = [(name, WORDS[kind]) for name in MANIFESTS for kind in targets.load(name).header.launchers]


def everything(name: str) -> dict[str, Any]:
    """Every option of a job that the target has."""
    header = targets.load(name).header
    sources = {
        "pvc": "pvc:data:/data",
        "nfs": "nfs:nas.example:/export:/nfs",
        "host": "host:/scratch:/scratch",
    }
    values: dict[str, Any] = {
        "accelerator": "H100",
        "cpus": "8",
        "deadline": 3600,
        "host_network": True,
        "hugepages": ("2Mi", "1Gi"),
        "memory": "64Gi",
        "namespace": "team",
        "node_selector": (("pool", "gpu"),),
        "rdma": "rdma/hca",
        "restarts": 2,
        "tolerations": (jobs.Toleration(key="gpu", value="yes", effect="NoSchedule"),),
        "volumes": jobs.read_volumes([sources[medium] for medium in header.volumes]),
    }
    return {field: value for field, value in values.items() if field in header.options}


def filled(name: str, **changed: Any) -> Manifest:
    target = targets.load(name)
    if name == "skypilot":
        changed.setdefault("accelerator", "H100")
    files = targets.fill(target, launching.job(target, **changed))
    overlay.require_valid(files, target)
    return launching.only(files)


@pytest.mark.parametrize(("name", "launcher"), CASES)
def test_a_manifest_fits_its_schema(name: str, launcher: str) -> None:
    for nodes in (1, 3):
        found = filled(name, launcher=launcher, nodes=nodes, env=(("A", "b"),))
        assert list(yaml.safe_load_all(found.text)) == [
            json.loads(json.dumps(document)) for document in found.documents
        ]
        assert launching.REFERENCE in found.text


@pytest.mark.parametrize(("name", "launcher"), CASES)
def test_a_manifest_with_every_option_fits_its_schema(name: str, launcher: str) -> None:
    filled(name, launcher=launcher, image=launching.trainer(), **everything(name))


def walk(value: Any) -> Any:
    yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(item)


def containers(found: Manifest) -> list[dict[str, Any]]:
    documents = list(yaml.safe_load_all(found.text))
    nodes = [node for node in walk(documents) if isinstance(node, dict) and "containers" in node]
    assert nodes
    return nodes


@pytest.mark.parametrize("name", PODS)
def test_options_reach_the_pods(name: str) -> None:
    launcher = WORDS[targets.load(name).header.launchers[0]]
    options = {**everything(name), "host_network": False}
    for spec in containers(filled(name, launcher=launcher, image=launching.trainer(), **options)):
        (node,) = spec["containers"]
        assert spec["securityContext"] == {"runAsUser": 1000, "runAsGroup": 0, "fsGroup": 1000}
        assert spec["tolerations"] == [
            {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
        ]
        mounts = {mount["mountPath"]: mount["name"] for mount in node["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
        assert volumes[mounts["/data"]]["persistentVolumeClaim"] == {"claimName": "data"}
        assert volumes[mounts["/nfs"]]["nfs"] == {"server": "nas.example", "path": "/export"}
        assert volumes[mounts["/scratch"]]["hostPath"] == {"path": "/scratch"}
        if node["name"] == "launcher":
            assert "resources" not in node
            continue
        assert spec["nodeSelector"] == {"pool": "gpu"}
        assert node["resources"]["limits"] == node["resources"]["requests"]
        assert node["resources"]["limits"] == {
            "cpu": "8",
            "memory": "64Gi",
            "nvidia.com/gpu": "2",
            "rdma/hca": "1",
            "hugepages-2Mi": "1Gi",
        }
        assert node["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
        assert volumes[mounts["/dev/hugepages"]]["emptyDir"] == {"medium": "HugePages-2Mi"}


@pytest.mark.parametrize(
    ("make", "mode"), [(launching.image, 0o400), (launching.trainer, 0o440)], ids=["root", "trainer"]
)
def test_only_the_images_user_can_read_the_keys(make: Any, mode: int) -> None:
    image = make()
    template = pods.template(launching.job(image=image, launcher="mpirun"), keys=True)["spec"]
    (secret,) = [volume["secret"] for volume in template["volumes"] if "secret" in volume]
    assert secret == {"secretName": "fit-ssh", "defaultMode": mode}
    assert ("securityContext" in template) == (image.uid != 0)


def expanded(word: str, env: dict[str, str]) -> str:
    """Replace variables as a kubelet does (k8s.io/kubernetes third_party/forked/golang/expansion)."""
    return re.sub(
        r"\$(\$|\((\w+)\))", lambda match: "$" if match[1] == "$" else env.get(match[2], match[0]), word
    )


@pytest.mark.parametrize("name", PODS)
def test_the_command_reaches_the_pods_word_for_word(name: str) -> None:
    for kind in targets.load(name).header.launchers:
        found = filled(name, launcher=WORDS[kind], command=launching.ODD, env=(("ODD", "$(A) $B"),))
        commands = [
            item["args"]
            for item in walk(list(yaml.safe_load_all(found.text)))
            if isinstance(item, dict) and "python" in item.get("args", ())
        ]
        assert commands
        for args in commands:
            words = [expanded(word, {}) for word in args]
            assert tuple(words[-len(launching.ODD) :]) == launching.ODD
        values = [env["value"] for spec in containers(found) for env in spec["containers"][0].get("env", ())]
        assert expanded(values[0], {"A": "x"}) == "$(A) $B"


def test_huge_pages_need_memory() -> None:
    with pytest.raises(InputError, match="--hugepages: Kubernetes gives huge pages only to pods that ask"):
        filled("jobset", hugepages=("2Mi", "1Gi"))


def test_a_manifest_says_which_driver_its_image_needs() -> None:
    line = "# The nodes need the driver 570.26 or newer, and GPUs of compute capability 7.0 to 12.0.\n"
    assert line in filled("jobset").text
    assert line not in filled("jobset", gpus=0).text


def test_generated_words_may_hold_variables() -> None:
    assert pods.words([Raw("$(RANK)"), "$(RANK)"]) == ["$(RANK)", "$$(RANK)"]


@pytest.mark.parametrize("name", ["skypilot", "dstack"])
def test_the_command_reaches_a_cloud_word_for_word(name: str, tmp_path: Path) -> None:
    found = yaml.safe_load(filled(name, command=launching.ODD).text)
    text = found["run"] if name == "skypilot" else found["commands"][0]
    stub = tmp_path / "torchrun"
    stub.write_text('#!/bin/sh\nfor word in "$@"; do printf \'%s\\0\' "$word"; done >"$HEARD"\n')
    stub.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HEARD": str(tmp_path / "heard")}
    env |= {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1"}
    env |= {"DSTACK_MASTER_NODE_IP": "10.0.0.1", "DSTACK_NODE_RANK": "1"}
    text = text.replace("cd /root", f"cd {tmp_path}").replace("export PATH=", f"export PATH={tmp_path}:")
    subprocess.run(("sh", "-c", text), env=env, check=True)
    heard = (tmp_path / "heard").read_text().split("\0")[:-1]
    assert heard[:5] == [
        *("--nnodes=2", "--nproc-per-node=2", "--node-rank=1", "--master-addr=10.0.0.1"),
        "--master-port=29500",
    ]
    assert tuple(heard[-len(launching.ODD) :]) == launching.ODD


# Target, where, what is put there (None removes the key), and what is said of it.
POD = ("template", "spec")
REPLICA = ("spec", "pytorchReplicaSpecs", "Master")
TASK = ("spec", "tasks", 0)
NODE = ("spec", "replicatedJobs", 0, "template", "spec")
MUTANTS: list[tuple[str, tuple[str | int, ...], Any, str]] = [
    ("mpijob", ("apiVersion",), "kubeflow.org/v1", "`kubeflow.org/v1` is not possible here"),
    ("mpijob", ("kind",), "MpiJob", "`MpiJob` is not possible here"),
    ("mpijob", ("specs",), {}, "`specs` is not a known key"),
    ("mpijob", ("metadata", "lables"), {}, "`lables` is not a known key"),
    ("mpijob", ("metadata", "labels"), {"a": 1}, "must be text, not a whole number"),
    ("mpijob", ("spec", "slotsPerWorker"), "2", "must be a whole number, not text"),
    ("mpijob", ("spec", "slotPerWorker"), 2, "`slotPerWorker` is not a known key"),
    ("mpijob", ("spec", "mpiImplementation"), "OpenMpi", "`OpenMpi` is not possible here"),
    ("mpijob", ("spec", "mpiReplicaSpecs"), None, "`mpiReplicaSpecs` is missing"),
    ("mpijob", ("spec", "runPolicy", "backOffLimit"), 1, "`backOffLimit` is not a known key"),
    ("mpijob", ("spec", "mpiReplicaSpecs", "Worker", "replica"), 1, "`replica` is not a known key"),
    (
        "mpijob",
        ("spec", "mpiReplicaSpecs", "Worker", *POD, "containers", 0, "resources", "limit"),
        {},
        "`limit` is not a known key",
    ),
    ("pytorchjob", ("spec", "nprocPerNode"), 2, "must be text, not a whole number"),
    ("pytorchjob", ("spec", "nProcPerNode"), "2", "`nProcPerNode` is not a known key"),
    ("pytorchjob", (*REPLICA, "restartpolicy"), "Never", "`restartpolicy` is not a known key"),
    ("pytorchjob", (*REPLICA, "replicas"), True, "must be a whole number, not true or false"),
    ("pytorchjob", (*REPLICA, *POD, "container"), [], "`container` is not a known key"),
    ("pytorchjob", (*REPLICA, *POD, "containers", 0, "name"), None, "`name` is missing"),
    ("pytorchjob", (*REPLICA, *POD, "containers", 0, "args"), "python", "must be a list, not text"),
    ("pytorchjob", (*REPLICA, *POD, "containers", 0, "args", 0), 1, "must be text, not a whole number"),
    ("pytorchjob", (*REPLICA, *POD, "hostnetwork"), True, "`hostnetwork` is not a known key"),
    ("pytorchjob", (*REPLICA, *POD, "hostNetwork"), "true", "must be true or false, not text"),
    ("pytorchjob", (*REPLICA, *POD, "volumes", 0, "emptyDir", "size"), "1Gi", "`size` is not a known key"),
    ("trainjob", ("spec", "trainer", "numProcPerNode"), "auto", "must be a whole number, not text"),
    ("trainjob", ("spec", "trainer", "numNode"), 2, "`numNode` is not a known key"),
    ("trainjob", ("spec", "runtimeRef", "name"), None, "`name` is missing"),
    ("trainjob", ("spec", "runtimeref"), {}, "`runtimeref` is not a known key"),
    ("trainjob", ("spec", "activeDeadlineSeconds"), 0, "must be at least 1"),
    ("clustertrainingruntime", ("spec", "mlPolicy", "numNodes"), "2", "must be a whole number, not text"),
    ("clustertrainingruntime", ("spec", "mlPolicy", "pytorch"), {}, "`pytorch` is not a known key"),
    ("clustertrainingruntime", ("spec", "template", "specs"), {}, "`specs` is not a known key"),
    (
        "clustertrainingruntime",
        ("spec", "template", "spec", "replicatedJobs", 0, "templates"),
        {},
        "`templates` is not a known key",
    ),
    ("jobset", ("spec", "replicatedJob"), [], "`replicatedJob` is not a known key"),
    ("jobset", ("spec", "network", "enableDnsHostnames"), True, "`enableDnsHostnames` is not a known key"),
    ("jobset", ("spec", "failurePolicy", "maxRestarts"), "3", "must be a whole number, not text"),
    ("jobset", (*NODE, "completionmode"), "Indexed", "`completionmode` is not a known key"),
    ("jobset", (*NODE, *POD, "containers", 0, "env"), {"A": "b"}, "must be a list, not a mapping"),
    ("jobset", (*NODE, *POD, "nodeSelectors"), {}, "`nodeSelectors` is not a known key"),
    ("jobset", (*NODE, *POD, "tolerations"), [{"effects": "NoSchedule"}], "`effects` is not a known key"),
    ("leaderworkerset", ("spec", "leaderWorkerTemplate", "size"), "2", "must be a whole number, not text"),
    ("leaderworkerset", ("spec", "leaderWorkerTemplate", "workers"), 2, "`workers` is not a known key"),
    ("leaderworkerset", ("spec", "replicas"), -1, "must be at least 0"),
    ("leaderworkerset", ("spec", "networkConfig", "subdomainPolicy"), "shared", "`shared` is not possible"),
    ("volcano", ("spec", "minAvailable"), -1, "must be at least 0"),
    ("volcano", ("spec", "plugins", "svc"), "", "must be a list, not text"),
    ("volcano", (*TASK, "policies"), [{"event": "PodFail"}], "`PodFail` is not possible here"),
    ("volcano", (*TASK, "name"), "Node_1", "`Node_1` does not have the form that is needed"),
    ("volcano", (*TASK, "replica"), 2, "`replica` is not a known key"),
    ("compose", ("service",), {}, "`service` is not a known key"),
    ("compose", ("services", "node0", "shmsize"), "1g", "`shmsize` is not a known key"),
    ("compose", ("services", "node0", "command"), 7, "must be nothing, not a whole number"),
    ("compose", ("services", "node0", "environment"), [1], "must be text, not a whole number"),
    (
        "compose",
        ("services", "node0", "deploy", "resources", "reservations", "devices", 0, "capabilities"),
        None,
        "`capabilities` is missing",
    ),
    ("skypilot", ("num_node",), 2, "`num_node` is not a known key"),
    ("skypilot", ("num_nodes",), "2", "must be a whole number, not text"),
    ("skypilot", ("resources", "accelerator"), "H100", "`accelerator` is not a known key"),
    ("skypilot", ("run",), ["python"], "must be text, not a list"),
    ("dstack", ("node",), 2, "`node` is not a known key"),
    ("dstack", ("nodes",), 0, "must be at least 1"),
    ("dstack", ("resources", "gpus"), "2", "`gpus` is not a known key"),
    ("dstack", ("commands",), "python", "must be a list, not text"),
]


def valid(name: str) -> Any:
    """A document that fits the schema with this name."""
    owner = "trainjob" if name == "clustertrainingruntime" else name
    launcher = WORDS[targets.load(owner).header.launchers[0]]
    documents = list(yaml.safe_load_all(filled(owner, launcher=launcher).text))
    return documents[1] if name == "trainjob" else documents[0]


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    MUTANTS,
    ids=[f"{name}-{'.'.join(map(str, path))}-{value}" for name, path, value, _ in MUTANTS],
)
def test_a_mutant_is_refused(name: str, path: tuple[str | int, ...], value: Any, message: str) -> None:
    document = valid(name)
    assert schema.mistakes(document, name) == []
    mutant = copy.deepcopy(document)
    place = mutant
    for step in path[:-1]:
        place = place[step] if isinstance(step, int) else place.setdefault(step, {})
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    found = schema.mistakes(mutant, name)
    assert [mistake.message for mistake in found if mistake.message.startswith(message)], found
    # The mistake is named where it is: at the key, or inside its value.
    (mistake,) = (mistake for mistake in found if mistake.message.startswith(message))
    expected = path[:-1] if value is None else path
    assert mistake.path[: len(expected)] == expected


def test_every_schema_has_its_mutants_and_is_small() -> None:
    folder = Path(schema.__file__).parent / "schemas"
    files = sorted(folder.glob("*.json.gz"))
    assert {path.name.removesuffix(".json.gz") for path in files} == {name for name, *_ in MUTANTS}
    named = {value for name in MANIFESTS for value in targets.load(name).header.schemas.values()}
    assert named == {name for name, *_ in MUTANTS}
    assert sum(path.stat().st_size for path in files) < 100_000
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| (\w+) \|", readme, re.MULTILINE)) == {*(name for name, *_ in MUTANTS), "file"}


def keywords(part: Any) -> Any:
    if isinstance(part, dict):
        for key, value in part.items():
            yield key
            if key in {"properties", "patternProperties", "definitions", "$defs"}:
                for item in value.values():
                    yield from keywords(item)
            elif isinstance(value, (dict, list)) and key not in {"enum", "required", "type"}:
                yield from keywords(value)
    elif isinstance(part, list):
        for item in part:
            yield from keywords(item)


KNOWN = {
    *(
        "type",
        "properties",
        "patternProperties",
        "additionalProperties",
        "items",
        "required",
        "enum",
        "const",
    ),
    *("pattern", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems", "maxItems"),
    *("anyOf", "oneOf", "allOf", "$ref", "definitions", "$defs"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
}


@pytest.mark.parametrize("name", sorted({name for name, *_ in MUTANTS}))
def test_a_schema_uses_only_keywords_that_are_understood(name: str) -> None:
    assert set(keywords(schema.load(name))) <= KNOWN
    raw = (Path(schema.__file__).parent / "schemas" / f"{name}.json.gz").read_bytes()
    assert raw[4:8] == b"\0\0\0\0"
    assert gzip.decompress(raw).endswith(b"}\n")


def merged(tmp_path: Path, text: str, name: str = "jobset", **changed: Any) -> Manifest:
    target = targets.load(name)
    path = tmp_path / "overlay.yaml"
    path.write_text(text)
    files = targets.fill(target, launching.job(target, **changed))
    return launching.only(overlay.merged(files, target, path))


def test_an_overlay_is_merged(tmp_path: Path) -> None:
    text = """
metadata: {labels: {queue: gold}}
spec:
  ttlSecondsAfterFinished: 60
  failurePolicy:
  replicatedJobs:
    - name: node
      template:
        spec:
          template:
            spec:
              priorityClassName: high
              containers:
                - name: node
                  env: [{name: A, value: "2"}, {name: B, value: "3"}]
                  volumeMounts: [{mountPath: /more, name: more}]
                - {name: aside, image: "busybox:1"}
              volumes: [{name: more, emptyDir: {}}]
"""
    (found,) = merged(tmp_path, text, env=(("A", "1"),)).documents
    assert found["metadata"] == {"name": "fit", "labels": {"queue": "gold"}}
    assert (found["spec"]["ttlSecondsAfterFinished"], "failurePolicy" in found["spec"]) == (60, False)
    (job,) = found["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]["template"]["spec"]
    node, aside = spec["containers"]
    assert spec["priorityClassName"] == "high"
    assert (node["image"], aside["name"]) == (launching.REFERENCE, "aside")
    assert node["env"] == [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]
    assert [mount["mountPath"] for mount in node["volumeMounts"]] == ["/dev/shm", "/more"]
    assert [volume["name"] for volume in spec["volumes"]] == ["shm", "more"]


def test_an_overlay_chooses_its_object_by_kind(tmp_path: Path) -> None:
    text = "kind: ClusterTrainingRuntime\nspec: {mlPolicy: {numNodes: 4}}\n"
    runtime, job = merged(tmp_path, text, "trainjob").documents
    assert (runtime["spec"]["mlPolicy"]["numNodes"], job["spec"]["trainer"]["numNodes"]) == (4, 2)
    runtime, job = merged(tmp_path, "spec: {trainer: {numNodes: 4}}\n", "trainjob").documents
    assert (runtime["spec"]["mlPolicy"]["numNodes"], job["spec"]["trainer"]["numNodes"]) == (2, 4)


def test_an_overlay_may_have_negative_numbers_and_decimals(tmp_path: Path) -> None:
    # What the schema does not want, it says itself.
    with pytest.raises(InputError, match="ttlSecondsAfterFinished: must be at least 0"):
        merged(tmp_path, "spec: {ttlSecondsAfterFinished: -1}\n")
    (tmp_path / "overlay.yaml").write_text("a: -1\nb: 1.5\nc: 0\nd: -0.25\n")
    read = yamlfile.read(tmp_path / "overlay.yaml", numbers=True)
    assert (read.data, read.problems) == ({"a": -1, "b": 1.5, "c": 0, "d": -0.25}, ())
    assert len(yamlfile.read(tmp_path / "overlay.yaml").problems) == 3


WRONG_OVERLAYS = {
    "a typing mistake at depth": (
        (
            "spec:\n  replicatedJobs:\n    - name: node\n      template: {spec: {template: {spec:\n"
            "        {containers: [{name: node, imagePullPolice: Always}]}}}}\n"
        ),
        (
            "overlay.yaml:5: spec.replicatedJobs[0].template.spec.template.spec.containers[0]."
            "imagePullPolice: `imagePullPolice` is not a known key\n  -> perhaps you meant `imagePullPolicy`"
        ),
    ),
    "a type": (
        'metadata: {}\nspec: {ttlSecondsAfterFinished: "60"}\n',
        (
            "overlay.yaml:2: spec.ttlSecondsAfterFinished: must be a whole number, not text\n"
            "  -> write digits, without quotes"
        ),
    ),
    "another kind": (
        "kind: Pod\n",
        "overlay.yaml:1: kind: the job has no object of the kind `Pod`\n  -> it has JobSet",
    ),
    "another version": (
        "apiVersion: jobset.x-k8s.io/v1\n",
        (
            "overlay.yaml:1: apiVersion: `jobset.x-k8s.io/v1` is not possible here\n"
            "  -> choose jobset.x-k8s.io/v1alpha2"
        ),
    ),
    "a list": ("- a\n", "overlay.yaml:1: must be a mapping"),
    "a number in the wrong place": (
        "spec: {suspend: 1.5}\n",
        (
            "overlay.yaml:1: spec.suspend: must be true or false, not a number\n"
            "  -> see the reference of its kind"
        ),
    ),
    "an octal number": (
        "spec: {ttlSecondsAfterFinished: 010}\n",
        (
            "overlay.yaml:1: spec.ttlSecondsAfterFinished: `010` would be read as a number or a date\n"
            '  -> put it in quotes: "010"'
        ),
    ),
    "an alias": (
        "a: &a {}\nb: *a\n",
        "overlay.yaml:2: aliases (`*name`) are not accepted\n  -> write the value out",
    ),
}


@pytest.mark.parametrize("case", WRONG_OVERLAYS)
def test_a_wrong_overlay_is_refused_with_its_line(case: str, tmp_path: Path) -> None:
    text, message = WRONG_OVERLAYS[case]
    with pytest.raises(InputError) as caught:
        merged(tmp_path, text)
    assert str(caught.value) == f"{tmp_path}/{message}"


def test_scripts_have_no_overlay(tmp_path: Path) -> None:
    target = targets.load("slurm")
    path = tmp_path / "overlay.yaml"
    path.write_text("a: b\n")
    with pytest.raises(InputError, match="the target slurm has no manifest to merge it into"):
        overlay.merged(targets.fill(target, launching.job(target)), target, path)


def test_an_operator_that_cannot_have_another_port_refuses_the_hosts_network() -> None:
    for name in ("mpijob", "trainjob"):
        with pytest.raises(InputError, match=r"--host-network: the .* sshd would need port 22 of the hosts"):
            filled(name, launcher="mpirun", host_network=True)
        filled(name, launcher="mpirun", host_network=True, image=launching.trainer())
    (spec, _) = containers(filled("jobset", launcher="mpirun", host_network=True))
    assert spec["containers"][0]["args"][4:6] == ["2222", "/run/imagebuilder"]


def test_the_smoke_test_is_one_word_of_python() -> None:
    image = launching.image()
    found = smoke.command(image, "jobset", "torchrun", (2, 4), port=29500, on_gpus=True)
    assert found[:2] == ("python", "-c")
    compile(found[2], "smoke", "exec")
    # The limit of a single word is 128 KiB.
    assert len(found[2]) < 100_000
