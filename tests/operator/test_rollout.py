"""From a changed spec to other pods: what is checked, what waits, what a death, an edit or an upgrade does to it."""

from dataclasses import replace

import pytest

from fake_cluster import Died, job_pod
from octavo_operator.errors import Retryable
from octavo_operator.manifests import CONFIG_MAP, DEPLOYMENT
from octavo_operator.observed import Outcome, Purpose
from octavo_operator.revisions import MAX_BYTES, revision_of
from octavo_operator.rollout import UNRECORDED
from octavo_operator.spec import read_spec
from operator_samples import DEFAULTS, resource
from operator_world import World
from rollout_world import NEW, OLD, OTHER, kept, passes, runs, serving


async def test_a_new_revision_reaches_the_replicas_only_after_its_preflight():
    world = await serving()
    world.change(engine=NEW)
    assert await world.reconcile() == ["create preflight", "status"]
    assert (world.phase, runs(world, OLD)) == ("Checking", True)
    assert world.cluster.conditions()["Reconciling"]["status"] == "True"
    assert await world.reconcile() == []
    world.cluster.end_job(Purpose.PREFLIGHT, Outcome.PASSED)
    # First it is on record, then it is done: an operator that dies in between goes on from there.
    assert await world.reconcile() == ["ConfigMap", "status"]
    assert runs(world, OLD)
    assert await world.reconcile() == ["Deployment", "delete preflight", "status"]
    assert runs(world, NEW)
    await world.settle()
    assert world.phase == "Complete"
    assert world.cluster.jobs == {}


async def test_the_first_revision_of_a_local_source_waits_for_nothing():
    world = World(resource())
    await world.reconcile()
    assert DEPLOYMENT in world.cluster.children
    assert world.cluster.jobs == {}


async def test_a_service_scaled_to_zero_follows_its_spec_at_once():
    world = await serving()
    world.change(replicas=0)
    await world.settle()
    world.change(replicas=0, engine=NEW)
    await world.reconcile()
    assert runs(world, OLD), "the old pod is still there"
    world.cluster.pods = []
    world.cluster.roll_out()
    await world.settle()
    assert runs(world, NEW)
    assert world.cluster.jobs == {}
    assert world.phase == "Complete"


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 3},
        {"autoscaling": {"maxReplicas": 3}},
        {"monitoring": {"labels": {"a": "b"}}},
        {"rollout": "InPlace"},
        {"allowFrom": [{"podSelector": {}}]},
        {"startupSeconds": 1800, "drainSeconds": 45, "restartedAt": "", "template": {"labels": {}}, "resources": {}},
    ],
)
async def test_what_shapes_no_pod_makes_no_revision(change):
    world = await serving()
    before = world.deployment["spec"]["template"]
    world.change(**change)
    await world.settle()
    assert world.deployment["spec"]["template"] == before
    assert world.cluster.jobs == {}


def test_the_revision_of_a_spec_never_changes():
    """It is stored in clusters: another name for the same spec would restart every pod there."""
    assert revision_of(read_spec(resource())) == "7ac7bd7a63"
    whole = {"engine": NEW, "template": {"volumes": [{"name": "x", "mountPath": "/x", "emptyDir": {}}]}, "replicas": 9}
    assert revision_of(read_spec(resource(**whole))) == "df2ccb0ce2"


SOME = {"nodeSelector": {"gpu": ""}, "labels": {"team": ""}, "annotations": {"team": ""}}


@pytest.mark.parametrize("said", [*({"template": {key: value}} for key, value in SOME.items()), {"restartedAt": "1"}])
def test_what_shapes_the_pods_makes_a_revision(said):
    """A label's empty value is one: nodes that have it are others than all nodes."""
    assert revision_of(read_spec(resource(**said))) != revision_of(read_spec(resource()))


@pytest.mark.parametrize("said", [{"template": {key: {} for key in SOME}}, {"template": {}}, {"restartedAt": ""}])
def test_what_says_nothing_makes_no_revision(said):
    assert revision_of(read_spec(resource(**said))) == revision_of(read_spec(resource()))


