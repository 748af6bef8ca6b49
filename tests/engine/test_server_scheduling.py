"""What a client can say about its place in the queue, and what the server says when there is none."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from octavo_engine.pulse import Phase
from octavo_engine.request import FinishReason, WaitReason
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from scripted_server import ScriptedServer, scripted_server, until

pytestmark = pytest.mark.engine

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Asked:
    """Requests sent one after another while the model stands still."""

    def __init__(self, server: ScriptedServer, pool: ThreadPoolExecutor) -> None:
        self._server, self._pool = server, pool

    def send(self, **body: object) -> Future[httpx.Response]:
        """Send one, and see it in the queue before the next is sent."""
        arrivals = self._server.engine.arrivals
        body = {"prompt": "x", "max_tokens": 3} | body
        future = self._pool.submit(lambda: self._server.post(COMPLETIONS, **body))
        until(lambda: self._server.engine.arrivals > arrivals or future.done(), "it arrives")
        return future


def hold(server: ScriptedServer, asked: Asked) -> Future[httpx.Response]:
    """Let one request take the only place, and stop the model in its first step."""
    server.model.gate.clear()
    first = asked.send(priority=-1)
    until(lambda: server.engine.beat.phase is not Phase.IDLE, "a step is under way")
    return first


def test_the_lower_number_is_served_first(tokenizer: Tokenizer, pool: ThreadPoolExecutor) -> None:
    with scripted_server(tokenizer, scheduling_policy="priority", max_num_seqs=1) as server:
        asked = Asked(server, pool)
        replies = [hold(server, asked)]
        replies += [asked.send(priority=priority) for priority in (7, 0, -1)]
        server.model.gate.set()
        assert [reply.result().status_code for reply in replies] == [200] * 4
        assert [request.priority for request in server.recorder.ended] == [-1, -1, 0, 7]


@pytest.mark.parametrize("policy", ["fcfs", "cache-aware"])
def test_a_priority_that_would_change_nothing_is_refused(tokenizer: Tokenizer, policy: str) -> None:
    with scripted_server(tokenizer, scheduling_policy=policy) as server:
        refused = server.post(COMPLETIONS, prompt="x", priority=1)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "priority"
        assert refused.json()["error"]["code"] == "unsupported_parameter"
        assert server.engine.arrivals == 0
        assert server.post(COMPLETIONS, prompt="x", priority=0).status_code == 200


@pytest.mark.parametrize("priority", [1001, -1001, 1.5, "1", True, None])
def test_a_priority_is_a_bounded_integer(tokenizer: Tokenizer, priority: object) -> None:
    with scripted_server(tokenizer, scheduling_policy="priority") as server:
        refused = server.post(COMPLETIONS, prompt="x", priority=priority)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")


@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_too_long_is_asked_to_come_back(tokenizer: Tokenizer, pool: ThreadPoolExecutor, stream: bool) -> None:
    with scripted_server(
        tokenizer, scheduling_policy="priority", max_num_seqs=1, queue_timeout=3600, timeout=7200
    ) as server:
        asked = Asked(server, pool)
        first = hold(server, asked)
        second = asked.send(stream=stream)
        server.let_time_go_by(3600)
        server.model.gate.set()
        assert first.result().status_code == 200
        reply = second.result()
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_deadline")
        assert int(reply.headers["retry-after"]) >= 1
        ends = {request.finish_reason for request in server.recorder.ended}
        assert ends == {FinishReason.LENGTH, FinishReason.QUEUE_DEADLINE}


def test_a_sibling_waits_for_the_prefix_and_its_timeline_says_for_whom(
    tokenizer: Tokenizer, pool: ThreadPoolExecutor
) -> None:
    with scripted_server(tokenizer, scheduling_policy="cache-aware") as server:
        stem, asked = list(range(1000, 1100)), Asked(server, pool)
        server.model.gate.clear()
        asked.send(prompt="another")
        until(lambda: server.engine.beat.phase is not Phase.IDLE, "a step is under way")
        replies = [asked.send(prompt=[*stem, last]) for last in (1, 2)]
        server.model.gate.set()
        first, second = (reply.result().json() for reply in replies)
        timeline = server.timeline(second["id"])
        assert timeline is not None
        waits = [event for event in timeline.events if event.why == WaitReason.PREFIX_PENDING]
        assert waits[0].by.startswith(first["id"])
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 96  # six blocks of sixteen
