"""The policy on Secrets, on a real API server: who may not get a Secret cannot have a service mount it.

The policy is cluster-scoped; here its binding holds for the test's own namespace only.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import chart_samples
from chart_samples import of_kind
from cluster_tools import Kubectl, create, wait_for

WRITERS = "writers"
SECRETS = ["keys", "hub", "pull", "volume"]
KINDS = "validatingadmissionpolicies,validatingadmissionpolicybindings"

Object = dict[str, Any]


def service(name: str, **spec: Any) -> Object:
    """A service that names each kind of Secret; no operator looks at it."""
    named = {
        "replicas": 0,
        "model": {"source": "hf://a/b", "tokenSecretRef": {"name": "hub", "key": "token"}},
        "auth": {"apiKeySecretRef": {"name": "keys", "key": "keys"}},
        "template": {
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [
                {"name": "s", "mountPath": "/data", "secret": {"secretName": "volume"}},
                {"name": "c", "mountPath": "/more", "configMap": {"name": "no-secret"}},
            ],
        },
    }
    return {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": named | spec,
    }


class Policed:
    """A namespace under the policy, in which the group of writers may write services and read no Secret."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl = kubectl
        self.namespace = namespace
        self.policy = f"octavo-secrets-{namespace}"

    def apply(self, document: Object, *flags: str) -> str:
        return self.kubectl("apply", "-n", self.namespace, "-f", "-", *flags, stdin=json.dumps(document), check=False)

    def allow(self, user: str, secret: str) -> None:
        where, role = ("-n", self.namespace), f"{user}-{secret}"
        self.kubectl("create", "role", role, *where, "--verb=get", "--resource=secrets", f"--resource-name={secret}")
        self.kubectl("create", "rolebinding", role, *where, f"--role={role}", f"--user={user}")


def writer(name: str) -> tuple[str, str]:
    """The flags of someone who may write services."""
    return f"--as={name}", f"--as-group={WRITERS}"


@pytest.fixture(scope="module")
def policed(kubectl: Kubectl, definition: None) -> Iterator[Policed]:
    namespace = f"policy-{uuid.uuid4().hex[:8]}"
    create(kubectl, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    made = Policed(kubectl, namespace)
    values = {"enabled": True, "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    objects = chart_samples.rendered({"secretPolicy": values}, namespace, chart="octavo-crds")
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        (item,) = of_kind(objects, kind)
        # Under a name of its own: the cluster may have the policy for real.
        kubectl("apply", "-f", "-", stdin=json.dumps(item).replace("octavo-secrets", made.policy))
    verbs = "--verb=get,list,create,update,patch"
    kubectl("create", "role", "-n", namespace, "writer", verbs, "--resource=inferenceservices.octavo.dev")
    kubectl("create", "rolebinding", "-n", namespace, "writer", "--role=writer", f"--group={WRITERS}")
    probe = ("--dry-run=server", *writer("probe"))
    wait_for(lambda: "denied request" in made.apply(service("probe"), *probe), "the policy's effect")
    yield made
    kubectl("delete", KINDS, made.policy, "--wait=false")
    kubectl("delete", "namespace", namespace, "--wait=false")


def test_the_api_server_finds_no_fault_in_its_expressions(policed: Policed) -> None:
    def checked() -> Object | None:
        status = policed.kubectl("get", "validatingadmissionpolicy", policed.policy, "-o", "jsonpath={.status}")
        found: Object | None = json.loads(status or "{}").get("typeChecking")
        return None if found is None else {"typeChecking": found}

    assert wait_for(checked, "type checking") == {"typeChecking": {}}


def test_each_secret_is_asked_for(policed: Policed) -> None:
    """From nothing to everything: each refusal names the Secret that is in the way."""
    eve = writer("eve")

    def refused_for(secret: str) -> bool:
        answer = policed.apply(service("hers"), *eve)
        return f"the Secret {secret} may not be named by someone who may not get it" in answer

    for secret in SECRETS:
        # A grant takes a moment to reach the authorizer.
        wait_for(partial(refused_for, secret), f"a refusal that names {secret}")
        policed.allow("eve", secret)
    wait_for(lambda: "created" in policed.apply(service("hers"), *eve), "the last grant's effect")


def test_what_exists_is_guarded_too(policed: Policed) -> None:
    """Someone else's service: its labels may be changed, but not the image that would read its Secrets."""
    mallory = writer("mallory")
    assert "created" in policed.apply(service("theirs"))
    where = ("-n", policed.namespace, "osvc", "theirs", *mallory)
    assert "labeled" in policed.kubectl("label", *where, "team=x")
    patch = json.dumps({"spec": {"engine": {"image": "example.com/reads-secrets:1"}}})
    assert "denied request" in policed.kubectl("patch", *where, "--type=merge", "-p", patch, check=False)


def test_a_service_without_secrets_is_nobodys_business(policed: Policed) -> None:
    trent = writer("trent")
    plain = {"auth": None, "template": {}, "model": {"source": "hf://a/b"}}
    assert "created" in policed.apply(service("plain", **plain), *trent)
    store = {"source": "s3://models/b", "credentialsSecretRef": {"name": "store"}}
    answer = policed.apply(service("stored", **plain | {"model": store}), *trent)
    assert "the Secret store may not be named" in answer


def test_as_many_secrets_as_a_service_can_name_are_within_the_budget(policed: Policed) -> None:
    """The API server ends a policy whose checks cost too much; for an administrator all of them succeed."""
    template = {
        "imagePullSecrets": [{"name": f"pull-{number}"} for number in range(8)],
        "volumes": [
            {"name": f"v{number}", "mountPath": f"/data{number}", "secret": {"secretName": f"volume-{number}"}}
            for number in range(16)
        ],
    }
    assert "created" in policed.apply(service("many", template=template))