async def test_scaling_goes_on_while_a_revision_is_checked():
    world = await serving()
    world.change(engine=NEW)
    await world.settle()
    world.change(replicas=3)
    await world.settle()
    assert (world.replicas, runs(world, OLD), world.phase) == (3, True, "Checking")


async def test_a_failed_preflight_leaves_the_replicas_and_is_stalled():
    world = await serving()
    world.change(engine=NEW)
    await world.settle()
    world.cluster.end_job(Purpose.PREFLIGHT, Outcome.FAILED, "InvalidConfiguration: --max-num-seqs is too large")
    await world.settle()
    assert (world.phase, runs(world, OLD)) == ("Refused", True)
    stalled = world.cluster.conditions()["Stalled"]
    assert stalled["reason"] == "InvalidConfiguration"
    assert "--max-num-seqs is too large" in stalled["message"]
    assert world.cluster.conditions()["Ready"]["status"] == "True"
    assert world.cluster.job(Purpose.PREFLIGHT), "its log is to be looked at"


async def test_a_preflight_whose_image_cannot_be_pulled_is_stalled_before_its_deadline():
    world = await serving()
    world.change(engine={"image": "no/such:image"})
    await world.settle()
    job = world.cluster.job(Purpose.PREFLIGHT)
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    world.cluster.job_pods = [job_pod(job, waiting, phase="Pending")]
    await world.settle()
    assert world.cluster.conditions()["Stalled"]["reason"] == "ImagePullFailed"
    # The deadline ends the pods; what is left to say then says less.
    world.cluster.job_pods = []
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}
    await world.settle()
    assert world.cluster.conditions()["Stalled"]["reason"] == "ImagePullFailed"


@pytest.mark.parametrize("back", [OLD, OTHER], ids=["reverted", "corrected"])
async def test_a_refused_spec_that_is_reverted_or_corrected_recovers(back):
    world = await serving()
    world.change(engine=NEW)
    await world.settle()
    world.cluster.end_job(Purpose.PREFLIGHT, Outcome.FAILED, "ModelNotFound: nothing there")
    await world.settle()
    generation = world.deployment["metadata"]["generation"]
    world.change(engine=back)
    await world.settle()
    assert "Stalled" not in world.cluster.conditions()
    assert kept(world).refused is None
    if back == OLD:
        assert (world.phase, world.cluster.jobs) == ("Complete", {})
        assert world.deployment["metadata"]["generation"] == generation
    else:
        await passes(world)
        assert runs(world, OTHER)


async def test_a_refusal_stands_while_the_job_is_made_anew_and_goes_when_it_passes():
    world = await serving()
    world.change(engine=NEW)
    await world.settle()
    world.cluster.end_job(Purpose.PREFLIGHT, Outcome.FAILED, "ModelSourceUnreachable: no answer")
    await world.settle()
    status = dict(world.cluster.resource["status"])
    world.cluster.jobs.clear()  # as Kubernetes does some time after the end
    world.cluster.job_pods.clear()
    world.restart_operator()
    assert await world.reconcile() == ["create preflight"]
    assert world.cluster.resource["status"] == status
    await passes(world)
    assert runs(world, NEW)
    assert "Stalled" not in world.cluster.conditions()


async def test_of_two_quick_changes_the_first_is_dropped():
    world = await serving()
    world.change(engine=NEW)
    await world.settle()
    first = world.cluster.job(Purpose.PREFLIGHT)
    world.change(engine=OTHER)
    await world.settle()
    assert world.cluster.job(Purpose.PREFLIGHT) != first
    await passes(world)
    assert runs(world, OTHER)


