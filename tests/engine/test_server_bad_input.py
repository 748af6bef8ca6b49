"""Bad input gets a short 4xx that names the field, and the engine never hears of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo_engine.request import RejectReason
from octavo_engine.server.body import MAX_DEPTH, parse_object
from octavo_engine.server.replies import Refusal
from octavo_engine.server.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from scripted_server import WINDOW, ScriptedServer, exchange, scripted_server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CHAT_BODY: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION_BODY: dict[str, Any] = {"model": "scripted", "prompt": "hi"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[ScriptedServer]:
    tokenizer: Tokenizer = load_tokenizer(str(smollm2_gguf))
    with scripted_server(tokenizer) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_reaches_the_engine(server: ScriptedServer) -> Iterator[None]:
    before = server.engine.arrivals
    yield
    assert server.engine.arrivals == before


def send(server: ScriptedServer, path: str, content: bytes, headers: dict[str, str] = JSON) -> httpx.Response:
    with server.client as client:
        return client.post(path, content=content, headers=headers)


def refused(reply: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of a reply, which must be a short one in OpenAI's form."""
    assert reply.status_code == status, reply.text
    assert len(reply.content) < 2048
    assert "Traceback" not in reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["code"], str)
    return error


WRONG = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "1"),
    ("temperature", True),
    ("temperature", 10**30),
    ("top_p", 0),
    ("top_p", 1.5),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -1),
    ("seed", 2**63),
    ("seed", 1.0),
    ("n", 0),
    ("n", 9),
    ("n", 10**9),
    ("n", "1"),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", WINDOW),
    ("max_tokens", 2**31 - 1),
    ("max_tokens", 2**63),
    ("max_tokens", 1.5),
    ("min_tokens", -1),
    ("min_tokens", WINDOW),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("stop", ["a"] * 5),
    ("stop", ""),
    ("stop", "x" * 257),
    ("stop", 5),
    ("stop_token_ids", [49152]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [2**63]),
    ("logit_bias", {"49152": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {str(i): 1 for i in range(301)}),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("stream_options", {"unheard_of": True}),
    ("user", 5),
    ("tools", [{"type": "function"}]),
    ("nonsense", 1),
    ("model", None),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
@pytest.mark.parametrize(("path", "body"), [(CHAT, CHAT_BODY), (COMPLETIONS, COMPLETION_BODY)])
def test_a_wrong_field_is_named(
    server: ScriptedServer, path: str, body: dict[str, Any], field: str, value: Any
) -> None:
    error = refused(send(server, path, json.dumps(body | {field: value}).encode()))
    assert (error["param"] or error["message"]).startswith(field)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000])
@pytest.mark.parametrize("field", ["temperature", "top_p", "max_tokens", "seed", "n", "logit_bias"])
def test_numbers_that_are_none(server: ScriptedServer, field: str, number: str) -> None:
    value = f'{{"5": {number}}}' if field == "logit_bias" else number
    refused(send(server, COMPLETIONS, f'{{"model": "scripted", "prompt": "hi", "{field}": {value}}}'.encode()))


@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "root", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": "x " * 300}]}, "messages"),
        ({"messages": [7] * 5000}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
        ({"max_completion_tokens": 10_000}, "max_completion_tokens"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_wrong_chats(server: ScriptedServer, patch: dict[str, Any], param: str) -> None:
    assert refused(send(server, CHAT, json.dumps(CHAT_BODY | patch).encode()))["param"].startswith(param)


@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [49152]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"prompt": [2**63]}, "prompt"),
        ({"prompt": [1.0]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": [1] * 129}, "prompt"),
        ({"prompt": "word " * 200}, "prompt"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
        ({"min_tokens": 17, "max_tokens": None}, "min_tokens"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"best_of": 9}, "best_of"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"messages": []}, "messages"),
    ],
)
def test_wrong_completions(server: ScriptedServer, patch: dict[str, Any], param: str) -> None:
    assert refused(send(server, COMPLETIONS, json.dumps(COMPLETION_BODY | patch).encode()))["param"].startswith(param)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"{}{}",
        b"{'model': 1}",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        '{"model": "scripted"}'.encode("utf-16"),
        b'{"model": "\xff"}',
        b'{"model": "scripted", "model": "scripted"}',
        b'{"model": "scripted", "prompt": "\\ud800"}',
        b'{"\\udfff": 1}',
        b'{"model": "scripted", "prompt": "\x00"}',
        b"[" * 60_000,
        b'{"a":' * 12_000,
        b'{"model": "scripted", "prompt": ' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
    ],
)
def test_what_is_not_strict_json(server: ScriptedServer, content: bytes) -> None:
    error = refused(send(server, COMPLETIONS, content))
    assert error["code"] == "invalid_json"
    assert server.recorder.rejected[-1] is RejectReason.INVALID


def test_hostile_quotes_do_not_take_quadratic_time() -> None:
    began = time.process_time()
    for body in (b"[" * 65 + b'"' + b'\\"' * 1_000_000, b"[" * 65 + b'"' * 2_000_001, b'["' + b"[" * 1_000_000 + b"\\"):
        with pytest.raises(Refusal):
            parse_object(body)
    assert time.process_time() - began < 5


