"""Which service an object belongs to, and what its events tell."""

import pytest

from octavo_operator import names
from octavo_operator.heartbeat import Identity, Sight
from octavo_operator.names import Key
from octavo_operator.watched import SERVICES, WATCHED, parent_key, sight

OWNER = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "assistant", "controller": True}
REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "assistant-1", "controller": True}


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({"ownerReferences": [OWNER]}, Key("team", "assistant")),
        ({"ownerReferences": [OWNER | {"controller": False}]}, None),
        (
            {"ownerReferences": [REPLICA_SET], "annotations": {names.PARENT_ANNOTATION: "my.model"}},
            Key("team", "my.model"),
        ),
        ({}, None),
    ],
)
def test_the_parent_of_an_object(head, expected):
    assert parent_key({"metadata": {"namespace": "team"} | head}) == expected


def test_an_event_tells_who_at_which_version_and_whose():
    head = {"namespace": "team", "name": "assistant", "uid": "u", "resourceVersion": "7"}
    assert sight(SERVICES, {"metadata": head}) == (
        Identity(names.PLURAL, "u"),
        Sight("7", Key("team", "assistant")),
    )
    child = {"metadata": head | {"name": "x", "ownerReferences": [OWNER]}}
    assert sight(WATCHED[1], child)[1].key == Key("team", "assistant")
    assert sight(WATCHED[1], {"metadata": head})[1].key is None


def test_only_objects_with_our_label_are_watched():
    assert SERVICES.selector is None
    assert {watched.selector for watched in WATCHED if watched != SERVICES} == {
        "app.kubernetes.io/managed-by=octavo-operator"
    }
