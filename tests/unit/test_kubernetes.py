"""The manifests for Kubernetes: valid by the published schema, and consistent with each other."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from support.checkout import beside

FOLDER = beside("deploy/kubernetes")

VERSION = "1.33"
"""Version of Kubernetes whose schema counts."""

CLUSTER_FIELDS = {
    "rayVersion",
    "authOptions",
    "gcsFaultToleranceOptions",
    "enableInTreeAutoscaling",
    "autoscalerOptions",
    "headGroupSpec",
    "workerGroupSpecs",
}
"""Fields of a RayCluster that are used, as KubeRay's reference names them."""

GROUP_FIELDS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}

NEEDED_CALLS = {
    "unshare", "setns", "clone", "clone3", "mount", "umount2", "pivot_root", "mount_setattr", "move_mount", "open_tree",
    "seccomp", "prctl", "ptrace", "landlock_create_ruleset", "setresuid", "setgroups", "sethostname", "pidfd_open",
}  # fmt: skip
"""System calls with which a sandbox is made."""


def documents() -> list[dict[str, Any]]:
    reader = YAML(typ="safe")
    return [
        document
        for file in sorted(Path(FOLDER).glob("*.yaml"))
        if file.name != "kustomization.yaml"
        for document in reader.load_all(file)
    ]


def cluster() -> dict[str, Any]:
    (found,) = [document for document in documents() if document["kind"] == "RayCluster"]
    return found


def pods() -> dict[str, dict[str, Any]]:
    """Specs of pods, by the name of their group."""
    spec = cluster()["spec"]
    groups = {group["groupName"]: group["template"]["spec"] for group in spec["workerGroupSpecs"]}
    return {"head": spec["headGroupSpec"]["template"]["spec"], **groups}


def variables(group: str) -> dict[str, Any]:
    (container,) = pods()[group]["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_every_object_is_valid() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    plain = [document for document in documents() if document["kind"] != "RayCluster"]
    # The templates of a RayCluster are those of pods.
    pod = {"apiVersion": "v1", "kind": "Pod"}
    plain += [{**pod, "metadata": {"name": name}, "spec": spec} for name, spec in pods().items()]
    for document in plain:
        validator.validate(document, VERSION, strict=True)


def test_the_ray_cluster_has_known_fields_only() -> None:
    spec = cluster()["spec"]
    assert set(spec) <= CLUSTER_FIELDS
    for group in spec["workerGroupSpecs"]:
        assert set(group) <= GROUP_FIELDS
    assert spec["authOptions"] == {"mode": "token"}


def test_agents_have_the_resource_and_the_head_does_not() -> None:
    spec = cluster()["spec"]
    resources = {group["groupName"]: group["rayStartParams"].get("resources") for group in spec["workerGroupSpecs"]}
    # The operator passes the text on to a shell.
    assert json.loads(json.loads(resources["agents"])) == {"ingle_node": 1}
    assert (resources["gateways"], spec["headGroupSpec"]["rayStartParams"].get("resources")) == (None, None)


def test_gateways_and_agents_share_store_and_token() -> None:
    for name in ("INGLE_STORE", "INGLE_CLUSTER_TOKEN_FILE"):
        assert variables("gateways")[name] == variables("agents")[name]


def test_the_port_of_agents_is_the_one_they_are_told() -> None:
    (container,) = pods()["agents"]["containers"]
    assert [str(port["containerPort"]) for port in container["ports"]] == [variables("agents")["INGLE_AGENT_PORT"]]


def test_only_agents_have_rights_and_only_in_a_user_namespace() -> None:
    for name, spec in pods().items():
        (container,) = spec["containers"]
        added = container["securityContext"]["capabilities"].get("add", [])
        assert bool(added) == (name == "agents")
        assert not container["securityContext"].get("privileged")
        assert not any("hostPath" in volume for volume in spec.get("volumes", []))
    assert pods()["agents"]["hostUsers"] is False


def test_the_profile_allows_what_a_sandbox_needs() -> None:
    profile = json.loads((Path(FOLDER) / "seccomp-ingle.json").read_text())
    refused = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert not refused & NEEDED_CALLS
    assert {"init_module", "kexec_load", "bpf", "open_by_handle_at"} <= refused
