"""One line for each request, however it ends: right in its ids and counts, whole, and without a word of anybody's."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from held_output import Out
from octavo_engine.request import Request
from octavo_engine.server.access_log import JsonAccessLog, TextAccessLog
from octavo_engine.server.auth import KeyRing
from octavo_engine.server.exchange import Exchange, watched_by
from octavo_engine.server.lifecycle import State
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from scripted_server import DEADLINE_SECONDS, ScriptedServer, exchange, scripted_server, until

pytestmark = pytest.mark.engine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = [{"role": "user", "content": "Xylophones, where?"}]
KEY = "sk-first-key-of-the-test"
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Log(Out):
    """What the access log has said."""

    def lines(self, count: int) -> list[dict[str, Any]]:
        """All lines, once there are so many."""
        until(lambda: self.getvalue().count("\n") >= count, f"{count} lines in {self.getvalue()}")
        text = self.getvalue()
        assert text.isascii()
        assert text.count("\n") == count, text
        return [json.loads(line) for line in text.splitlines()]

    def line(self) -> dict[str, Any]:
        """The only line there is; the next test finds none."""
        (line,) = self.lines(1)
        self.seek(0)
        self.truncate()
        return line


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture(scope="module")
def module_out() -> Log:
    return Log()


@pytest.fixture(scope="module")
def shared(tokenizer: Tokenizer, module_out: Log) -> Iterator[ScriptedServer]:
    log = JsonAccessLog(module_out, model="scripted", clients=True)
    with scripted_server(tokenizer, keys=KeyRing((KEY,)), on_end=log, max_waiting=4, max_num_seqs=4) as server:
        yield server


@pytest.fixture
def out(module_out: Log) -> Log:
    assert module_out.getvalue() == ""
    return module_out


def post(server: ScriptedServer, path: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    with server.client as client:
        given = {"Authorization": f"Bearer {KEY}"} | (headers or {})
        return client.post(path, json={"model": "scripted"} | body, headers=given)


def test_an_answer_is_told_with_the_ids_and_counts_that_the_client_sees(shared: ScriptedServer, out: Log) -> None:
    traced = {"x-request-id": "mine-1", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    answer = post(shared, CHAT, traced, messages=QUESTION, n=2).json()
    line = out.line()
    usage = answer["usage"]
    assert line == line | {
        "log": "access",
        "id": answer["id"],
        "x_request_id": "mine-1",
        "trace_id": TRACE,
        "client": "127.0.0.1",
        "method": "POST",
        "route": CHAT,
        "status": 200,
        "error": None,
        "model": "scripted",
        "stream": False,
        "choices": 2,
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "output_tokens": usage["completion_tokens"],
        "finish_reason": "stop",
    }
    assert 0 < line["queue_seconds"] <= line["first_token_seconds"] <= line["seconds"] < DEADLINE_SECONDS
    assert line["time"].endswith("Z")
    found = shared.timeline(line["id"])
    assert found is not None
    assert found.first_token == pytest.approx(line["first_token_seconds"], abs=1e-5)


def test_it_says_nothing_of_what_was_said_nor_of_the_key(shared: ScriptedServer, out: Log) -> None:
    post(shared, COMPLETIONS, prompt="Xylophone concerto", user="somebody", stop=["Paris"])
    (_,) = out.lines(1)
    text = out.getvalue()
    assert not any(word in text for word in ("Xylophone", "Paris", "somebody", KEY, KEY.removeprefix("sk-")))
    assert len(out.line()["key"]) == 8


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses"])
def test_a_stream_is_told_when_it_is_over(shared: ScriptedServer, out: Log, path: str) -> None:
    asked = {CHAT: {"messages": QUESTION}, COMPLETIONS: {"prompt": "x", "max_tokens": 99}}.get(path, {"input": "x"})
    shared.model.gate.clear()
    opened = threading.Thread(target=lambda: post(shared, path, stream=True, **asked))
    opened.start()
    until(lambda: shared.engine.stats().running, "it is being answered")
    assert out.getvalue() == ""
    shared.model.gate.set()
    opened.join(DEADLINE_SECONDS)
    line = out.line()
    assert (line["stream"], line["status"], line["finish_reason"], line["route"]) == (True, 200, "stop", path)
    assert line["output_tokens"] > 1
    assert line["first_token_seconds"] < line["seconds"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((COMPLETIONS, {"prompt": "x", "temperature": 9}, {}), (400, "invalid_value")),
        ((COMPLETIONS, {"prompt": "x", "nonsense": 9}, {}), (400, "unknown_parameter")),
        ((COMPLETIONS, {"prompt": "x" * 900}, {}), (400, "context_length_exceeded")),
        ((COMPLETIONS, {"prompt": "x", "model": "another"}, {}), (404, "model_not_found")),
        ((COMPLETIONS, {"prompt": "x"}, {"Authorization": "Bearer no"}), (401, "invalid_api_key")),
        ((COMPLETIONS, {"prompt": "x"}, {"Content-Type": "text/plain"}), (415, "unsupported_media_type")),
        (("/v1/nothing", {}, {}), (404, "not_found")),
        (("/v1/models", {}, {}), (405, "method_not_allowed")),
    ],
)
def test_who_is_refused_is_told_with_the_reason(
    shared: ScriptedServer, out: Log, asked: tuple[str, Any, dict[str, str]], expected: tuple[int, str]
) -> None:
    path, body, headers = asked
    reply = post(shared, path, headers, **body)
    assert reply.status_code == expected[0]
    line = out.line()
    assert (line["status"], line["error"], line["route"]) == (*expected, path)
    assert line["x_request_id"] == reply.headers["x-request-id"]
    unknown = ("id", "model", "choices", "output_tokens", "finish_reason", "queue_seconds", "first_token_seconds")
    assert {line[name] for name in unknown} == {None}


def test_other_routes_are_told_and_a_server_that_is_well_is_not(shared: ScriptedServer, out: Log) -> None:
    with shared.client as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 200
        assert (line := out.line())["route"] == "/v1/models"
        assert (line["status"], line["error"]) == (200, None)
        shared.context.lifecycle.state = State.DRAINING
        assert client.get("/health").status_code == 503
        shared.context.lifecycle.state = State.SERVING
    assert out.line()["status"] == 503


def test_for_want_of_room_the_line_has_the_id_that_explain_knows(shared: ScriptedServer, out: Log) -> None:
    reply = post(shared, COMPLETIONS, prompt="x", n=5)
    assert reply.status_code == 429
    line = out.line()
    assert (line["status"], line["error"], line["finish_reason"]) == (429, "queue_full", None)
    found = shared.timeline(line["id"])
    assert found is not None
    assert found.state == "rejected"


def test_a_fault_inside_is_told_plain_and_streamed(
    shared: ScriptedServer, out: Log, caplog: pytest.LogCaptureFixture
) -> None:
    shared.model.fault = fail_after(0)
    try:
        reply = post(shared, COMPLETIONS, prompt="x")
        assert reply.status_code == 500
        line = out.line()
        assert (line["status"], line["error"], line["finish_reason"]) == (500, "internal_error", "error")
        assert f"{line['id']}-0" in reply.json()["error"]["message"]
        shared.model.fault = fail_after(2)
        assert "internal_error" in post(shared, COMPLETIONS, prompt="x", stream=True).text
        line = out.line()
        assert (line["status"], line["error"], line["finish_reason"]) == (200, "internal_error", "error")
        assert line["output_tokens"] == 2
    finally:
        shared.model.fault = lambda _: None


def fail_after(tokens: int) -> Any:
    """A model that has no further token for a request that has so many."""
    return lambda request: "scripted failure" if request.num_output >= tokens else None


def test_a_client_that_leaves_is_told(shared: ScriptedServer, out: Log) -> None:
    body = json.dumps({"model": "scripted", "prompt": "x", "stream": True, "max_tokens": 200, "ignore_eos": True})
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    )
    noticed = threading.Event()

    def stand_still(request: Request) -> None:
        if request.num_output > 2:
            noticed.wait(DEADLINE_SECONDS)

    shared.model.fault = stand_still
    try:
        with closing(socket.create_connection(shared.address, timeout=DEADLINE_SECONDS)) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert connection.recv(1000)
        until(lambda: shared.engine._cancelled, "it is noticed while a step stands still")
        noticed.set()
        line = out.line()
    finally:
        noticed.set()
        shared.model.fault = lambda _: None
    assert line["finish_reason"] == "abort"
    assert line["id"].startswith("cmpl-")
    with closing(socket.create_connection(shared.address, timeout=DEADLINE_SECONDS)) as connection:
        connection.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
    line = out.line()
    assert (line["status"], line["id"], line["error"]) == (499, None, None)


def test_what_a_client_writes_breaks_no_line_and_steers_no_terminal(shared: ScriptedServer, out: Log) -> None:
    path = "/%0d%0a%1b[31m%22}%0a{%22log%22:%22access%22%e2%80%a8" + "x" * 4000
    sent = (
        f"GET {path} HTTP/1.1\r\nHost: x\r\nx-request-id: a\x1b[31mb\r\ntraceparent: 00-zz\r\nConnection: close\r\n\r\n"
    )
    assert exchange(shared, sent.encode()).startswith(b"HTTP/1.1 401")
    line = out.line()
    assert line["route"].startswith('/\r\n\x1b[31m"}\n{"log":"access"\u2028x')
    assert len(line["route"]) == 256
    assert line["x_request_id"].isalnum()
    assert line["trace_id"] is None


def test_who_does_not_read_loses_lines_and_holds_nobody_up(tokenizer: Tokenizer) -> None:
    out = Log()
    log = JsonAccessLog(out, model="scripted", waiting=2)
    out.gate.clear()
    with scripted_server(tokenizer, on_end=log) as server:
        for _ in range(12):
            assert server.post(COMPLETIONS, prompt="x", max_tokens=1).status_code == 200
    out.gate.set()
    log._lines.close(DEADLINE_SECONDS)
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    left_out = sum(line.get("left_out", 0) for line in told)
    written = [line for line in told if "left_out" not in line]
    assert left_out > 0
    assert len(written) + left_out == 12
    assert "client" not in written[0]


def test_a_log_that_fails_is_no_fault_of_the_request(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Exchange] = []

    def broken(_: Exchange) -> None:
        raise OSError("no")

    with scripted_server(tokenizer, on_end=watched_by([broken, told.append])) as server:
        reply = server.post(COMPLETIONS, prompt="x", max_tokens=1)
        assert reply.status_code == 200
        until(lambda: told, "the other is told")
    assert f"request {reply.headers['x-request-id']} cannot be told of" in caplog.text


def test_in_words(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="octavo.access")
    with scripted_server(tokenizer, keys=KeyRing((KEY,)), on_end=TextAccessLog(clients=True)) as server:
        answer = post(server, COMPLETIONS, {"x-request-id": "mine-2"}, prompt="x", max_tokens=3).json()
        post(server, "/%1b[31m")
        until(lambda: len(caplog.messages) == 2, "both are logged")
    first, second = caplog.messages
    assert first.startswith(f"mine-2 POST '{COMPLETIONS}' 200 ")
    counts = answer["usage"]["prompt_tokens"]
    assert f"{answer['id']}: {counts} tokens in (0 cached), 3 out, the first after" in first
    assert first.endswith("s, length")
    assert "from 127.0.0.1" in first
    assert second.endswith("not_found")
    assert "\x1b" not in second
