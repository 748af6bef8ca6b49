"""What the operator exports of each service: the figures of its status, under the labels that its engines have."""

from prometheus_client import CollectorRegistry

from octavo_operator import names
from octavo_operator.names import Key
from octavo_operator.service_metrics import ServiceMetrics, figures
from operator_samples import pod, resource
from operator_world import KEY, World

STATUS = {
    "replicas": 3,
    "readyReplicas": 2,
    "desiredReplicas": 4,
    "conditions": [{"type": "Ready", "status": "True", "reason": "Serving", "message": "2 of 4"}],
}


def samples(metrics: ServiceMetrics) -> dict[str, dict[tuple[str, ...], float]]:
    """By name; without namespace and service, which are the first two labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in metrics.collect():
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())[2:]] = sample.value
    return found


def test_a_status_becomes_series():
    metrics = ServiceMetrics(CollectorRegistry())
    metrics.tell(KEY, figures(STATUS, accelerators=2, restarts=5))
    assert samples(metrics) == {
        "octavo_operator_service_replicas": {("desired",): 4, ("present",): 3, ("ready",): 2},
        "octavo_operator_service_accelerators": {(): 6},
        "octavo_operator_service_restarts": {(): 5},
        "octavo_operator_service_condition": {("Ready", "True", "Serving"): 1},
    }


def test_a_changed_reason_leaves_no_series_of_the_old_one():
    metrics = ServiceMetrics(CollectorRegistry())
    metrics.tell(KEY, figures(STATUS))
    failed = {"type": "Ready", "status": "False", "reason": "CrashLoop", "message": ""}
    metrics.tell(KEY, figures(STATUS | {"conditions": [failed]}))
    assert samples(metrics)["octavo_operator_service_condition"] == {("Ready", "False", "CrashLoop"): 1}


def test_what_a_status_does_not_say_is_no_series():
    metrics = ServiceMetrics(CollectorRegistry())
    metrics.tell(KEY, figures({"conditions": []}))
    assert "octavo_operator_service_replicas" not in samples(metrics)


def test_a_service_has_the_name_that_its_engines_series_have():
    """Of a name that no label can hold, the pods' label has another form."""
    key = Key("team", "my.model")
    metrics = ServiceMetrics(CollectorRegistry())
    metrics.tell(key, figures(STATUS))
    found = {sample.labels["inferenceservice"] for family in metrics.collect() for sample in family.samples}
    assert found == set(names.selector_labels(key.name).values())


async def test_every_look_tells_and_the_end_of_a_service_too():
    world = World(resource(replicas=2, resources={"limits": {"nvidia.com/gpu": 2}}))
    crashed = {"name": "engine", "image": "image", "restartCount": 3, "state": {"running": {}}}
    world.cluster.pods = [pod("assistant-1", ready=True), pod("assistant-2", containerStatuses=[crashed])]
    await world.settle()
    told = samples(world.metrics.services)
    assert told["octavo_operator_service_replicas"] == {("desired",): 2, ("present",): 2, ("ready",): 1}
    assert told["octavo_operator_service_accelerators"] == {(): 4}
    assert told["octavo_operator_service_restarts"] == {(): 3}
    assert ("Ready", "True", "Serving") in told["octavo_operator_service_condition"]
    world.cluster.resource = None
    await world.reconcile()
    assert samples(world.metrics.services) == {}


async def test_a_service_that_cannot_be_read_is_told_with_its_reason():
    world = World(resource(unknown=True))
    await world.reconcile()
    assert ("Ready", "Unknown", "SpecUnreadable") in samples(world.metrics.services)[
        "octavo_operator_service_condition"
    ]
    world.cluster.resource = None
    await world.reconcile()
    assert world.metrics.services.known() == set()
