"""The management port, from a process that loads to one that has stopped."""

from __future__ import annotations

import json
from concurrent.futures import Future

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from octavo_engine.batch import SchedulerStats
from octavo_engine.errors import EngineDead
from octavo_engine.history.recent import History
from octavo_engine.metrics import Metrics
from octavo_engine.request import EventKind, Request, SamplingParams, WaitReason
from octavo_engine.server.lifecycle import Lifecycle, State
from octavo_engine.server.management import build_management_app


class FakeEngine:
    died = False
    arrivals, completions = 7, 5

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.flushed: int | Exception = 3

    def live_requests(self) -> list[Request]:
        return self.requests

    def flush(self) -> Future[int]:
        future: Future[int] = Future()
        if isinstance(self.flushed, int):
            future.set_result(self.flushed)
        else:
            future.set_exception(self.flushed)
        return future

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            waiting={WaitReason.KV_FULL: 2},
            running=3,
            used_blocks=1,
            free_blocks=3,
            oldest_arrival=0,
            blocked=WaitReason.KV_FULL,
            decided=1.0,
        )


@pytest.fixture
def lifecycle() -> Lifecycle:
    return Lifecycle(model_name="m", max_num_seqs=4)


@pytest.fixture
def history() -> History:
    return History(ended=2)


@pytest.fixture
def app(lifecycle: Lifecycle, history: History) -> FastAPI:
    registry = CollectorRegistry()
    metrics = Metrics(registry, model_name="m", stats=lifecycle.stats)
    metrics.server_state(lifecycle.states)
    lifecycle.estimate = metrics.estimated_queue_seconds
    return build_management_app(lifecycle, registry, history, metrics.flushed)


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app)


@pytest.fixture
def neighbour(app: FastAPI) -> TestClient:
    """A process on the same machine."""
    return TestClient(app, client=("127.0.0.1", 50000))


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


@pytest.mark.parametrize("state", State)
def test_the_state_is_a_metric(client: TestClient, lifecycle: Lifecycle, state: State) -> None:
    lifecycle.state = state
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith("octavo_server_state{")]
    assert len(lines) == len(State)
    assert [line for line in lines if not line.endswith(" 0.0")] == [
        f'octavo_server_state{{model_name="m",state="{state.value}"}} 1.0'
    ]


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
    assert load["estimated_queue_seconds"] == 0
    assert load["startup_seconds"] >= 0
    del load["oldest_wait_seconds"], load["startup_seconds"], load["estimated_queue_seconds"]
    assert load == {
        "model_name": "m",
        "state": "serving",
        "waiting": dict.fromkeys((reason.value for reason in WaitReason), 0) | {"kv_full": 2},
        "running": 3,
        "max_num_seqs": 4,
        "arrivals_total": 7,
        "completions_total": 5,
        "kv_cache_usage_ratio": 0.25,
        "limited_by": None,
    }


def test_metrics_are_there_from_the_start(client: TestClient) -> None:
    reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert 'octavo_requests_waiting{model_name="m",reason="kv_full"} 0.0' in reply.text


def ended(history: History, name: str, seconds: float = 1.0) -> None:
    request = Request(id=f"{name}-0", tokens=[1, 2, 3], params=SamplingParams(), arrival=1.0, x_request_id=f"x-{name}")
    request.note(1.0 + seconds, EventKind.FINISHED, "length")
    history.finished(request, 1.0 + seconds)


def test_the_api_is_described(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    assert described["openapi"] == "3.2.0"
    assert described["components"]["schemas"]["ChatBody"]["properties"]["model"]["enum"] == ["m"]
    assert "/v1/chat/completions" in described["paths"]


def test_timelines_hold_the_latest_requests_without_their_text(client: TestClient, history: History) -> None:
    for name in "abc":
        ended(history, name)
    assert client.get("/v1/requests/a/timeline").status_code == 404
    document = client.get("/v1/requests/c/timeline").json()
    assert document == client.get("/v1/requests/x-c/timeline").json() | {"received": document["received"]}
    assert document["id"] == "c-0"
    assert [event["what"] for event in document["events"]] == ["arrived", "finished"]
    assert document["tokens"] == {"prompt": 3, "cached": 0, "output": 0}
    assert "[1, 2, 3]" not in json.dumps(document)


def test_requests_tell_why_the_queue_waits_and_who_was_slow(
    client: TestClient, lifecycle: Lifecycle, history: History
) -> None:
    assert client.get("/v1/requests").json()["queue"]["state"] == "starting"
    engine = FakeEngine()
    lifecycle.engine = engine  # type: ignore[assignment]
    lifecycle.serving()
    engine.requests = [
        Request(id=f"live{i}-0", tokens=[1], params=SamplingParams(), arrival=float(10 - i)) for i in range(3)
    ]
    ended(history, "quick", 1.0)
    ended(history, "slow", 9.0)
    document = client.get("/v1/requests?limit=2").json()
    assert (document["queue"]["reason"], document["queue"]["waiting"]["kv_full"]) == ("kv_full", 2)
    assert document["queue"]["reason_seconds"] > 0
    assert [item["id"] for item in document["live"]] == ["live2-0", "live1-0"]
    assert [(item["id"], item["seconds"]) for item in document["slowest"]] == [("slow-0", 9.0), ("quick-0", 1.0)]
    assert client.get("/v1/requests?limit=0").status_code == 422


def test_a_flush_from_this_machine_frees_and_is_counted(neighbour: TestClient, lifecycle: Lifecycle) -> None:
    assert neighbour.post("/flush").json() == {"flushed_blocks": 0, "held_blocks": 0}
    lifecycle.engine = FakeEngine()  # type: ignore[assignment]
    reply = neighbour.post("/flush")
    assert (reply.status_code, reply.json()) == (200, {"flushed_blocks": 3, "held_blocks": 1})
    assert 'octavo_prefix_cache_flushed_blocks_total{model_name="m"} 3.0' in neighbour.get("/metrics").text
    assert neighbour.get("/flush").status_code == 405


@pytest.mark.parametrize("peer", ["10.1.2.3", "::ffff:10.1.2.3", "fe80::1", "unix", ""])
def test_nobody_else_may_flush(app: FastAPI, lifecycle: Lifecycle, peer: str) -> None:
    lifecycle.engine = FakeEngine()  # type: ignore[assignment]
    client = TestClient(app, client=(peer, 50000))
    assert client.post("/flush").status_code == 403
    assert 'flushed_blocks_total{model_name="m"} 0.0' in client.get("/metrics").text


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_has_many_names(app: FastAPI, peer: str) -> None:
    assert TestClient(app, client=(peer, 50000)).post("/flush").status_code == 200


def test_a_flush_takes_no_body_and_no_web_page(neighbour: TestClient) -> None:
    assert neighbour.post("/flush", json={}).status_code == 400
    assert neighbour.post("/flush", content=iter([b"x"])).status_code == 400
    assert neighbour.post("/flush", headers={"Origin": "http://evil.example"}).status_code == 403


def test_a_flush_of_a_dead_engine_says_so(neighbour: TestClient, lifecycle: Lifecycle) -> None:
    engine = FakeEngine()
    engine.flushed = EngineDead("the engine has stopped")
    lifecycle.engine = engine  # type: ignore[assignment]
    reply = neighbour.post("/flush")
    assert (reply.status_code, reply.json()) == (503, {"error": "the engine has stopped"})


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/v1/models", "/health"])
def test_nothing_else_is_there(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404
