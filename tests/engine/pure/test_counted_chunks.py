"""Streams that tell the token counts in every chunk."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo_engine.errors import RequestError
from octavo_engine.output import Delta
from octavo_engine.request import FinishReason, Request, Sampled, SamplingParams
from octavo_engine.server.answers import ChatForm, CompletionForm, Writer, usage
from octavo_engine.server.counted_chunks import CountedChunks
from octavo_engine.server.fields import parse_body
from octavo_engine.server.schemas import ChatBody

TOKEN = (Sampled(3),)


def requests(copies: int) -> list[Request]:
    """Of one prompt of four tokens, whose engine is already far ahead."""
    made = [Request(id=str(n), tokens=[1, 2, 3, 4], params=SamplingParams(), arrival=0.0) for n in range(copies)]
    for request in made:
        request.num_cached = 2
        request.tokens += [5] * 10
    return made


def told(sent: bytes) -> list[dict[str, Any]]:
    """The events, without the mark of the end."""
    return [json.loads(line[6:]) for line in sent.decode().split("\n\n") if line.startswith("data: {")]


def counted(form: type[ChatForm] | type[CompletionForm], asked: list[Request]) -> CountedChunks:
    made: Any = form(object(), logprobs=False)  # type: ignore[arg-type]
    return CountedChunks(Writer(id="x", model="m", form=made, created=1), asked, len(asked))


@pytest.mark.parametrize("form", [ChatForm, CompletionForm])
def test_each_chunk_has_the_tokens_up_to_its_own(form: type[ChatForm] | type[CompletionForm]) -> None:
    asked = requests(2)
    chunks = counted(form, asked)
    sent = chunks.opening(2) + chunks.pieces(
        [(0, Delta("a", TOKEN)), (1, Delta("bc", TOKEN * 2)), (0, Delta("", (), FinishReason.STOP))]
    )
    counts = [event["usage"] for event in told(sent)]
    assert [count["completion_tokens"] for count in counts][-3:] == [1, 3, 3]
    assert all(count["total_tokens"] == 4 + count["completion_tokens"] for count in counts)
    assert all(count["prompt_tokens_details"] == {"cached_tokens": 2} for count in counts)
    assert [event["choices"][0]["index"] for event in told(sent)][-3:] == [0, 1, 0]
    last = chunks.closing(usage(asked, 2))
    assert told(last)[0]["usage"]["completion_tokens"] == 20, "the end tells what the engine has counted"
    assert last.endswith(b"data: [DONE]\n\n")


def body(options: dict[str, Any]) -> ChatBody:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "stream_options": options}
    return parse_body(ChatBody, asked)


def test_it_is_asked_for_beside_the_usage() -> None:
    assert body({"include_usage": True, "continuous_usage_stats": True}).continuous_usage
    assert not body({"include_usage": True, "continuous_usage_stats": False}).continuous_usage
    assert not body({"include_usage": True}).continuous_usage
    with pytest.raises(RequestError, match="include_usage"):
        body({"continuous_usage_stats": True})
