"""Ten times as much as can be served, and then nothing: the queue is bounded, the rest is sent away at once, what was
let in is answered, and afterwards the server is as before."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.request import FinishReason, RejectReason
from octavo_engine.tokenizer import load_tokenizer
from patience import PATIENCE_SECONDS
from scripted_server import ScriptedServer, scripted_server, until
from turnstile import Turnstile

RUNNING, WAITING = 4, 16
TOKENS = RUNNING  # so that each step makes as many tokens as one answer has
TIMES = 10  # as many come while one is answered
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


async def true(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def overload(server: ScriptedServer, turnstile: Turnstile, answers: int) -> tuple[list[Reply], int]:
    """Lets a step pass each time that TIMES more have come, so that about so many are answered; then all that follow.

    The replies, and the longest the queue has been. Who is sent away hears so while the steps stand still.
    """
    clients: list[asyncio.Task[Reply]] = []
    longest, refused = 0, server.recorder.rejected

    def all_have_come() -> bool:
        return server.engine.arrivals + len(refused) == len(clients)

    async with asyncio.timeout(PATIENCE_SECONDS + answers):
        for number in range(1, answers + 1):
            clients.extend(asyncio.create_task(ask(server.address)) for _ in range(TIMES))
            await true(all_have_come)
            longest = max(longest, sum(server.engine.stats().waiting.values()))
            turnstile.grant()
            await true(lambda number=number: turnstile.passed == number)  # type: ignore[misc]
        await true(lambda: sum(client.done() and client.result().status == 429 for client in clients) == len(refused))
        turnstile.set()
        return await asyncio.gather(*clients), longest


@pytest.mark.parametrize("answers", [100, pytest.param(6_000, marks=pytest.mark.soak)])
def test_ten_times_as_much_as_can_be_served_and_then_nothing(smollm2_gguf: Path, answers: int) -> None:
    tokenizer, turnstile = load_tokenizer(str(smollm2_gguf)), Turnstile()
    with scripted_server(tokenizer, max_waiting=WAITING, max_num_seqs=RUNNING) as server:
        server.model.gate = turnstile  # type: ignore[assignment]
        replies, longest = asyncio.run(overload(server, turnstile, answers))
        statuses = Counter(reply.status for reply in replies)
        assert set(statuses) == {200, 429}
        assert answers / 2 < statuses[200] <= answers + RUNNING + WAITING
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
