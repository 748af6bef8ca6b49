"""What the API answers: streams equal plain answers, limits hold, and nobody generates for a client that has gone."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo_engine.pulse import Phase
from octavo_engine.request import FinishReason, RejectReason
from octavo_engine.server import connections
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from patience import PATIENCE_SECONDS
from scripted_server import SCRIPT, WINDOW, ScriptedServer, scripted_server, until

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture(scope="module")
def shared(tokenizer: Tokenizer) -> Iterator[ScriptedServer]:
    with scripted_server(tokenizer) as server:
        yield server


@pytest.fixture
def server(tokenizer: Tokenizer) -> Iterator[ScriptedServer]:
    with scripted_server(tokenizer) as server:
        yield server


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def joined_chat(chunks: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """The plain choices that a stream's chunks stand for."""
    choices: list[dict[str, Any]] = [{"content": "", "logprobs": None, "finish_reason": None} for _ in range(n)]
    for chunk in chunks:
        for piece in chunk["choices"]:
            choice = choices[piece["index"]]
            assert choice["finish_reason"] is None, "a piece after the end"
            choice["content"] += piece["delta"].get("content", "")
            choice["finish_reason"] = piece["finish_reason"]
            if piece["logprobs"] is not None:
                choice["logprobs"] = (choice["logprobs"] or []) + piece["logprobs"]["content"]
    return choices


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"n": 3, "logprobs": True, "top_logprobs": 2},
        {"stop": "END"},
        {"stop": ["the END", " of"], "include_stop_str_in_output": True, "logprobs": True},
        {"stop": "👍", "n": 2},
        {"max_tokens": 7},
        {"max_completion_tokens": 60, "ignore_eos": True, "skip_special_tokens": False},
    ],
)
def test_a_stream_carries_what_the_plain_answer_does(shared: ScriptedServer, extra: dict[str, Any]) -> None:
    plain = shared.post(CHAT, messages=QUESTION, **extra).json()
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events(shared.post(CHAT, messages=QUESTION, **extra, **stream))
    expected = [
        {
            "content": choice["message"]["content"],
            "logprobs": choice["logprobs"] and choice["logprobs"]["content"],
            "finish_reason": choice["finish_reason"],
        }
        for choice in plain["choices"]
    ]
    assert joined_chat(chunks, extra.get("n", 1)) == expected
    assert chunks[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["usage"] | {"prompt_tokens_details": {}} == plain["usage"] | {"prompt_tokens_details": {}}
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_the_whole_script_is_said(shared: ScriptedServer) -> None:
    answer = shared.post(CHAT, messages=QUESTION).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": SCRIPT, "refusal": None}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == 37
    assert answer["usage"]["completion_tokens"] == len(shared.model.script)


def test_logprobs_have_the_bytes_of_tokens_that_are_no_characters(shared: ScriptedServer) -> None:
    answer = shared.post(CHAT, messages=QUESTION, logprobs=True, top_logprobs=1).json()
    entries = answer["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == SCRIPT
    assert all(len(entry["top_logprobs"]) == 1 for entry in entries)


def test_completions_take_several_prompts_of_both_kinds(shared: ScriptedServer) -> None:
    for prompts in (["one", "two"], [[1, 2, 3], [4]]):
        body = {"prompt": prompts, "n": 2, "max_tokens": 5, "logprobs": 1}
        plain = shared.post(COMPLETIONS, **body).json()
        assert [choice["index"] for choice in plain["choices"]] == [0, 1, 2, 3]
        chunks = events(shared.post(COMPLETIONS, **body, stream=True))
        for choice in plain["choices"]:
            pieces = [piece for chunk in chunks for piece in chunk["choices"] if piece["index"] == choice["index"]]
            assert "".join(piece["text"] for piece in pieces) == choice["text"]
            for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [item for piece in pieces for item in piece["logprobs"][key]] == choice["logprobs"][key]


def test_cached_tokens_are_counted(server: ScriptedServer) -> None:
    prompt = list(range(100, 164))
    first, second = (server.post(COMPLETIONS, prompt=prompt, max_tokens=2).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"]["cached_tokens"] >= 48


def test_seeds_of_copies_differ_and_repeat(server: ScriptedServer) -> None:
    server.post(CHAT, messages=QUESTION, n=2, seed=2**63 - 1)
    assert sorted(request.params.seed or 0 for request in server.recorder.ended) == [0, 2**63 - 1]


def test_models_tokenize_detokenize_and_health(shared: ScriptedServer) -> None:
    with shared.client as client:
        (model,) = client.get("/v1/models").json()["data"]
        assert client.get("/v1/models/scripted").json() == model
        assert (model["id"], model["max_model_len"]) == ("scripted", WINDOW)
        assert client.get("/v1/models/other/name").json()["error"]["code"] == "model_not_found"
        assert client.get("/health").json() == {"status": "serving"}
        tokens = client.post("/tokenize", json={"prompt": "Hello 日本"}).json()
        assert client.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": "Hello 日本"}
        assert client.post("/tokenize", json={"messages": QUESTION}).json()["count"] == 37


def test_another_model_is_not_found(shared: ScriptedServer) -> None:
    reply = shared.post(CHAT, messages=QUESTION, model="gpt-4")
    assert (reply.status_code, reply.json()["error"]["param"]) == (404, "model")


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/metrics", "/load", "/livez", "//v1/models", "/v1/models/"]
)
def test_nothing_else_is_served_on_the_api_port(shared: ScriptedServer, path: str) -> None:
    with shared.client as client:
        assert client.get(path).status_code == 404


def test_the_wrong_method_is_named_in_openais_form(shared: ScriptedServer) -> None:
    with shared.client as client:
        reply = client.get(CHAT)
    assert (reply.status_code, reply.json()["error"]["code"]) == (405, "method_not_allowed")


def test_ids_come_back_and_hostile_ones_do_not(shared: ScriptedServer) -> None:
    with shared.client as client:
        assert client.get("/health", headers={"X-Request-Id": "my-id_1.2"}).headers["x-request-id"] == "my-id_1.2"
        assert client.get("/health", headers={"X-Request-Id": "a b\x1b[31m"}).headers["x-request-id"] != "a b\x1b[31m"


def open_stream(server: ScriptedServer, path: str, body: dict[str, Any]) -> socket.socket:
    """A request sent on a socket of its own, to be closed at will."""
    content = json.dumps({"model": "scripted"} | body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    )
    connection = socket.create_connection(server.address, timeout=PATIENCE_SECONDS)
    connection.sendall(head.encode() + content)
    return connection


def read_all(connection: socket.socket) -> bytes:
    """The reply, until the server closes."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
def test_a_client_that_goes_away_frees_everything(server: ScriptedServer, stream: bool, phase: str) -> None:
    server.model.gate.clear()
    busy = [open_stream(server, COMPLETIONS, {"prompt": [5], "n": 8})] if phase == "queued" else []
    until(lambda: server.engine.arrivals == 8 * len(busy), "the batch is full")
    gone = open_stream(server, COMPLETIONS, {"prompt": [7] * 100, "n": 4, "stream": stream, "ignore_eos": True})
    until(lambda: server.engine.arrivals == 8 * len(busy) + 4, "all four arrive")
    if phase == "decode":
        server.model.gate.set()
    gone.close()
    for connection in busy:
        connection.close()
    server.model.gate.set()
    until(server.idle, "blocks are free, nothing runs, nothing waits")
    until(lambda: len(server.recorder.ended) == server.engine.arrivals, "each ends once")
    assert server.post(COMPLETIONS, prompt="still there", max_tokens=1).status_code == 200


def test_headers_of_a_stream_wait_for_the_first_token(server: ScriptedServer) -> None:
    server.model.gate.clear()
    connection = open_stream(server, CHAT, {"messages": QUESTION, "stream": True})
    until(lambda: server.engine.arrivals == 1, "it arrives")
    connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    server.model.gate.set()
    connection.settimeout(PATIENCE_SECONDS)
    assert connection.recv(12) == b"HTTP/1.1 200"
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_full_queue_answers_429_at_once_and_takes_none_of_n(tokenizer: Tokenizer, stream: bool) -> None:
    with scripted_server(tokenizer, max_waiting=2, max_num_seqs=1) as server:
        server.model.gate.clear()
        running = open_stream(server, COMPLETIONS, {"prompt": [5]})
        until(lambda: server.engine.stats().running == 1 or server.engine.arrivals == 1, "one runs")
        reply = server.post(COMPLETIONS, prompt=[6], n=8, stream=stream)
        assert reply.status_code == 429
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.headers["connection"] == "close"
        assert reply.json()["error"]["code"] == RejectReason.QUEUE_FULL
        server.model.gate.set()
        until(server.idle, "those that were taken before the refusal end too")
        running.close()


def test_connections_are_given_up_while_others_wait_and_kept_otherwise(tokenizer: Tokenizer) -> None:
    """Else a pooled client would stay in this queue beside a new replica that is idle."""
    with scripted_server(tokenizer, max_num_seqs=1) as server, server.client as client:
        assert "connection" not in client.get("/health").headers
        server.model.gate.clear()
        queued = [open_stream(server, COMPLETIONS, {"prompt": [5 + n]}) for n in range(3)]
        # The first one waits, too, until a step has looked at it.
        until(lambda: sum(server.engine.stats().waiting.values()) >= 2, "others wait behind the first")
        assert client.get("/health").headers["connection"] == "close"
        server.model.gate.set()
        until(server.idle, "all are served")
        assert "connection" not in client.get("/health").headers
        for connection in queued:
            connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_fails_inside_gets_500_with_an_id_and_others_go_on(server: ScriptedServer, stream: bool) -> None:
    server.model.gate.clear()
    other = open_stream(server, COMPLETIONS, {"prompt": "fine"})
    until(lambda: server.engine.arrivals == 1, "the other one arrives")
    doomed = open_stream(server, COMPLETIONS, {"prompt": "doomed", "stream": stream})
    until(lambda: server.engine.arrivals == 2, "both are there")
    server.model.failing.add(server.engine.live_requests()[-1].id)
    server.model.gate.set()
    reply = read_all(doomed)
    assert reply.startswith(b"HTTP/1.1 500")
    assert next(iter(server.model.failing)).encode() in reply
    assert read_all(other).startswith(b"HTTP/1.1 200")


def test_a_request_that_takes_too_long_ends(tokenizer: Tokenizer) -> None:
    """Its deadline passes while a step stands still, and not before it is begun."""
    with scripted_server(tokenizer, timeout=3600) as server:
        server.model.gate.clear()
        slow = open_stream(server, COMPLETIONS, {"prompt": "slow"})
        until(lambda: server.engine.beat.phase is not Phase.IDLE, "it is begun")
        server.let_time_go_by(3600)
        server.model.gate.set()
        assert read_all(slow).startswith(b"HTTP/1.1 504")
        assert server.recorder.ended[0].finish_reason is FinishReason.DEADLINE


def test_kept_connections_end_after_a_while(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_REQUESTS", 5)
    monkeypatch.setattr(connections, "JITTER", 0)
    with scripted_server(tokenizer) as server, server.client as client:
        closes = [client.get("/health").headers.get("connection") == "close" for _ in range(10)]
    assert closes == [False] * 4 + [True] + [False] * 4 + [True]


def test_timelines_tell_what_happened(server: ScriptedServer) -> None:
    answer = server.post(COMPLETIONS, prompt="tell", max_tokens=2).json()
    timeline = server.timeline(answer["id"])
    assert timeline is not None
    words = [event.what.value for event in timeline.events]
    assert words == ["arrived", "submitted", "queued", "admitted", "computed", "first_token", "finished"]
    assert server.timeline("unknown") is None


def test_an_engine_that_fails_again_and_again_ends_and_says_so(server: ScriptedServer) -> None:
    server.model.script.clear()  # every step raises from now on
    statuses = [server.post(COMPLETIONS, prompt="x").status_code for _ in range(3)]
    assert statuses[:2] == [500, 500]
    until(lambda: not server.engine.alive, "the step loop gives up")
    reply = server.post(COMPLETIONS, prompt="x")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_stopped")
    assert not server.context.lifecycle.alive
    with server.client as client:
        assert client.get("/health").status_code == 503


def test_a_fault_of_ours_is_a_500_with_an_id_and_nothing_else(
    shared: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret path /etc/shadow")

    with monkeypatch.context() as patched:
        patched.setattr(Tokenizer, "render_chat", fail)
        reply = shared.post(CHAT, messages=QUESTION)
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
    assert reply.headers["x-request-id"] in reply.json()["error"]["message"]
    assert "secret" not in reply.text
    assert shared.post(CHAT, messages=QUESTION).status_code == 200
