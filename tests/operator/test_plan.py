"""Plans: what is applied and why, what is left alone, and what counts as drift."""

import copy

import pytest

from octavo_operator import manifests, names
from octavo_operator.drift import drift
from octavo_operator.observed import Observed, Ownership, ownership, read_pod
from octavo_operator.plan import Apply, Delete, MarkVictim, Plan, make_plan
from operator_samples import live, made_deployment, pod, resource

PARENT = resource(engine={"env": [{"name": "EMPTY", "value": ""}]}, resources={"limits": {"cpu": "1000m"}})


def children():
    made = [
        manifests.service(PARENT),
        manifests.disruption_budget(PARENT),
        made_deployment(PARENT, 2),
    ]
    return [manifests.sealed(child) for child in made]


def look(*present, pods=()):
    found = {(item["apiVersion"], item["kind"]): item for item in present}
    return Observed(resource=PARENT, children=found, pods=tuple(read_pod(item) for item in pods))


def plan(*present, victim=None, paused=False, pods=()):
    return make_plan(look(*present, pods=pods), children(), victim, paused)


def test_everything_is_made_when_nothing_is_there():
    made = plan()
    assert [step.manifest["kind"] for step in made.steps] == ["Service", "PodDisruptionBudget", "Deployment"]
    assert all(step.uid is None and "does not exist" in step.reason for step in made.steps)


def test_nothing_is_sent_when_all_is_as_wanted():
    assert plan(*map(live, children())).steps == ()


def test_what_the_server_rewrites_and_others_add_is_no_drift():
    service, budget, deployed = (copy.deepcopy(live(child)) for child in children())
    container = deployed["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["limits"]["cpu"] = "1"
    del container["env"][0]["value"]
    container["terminationMessagePath"] = "/dev/termination-log"
    container["env"].insert(0, {"name": "INJECTED", "value": "by a mesh"})
    deployed["spec"]["template"]["spec"]["containers"].append({"name": "sidecar"})
    service["metadata"]["labels"]["extra"] = "theirs"
    service["spec"]["clusterIP"] = "10.0.0.1"
    assert plan(service, budget, deployed).steps == ()


@pytest.mark.parametrize(
    ("path", "edit"),
    [
        ("spec.replicas", lambda d: d["spec"].update(replicas=9)),
        ("spec.template.spec.containers[engine].image", lambda d: container(d).update(image="evil")),
        ("spec.template.spec.containers[engine].args", lambda d: container(d)["args"].append("--x")),
        ("spec.template.spec.containers[engine].args[3]", lambda d: container(d)["args"].__setitem__(3, "--port=1")),
        ("spec.template.spec.automountServiceAccountToken", lambda d: pod_spec(d).pop("automountServiceAccountToken")),
        ("metadata.labels.octavo.dev/service", lambda d: d["metadata"]["labels"].clear()),
        (
            "spec.template.spec.containers[engine].volumeMounts[/tmp].name",
            lambda d: container(d)["volumeMounts"][0].update(name="cache"),
        ),
    ],
)
def test_an_edited_field_is_put_back(path, edit):
    service, budget, deployed = (copy.deepcopy(live(child)) for child in children())
    edit(deployed)
    (step,) = plan(service, budget, deployed).steps
    assert isinstance(step, Apply)
    assert step.uid == "uid-of-Deployment"
    assert path in step.reason


def test_a_field_we_stopped_setting_is_noticed_by_the_seal():
    service, budget, deployed = (copy.deepcopy(live(child)) for child in children())
    deployed["metadata"]["annotations"][names.RENDERED_ANNOTATION] = "of-an-older-spec"
    (step,) = plan(service, budget, deployed).steps
    assert "wanted state changed" in step.reason


def test_a_foreign_object_is_left_alone_and_named():
    service, budget, deployed = (copy.deepcopy(live(child)) for child in children())
    service["metadata"]["ownerReferences"] = []
    made = plan(service, budget, deployed)
    assert made.steps == ()
    (cause,) = made.blocked
    assert cause.reason == "ForeignObject"
    assert cause.final
    assert "Service assistant" in cause.message


def test_a_leftover_of_a_deleted_namesake_is_waited_for():
    service, budget, deployed = (copy.deepcopy(live(child)) for child in children())
    deployed["metadata"]["ownerReferences"][0]["uid"] = "another"
    (cause,) = plan(service, budget, deployed).blocked
    assert cause.reason == "WaitingForCleanup"
    assert not cause.final


def test_an_object_under_deletion_is_waited_for():
    service, budget, deployed = (copy.deepcopy(live(child)) for child in children())
    deployed["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    assert [cause.reason for cause in plan(service, budget, deployed).blocked] == ["WaitingForCleanup"]


def test_a_paused_service_is_not_touched():
    assert plan(paused=True).steps == ()


def test_the_victim_is_marked_before_the_count_falls():
    first, *_ = plan(victim="assistant-2", pods=[pod("assistant-2", ready=True)]).steps
    assert first == MarkVictim("assistant-2", first.reason)


def test_a_marked_victim_is_not_marked_again():
    marked = pod("assistant-2", ready=True)
    marked["metadata"]["annotations"] = {names.DELETION_COST: "-1"}
    assert not any(isinstance(step, MarkVictim) for step in plan(victim="assistant-2", pods=[marked]).steps)


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        ({"controller": False}, Ownership.FOREIGN),
        ({"kind": "Deployment"}, Ownership.FOREIGN),
        ({"apiVersion": "example.com/v1"}, Ownership.FOREIGN),
        ({"uid": "other", "name": "other"}, Ownership.FOREIGN),
        ({"apiVersion": "octavo.dev/v1"}, Ownership.OURS),
        ({}, Ownership.OURS),
    ],
)
def test_ownership_is_the_controller_reference_alone(owner, expected):
    child = live(children()[0])
    child["metadata"]["ownerReferences"] = [child["metadata"]["ownerReferences"][0] | owner]
    assert ownership(child, PARENT) is expected


@pytest.mark.parametrize(
    ("wanted", "there", "found"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, None),
        ({"a": {"b": 1}}, {}, "a"),
        ({"a": []}, {}, None),
        ({"a": [1, 2]}, {"a": [2, 1]}, "a[0]"),
        ({"a": "0.5"}, {"a": "500m"}, None),
        ({"a": "1Gi"}, {"a": "1024Mi"}, None),
        ({"a": "1G"}, {"a": "1Gi"}, "a"),
        ({"a": "x"}, {"a": 1}, "a"),
        ({"a": [1]}, {"a": "no list"}, "a"),
        ({"a": {"b": 1}}, {"a": "no object"}, "a"),
    ],
)
def test_drift(wanted, there, found):
    assert drift(wanted, there) == found


def container(deployed):
    return pod_spec(deployed)["containers"][0]


def pod_spec(deployed):
    return deployed["spec"]["template"]["spec"]


def test_the_victim_and_what_pods_need_come_before_the_deployment_and_deletions_last():
    made = Plan(
        (
            Delete(manifests.JOB, "old", "u", "why"),
            *plan(victim="assistant-2", pods=[pod("assistant-2", ready=True)]).steps,
            Apply(manifests.service_account(PARENT), "why"),
        )
    )
    first, second, third, last = made.stages
    assert {getattr(step, "pod", None) or step.manifest["kind"] for step in first} == {"assistant-2", "ServiceAccount"}
    assert {step.manifest["kind"] for step in second} == {"Deployment"}
    assert {step.manifest["kind"] for step in third} == {"Service", "PodDisruptionBudget"}
    assert made.urgent.stages == [first, second]
    assert last == [made.steps[0]]
