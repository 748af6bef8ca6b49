"""Whole reconciles against a tiny fake cluster: what is written, what is not, and what failures do."""

import copy

import pytest

from fake_cluster import MONITORING_KINDS
from octavo_operator.autoscaling import Load
from octavo_operator.checkpoint import Progress
from octavo_operator.errors import Conflict, Refused, Retryable
from octavo_operator.manifests import DEPLOYMENT, SERVICE
from octavo_operator.reconcile import AT_ONCE, GIVE_WAY_SECONDS, LONGEST_WAY_SECONDS
from operator_samples import pod, resource
from operator_world import KEY, World

CHILDREN = {"ServiceAccount", "NetworkPolicy", "Deployment", "Service", "PodDisruptionBudget", "ConfigMap"}


async def test_a_new_service_gets_its_children_and_then_a_status_of_what_they_say():
    world = World(resource())
    assert await world.reconcile() == [
        *("ServiceAccount", "NetworkPolicy", "Deployment", "Service", "PodDisruptionBudget", "ConfigMap")
    ]
    assert world.look_again == AT_ONCE, "and if they say nothing, that is told"
    assert await world.reconcile() == ["status"]
    assert world.cluster.conditions()["Reconciling"]["reason"] == "RollingOut"
    assert [event["reason"] for event in world.cluster.events] == ["RolloutRolling"]


async def test_in_a_storm_a_new_service_gets_what_its_pods_need_and_the_rest_afterwards():
    world = World(resource())
    world.crowded = True
    assert await world.reconcile() == ["ServiceAccount", "NetworkPolicy", "Deployment"]
    assert await world.reconcile() == []
    assert world.look_again == GIVE_WAY_SECONDS
    world.crowded = False
    assert await world.reconcile() == ["Service", "PodDisruptionBudget", "ConfigMap", "status"]


async def test_a_storm_keeps_nobody_waiting_for_long_and_no_old_service_at_all():
    world = World(resource())
    world.crowded = True
    looks = 0
    while "ConfigMap" not in await world.reconcile():
        looks += 1
    assert 0.6 * looks <= LONGEST_WAY_SECONDS
    await world.settle()
    del world.cluster.children[SERVICE]
    assert "Service" in await world.reconcile()


@pytest.mark.parametrize("failing", ["Service", "Deployment"])
async def test_what_keeps_a_new_service_from_its_children_is_told_at_once(failing):
    world = World(resource())
    world.cluster.failing[failing] = Refused("invalid", 422)
    with pytest.raises(Refused):
        await world.reconcile()
    assert world.cluster.conditions()["Stalled"]["reason"] == "ApplyRefused"


async def test_a_steady_service_costs_no_write():
    world = World(resource(), monitoring=True)
    await world.settle()
    world.cluster.pods = [pod(ready=True)]
    await world.settle()
    assert await world.reconcile() == []
    assert world.cluster.conditions()["Ready"]["status"] == "True"


async def test_the_users_spec_and_metadata_are_never_written():
    parent = resource()
    world = World(parent)
    await world.settle()
    assert {key: value for key, value in world.cluster.resource.items() if key != "status"} == resource()


@pytest.mark.parametrize("kind", [DEPLOYMENT, SERVICE])
async def test_a_deleted_child_comes_back(kind):
    world = World(resource())
    await world.settle()
    del world.cluster.children[kind]
    assert kind[1] in await world.reconcile()


async def test_an_edited_child_is_put_back():
    world = World(resource(replicas=2))
    await world.settle()
    world.cluster.children[DEPLOYMENT]["spec"]["replicas"] = 7
    await world.settle()
    assert world.replicas == 2


async def test_a_pod_monitor_that_is_not_wanted_is_told_whatever_is_installed():
    for installed in (True, False):
        world = World(resource(monitoring={"podMonitor": False}), monitoring=installed)
        await world.settle()
        assert world.cluster.conditions()["MonitoringConfigured"]["reason"] == "PodMonitorNotWanted"


