"""From events to keys: which service an object belongs to, and a kopf that leaves no trace."""

import kopf
import pytest

from octavo_operator import handlers, names
from octavo_operator.names import Key

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
    assert handlers.parent_key({"metadata": {"namespace": "team"} | head}) == expected


def test_only_event_handlers_are_registered():
    registry = handlers.registry(lambda key: None, lambda: None)
    assert len(registry._watching._handlers) == 5
    for kind in (registry._changing, registry._spawning, registry._webhooks, registry._indexing):
        assert not kind._handlers


def test_kopf_posts_nothing_and_scans_nothing():
    settings = handlers.settings()
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert set(settings.watching.label_selectors.values()) == {names.SERVICE_LABEL}
    assert isinstance(settings, kopf.OperatorSettings)
