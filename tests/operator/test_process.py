"""The process's parts: a bug met by one resource stops no other, liveness, the health port, log lines."""

import asyncio
import json
import logging
import sys
import time

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from octavo_operator import health, logs, loops, names
from octavo_operator.config import OperatorConfig
from octavo_operator.errors import Refused, Retryable, Throttled
from octavo_operator.heartbeat import Identity, Sight
from octavo_operator.loops import STALLED_SECONDS, Operator
from octavo_operator.metrics import Metrics
from octavo_operator.names import Key
from octavo_operator.store import Store
from octavo_operator.watched import WATCHED
from patience import PATIENCE_SECONDS

KEY = Key("team", "assistant")


def operator(error):
    """An operator whose API fails at the first request."""

    class Broken:
        store = Store()

        async def known(self, key):
            raise error

    return Operator(OperatorConfig(), Broken(), None, Metrics(CollectorRegistry()))


@pytest.mark.parametrize(
    ("error", "result", "least"),
    [
        (Retryable("down", 500), "error", 0.1),
        (Throttled("slow down", 429, 30.0), "error", 30.0),
        (ZeroDivisionError("a bug"), "bug", 0.1),
    ],
)
async def test_errors_stay_with_their_key(error, result, least, caplog):
    made, before = operator(error), asyncio.get_running_loop().time()
    await made.work(KEY)
    assert made._metrics.reconciles.labels(result)._value.get() == 1
    assert made._metrics.errors.labels(type(error).__name__)._value.get() == 1
    timer = made.queue._timers[KEY]
    assert timer.when() - before >= least
    assert "team/assistant" in caplog.text
    timer.cancel()


async def test_liveness_follows_the_sampler():
    made = operator(Retryable("down", 500))
    made.scaler.last_tick = time.monotonic() - STALLED_SECONDS - 1
    assert made.trouble() is None, "a standby samples nothing and is well"
    made.leading = True
    assert "no sample" in made.trouble()


POD, SEEN = Identity("pods", "uid-1"), Sight("7", KEY)
HEAD = {"name": "assistant-1", "namespace": "team", "uid": "uid-1", "resourceVersion": "7"}
BODY = {"metadata": HEAD | {"annotations": {names.PARENT_ANNOTATION: "assistant"}}}
PODS = next(watched for watched in WATCHED if watched.plural == "pods")


async def test_a_change_that_no_watch_tells_is_reconciled_and_dead_watches_begin_anew(caplog):
    made, restarts = operator(Retryable("down", 500)), []
    made.leading = True
    made.informer.restart = lambda: restarts.append(True)
    made._compare({POD: SEEN}, 0)
    assert len(made.queue) == 1
    assert made._metrics.missed_events._value.get() == 1
    assert not restarts
    assert made.trouble() is None
    made._compare({POD: SEEN}, 0)
    assert restarts
    assert "pods say nothing" in caplog.text
    assert made.trouble() is None, "beginning anew gets its chance first"
    made._silent_since -= STALLED_SECONDS + 1
    assert "told nothing" in made.trouble()
    made._told(PODS, BODY, False)
    made._compare({POD: SEEN}, 0)
    assert made.trouble() is None


def named(number):
    """One of several pods."""
    return BODY | {"metadata": BODY["metadata"] | {"name": f"assistant-{number}", "uid": f"uid-{number}"}}


async def test_events_cross_from_the_informers_thread(monkeypatch):
    made = operator(Retryable("down", 500))

    async def watch(config, tell, login, stop):
        for number in range(3):
            tell(PODS, named(number), False)

    monkeypatch.setattr(loops.handlers, "watch", watch)
    await asyncio.to_thread(lambda: asyncio.run(made._watch(asyncio.Event())))
    await asyncio.sleep(0)
    assert len(made.queue) == 1
    assert made._api.store.all_of("pods", KEY) == [named(number) for number in range(3)]
    await asyncio.to_thread(lambda: asyncio.run(made._watch(asyncio.Event())))
    await asyncio.sleep(0)
    assert not made._inbox, "what comes later is heard as well"