async def test_monitoring_is_picked_up_when_it_appears():
    world = World(resource())
    await world.settle()
    assert world.cluster.kinds() == CHILDREN
    assert world.cluster.conditions()["MonitoringConfigured"]["status"] == "False"
    world.cluster.monitoring = True
    await world.settle()
    assert world.cluster.kinds() == CHILDREN | MONITORING_KINDS
    assert world.cluster.conditions()["MonitoringConfigured"]["status"] == "True"


async def test_a_foreign_service_blocks_itself_only():
    world = World(resource())
    world.cluster.children[SERVICE] = {"metadata": {"name": "assistant", "uid": "theirs"}, "spec": {"mine": False}}
    await world.settle()
    assert world.cluster.children[SERVICE]["spec"] == {"mine": False}
    assert DEPLOYMENT in world.cluster.children
    assert world.cluster.conditions()["Stalled"]["reason"] == "ForeignObject"


async def test_a_failing_step_stops_no_other_and_is_told():
    world = World(resource())
    world.cluster.failing["Service"] = Refused("PATCH services: 403 forbidden", 403)
    with pytest.raises(Refused):
        await world.reconcile()
    assert set(world.cluster.writes) == CHILDREN - {"Service"} | {"status"}
    assert world.cluster.conditions()["Stalled"]["reason"] == "OperatorForbidden"
    await world.settle()
    assert "Stalled" not in world.cluster.conditions()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Conflict("changed", 409), "Conflict"),
        (Refused("invalid", 422), "ApplyRefused"),
        (Retryable("gone away", 500), "ApiUnavailable"),
    ],
)
async def test_failures_are_told_and_tried_again(error, reason):
    world = World(resource())
    world.cluster.failing["Deployment"] = error
    with pytest.raises(type(error)):
        await world.reconcile()
    found = world.cluster.conditions()
    assert (found.get("Stalled") or found["Reconciling"])["reason"] == reason
    await world.settle()
    assert world.cluster.kinds() == CHILDREN


async def test_a_missing_read_permission_is_shown():
    world = World(resource())
    world.cluster.failing["observe"] = Refused("GET pods: 403 forbidden", 403)
    with pytest.raises(Refused):
        await world.reconcile()
    assert world.cluster.conditions()["Stalled"]["reason"] == "OperatorForbidden"


async def test_an_unreadable_spec_is_shown_and_not_retried():
    world = World(resource(engine={"fromTheFuture": 1}))
    await world.reconcile()
    assert world.cluster.conditions()["Stalled"]["reason"] == "SpecUnreadable"
    assert await world.reconcile() == []


async def test_a_deleted_service_is_forgotten():
    world = World(resource())
    await world.settle()
    world.cluster.resource = None
    await world.reconcile()
    assert world.scaler.known() == set()


async def test_a_paused_service_is_left_as_it_is():
    world = World(resource(paused=True))
    assert await world.reconcile() == ["status"]
    assert world.cluster.children == {}
    assert world.cluster.conditions()["Ready"]["reason"] == "Paused"


def scaled(**more):
    return resource(autoscaling={"maxReplicas": 3} | more)


def busy(waiting):
    return Load(waiting=waiting, waiting_full=waiting, running=2, max_num_seqs=2)


async def test_a_growing_queue_raises_the_deployment():
    world = World(scaled())
    await world.settle()
    world.cluster.pods = [pod(ready=True)]
    await world.settle()
    world.loads.answer = busy(9)
    assert await world.tick(2) == {KEY}
    assert "Deployment" in await world.reconcile()
    assert world.replicas == 2
    (decision,) = world.cluster.resource["status"]["scaling"]["decisions"]
    assert (decision["fromReplicas"], decision["toReplicas"], decision["reason"]) == (1, 2, "QueueGrowth")
    assert "9 waiting" in decision["message"]
    assert world.cluster.resource["status"]["queue"] == {"waiting": 9, "running": 2}


