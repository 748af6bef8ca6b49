"""Embeddings over HTTP: their forms, their order, their limits; and whoever goes away leaves nothing behind."""

from __future__ import annotations

import base64
import json
import math
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types import embedding_create_params

from octavo_engine.errors import RequestError
from octavo_engine.history.timeline import State
from octavo_engine.request import FinishReason, Pooling
from octavo_engine.server.embeddings import MAX_NUMBERS, MAX_TEXTS, EmbeddingBody, Embeddings, embedding_requests
from octavo_engine.server.fields import parse_body
from octavo_engine.server.intake import Caller
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from patience import PATIENCE_SECONDS
from scripted_server import ScriptedServer, scripted_server, until

EMBEDDINGS = "/v1/embeddings"


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[ScriptedServer]:
    with scripted_server(tokenizer) as server:
        yield server


def expected(tokens: int) -> list[float]:
    """That of the last token in a text of so many: the scripted state is its place, and 10."""
    length = math.hypot(tokens - 1, 10)
    return [(tokens - 1) / length, 10 / length]


INPUTS: list[tuple[Any, list[int]]] = [
    ("Two plus two", [3]),
    (["one", "Two plus two", "one"], [1, 3, 1]),
    ([345, 678], [2]),
    ([[345], [345, 678, 9], [12] * 100], [1, 3, 100]),
]


@pytest.mark.parametrize(("texts", "counts"), INPUTS, ids=str)
def test_each_text_has_its_own_in_order(server: ScriptedServer, texts: Any, counts: list[int]) -> None:
    answer = server.post(EMBEDDINGS, input=texts).json()
    assert (answer["object"], answer["model"]) == ("list", "scripted")
    assert answer["usage"] == {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}
    assert [(item["object"], item["index"]) for item in answer["data"]] == [
        ("embedding", index) for index in range(len(counts))
    ]
    for item, tokens in zip(answer["data"], counts, strict=True):
        assert item["embedding"] == pytest.approx(expected(tokens), abs=1e-6)


def test_a_list_longer_than_the_queue_is_taken_part_by_part(server: ScriptedServer) -> None:
    """As long as OpenAI takes: clients that are given thousands of texts send so many at once."""
    lengths = [1 + index % 7 for index in range(MAX_TEXTS)]
    answer = server.post(EMBEDDINGS, input=[[12] * length for length in lengths]).json()
    assert answer["usage"]["prompt_tokens"] == sum(lengths)
    assert [item["index"] for item in answer["data"]] == list(range(MAX_TEXTS))
    for item, tokens in zip(answer["data"], lengths, strict=True):
        assert item["embedding"] == pytest.approx(expected(tokens), abs=1e-6)


def test_what_comes_later_of_a_list_has_waited_for_no_place(server: ScriptedServer) -> None:
    """Its queue deadline counts from when it came, and so do the metrics of waiting."""
    began = len(server.recorder.ended)
    server.post(EMBEDDINGS, input=[[12]] * 200)
    requests = server.recorder.ended[began:]
    arrivals = [request.arrival for request in requests]
    assert len(requests) == 200
    assert max(arrivals) > min(arrivals)
    assert len({round(request.queue_deadline - request.arrival, 6) for request in requests}) == 1
    assert len({request.deadline for request in requests}) == 1
    assert all(request.events[0].at == request.arrival for request in requests)


