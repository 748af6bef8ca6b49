"""What clients see while the server drains: on kept, new and half-sent connections; queued, running and late requests.

The order of `drain_and_stop` without its end, which would take the test's own process along.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo_engine.server.lifecycle import State
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from patience import PATIENCE_SECONDS
from scripted_server import ScriptedServer, scripted_server, until

COMPLETIONS = "/v1/completions"
LONG = {"model": "scripted", "prompt": "x", "max_tokens": 100, "ignore_eos": True}
ASK = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture
def server(tokenizer: Tokenizer) -> Iterator[ScriptedServer]:
    """Runs two requests at once; their steps wait for the gate."""
    with scripted_server(tokenizer, max_num_seqs=2) as server:
        server.model.gate.clear()
        yield server


@contextmanager
def draining(server: ScriptedServer, seconds: float) -> Iterator[None]:
    """The drain has begun while the block runs, and is over after it."""
    server.context.lifecycle.state = State.DRAINING
    server.call(retire(server))
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(server.call, server.engine.drain(seconds))
        until(lambda: server.engine._refusal is not None, "the drain begins")
        yield
        drained.result(PATIENCE_SECONDS)


async def retire(server: ScriptedServer) -> None:
    server.listener.retire()


@contextmanager
def asking(server: ScriptedServer, *bodies: dict[str, Any]) -> Iterator[list[Future[httpx.Response]]]:
    """Clients that each send a body, one after the other, and wait."""
    with ThreadPoolExecutor(len(bodies)) as pool, server.client as client:
        replies = []
        for body in bodies:
            before = server.engine.arrivals
            replies.append(pool.submit(client.post, COMPLETIONS, json=body))
            until(lambda before=before: server.engine.arrivals > before, "it has arrived")
        yield replies


def begun(server: ScriptedServer) -> int:
    """How many requests a step has begun."""
    return sum(stream.request.begun for stream in list(server.engine._streams.values()))


def a_step(server: ScriptedServer) -> None:
    """Let the step that waits at the gate pass, if one does."""
    server.model.gate.set()
    server.model.gate.clear()


def connect(server: ScriptedServer, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(server.address, timeout=PATIENCE_SECONDS)
    connection.sendall(sent)
    return connection


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_what_was_begun_is_finished_what_waits_is_sent_away_at_once_and_so_is_what_comes(
    server: ScriptedServer,
) -> None:
    plain, streamed, pair = LONG, LONG | {"stream": True}, LONG | {"n": 2}
    with asking(server, plain, streamed, pair) as (first, second, waiting):
        # Step by step: with the gate open they might end before we look, and what waits would begin.
        until(lambda: a_step(server) or begun(server) == 2, "two run")
        with draining(server, PATIENCE_SECONDS):
            away = waiting.result(PATIENCE_SECONDS)  # while no step ends
            late = server.post(COMPLETIONS, prompt="late")
            for reply in (away, late):
                assert (reply.status_code, reply.headers["connection"]) == (503, "close")
                assert reply.json()["error"]["code"] == "shutting_down"
                assert int(reply.headers["retry-after"]) >= 1
            server.model.gate.set()
        answer = first.result(PATIENCE_SECONDS)
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert answer.headers["connection"] == "close"
        assert second.result(PATIENCE_SECONDS).text.endswith("data: [DONE]\n\n")


def test_what_does_not_end_in_time_is_told_so_while_a_step_hangs(server: ScriptedServer) -> None:
    with asking(server, LONG, LONG | {"stream": True}) as (plain, streamed):
        until(lambda: a_step(server) or begun(server) == 2, "both have begun")
        with draining(server, 0):
            pass
        told = plain.result(PATIENCE_SECONDS)
        assert (told.status_code, told.headers["connection"], told.headers["retry-after"]) == (503, "close", "1")
        assert told.json()["error"]["code"] == "interrupted"
        last = [event for event in streamed.result(PATIENCE_SECONDS).text.split("\n\n") if event][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "interrupted"
    server.model.gate.set()
    until(server.idle, "its blocks are free")


def test_connections_end_where_no_request_can_be_lost(server: ScriptedServer) -> None:
    kept, new, arriving = connect(server, ASK), connect(server), connect(server, ASK)
    for connection in (kept, arriving):
        reply = b""
        while not reply.endswith(b"]}"):
            reply += connection.recv(65536)
        assert b"connection: close" not in reply
    arriving.sendall(ASK[:20])
    busy = connect(server, post_of(LONG | {"stream": True, "max_tokens": 3}))
    until(lambda: begun(server) == 1, "a stream waits for its first token")
    until(lambda: len(server.listener.server_state.connections) == 4, "all four are connected")
    with draining(server, PATIENCE_SECONDS):
        assert rest(kept) == b"", "an idle one is closed"
        new.sendall(ASK)
        arriving.sendall(ASK[20:])
        for connection in (new, arriving):
            reply = rest(connection)
            assert reply.startswith(b"HTTP/1.1 200"), "it is answered, and is not used again"
            assert b"connection: close" in reply
        server.model.gate.set()
        assert rest(busy).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), "the reply is whole before the end"


def post_of(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content
