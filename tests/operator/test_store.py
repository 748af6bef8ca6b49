"""What is known without asking: never older than it was, doubted where a list differs, silent about echoes."""

import itertools
import random

import pytest

from octavo_operator import names
from octavo_operator.field_owners import additions
from octavo_operator.heartbeat import Identity, Sight
from octavo_operator.names import Key
from octavo_operator.store import Store
from octavo_operator.watched import WATCHED

KEY = Key("team", "assistant")
OWNER = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "assistant", "uid": "s", "controller": True}


def service(version, **more):
    head = {"namespace": "team", "name": "assistant", "uid": "s", "resourceVersion": str(version)}
    return {"metadata": head} | more


def child(version, uid="c", name="assistant", **more):
    head = {"namespace": "team", "name": name, "uid": uid, "resourceVersion": str(version), "ownerReferences": [OWNER]}
    return {"metadata": head} | more


def listed(**found):
    return {watched.plural: found.get(watched.plural, []) for watched in WATCHED}


@pytest.fixture
def store():
    made = Store()
    made.replace(listed(inferenceservices=[service(1)], services=[child(2)]), made.mark())
    return made


def version_of(store, plural="services", name="assistant"):
    found = store.one(plural, KEY, name)
    return found and found["metadata"]["resourceVersion"]


def test_nothing_is_known_until_everything_was_listed_and_again_when_watches_begin_anew():
    store = Store()
    store.told(names.PLURAL, service(1), gone=False)
    assert store.service(KEY) is None
    store.replace(listed(inferenceservices=[service(1)]), store.mark())
    assert store.service(KEY) == service(1)
    store.restarted()
    assert store.service(KEY) is None


def test_an_object_never_goes_back(store):
    assert store.told("services", child(9, spec={}), gone=False)
    assert not store.told("services", child(5), gone=False)
    store.put("services", child(5))
    store.learn(KEY, {"services": [child(5)]}, store.mark())
    assert version_of(store) == "9"


def test_the_echo_of_a_write_is_no_news(store):
    store.put("services", child(9, spec={"a": 1}))
    assert not store.told("services", child(9, spec={"a": 1}), gone=False)
    assert store.told("services", child(10, spec={"a": 2}), gone=False)


def test_a_status_that_no_look_reads_is_no_news(store):
    assert not store.told("services", child(3, status={"loadBalancer": {}}), gone=False)
    assert version_of(store) == "3"
    assert store.told("services", child(4, spec={"ports": []}), gone=False)
    assert store.told("deployments", child(5), gone=False)
    assert store.told("deployments", child(6, status={"replicas": 1}), gone=False)


def test_what_has_ended_does_not_come_back(store):
    assert store.told("services", child(5), gone=True)
    assert not store.told("services", child(4), gone=False)
    store.put("services", child(5))
    assert version_of(store) is None
    # One that only left the watch's selector comes back with a later version; a namesake with another uid.
    assert store.told("services", child(7), gone=False)
    assert store.told("services", child(8, uid="d"), gone=False)


def test_the_end_of_a_namesake_ends_no_other(store):
    store.told("services", child(8, uid="d"), gone=False)
    assert not store.told("services", child(7), gone=True)
    assert version_of(store) == "8"


def test_an_object_that_the_api_server_has_removed_is_gone_before_its_event(store):
    store.end("c")
    assert version_of(store) is None
    assert not store.told("services", child(99), gone=False)
    assert not store.told("services", child(99), gone=True)


def test_a_list_removes_what_it_lacks_but_not_what_came_since(store):
    since = store.mark()
    store.told("configmaps", child(6, uid="m"), gone=False)
    store.see(KEY, {"services": [], "configmaps": []}, since)
    assert version_of(store) is None
    assert version_of(store, "configmaps") == "6"


