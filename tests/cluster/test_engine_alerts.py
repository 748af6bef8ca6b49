"""Alerts about a late, a stuck and a slowly starting engine, fired for real: pending, firing, and over.

Each is a process on this machine that a real Prometheus scrapes. The rules are the operator's own, with minutes that
last a second; what is wrong is a CPU limit of the kernel's or, for the stuck one, a step that does not end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import held_server
import prometheus_server
from cluster_tools import wait_for
from cpu_limited import cpu_limited
from going_on import going_on
from node import config, model
from octavo_operator.manifests.alerting import Scope
from octavo_operator.manifests.alerts import Objectives, service_alerts
from patience import PATIENCE_SECONDS
from prometheus_server import Prometheus, hastened, static_job
from serving_process import PORTS, START_SECONDS, ServingProcess, launch, start

pytestmark = pytest.mark.soak

SERVICE = "assistant"
FLAGS = ("--served-model-name=m", "--threads=1", "--max-model-len=512", "--max-num-seqs=16")
OBJECTIVES = Objectives(first_token=0.2, inter_token=0.2)
HISTOGRAMS = {
    "OctavoFirstTokenLate": "octavo_time_to_first_token_seconds",
    "OctavoTokensSlow": "octavo_inter_token_latency_seconds",
}
BURNS = [(name, severity) for name in HISTOGRAMS for severity in ("critical", "warning")]
CROWD, ANSWER = 16, 12  # a batch of so many takes a third of a processor about 0.3 s; alone one takes 0.02 s
LIMITED, STARTING = 0.3, 0.05  # of one processor; a start that may have so little takes about 40 s more


@contextmanager
def watching(settings: config.Settings, engine: ServingProcess, seconds: int = 1) -> Iterator[Prometheus]:
    """A Prometheus that scrapes this engine alone, as a service's pod, every so many seconds."""
    job = static_job(
        "octavo",
        engine.management_url.removeprefix("http://"),
        namespace="team",
        pod="assistant-1",
        inferenceservice=SERVICE,
    )
    alerts = [alert.rendered() for alert in service_alerts(Scope(), OBJECTIVES)]
    groups = hastened([{"name": "octavo-service", "rules": alerts}])
    with prometheus_server.prometheus(settings, [job], groups, seconds) as server:
        wait_for(lambda: server.query("octavo_server_state"), "the first scrape")
        yield server


def state(server: Prometheus, alert: str, severity: str) -> str | None:
    """Pending, firing or None; by severity, as two alerts of one name differ in nothing else."""
    found = server.query(f'ALERTS{{alertname="{alert}",severity="{severity}",inferenceservice="{SERVICE}"}}')
    return max((sample["metric"]["alertstate"] for sample in found), default=None)


def fires(server: Prometheus, alert: str, severity: str) -> None:
    """Waits until it does, and looks up that it was pending before: Prometheus remembers what a poll may miss."""
    wait_for(lambda: state(server, alert, severity) == "firing", f"{alert} {severity}; now: {server.alerts()}")
    pending = f'ALERTS{{alertname="{alert}",severity="{severity}",alertstate="pending"}}'
    assert server.query(f"last_over_time({pending}[10m])"), (alert, severity)


def ends(server: Prometheus, alert: str, severity: str) -> None:
    wait_for(lambda: state(server, alert, severity) is None, f"no {alert} {severity}; now: {server.alerts()}")


def ask(engine: ServingProcess, seed: int) -> dict[str, Any]:
    body = {"model": "m", "prompt": [1000 + seed] * 8, "max_tokens": ANSWER, "ignore_eos": True}
    reply = httpx.post(f"{engine.url}/v1/completions", json=body, timeout=PATIENCE_SECONDS)
    answer: dict[str, Any] = reply.raise_for_status().json()
    return answer


def clients(engine: ServingProcess, number: int) -> AbstractContextManager[None]:
    """So many, each of which asks again when it has its answer, until the body ends."""
    return going_on(number, lambda client, _: ask(engine, client))


@dataclass(frozen=True)
class Watched:
    """An engine that serves, what stops its steps, and who scrapes it."""

    engine: ServingProcess
    hold: Path
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(settings: config.Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    hold = tmp_path_factory.mktemp("held") / "hold"
    file = str(model.ensure_file(settings))
    with launch(held_server.__file__, str(hold), file, *PORTS, *FLAGS) as engine:
        engine.until(lambda: " serving " in engine.output, "it serves", START_SECONDS)
        with watching(settings, engine) as server:
            yield Watched(engine, hold, server)


def test_late_answers_burn_the_objectives_and_answers_in_time_end_the_alerts(watched: Watched) -> None:
    """Under a CPU limit nearly every token is late. Without it one client's come in time, and each alert ends though
    its long window still has what was late: the short one says that it is over."""
    engine, server = watched.engine, watched.prometheus
    with cpu_limited(engine.process.pid, LIMITED), clients(engine, CROWD):
        for alert, severity in BURNS:
            fires(server, alert, severity)
    with clients(engine, 1):
        for alert, histogram in HISTOGRAMS.items():
            ends(server, alert, "critical")
            late = server.value(Scope().late_share(histogram, 0.2, "60s"))
            assert late is not None
            assert late > 0.144, (alert, late)
        for alert in HISTOGRAMS:
            ends(server, alert, "warning")
    assert not server.alerts()


def test_a_step_that_does_not_end_is_a_stuck_engine_until_it_does(watched: Watched) -> None:
    """The process answers its probes and its scrapes, and holds a request; its watchdog has more patience."""
    engine, server = watched.engine, watched.prometheus
    wait_for(lambda: not server.alerts(), f"silence at rest; now: {server.alerts()}")
    answers: list[dict[str, Any]] = []
    asked = threading.Thread(target=lambda: answers.append(ask(engine, 0)))
    watched.hold.touch()
    try:
        asked.start()
        fires(server, "OctavoEngineStuck", "critical")
        assert engine.management("/livez").status_code == 200
        assert engine.load()["running"] == 1
        assert not answers
    finally:
        watched.hold.unlink()
        asked.join(60)
    assert answers[0]["usage"]["completion_tokens"] == ANSWER
    ends(server, "OctavoEngineStuck", "critical")


def test_a_start_that_takes_too_long_is_told_until_it_serves(settings: config.Settings) -> None:
    """What keeps it is a CPU limit from the moment on at which it can be scraped."""
    with start(model.ensure_file(settings), *FLAGS) as engine:
        engine.until(lambda: "management on" in engine.output, "its metrics can be read", START_SECONDS)
        with ExitStack() as limit:
            limit.enter_context(cpu_limited(engine.process.pid, STARTING))
            with watching(settings, engine, seconds=2) as server:
                fires(server, "OctavoSlowStart", "warning")
                assert engine.management("/readyz").text in ("starting", "warming")
                limit.close()
                engine.until(lambda: " serving " in engine.output, "it serves", START_SECONDS)
                ends(server, "OctavoSlowStart", "warning")
