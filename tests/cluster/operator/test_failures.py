"""Operators that die, come late, or come in twos: the cluster ends up as if nothing had happened."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

from cluster_api import administrator, kind_named, path_of
from cluster_tools import Kubectl, create, wait_for
from operator_process import OperatorProcess, Services

MakeOperator = Callable[..., OperatorProcess]
KINDS = ("deployments", "services", "poddisruptionbudgets")


def children(namespace: str) -> dict[str, list[str]]:
    """Names of all children by kind."""
    api = administrator()
    found = {kind: api.items(path_of(kind_named(kind), namespace), "octavo.dev/service") for kind in KINDS}
    return {kind: sorted(item["metadata"]["name"] for item in items) for kind, items in found.items()}


def all_of(names: list[str]) -> dict[str, list[str]]:
    """What `children` gives when each of these services has all of them."""
    return dict.fromkeys(KINDS, names)


def test_killed_in_the_middle_and_started_again(kubectl: Kubectl, namespace: str, make_operator: MakeOperator) -> None:
    services = Services(kubectl, namespace)
    names = [f"many-{n}" for n in range(8)]
    documents = [services.manifest(name, replicas=0) for name in names]
    operator = make_operator(namespace).start()
    wait_for(operator.leads, "the operator's start")
    kubectl(
        "apply", "--server-side", "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": documents})
    )
    wait_for(lambda: operator.log().count("does not exist") >= 3, "the first writes", interval=0.01)
    operator.kill()
    operator.start()
    wait_for(lambda: children(namespace) == all_of(names), "all children")
    for name in names:
        services.wait_condition(name, "Ready", "ScaledToZero")
    assert operator.unexpected_lines() == []


def test_a_service_deleted_while_the_operator_is_down(
    kubectl: Kubectl, namespace: str, make_operator: MakeOperator
) -> None:
    services = Services(kubectl, namespace)
    operator = make_operator(namespace).start()
    services.apply("goes", replicas=0)
    services.apply("stays", replicas=0)
    services.wait_condition("stays", "Ready", "ScaledToZero")
    services.wait_condition("goes", "Ready", "ScaledToZero")
    operator.kill()
    kubectl("delete", "osvc", "goes", "-n", namespace, "--timeout=240s")
    kubectl("delete", "deployment", "stays", "-n", namespace)
    operator.start()
    wait_for(lambda: children(namespace) == all_of(["stays"]), "the children of one alone")
    assert operator.unexpected_lines() == []


def test_a_namespace_goes_without_a_hook_that_holds_it(kubectl: Kubectl, make_operator: MakeOperator) -> None:
    namespace = f"test-{uuid.uuid4().hex[:10]}"
    create(kubectl, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    services = Services(kubectl, namespace)
    operator = make_operator(namespace).start()
    services.apply("inside", replicas=0)
    services.wait_condition("inside", "Ready", "ScaledToZero")
    operator.kill()
    kubectl("delete", "namespace", namespace, "--timeout=240s")


def test_of_two_operators_one_acts_and_the_other_takes_over(
    kubectl: Kubectl, namespace: str, make_operator: MakeOperator
) -> None:
    services, lease = Services(kubectl, namespace), {"lease_seconds": 30}  # also a busy one renews in time
    first = make_operator(namespace).start(identity="first", **lease)
    wait_for(first.leads, "the first operator's lead")
    second = make_operator(namespace).start(identity="second", **lease)
    services.apply("one", replicas=0)
    services.wait_condition("one", "Ready", "ScaledToZero")
    assert not second.leads()
    assert first.stop() == 0
    wait_for(second.leads, "the take-over after a clean stop")
    third = make_operator(namespace).start(identity="third", **lease)
    second.kill()
    wait_for(third.leads, "the take-over after a crash")
    services.apply("two", replicas=0)
    services.wait_condition("two", "Ready", "ScaledToZero")
    for operator in (first, second, third):
        assert operator.unexpected_lines() == []


def test_a_definition_that_comes_later_is_waited_for(namespace: str, make_operator: MakeOperator) -> None:
    """Without permission to list services (as without their kind) the process waits, and says why."""
    operator = make_operator(namespace)
    operator._namespaces = [namespace, "default"]
    operator.start()
    wait_for(lambda: "waiting until InferenceServices can be listed" in operator.log(), "the reason in the log")
    assert operator.stop() == 0