def test_a_look_touches_no_kind_that_it_did_not_ask_for(store):
    store.put("podmonitors", child(6, uid="m"))
    store.learn(KEY, {"services": []}, store.mark())
    store.replace(listed(inferenceservices=[service(1)]), store.mark())
    assert version_of(store, "podmonitors") == "6"


def test_a_doubted_service_is_asked_for_once(store):
    store.doubt(KEY)
    assert store.service(KEY) is None
    store.learn(KEY, {names.PLURAL: [service(1)]}, store.mark())
    assert store.service(KEY) == service(1)


def sights(*items):
    return {Identity(plural, body["metadata"]["uid"]): Sight(body["metadata"]["resourceVersion"], KEY)
            for plural, body in items}  # fmt: skip


@pytest.mark.parametrize(
    ("items", "behind"),
    [
        ([(names.PLURAL, service(1)), ("services", child(2))], set()),
        ([(names.PLURAL, service(1)), ("services", child(3))], {KEY}),  # changed
        ([(names.PLURAL, service(1)), ("services", child(1))], set()),  # the list is older
        ([(names.PLURAL, service(1)), ("services", child(9, uid="d"))], {KEY}),  # made anew
        ([(names.PLURAL, service(1))], {KEY}),  # gone
    ],
)
def test_a_later_list_shows_what_is_behind(store, items, behind):
    assert store.behind(sights(*items), store.mark()) == behind


def test_what_came_after_a_list_was_asked_for_is_not_behind(store):
    since = store.mark()
    store.told("jobs", child(7, uid="j"), gone=False)
    assert store.behind(sights((names.PLURAL, service(1)), ("services", child(2))), since) == set()


def test_objects_of_nobody_and_answers_that_are_no_objects_are_not_kept(store):
    nobody = {"metadata": {"namespace": "team", "name": "x", "uid": "x", "resourceVersion": "5"}}
    assert not store.told("services", nobody, gone=False)
    store.put("services", {})
    assert store.all_of("services", KEY) == [child(2)]


@pytest.mark.parametrize(
    ("plural", "manager", "kept"),
    [("services", "kubectl", True), ("services", "octavo-operator", False), ("pods", "kubectl", False)],
)
def test_who_set_which_field_is_kept_where_someone_will_ask(store, plural, manager, kept):
    body = child(9, uid=plural)
    body["metadata"]["managedFields"] = [
        {"manager": manager, "fieldsV1": {"f:spec": {}}},
        {"manager": "kube-controller-manager", "fieldsV1": {"f:metadata": {}}},
        {"manager": "someone", "subresource": "status"},
    ]
    store.put(plural, body)
    found = store.one(plural, KEY, "assistant")
    assert ("managedFields" in found["metadata"]) == kept
    assert plural != "services" or additions(found) == additions(body)


def test_versions_that_are_no_numbers_are_taken_as_they_come(store):
    assert store.told("services", child("abc"), gone=False) is False, "a number is later than what cannot be compared"
    assert store.told("configmaps", child("abc", uid="m"), gone=False)
    assert store.told("configmaps", child("aaa", uid="m", data={"a": "1"}), gone=False)
    assert not store.told("configmaps", child("aaa", uid="m", data={"a": "1"}), gone=False)


@pytest.mark.parametrize("seed", range(20))
def test_events_in_any_order_and_number_end_in_the_latest_state(seed):
    """Each life of an object is created, changed and deleted; its events come doubled, late and in another order."""
    shuffle = random.Random(seed)
    events, version, last = [], itertools.count(10), None
    for life in range(4):
        for _ in range(3):
            last = child(next(version), uid=f"life-{life}")
            events.append((last, False))
        if life < 3 or seed % 2:
            events.append((child(next(version), uid=f"life-{life}"), True))
            last = None
    jumbled = [*events, *shuffle.sample(events, len(events))]
    shuffle.shuffle(jumbled)
    store = Store()
    for body, gone in jumbled:
        store.told("services", body, gone)
    assert store.one("services", KEY, "assistant") == last