async def test_a_change_back_before_the_deployment_followed_restarts_nothing():
    world = await serving()
    world.change(engine=NEW)
    await world.settle()
    world.cluster.end_job(Purpose.PREFLIGHT, Outcome.PASSED)
    await world.reconcile()
    assert kept(world).active == revision_of(read_spec(world.cluster.resource))
    world.change(engine=OLD)
    generation = world.deployment["metadata"]["generation"]
    await world.settle()
    assert world.deployment["metadata"]["generation"] == generation
    assert runs(world, OLD)


async def test_the_way_back_to_a_checked_revision_is_short():
    world = await serving()
    for engine in (NEW, OTHER):
        world.change(engine=engine)
        await world.settle()
        await passes(world)
    world.change(engine=NEW)
    await world.settle()
    assert runs(world, NEW)
    assert world.cluster.jobs == {}


async def test_there_and_back_restores_identical_children():
    world = await serving()
    before = {kind: child["spec"] for kind, child in world.cluster.children.items() if "spec" in child}
    for engine in (NEW, OLD):
        world.change(engine=engine)
        await world.settle()
        await passes(world)
    assert {kind: child["spec"] for kind, child in world.cluster.children.items() if "spec" in child} == before


@pytest.mark.parametrize("writes", range(8))
async def test_an_operator_that_dies_between_two_writes_is_followed_by_one_that_ends_it(writes):
    world = await serving()
    world.change(engine=NEW)
    world.cluster.dying = writes
    try:
        await world.settle()
        await passes(world)
    except Died:
        world.cluster.dying = None
        world.restart_operator()
        await world.settle()
        if job := world.cluster.job(Purpose.PREFLIGHT):
            job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
            await world.settle()
    assert runs(world, NEW)
    assert world.cluster.jobs == {}
    assert world.phase == "Complete"


@pytest.mark.parametrize("writes", range(7))
async def test_a_first_revision_survives_a_death_at_any_write(writes):
    world = World(resource(engine=OLD))
    world.cluster.dying = writes
    with pytest.raises(Died):
        await world.settle()
    world.cluster.dying = None
    before = world.cluster.children.get(DEPLOYMENT)
    world.restart_operator()
    await world.settle()
    assert runs(world, OLD)
    assert before is None or world.deployment["metadata"]["generation"] == 1
    assert world.cluster.jobs == {}


async def test_a_record_that_cannot_be_written_keeps_the_replicas():
    world = await serving()
    world.change(engine=NEW)
    await world.settle()
    world.cluster.end_job(Purpose.PREFLIGHT, Outcome.PASSED)
    world.cluster.failing["ConfigMap"] = Retryable("gone away", 500)
    with pytest.raises(Retryable):
        await world.reconcile()
    assert runs(world, OLD)
    assert world.cluster.job(Purpose.PREFLIGHT), "what it found is not recorded yet"
    await world.settle()
    assert runs(world, NEW)


async def test_an_operator_upgrade_restarts_nothing():
    world = await serving()
    world.defaults = replace(DEFAULTS, image="registry.example/octavo-engine:2")
    world.restart_operator()
    assert await world.reconcile() == []
    world.change(engine=NEW)
    await world.settle()
    await passes(world)
    assert "octavo-engine:2" in str(world.deployment), "a new revision takes the new default"


@pytest.mark.parametrize("upgraded", [False, True])
@pytest.mark.parametrize("checking", [False, True])
async def test_a_lost_record_is_made_anew_from_what_runs(upgraded, checking):
    world = await serving()
    if checking:
        world.change(engine=NEW)
        await world.settle()
    template = world.deployment["spec"]["template"]
    del world.cluster.children[CONFIG_MAP]
    if upgraded:
        world.defaults = replace(DEFAULTS, image="registry.example/octavo-engine:2")
    world.restart_operator()
    await world.settle()
    assert world.deployment["spec"]["template"] == template
    assert template in [revision.template for revision in kept(world).revisions.values()]
    assert world.phase == ("Checking" if checking else "Complete")


