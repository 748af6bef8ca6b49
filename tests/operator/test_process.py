"""The process's parts: a bug met by one resource stops no other, liveness, the health port, log lines."""

import asyncio
import json
import logging
import sys
import time

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from octavo_operator import health, logs
from octavo_operator.config import OperatorConfig
from octavo_operator.errors import Retryable, Throttled
from octavo_operator.metrics import Metrics
from octavo_operator.names import Key
from octavo_operator.process import STALLED_SECONDS, Operator

KEY = Key("team", "assistant")


def operator(error):
    """An operator whose API fails at the first request."""

    class Broken:
        async def service(self, key):
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
    made = operator(error)
    await made.work(KEY)
    assert made._metrics.reconciles.labels(result)._value.get() == 1
    timer = made.queue._timers[KEY]
    assert timer.when() - asyncio.get_running_loop().time() >= least * 0.8
    assert "team/assistant" in caplog.text
    timer.cancel()


async def test_liveness_follows_the_sampler():
    made = operator(Retryable("down", 500))
    made.scaler.last_tick = time.monotonic() - STALLED_SECONDS - 1
    assert made.trouble() is None, "a standby samples nothing and is well"
    made.leading = True
    assert "no sample" in made.trouble()


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
