"""A service's life on a real API server: made, changed, scaled, repaired, blocked, removed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from cluster_tools import Kubectl, create, wait_for, wait_quiet
from fake_engine import LOAD_SECONDS
from operator_process import OperatorProcess, Services

CHILDREN = ("deployment", "service", "poddisruptionbudget")
QUIET_SECONDS = 8.0  # so many samples of the load


def test_a_service_gets_its_children_and_serves(kubectl: Kubectl, services: Services) -> None:
    services.apply("serves")
    document = services.wait_ready("serves")
    kubectl("wait", "--for=condition=Ready", "osvc/serves", "-n", services.namespace, "--timeout=240s")
    for kind in CHILDREN:
        child = services.get(kind, "serves")
        assert child is not None
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (document["metadata"]["uid"], True)
    assert document["status"]["observedGeneration"] == document["metadata"]["generation"]
    kinds = {item["type"] for item in document["status"]["conditions"]}
    assert {"Ready", "ModelReady", "WorkloadAvailable", "MetricsAvailable", "MonitoringConfigured"} <= kinds
    assert "Stalled" not in kinds
    # A pod is seen ready a moment before its Deployment has counted it.
    wait_for(lambda: not services.condition("serves", "Reconciling"), "the end of reconciling")
    assert not services.condition("serves", "Stalled")


def test_a_slow_start_is_waited_for_and_gets_no_requests_before_its_end(services: Services) -> None:
    services.apply("slow", model={"source": "file:///slow"})

    def addressed() -> bool:
        slices = services.all_of("endpointslices").values()
        ours = [item for item in slices if item["metadata"]["labels"]["kubernetes.io/service-name"] == "slow"]
        return any(endpoint["conditions"]["ready"] for item in ours for endpoint in item.get("endpoints") or ())

    wait_for(addressed, "an address in the Service", interval=0.05)
    now = datetime.now(UTC)
    (name,) = services.pods("slow")
    pod = services.get("pod", name)
    assert pod is not None
    (container,) = pod["status"]["containerStatuses"]
    began = datetime.fromisoformat(container["state"]["running"]["startedAt"])
    assert now - began >= timedelta(seconds=LOAD_SECONDS - 1), "the times are whole seconds"
    assert container["restartCount"] == 0
    services.wait_ready("slow")


def test_nothing_of_the_users_is_written(services: Services) -> None:
    services.apply("untouched")
    document = services.wait_ready("untouched")
    assert document["spec"] == services.manifest("untouched")["spec"]
    assert not {"annotations", "labels", "finalizers"} & set(document["metadata"])
    managers = json.loads(services._kubectl("get", "osvc", "untouched", "-n", services.namespace, "-o", "json",
                                            "--show-managed-fields"))["metadata"]["managedFields"]  # fmt: skip
    ours = [entry for entry in managers if entry["manager"] == "octavo-operator"]
    assert [entry.get("subresource") for entry in ours] == ["status"]


def test_columns_and_explain(kubectl: Kubectl, services: Services) -> None:
    services.apply("columns")
    services.wait_ready("columns")
    header, line = kubectl("get", "osvc", "columns", "-n", services.namespace).splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "MODEL", "REPLICAS", "QUEUE", "URL", "AGE"]
    assert "True" in line
    assert "Serving" in line
    assert "1/1" in line
    assert f"http://columns.{services.namespace}.svc:8000" in line
    assert "maxReplicas" in kubectl("explain", "osvc.spec.autoscaling")


def test_a_change_reaches_the_deployment(services: Services) -> None:
    services.apply("changes")
    services.wait_ready("changes")
    services.apply("changes", engine={"maxNumSeqs": 7})

    def arrived() -> bool:
        deployment = services.get("deployment", "changes")
        assert deployment is not None
        return "--max-num-seqs=7" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]

    wait_for(arrived, "the new flag")
    wait_for(lambda: (services.get("osvc", "changes") or {})["status"]["observedGeneration"] == 2, "the status")


def test_kubectl_scale_goes_through_the_scale_subresource(kubectl: Kubectl, services: Services) -> None:
    services.apply("scales", replicas=1)
    services.wait_ready("scales")
    kubectl("scale", "osvc/scales", "-n", services.namespace, "--replicas=2")
    services.wait_ready("scales", replicas=2)
    kubectl("scale", "osvc/scales", "-n", services.namespace, "--replicas=0")
    assert services.wait_condition("scales", "Ready", "ScaledToZero")["status"] == "True"


def test_deleted_children_come_back(kubectl: Kubectl, services: Services) -> None:
    services.apply("repairs")
    services.wait_ready("repairs")
    for kind in CHILDREN:
        before = services.get(kind, "repairs")
        assert before is not None
        kubectl("delete", kind, "repairs", "-n", services.namespace)

        def remade(kind: str = kind, uid: str = before["metadata"]["uid"]) -> bool:
            found = services.get(kind, "repairs")
            return found is not None and found["metadata"]["uid"] != uid

        wait_for(remade, f"a new {kind}")


def test_edited_children_are_put_back_and_additions_stay(kubectl: Kubectl, services: Services) -> None:
    services.apply("drift", replicas=1)
    services.wait_ready("drift")
    where = ("-n", services.namespace)
    kubectl("scale", "deployment/drift", *where, "--replicas=3")
    kubectl("label", "service/drift", *where, "octavo.dev/service-", "theirs=stays")
    kubectl("patch", "service/drift", *where, "--type=merge", "-p", '{"spec":{"selector":{"octavo.dev/service":"x"}}}')

    def restored() -> bool:
        deployment, service = services.get("deployment", "drift"), services.get("service", "drift")
        assert deployment is not None
        assert service is not None
        return (
            deployment["spec"]["replicas"] == 1
            and service["spec"]["selector"] == {"octavo.dev/service": "drift"}
            and service["metadata"]["labels"].get("octavo.dev/service") == "drift"
        )

    wait_for(restored, "the repair")
    service = services.get("service", "drift")
    assert service is not None
    assert service["metadata"]["labels"]["theirs"] == "stays"


def test_a_foreign_object_is_left_alone_until_it_goes(kubectl: Kubectl, services: Services) -> None:
    foreign = {"name": "foreign", "namespace": services.namespace}
    port = {"name": "theirs", "port": 1}
    create(kubectl, {"apiVersion": "v1", "kind": "Service", "metadata": foreign, "spec": {"ports": [port]}})
    services.apply("foreign")
    condition = services.wait_condition("foreign", "Stalled", "ForeignObject")
    assert "Service foreign" in condition["message"]
    service = services.get("service", "foreign")
    assert service is not None
    assert [item["name"] for item in service["spec"]["ports"]] == ["theirs"]
    assert "ownerReferences" not in service["metadata"]
    kubectl("delete", "service", "foreign", "-n", services.namespace)
    wait_for(lambda: not services.condition("foreign", "Stalled"), "the end of the block")


def test_a_deleted_service_takes_its_children_along(kubectl: Kubectl, services: Services) -> None:
    services.apply("goes")
    services.wait_ready("goes")
    kubectl("delete", "osvc", "goes", "-n", services.namespace, "--timeout=240s")
    for kind in CHILDREN:
        wait_for(lambda kind=kind: services.get(kind, "goes") is None, f"the end of {kind}")


def test_a_namesake_made_at_once_gets_children_of_its_own(kubectl: Kubectl, services: Services) -> None:
    services.apply("again")
    services.wait_ready("again")
    kubectl("delete", "osvc", "again", "-n", services.namespace)
    services.apply("again")
    uid = (services.get("osvc", "again") or {})["metadata"]["uid"]

    def owned() -> bool:
        children = [services.get(kind, "again") for kind in CHILDREN]
        return all(child and child["metadata"]["ownerReferences"][0]["uid"] == uid for child in children)

    wait_for(owned, "children of the new service")


def test_a_paused_service_is_left_alone(kubectl: Kubectl, services: Services) -> None:
    services.apply("pauses", replicas=1, paused=True)
    services.wait_condition("pauses", "Ready", "Paused")
    assert services.get("deployment", "pauses") is None
    services.apply("pauses", replicas=1)
    services.wait_ready("pauses")


def test_restarted_at_rolls_the_pods(services: Services) -> None:
    services.apply("rolls")
    services.wait_ready("rolls")
    before = services.pods("rolls")
    services.apply("rolls", restartedAt="2030-01-01T00:00:00Z")
    wait_for(lambda: (now := services.pods("rolls")) and not set(now) & set(before), "new pods")


def test_a_long_name_gets_a_short_child(services: Services) -> None:
    name = "long-" + "x" * 90
    services.apply(name)
    document = services.wait_ready(name)
    child = document["status"]["url"].removeprefix("http://").partition(".")[0]
    assert len(child) == 63
    assert services.get("deployment", child) is not None


def test_a_steady_service_causes_no_write(services: Services, operator: OperatorProcess) -> None:
    services.apply("steady")
    services.wait_ready("steady")
    wait_for(lambda: services.condition("steady", "MetricsAvailable").get("status") == "True", "the first sample")

    def written() -> tuple[list[str], int]:
        found = [services.get(kind, "steady") or {} for kind in ("osvc", *CHILDREN)]
        return [live["metadata"]["resourceVersion"] for live in found], operator.log().count("\n")

    wait_quiet(written, QUIET_SECONDS, "some samples without a write or a line in the log")


def test_the_log_has_no_error(operator: OperatorProcess) -> None:
    assert operator.unexpected_lines() == []
