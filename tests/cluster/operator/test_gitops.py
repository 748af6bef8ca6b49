"""What GitOps tools rely on: files that change nothing when applied again, and a parent that nobody else writes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_tools import Kubectl, create, wait_for
from node import config
from operator_process import OperatorProcess, Services
from patience import PATIENCE_SECONDS

MakeOperator = Callable[..., OperatorProcess]
Object = dict[str, Any]
EXAMPLES = sorted((config.CHECKOUT / "examples").glob("*.yaml"))
NOT_INSTALLED = {"ScaledObject"}  # KEDA's


def conditions(live: Object) -> dict[str, Object]:
    return {item["type"]: item for item in live.get("status", {}).get("conditions", ())}


def documents() -> list[Object]:
    """Everything in examples/ that a cluster with Octavo understands."""
    found = [item for path in EXAMPLES for item in yaml.safe_load_all(path.read_text()) if item]
    assert {item["kind"] for item in found} >= {"InferenceService", *NOT_INSTALLED}
    return [item for item in found if item["kind"] not in NOT_INSTALLED]


APPLIES = [("--server-side", "--field-manager=git"), ()]


@pytest.mark.parametrize("apply", APPLIES, ids=["server-side", "client-side"])
def test_files_applied_again_change_nothing(
    kubectl: Kubectl, make_operator: MakeOperator, namespace: str, apply: tuple[str, ...], tmp_path: Path
) -> None:
    services = Services(kubectl, namespace)
    # A node that claims an accelerator does so for another test, whose pods must not wait for these.
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}}
    create(kubectl, quota | {"metadata": services.head("no-accelerators")})
    operator = make_operator(namespace).start()
    items = documents()
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(items))
    names = [item["metadata"]["name"] for item in items if item["kind"] == "InferenceService"]
    where = ("-n", namespace, "-f", str(file))
    kubectl("apply", *apply, *where)

    def acted() -> bool:
        """The operator has made what it makes and told what it knows."""
        found = services.all_of("osvc")
        return all(conditions(found[name]).get("Ready") and services_child(services, name) for name in names)

    wait_for(acted, "the operator's part")
    before = marks(services)
    told = kubectl("apply", *apply, *where).splitlines()
    assert len(told) == len(items)
    assert apply or all(line.endswith("unchanged") for line in told), told
    assert marks(services) == before
    # It compares two looks at the cluster: a status that is written between them is a difference, and only once.
    wait_for(lambda: not difference(*apply, *where), "files without a difference")
    for live in services.all_of("osvc").values():
        assert_owners(live)
    assert operator.unexpected_lines() == []


def difference(*arguments: str) -> str:
    """What `kubectl diff` prints, which ends with 1 where that is not nothing."""
    command = [config.HACK / "kubectl", "diff", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def services_child(services: Services, name: str) -> bool:
    return services.get("service", name) is not None


def marks(services: Services) -> dict[str, tuple[int, list[Object]]]:
    """What would show that spec or metadata was written: generation, and who wrote which fields when."""
    found = {}
    for name, live in services.all_of("osvc").items():
        written = [item for item in managed(services, name) if item.get("subresource") != "status"]
        found[name] = (live["metadata"]["generation"], written)
    return found


def managed(services: Services, name: str) -> list[Object]:
    """kubectl hides managedFields unless asked."""
    shown = services.show_managed(name)
    return sorted(shown["metadata"]["managedFields"], key=lambda item: (item["manager"], item["operation"]))


def assert_owners(live: Object) -> None:
    """Octavo writes no field of the user's: neither spec nor labels, annotations or finalizers."""
    head = live["metadata"]
    assert "finalizers" not in head
    assert set(head.get("annotations", {})) <= {"kubectl.kubernetes.io/last-applied-configuration"}


def test_the_operator_manages_nothing_but_status(kubectl: Kubectl, services: Services) -> None:
    services.apply("owned")
    services.wait_ready("owned")
    owners = {(item["manager"], item.get("subresource")) for item in managed(services, "owned")}
    assert owners == {("kubectl", None), ("octavo-operator", "status")}
    for kind in ("deployment", "service", "networkpolicy", "serviceaccount", "configmap", "poddisruptionbudget"):
        name = "owned-revisions" if kind == "configmap" else "owned"
        child = services.get(kind, name)
        assert child is not None, kind
        labels = {key.partition("/")[0] for key in child["metadata"].get("labels", {})}
        assert labels <= {"app.kubernetes.io", "octavo.dev"}, kind
        assert child["metadata"]["ownerReferences"][0]["kind"] == "InferenceService"


def test_labels_of_a_tool_stay_on_the_parent(kubectl: Kubectl, services: Services) -> None:
    """A tool that tracks by label or annotation must not take a child for its own, and prune it."""
    document = services.manifest("tracked", replicas=0)
    document["metadata"] |= {
        "labels": {"argocd.argoproj.io/instance": "prod", "kustomize.toolkit.fluxcd.io/name": "apps"},
        "annotations": {"argocd.argoproj.io/tracking-id": "prod:octavo.dev/InferenceService:x/tracked"},
    }
    create(kubectl, document)
    services.wait_condition("tracked", "Ready", "ScaledToZero")
    child = services.get("deployment", "tracked")
    assert child is not None
    text = json.dumps(child)
    assert "argocd" not in text
    assert "toolkit.fluxcd" not in text


def test_a_count_that_an_autoscaler_wrote_outlives_its_removal_from_git(kubectl: Kubectl, services: Services) -> None:
    git = ("apply", "--server-side", "--field-manager=git", "-f", "-")
    with_count = services.manifest("given", replicas=0, autoscaling={"mode": "External"})
    without = services.manifest("given", autoscaling={"mode": "External"})
    assert "needs spec.replicas" in kubectl(*git, stdin=json.dumps(without), check=False)
    kubectl(*git, stdin=json.dumps(with_count))
    kubectl("scale", "osvc/given", "-n", services.namespace, "--replicas=2")
    assert "conflict" in kubectl(*git, stdin=json.dumps(with_count), check=False)
    kubectl(*git, stdin=json.dumps(without))
    live = services.get("osvc", "given")
    assert live is not None
    assert live["spec"]["replicas"] == 2
