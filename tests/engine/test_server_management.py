"""The management port, from a process that loads to one that has stopped."""

from __future__ import annotations

import json

import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from octavo_engine.batch import SchedulerStats
from octavo_engine.metrics import Metrics
from octavo_engine.request import Request, SamplingParams, WaitReason
from octavo_engine.server.context import Timelines
from octavo_engine.server.lifecycle import Lifecycle, State
from octavo_engine.server.management import build_management_app


class FakeEngine:
    died = False
    arrivals, completions = 7, 5

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            waiting={WaitReason.KV_FULL: 2}, running=3, used_blocks=1, free_blocks=3, oldest_arrival=0
        )


@pytest.fixture
def lifecycle() -> Lifecycle:
    return Lifecycle(model_name="m", max_num_seqs=4)


@pytest.fixture
def timelines() -> Timelines:
    return Timelines(capacity=2)


@pytest.fixture
def client(lifecycle: Lifecycle, timelines: Timelines) -> TestClient:
    registry = CollectorRegistry()
    Metrics(registry, model_name="m", stats=lifecycle.stats)
    return TestClient(build_management_app(lifecycle, registry, timelines))


def statuses(client: TestClient) -> tuple[int, int]:
    return client.get("/livez").status_code, client.get("/readyz").status_code


def test_probes_follow_the_state(client: TestClient, lifecycle: Lifecycle) -> None:
    assert statuses(client) == (200, 503)
    assert client.get("/readyz").text == "starting"
    lifecycle.engine = FakeEngine()  # type: ignore[assignment]
    lifecycle.serving()
    assert statuses(client) == (200, 200)
    lifecycle.state = State.DRAINING
    assert statuses(client) == (200, 503)
    lifecycle.state = State.STOPPED
    assert statuses(client) == (200, 503)


def test_liveness_fails_for_a_dead_or_stuck_step_thread_and_says_why(client: TestClient, lifecycle: Lifecycle) -> None:
    engine = FakeEngine()
    lifecycle.engine = engine  # type: ignore[assignment]
    lifecycle.serving()
    lifecycle.fault = "the step thread has not moved"
    assert statuses(client) == (503, 503)
    assert client.get("/livez").text == "the step thread has not moved"
    lifecycle.fault, engine.died = None, True
    assert statuses(client) == (503, 503)


def test_load_has_the_fields_that_scalers_read(client: TestClient, lifecycle: Lifecycle) -> None:
    empty = client.get("/load").json()
    assert (empty["state"], empty["startup_seconds"], empty["arrivals_total"]) == ("starting", None, 0)
    lifecycle.engine = FakeEngine()  # type: ignore[assignment]
    lifecycle.serving()
    load = client.get("/load").json()
    assert load["oldest_wait_seconds"] > 0
    assert load["startup_seconds"] >= 0
    del load["oldest_wait_seconds"], load["startup_seconds"]
    assert load == {
        "model_name": "m",
        "state": "serving",
        "waiting": {"new": 0, "token_budget": 0, "kv_full": 2, "batch_full": 0},
        "running": 3,
        "max_num_seqs": 4,
        "arrivals_total": 7,
        "completions_total": 5,
        "kv_cache_usage_ratio": 0.25,
    }


def test_metrics_are_there_from_the_start(client: TestClient) -> None:
    reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert 'octavo_requests_waiting{model_name="m",reason="kv_full"} 0.0' in reply.text


def test_timelines_hold_the_latest_requests_without_their_text(client: TestClient, timelines: Timelines) -> None:
    for name in "abc":
        timelines.add([Request(id=f"{name}-0", tokens=[1, 2, 3], params=SamplingParams(), arrival=1.0)])
    assert client.get("/v1/requests/a/timeline").status_code == 404
    events = client.get("/v1/requests/c/timeline").json()["events"]
    assert events == [{"seconds": 0.0, "what": "arrived", "why": ""}]
    assert "tokens" not in json.dumps(events)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/v1/models", "/health"])
def test_nothing_else_is_there(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404
