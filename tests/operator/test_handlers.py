"""kopf as we set it up: it tells what it sees, leaves no trace, and notices silence within two minutes."""

import kopf

from octavo_operator import handlers
from octavo_operator.watched import SERVICES, WATCHED


def test_only_event_handlers_are_registered():
    registry = handlers.registry(lambda *_: None, lambda: None)
    assert len(registry._watching._handlers) == len(WATCHED)
    for kind in (registry._changing, registry._spawning, registry._webhooks, registry._indexing):
        assert not kind._handlers


async def test_events_are_passed_on():
    told = []
    on_event = handlers._handler(SERVICES, lambda *what: told.append(what))
    body = {"metadata": {"namespace": "team", "name": "assistant", "uid": "u", "resourceVersion": "7"}}
    for kind in (None, "DELETED"):
        await on_event(event={"type": kind, "object": body}, body={})
    assert told == [(SERVICES, body, False), (SERVICES, body, True)]


def test_kopf_posts_nothing_and_scans_nothing():
    settings = handlers.settings()
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert set(settings.watching.label_selectors.values()) == {"app.kubernetes.io/managed-by=octavo-operator"}
    assert len(settings.watching.label_selectors) == len(WATCHED) - 1
    assert isinstance(settings, kopf.OperatorSettings)


def test_silence_is_noticed_within_two_minutes():
    """Bookmarks come every minute: a stream without one for that long is taken up again; so is a list unanswered."""
    settings = handlers.settings()
    assert 60 < settings.watching.inactivity_timeout + settings.watching.connect_timeout < 120
    assert settings.networking.request_timeout <= 30
    assert sum(settings.networking.error_backoffs) < 60
