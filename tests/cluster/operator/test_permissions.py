"""What the operator may do and what it does: the account's answers, and the audit log against the chart's roles."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from cluster_tools import Kubectl, wait_for
from node import config
from operator_process import RELEASE, OperatorProcess, Services, render_chart

DENIED = [
    ("get", "secrets"),
    ("list", "secrets"),
    ("create", "pods"),
    ("delete", "pods"),
    ("create", "pods/exec"),
    ("create", "pods/ephemeralcontainers"),
    ("create", "serviceaccounts/token"),
    ("get", "nodes"),
    ("create", "roles.rbac.authorization.k8s.io"),
    ("bind", "roles.rbac.authorization.k8s.io"),
    ("create", "rolebindings.rbac.authorization.k8s.io"),
    ("patch", "statefulsets.apps"),
    ("patch", "inferenceservices.octavo.dev"),
    ("delete", "inferenceservices.octavo.dev"),
    ("delete", "deployments.apps"),
    ("patch", "customresourcedefinitions.apiextensions.k8s.io"),
    ("get", "configmaps"),
]


@pytest.mark.parametrize(("verb", "what"), DENIED)
def test_forbidden(kubectl: Kubectl, services: Services, verb: str, what: str) -> None:
    account = f"system:serviceaccount:{services.namespace}:{RELEASE}"
    answer = kubectl("auth", "can-i", verb, what, f"--as={account}", "-n", services.namespace, check=False)
    assert "yes" not in answer


def test_nothing_outside_its_namespaces(kubectl: Kubectl, services: Services) -> None:
    account = f"system:serviceaccount:{services.namespace}:{RELEASE}"
    answer = kubectl("auth", "can-i", "list", "pods", f"--as={account}", "-n", "kube-system", check=False)
    assert "yes" not in answer


def granted(namespace: str) -> set[tuple[str, str]]:
    """(verb, resource) pairs of the chart's roles."""
    documents = yaml.safe_load_all(render_chart(namespace, "-s", "templates/rbac.yaml"))
    return {
        (verb, resource)
        for document in documents
        if document["kind"] == "Role"
        for rule in document["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(settings: config.Settings) -> Iterator[tuple[str, str]]:
    """(verb, resource) pairs that operators of tests asked the API server for and were allowed."""
    for line in (settings.logs / "audit.log").read_text().splitlines():
        entry = json.loads(line)
        user, target = entry["user"]["username"], entry.get("objectRef", {})
        if user.startswith("system:serviceaccount:") and user.endswith(f":{RELEASE}") and "resource" in target:
            assert entry["annotations"]["authorization.k8s.io/decision"] == "allow", entry
            resource = target["resource"] + (f"/{target['subresource']}" if "subresource" in target else "")
            yield entry["verb"], resource


@pytest.mark.skipif(config.Settings.from_environment().state is None, reason="needs the node's audit log")
def test_every_grant_is_used_and_every_use_is_granted(
    services: Services, operator: OperatorProcess, kubectl: Kubectl, cluster: config.Settings
) -> None:
    services.apply("audited", autoscaling={"maxReplicas": 2, "minReplicas": 2})
    services.wait_ready("audited", replicas=2)
    services.apply("audited", autoscaling={"maxReplicas": 2, "minReplicas": 1})
    services.apply("audited", autoscaling={"maxReplicas": 1})
    wait_for(lambda: len(services.pods("audited")) == 1, 60, "one replica less")
    grants, uses = granted(services.namespace), set(used(cluster))
    monitors = {pair for pair in grants if pair[1] == "podmonitors"}
    if not any(resource == "podmonitors" for _, resource in uses):
        grants -= monitors  # its kind is not installed here
    assert uses - grants == set(), "used without a grant in the chart"
    assert grants - uses == set(), "granted but never used"