async def grown():
    """A service whose queue has called for its second replica."""
    world = World(scaled())
    await world.settle()
    world.cluster.pods = [pod(ready=True)]
    world.loads.answer = busy(9)
    await world.settle()
    await world.tick(2)
    await world.settle()
    return world


async def test_an_operator_restart_keeps_count_and_history():
    world = await grown()
    before = copy.deepcopy(world.cluster.resource["status"]["scaling"])
    world.restart_operator()
    await world.settle()
    assert world.replicas == 2
    assert world.cluster.resource["status"]["scaling"] == before


async def test_a_namesake_made_anew_inherits_no_count_and_no_history():
    """A namespace can go and come back while the operator is forbidden to look."""
    world = await grown()
    assert world.replicas == 2
    remade = scaled()
    remade["metadata"]["uid"] = "another"
    world.cluster.resource, world.cluster.pods = remade, []
    world.cluster.children.clear()
    await world.settle()
    assert world.replicas == 1
    assert not world.cluster.resource["status"].get("scaling", {}).get("decisions")


async def test_the_victim_is_marked_before_the_count_is_lowered():
    world = World(scaled(minReplicas=1))
    await world.settle()
    world.cluster.children[DEPLOYMENT]["spec"]["replicas"] = 2
    world.restart_operator()
    world.cluster.pods = [pod("a", ready=True), pod("b", ready=True)]
    await world.settle()
    world.loads.answer = Load(max_num_seqs=8)
    await world.tick(70)
    writes = await world.reconcile()
    assert writes[0] == "mark a"
    assert writes.index("Deployment") > 0
    assert world.replicas == 1


async def test_queue_figures_are_written_seldom():
    world = World(resource())
    world.cluster.pods = [pod(ready=True)]
    world.loads.answer = busy(1)
    await world.settle()
    await world.tick()
    await world.settle()
    world.loads.answer = busy(5)
    assert await world.tick(5) == set()
    assert await world.tick(2) == {KEY}
    await world.reconcile()
    assert world.cluster.resource["status"]["queue"]["waiting"] == 5


async def test_a_silent_pod_is_told_at_once():
    world = World(resource())
    world.cluster.pods = [pod(ready=True)]
    await world.settle()
    assert await world.tick() == {KEY}
    await world.reconcile()
    assert world.cluster.conditions()["MetricsAvailable"]["reason"] == "NoData"


async def test_mode_external_follows_spec_replicas():
    world = World(resource(replicas=2, autoscaling={"mode": "External"}))
    await world.settle()
    world.cluster.pods = [pod(ready=True)]
    world.loads.answer = busy(99)
    await world.tick(5)
    await world.settle()
    assert world.replicas == 2
    assert "ScalingLimited" not in world.cluster.conditions()


async def test_series_of_a_gone_service_are_dropped():
    world = World(scaled())
    world.cluster.pods = [pod(ready=True)]
    world.loads.answer = busy(9)
    await world.settle()
    await world.tick(2)
    world.cluster.resource = None
    await world.reconcile()
    for metric in (world.metrics.desired, world.metrics.inputs, world.metrics.decisions):
        assert not next(iter(metric.collect())).samples
    assert not [sample for metric in world.metrics.services.collect() for sample in metric.samples]


async def test_the_progress_of_a_fetch_is_told_by_tenths_until_it_ends():
    world = World(resource())
    await world.settle()
    told = []
    for done in (0, 5, 15, 16, 30):
        world.loads.fetches = [Progress(done, 100), Progress(99, 100)]
        told.append((await world.tick(), world.scaler.observe(KEY, *world.seen()).progress.percent))
    assert told == [({KEY}, 0), (set(), 0), ({KEY}, 15), (set(), 15), ({KEY}, 30)]
    world.loads.fetches = []
    assert await world.tick() == {KEY}
    assert world.scaler.observe(KEY, *world.seen()).progress is None
