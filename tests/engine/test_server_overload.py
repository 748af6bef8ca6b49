"""Ten times as much as can be served, and then nothing: the queue is bounded, the rest is sent away at once, what was
let in is answered, and afterwards the server is as before."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.request import FinishReason, RejectReason
from octavo_engine.tokenizer import load_tokenizer
from scripted_server import ScriptedServer, scripted_server, until

RUNNING, WAITING = 4, 16
STEP_SECONDS, TOKENS = 0.01, 4
PER_SECOND = RUNNING / (STEP_SECONDS * TOKENS)  # at the very most
BODY = json.dumps({"model": "scripted", "prompt": [5], "max_tokens": TOKENS, "ignore_eos": True}).encode()
SENT = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: Any


async def ask(address: tuple[str, int]) -> Reply:
    """One client with a connection of its own, which does not wait for the others."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(SENT)
    head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    writer.close()
    first, *lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Reply(int(first.split()[1]), headers, json.loads(body))


async def overload(server: ScriptedServer, seconds: float) -> tuple[list[Reply], int]:
    """The replies, and the longest the queue has been."""
    clients: list[asyncio.Task[Reply]] = []
    longest, began = 0, time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        while len(clients) < 10 * PER_SECOND * elapsed:
            clients.append(asyncio.create_task(ask(server.address)))
        await asyncio.sleep(0.01)
        longest = max(longest, sum(server.engine.stats().waiting.values()))
    async with asyncio.timeout(60):
        return await asyncio.gather(*clients), longest


@pytest.mark.parametrize("seconds", [1.0, pytest.param(60.0, marks=pytest.mark.soak)])
def test_ten_times_as_much_as_can_be_served_and_then_nothing(smollm2_gguf: Path, seconds: float) -> None:
    tokenizer = load_tokenizer(str(smollm2_gguf))
    with scripted_server(tokenizer, max_waiting=WAITING, max_num_seqs=RUNNING) as server:
        launch = server.model.launch

        def slowly(batch: Any) -> Any:
            time.sleep(STEP_SECONDS)
            return launch(batch)

        server.model.launch = slowly  # type: ignore[method-assign]
        replies, longest = asyncio.run(overload(server, seconds))
        statuses = Counter(reply.status for reply in replies)
        assert set(statuses) == {200, 429}
        assert statuses[429] > statuses[200] > RUNNING + WAITING / 2
        assert 0 < longest <= WAITING
        for reply in replies:
            if reply.status == 429:
                assert reply.body["error"]["code"] == RejectReason.QUEUE_FULL
                assert int(reply.headers["retry-after"]) >= 1
            else:
                assert reply.body["usage"]["completion_tokens"] == TOKENS
        # What was let in, and nothing else, was computed, to its end.
        assert statuses[200] == server.engine.arrivals == server.engine.completions
        assert {request.finish_reason for request in server.recorder.ended} == {FinishReason.LENGTH}
        until(server.idle, "nothing runs, nothing waits, all blocks are free")
        assert [asyncio.run(ask(server.address)).status for _ in range(3)] == [200] * 3