@pytest.mark.parametrize("damage", ["{}", "no JSON", '{"template": {"spec": "evil"}, "checked": true}'])
async def test_a_damaged_record_is_ignored_and_repaired(damage):
    world = await serving()
    template = world.deployment["spec"]["template"]
    data = world.cluster.children[CONFIG_MAP]["data"]
    whole = dict(data)
    for key in whole:
        data[key] = damage
    await world.settle()
    assert world.deployment["spec"]["template"] == template
    assert world.cluster.children[CONFIG_MAP]["data"] == whole


async def test_another_active_revision_written_by_hand_changes_nothing():
    world = await serving()
    world.change(engine=NEW)
    await world.settle()
    await passes(world)
    data = world.cluster.children[CONFIG_MAP]["data"]
    whole, data["active"] = dict(data), "unknown"
    await world.settle()
    assert runs(world, NEW)
    assert world.cluster.children[CONFIG_MAP]["data"] == whole


@pytest.mark.parametrize("checking", [False, True])
async def test_a_deleted_deployment_comes_back_as_it_was(checking):
    world = await serving()
    if checking:
        world.change(engine=NEW)
        await world.settle()
    template = world.deployment["spec"]["template"]
    del world.cluster.children[DEPLOYMENT]
    await world.settle()
    assert world.deployment["spec"]["template"] == template


async def test_a_deployment_of_an_operator_without_revisions_is_taken_over_as_it_runs():
    world = await serving()
    del world.cluster.children[CONFIG_MAP]
    world.deployment["metadata"]["annotations"].pop("octavo.dev/revision")
    world.deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 77
    template = world.deployment["spec"]["template"]
    world.restart_operator()
    await world.settle()
    assert world.deployment["spec"]["template"] == template
    assert world.phase == "Complete"


async def test_one_that_had_not_seen_the_spec_runs_on_until_the_spec_is_checked():
    world = await serving()
    world.change(engine=NEW)
    del world.cluster.children[CONFIG_MAP]
    world.deployment["metadata"]["annotations"].pop("octavo.dev/revision")
    await world.settle()
    assert (world.phase, runs(world, OLD)) == ("Checking", True)
    assert kept(world).active == UNRECORDED
    await passes(world)
    assert runs(world, NEW)


async def test_a_deleted_preflight_is_made_anew():
    world = await serving()
    world.change(engine=NEW)
    await world.settle()
    world.cluster.jobs.clear()
    assert await world.reconcile() == ["create preflight"]


async def test_a_preflight_under_deletion_is_waited_for():
    world = await serving()
    world.change(engine=NEW)
    await world.settle()
    world.cluster.job(Purpose.PREFLIGHT)["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    assert await world.reconcile() == []


async def test_restarted_at_rolls_the_pods_after_a_check():
    world = await serving()
    world.change(restartedAt="2030-01-01T00:00:00Z")
    await world.settle()
    assert world.phase == "Checking"
    await passes(world)
    assert "2030-01-01T00:00:00Z" in str(world.deployment["spec"]["template"]["metadata"]["annotations"])


async def test_paused_holds_a_change_and_lets_it_go_on():
    world = await serving()
    world.change(engine=NEW, paused=True)
    assert await world.reconcile() == ["status"]
    assert world.phase == "Paused"
    world.change(paused=False)
    await world.settle()
    await passes(world)
    assert runs(world, NEW)


async def test_a_spec_that_cannot_be_read_keeps_what_runs():
    world = await serving()
    world.change(engine={"fromTheFuture": 1})
    assert await world.reconcile() == ["status"]
    assert runs(world, OLD)
    world.change(engine=OLD)
    await world.settle()
    assert world.phase == "Complete"


async def test_records_stay_small():
    world = await serving()
    for number in range(12):
        large = [{"name": f"LARGE_{part}", "value": chr(ord("a") + number) * 4000} for part in range(30)]
        world.change(engine={"env": large})
        await world.settle()
        await passes(world)
    data = world.cluster.children[CONFIG_MAP]["data"]
    assert sum(map(len, data.values())) < MAX_BYTES + 8192
    assert len(kept(world).revisions) >= 2