def test_an_answer_that_would_be_huge_is_refused_with_what_fits(server: ScriptedServer, tokenizer: Tokenizer) -> None:
    caller, made = Caller(name="x", arrival=0.0, namespace=""), Embeddings(size=MAX_NUMBERS // 3)

    def requests(texts: int, **fields: str) -> int:
        body = parse_body(EmbeddingBody, {"model": "m", "input": ["x"] * texts} | fields)
        return len(embedding_requests(body, tokenizer, caller, server.context.limits, made))

    assert (requests(3), requests(12, encoding_format="base64")) == (3, 12)
    with pytest.raises(RequestError, match="has room for 3; with encoding_format: base64 four times as many do"):
        requests(4)
    with pytest.raises(RequestError, match=r"has room for 12$"):
        requests(13, encoding_format="base64")


def test_in_base64_they_are_little_endian_floats_of_32_bits(server: ScriptedServer) -> None:
    plain = server.post(EMBEDDINGS, input=["one", "Two plus two"], encoding_format="float").json()["data"]
    packed = server.post(EMBEDDINGS, input=["one", "Two plus two"], encoding_format="base64").json()["data"]
    for one, other in zip(plain, packed, strict=True):
        assert list(struct.unpack("<2f", base64.b64decode(other["embedding"]))) == one["embedding"]


def test_the_mean_is_of_all_tokens_however_they_were_cut(server: ScriptedServer, tokenizer: Tokenizer) -> None:
    body = parse_body(EmbeddingBody, {"model": "m", "input": [[12] * 100]})
    caller = Caller(name="x", arrival=0.0, namespace="")
    limits = replace(server.context.limits, timeout_seconds=1e12, queue_seconds=1e12)
    (request,) = embedding_requests(body, tokenizer, caller, limits, Embeddings(Pooling.MEAN))
    server.call(_read(server, request))
    length = math.hypot(4950, 1000)
    assert request.reading.direction().tolist() == pytest.approx([4950 / length, 1000 / length])
    assert server.timeline("x-0") is not None


async def _read(server: ScriptedServer, request: Any) -> None:
    async for _ in server.engine.submit(request):
        pass


def test_it_ends_when_it_is_computed_and_its_timeline_says_so(server: ScriptedServer) -> None:
    server.post(EMBEDDINGS, input=[[12] * 100])
    request = server.recorder.ended[-1]
    assert (request.finish_reason, request.num_output) == (FinishReason.LENGTH, 0)
    told = server.timeline(request.id)
    assert told is not None
    assert (told.state, told.why, told.first_token) == (State.FINISHED, "length", None)
    assert State.PREFILL in {span.state for span in told.spans()}
    assert State.DECODE not in {span.state for span in told.spans()}


def test_prefixes_are_those_of_the_same_salt(server: ScriptedServer) -> None:
    def cached(**salt: str) -> int:
        server.post(EMBEDDINGS, input=[[50] * 40], **salt)
        return server.recorder.ended[-1].num_cached

    assert [cached(), cached(), cached(cache_salt="a"), cached(cache_salt="a")] == [0, 32, 0, 32]


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"input": ["x"] * (MAX_TEXTS + 1)}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [[1, -2]]}, "input[0]"),
        ({"input": [["x"]]}, "input[0]"),
        ({"input": [[10**6]]}, "input"),
        ({"input": [[7] * 129]}, "input"),
        ({"input": {"text": "x"}}, "input"),
        ({"input": "x", "dimensions": 256}, "dimensions"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "x", "priority": 3}, "priority"),
        ({"input": "x", "stream": True}, "stream"),
        ({}, "input"),
    ],
)
def test_what_is_wrong_is_named_and_reaches_no_engine(
    server: ScriptedServer, extra: dict[str, Any], param: str
) -> None:
    before = server.engine.arrivals
    reply = server.post(EMBEDDINGS, **extra)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert server.engine.arrivals == before


def test_sixteen_texts_are_taken_at_once(server: ScriptedServer) -> None:
    answer = server.post(EMBEDDINGS, input=[[20 + index] * (index + 1) for index in range(16)]).json()
    for index, item in enumerate(answer["data"]):
        assert item["embedding"] == pytest.approx(expected(index + 1), abs=1e-6)


def test_each_field_that_the_official_client_knows_is_known() -> None:
    names = set(embedding_create_params.EmbeddingCreateParams.__annotations__)
    assert names == {"input", "model", "dimensions", "encoding_format", "user"}
    assert names <= set(EmbeddingBody.model_fields) | set(EmbeddingBody.unsupported)
    parse_body(EmbeddingBody, {"model": "m", "input": "x", "dimensions": None, "user": "u", "encoding_format": None})


def test_a_full_queue_takes_none_of_them(tokenizer: Tokenizer) -> None:
    with scripted_server(tokenizer, max_waiting=4, max_num_seqs=1) as server, ThreadPoolExecutor(5) as pool:
        server.model.gate.clear()
        first = pool.submit(server.post, EMBEDDINGS, input="x")
        until(lambda: server.engine.stats().running == 1, "one is computed")
        others = [pool.submit(server.post, EMBEDDINGS, input="x") for _ in range(3)]
        until(lambda: sum(server.engine.stats().waiting.values()) == 3, "three wait")
        arrivals = server.engine.arrivals
        reply = server.post(EMBEDDINGS, input=["x"] * 2)
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
        assert server.engine.arrivals == arrivals
        server.model.gate.set()
        assert {each.result().status_code for each in (first, *others)} == {200}
        assert server.post(EMBEDDINGS, input=["x"] * 5).status_code == 200  # more than the queue holds


@pytest.mark.parametrize(("texts", "begun"), [(4, 4), (200, 32)], ids=["a few", "more than are queued at once"])
def test_a_client_that_goes_away_frees_everything(
    tokenizer: Tokenizer, texts: int, begun: int, caplog: pytest.LogCaptureFixture
) -> None:
    with scripted_server(tokenizer, max_num_seqs=2) as server:
        server.model.gate.clear()
        content = json.dumps({"model": "scripted", "input": [[9] * 100] * texts}).encode()
        head = f"POST {EMBEDDINGS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(content)}\r\n\r\n"
        connection = socket.create_connection(server.address, timeout=PATIENCE_SECONDS)
        connection.sendall(head.encode() + content)
        until(lambda: server.engine.arrivals == begun, "all that are queued at once arrive")
        connection.close()
        until(lambda: server.engine._cancelled or server.idle(), "it is noticed")
        server.model.gate.set()
        until(server.idle, "blocks are free, nothing runs, nothing waits")
        until(lambda: len(server.recorder.ended) == begun, "each ends once, and no other is begun")
        assert FinishReason.ABORT in {request.finish_reason for request in server.recorder.ended}
        assert server.post(EMBEDDINGS, input="still there").status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