def test_whole_surrogate_pairs_are_characters(server: ScriptedServer) -> None:
    tokens = send(server, "/tokenize", b'{"prompt": "\\ud83d\\ude00"}').json()["tokens"]
    assert server.context.tokenizer.decode(tokens, skip_special_tokens=False) == "😀"


def test_depth_counts_brackets_but_not_those_in_text(server: ScriptedServer) -> None:
    text = "[{" * 1000 + '\\"'
    reply = send(server, "/tokenize", json.dumps({"prompt": text}).encode())
    assert reply.status_code == 200


@pytest.mark.parametrize("content_type", ["text/plain", "", "application/x-www-form-urlencoded", "json"])
def test_the_content_type_must_be_json(server: ScriptedServer, content_type: str) -> None:
    refused(send(server, CHAT, json.dumps(CHAT_BODY).encode(), {"Content-Type": content_type}), 415)


def test_long_bodies(server: ScriptedServer) -> None:
    refused(send(server, CHAT, b" " * (64 * 1024 + 1)), 413)
    with server.client as client:
        reply = client.post(CHAT, content=(b" " * 1000 for _ in range(70)), headers=JSON)
    refused(reply, 413)
    assert reply.headers["connection"] == "close"


def test_a_long_wrong_list_is_refused_quickly(server: ScriptedServer) -> None:
    began = time.process_time()
    for body in ({"prompt": ["a"] * 10_000}, {"prompt": [["x"] * 10_000]}, {"stop": [1] * 15_000}):
        refused(send(server, COMPLETIONS, json.dumps(COMPLETION_BODY | body).encode()))
    assert time.process_time() - began < 5


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


LENGTH = b"Content-Length: 2\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
MALFORMED = {
    "two lengths": (400, HEAD + LENGTH + b"Content-Length: 3\r\n\r\n{}"),
    "two equal lengths in one": (400, HEAD + b"Content-Length: 2, 3\r\n\r\n{}"),
    "a negative length": (400, HEAD + b"Content-Length: -1\r\n\r\n"),
    "a length with a sign": (400, HEAD + b"Content-Length: +2\r\n\r\n{}"),
    "a length and chunks": (400, HEAD + LENGTH + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n"),
    "another coding": (400, HEAD + b"Transfer-Encoding: gzip\r\n\r\n"),
    "chunks twice": (400, HEAD + CHUNKED + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n"),
    "a folded framing": (400, HEAD + b"Transfer-Encoding:\r\n chunked\r\n" + LENGTH + b"\r\n2\r\n{}\r\n0\r\n\r\n"),
    "a space before the colon": (400, HEAD + b"Content-Length : 2\r\n\r\n{}"),
    "a folded header": (400, HEAD + b"X: a\r\n b\r\n" + LENGTH + b"\r\n{}"),
    "a header folded by a tab": (400, HEAD + b"X: a\r\n\tb\r\n" + LENGTH + b"\r\n{}"),
    "a fold before any header": (400, b"POST /v1/completions HTTP/1.1\r\n Host: x\r\n\r\n"),
    "line feeds only": (400, (HEAD + LENGTH + b"\r\n{}").replace(b"\r\n", b"\n")),
    "one line feed": (400, HEAD + b"X: a\n" + LENGTH + b"\r\n{}"),
    "two hosts": (400, HEAD + b"Host: y\r\n" + LENGTH + b"\r\n{}"),
    "no host": (400, b"POST /v1/completions HTTP/1.1\r\n" + LENGTH + b"\r\n{}"),
    "a NUL": (400, HEAD + b"X: a\0b\r\n\r\n"),
    "no HTTP at all": (400, b"garbage\r\n\r\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "a long header": (431, HEAD + b"X: " + b"a" * 40_000 + b"\r\n\r\n"),
    "a header of 64 KiB": (431, HEAD + b"X: " + b"a" * 65_536 + b"\r\n\r\n"),
    "a long target": (431, b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
    "5,000 headers": (431, HEAD + b"X: a\r\n" * 5_000 + b"\r\n"),
    "101 headers": (431, HEAD + b"X: a\r\n" * 100 + b"\r\n"),
}


@pytest.mark.parametrize(("status", "sent"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_heads_are_told_so_and_end_their_connection(server: ScriptedServer, status: int, sent: bytes) -> None:
    """What comes behind one on its connection is nobody's request."""
    before = len(server.recorder.ended)
    reply = exchange(server, sent + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")  # returns when the server has closed
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), reply
    assert b"connection: close" in head.lower()
    assert set(json.loads(body)) == {"error"}, "one reply"
    assert len(server.recorder.ended) == before


def test_too_many_headers(server: ScriptedServer) -> None:
    with server.client as client:
        reply = client.get("/health", headers={f"x-{i}": "1" for i in range(120)})
    refused_status = reply.status_code
    assert refused_status == 431


def test_every_field_is_either_supported_or_refused_by_name() -> None:
    for schema in (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody):
        assert not set(schema.model_fields) & set(schema.unsupported)