async def test_events_that_tell_nothing_new_cause_no_look():
    made = operator(Retryable("down", 500))
    made._api.store.put("pods", BODY)
    made._told(PODS, BODY, False)
    assert len(made.queue) == 0
    changed = BODY | {"metadata": BODY["metadata"] | {"resourceVersion": "8"}}
    made._told(PODS, changed, False)
    assert len(made.queue) == 1


SOON, LATER = loops._RETRY_SECONDS, OperatorConfig().resync_seconds


@pytest.mark.parametrize(
    ("error", "pause"), [(None, LATER), (Refused("forbidden", 403), LATER), (Retryable("down", 500), SOON)]
)
async def test_everything_is_listed_and_looked_at_also_where_not_all_can_be_listed(error, pause):
    made, listed = operator(None), []

    async def fill():
        listed.append(True)
        if error:
            raise error

    async def service_keys():
        return {KEY}

    made._api.fill, made._api.service_keys = fill, service_keys
    assert await made._caught_up() == pause
    assert listed
    assert len(made.queue) == 1


async def test_when_watching_begins_anew_nothing_is_known_until_everything_is_listed(monkeypatch):
    made, fills = operator(None), asyncio.Queue()
    made._api.fill = lambda: fills.put(made._resync.is_set())
    made._api.service_keys = lambda: asyncio.sleep(0, set())
    task = asyncio.create_task(made.resync())
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await fills.get() is False
        made._watching()
        assert await fills.get() is False
    task.cancel()


async def test_the_health_port():
    trouble = {"alive": None, "ready": "still starting"}
    registry = CollectorRegistry()
    Metrics(registry)
    port = 18_473
    checks = (lambda: trouble["alive"], lambda: trouble["ready"])
    async with health.serve("127.0.0.1", port, registry, *checks), aiohttp.ClientSession() as session:
        expected = {"/livez": (200, "ok"), "/readyz": (503, "still starting"), "/metrics": (200, "octavo_operator_")}
        for path, (status, text) in expected.items():
            async with session.get(f"http://127.0.0.1:{port}{path}") as response:
                assert response.status == status
                assert text in await response.text()


def test_log_lines_are_one_json_object_each():
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("octavo", logging.ERROR, __file__, 1, "a\n%s", ("b",), sys.exc_info())
    text = logs.JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["message"]) == ("error", "a\nb")
    assert "ValueError" in line["exception"]


def line_of(message, **more):
    """A record as the JSON formatter writes it, read back."""
    record = logging.makeLogRecord(
        {"name": "octavo", "levelno": logging.INFO, "levelname": "INFO", "msg": message} | more
    )
    return json.loads(logs.JsonFormatter().format(record))


async def test_lines_about_a_service_carry_its_name_and_the_reconciles_id(caplog):
    caplog.handler.setFormatter(logs.JsonFormatter())
    caplog.set_level(logging.DEBUG)
    made = operator(Retryable("down", 500))
    await made.work(KEY)
    made.queue._timers[KEY].cancel()
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    assert {(line["namespace"], line["service"]) for line in lines} == {("team", "assistant")}
    assert len({line["reconcile"] for line in lines}) == 1
    assert lines[-1]["result"] == "error"
    assert lines[-1]["seconds"] >= 0
    assert "service" not in line_of("later, about nothing")


@pytest.mark.parametrize(
    "secret",
    [
        "Authorization: Bearer abc.def-123",
        "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJvY3Rhdm8ifQ.c2lnbmF0dXJl",
        "https://user:hunter2@models.example/x",
    ],
)
def test_nothing_that_looks_like_a_credential_is_written(secret):
    for part in ("abc.def-123", "eyJzdWIi", "hunter2"):
        assert part not in line_of(f"a server said: {secret}")["message"]
    plain = logs.PlainFormatter("%(message)s").format(logging.makeLogRecord({"msg": secret}))
    assert "[redacted]" in plain
    plainly = "a Bearer of news; https://models.example:8443/a@b"
    assert logs.redacted(plainly) == plainly
