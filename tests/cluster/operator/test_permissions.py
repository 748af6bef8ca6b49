"""What the operator may do and what it does: the account's answers, and the audit log against the chart's roles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

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
    ("delete", "configmaps"),
    ("delete", "serviceaccounts"),
    ("impersonate", "serviceaccounts"),
    ("delete", "networkpolicies.networking.k8s.io"),
    ("patch", "jobs.batch"),
    ("create", "cronjobs.batch"),
    ("get", "events"),
    ("delete", "events"),
    ("patch", "customresourcedefinitions.apiextensions.k8s.io"),
    ("create", "validatingadmissionpolicies.admissionregistration.k8s.io"),
]


@pytest.mark.parametrize(("verb", "what"), DENIED)
def test_forbidden(kubectl: Kubectl, services: Services, verb: str, what: str) -> None:
    account = f"system:serviceaccount:{services.namespace}:{RELEASE}"
    resource, _, subresource = what.partition("/")
    asked = (verb, resource, *([f"--subresource={subresource}"] if subresource else []))
    answer = kubectl("auth", "can-i", *asked, f"--as={account}", "-n", services.namespace, check=False)
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


def used(settings: config.Settings, account: str) -> Iterator[tuple[str, str]]:
    """(verb, resource) pairs that an account asked the API server for; each must have been allowed."""
    for line in audit_lines(settings):
        if account not in line:
            continue
        entry = json.loads(line)
        target = entry.get("objectRef", {})
        if entry["user"]["username"] == account and "resource" in target:
            assert entry["annotations"]["authorization.k8s.io/decision"] == "allow", entry
            resource = target["resource"] + (f"/{target['subresource']}" if "subresource" in target else "")
            yield entry["verb"], resource
            if entry["responseStatus"]["code"] == 201:
                yield "create", resource  # an apply that creates needs both verbs and is logged as a patch


def audit_log(settings: config.Settings) -> Path:
    return settings.logs / "audit.log"


def audit_lines(settings: config.Settings) -> Iterator[str]:
    """Every whole line, those of logs that were put aside meanwhile included."""
    for path in sorted(settings.logs.glob("audit*.log")):
        with path.open() as log:
            yield from (line for line in log if line.endswith("\n"))


@pytest.mark.skipif(
    not audit_log(config.Settings.from_environment()).exists(), reason="a foreign cluster: its audit log is not ours"
)
def test_every_grant_is_used_and_every_use_is_granted(
    services: Services, operator: OperatorProcess, kubectl: Kubectl, cluster: config.Settings
) -> None:
    account = f"system:serviceaccount:{services.namespace}:{RELEASE}"
    two = {"maxReplicas": 2, "minReplicas": 2}
    services.apply("audited", autoscaling=two)
    # Where an object of someone else's is in the way, everything is asked for, rather than known from the watches.
    kubectl("create", "service", "clusterip", "blocked", "--tcp=80:80", "-n", services.namespace)
    services.apply("blocked", replicas=0)
    services.apply("waits", auth={"apiKeySecretRef": {"name": "nowhere", "key": "k"}})  # Events alone tell for what
    services.wait_ready("audited", replicas=2)
    services.apply("audited", autoscaling=two, engine={"maxNumSeqs": 3})  # a preflight comes and goes
    kubectl("label", "service/audited", "-n", services.namespace, "app.kubernetes.io/name=theirs", "--overwrite")
    wait_for(lambda: flags_of(services, "audited") >= {"--max-num-seqs=3"}, "the new revision")
    services.wait_ready("audited", replicas=2)
    services.apply("audited", autoscaling={"maxReplicas": 1}, engine={"maxNumSeqs": 3})
    wait_for(lambda: len(services.pods("audited")) == 1, "one replica less")
    grants = granted(services.namespace)
    kinds = {"podmonitors", "prometheusrules"}
    if not any(resource in kinds for _, resource in used(cluster, account)):
        grants = {pair for pair in grants if pair[1] not in kinds}  # they are not installed here
    wait_for(
        lambda: grants <= set(used(cluster, account)), f"the use of {grants - set(used(cluster, account))}", interval=1
    )
    assert set(used(cluster, account)) - grants == set(), "used without a grant in the chart"


def flags_of(services: Services, name: str) -> set[str]:
    deployment = services.get("deployment", name)
    assert deployment is not None
    return set(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
