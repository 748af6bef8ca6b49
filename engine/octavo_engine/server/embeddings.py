"""POST /v1/embeddings: its body, the requests that it makes, and its answer.

A decoder's embedding of a text is made of the final hidden states of its tokens, the last norm included, pooled and
brought to the length 1, as OpenAI's are. Such a request is computed like any prompt, and ends there.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from starlette.requests import ClientDisconnect

from octavo_engine.errors import RequestError
from octavo_engine.output import Delta
from octavo_engine.prompt_reading import HiddenSum
from octavo_engine.request import FinishReason, Pooling, Request, SamplingParams
from octavo_engine.server.fields import Body, Refused, asks, ignored
from octavo_engine.server.intake import Caller, Limits, check_ids, make_request
from octavo_engine.server.prompts import check_length
from octavo_engine.server.schemas import MAX_PRIORITY, Label, Prompt, as_prompts
from octavo_engine.tokenizer import Tokenizer

Json = dict[str, Any]

COMPUTED = SamplingParams(max_tokens=0)
MAX_TEXTS = 2048  # OpenAI's; its clients send as many when they are given more
TEXTS_AT_ONCE = 32  # of a list, and no more than half a queue: the others are not in it yet
MAX_NUMBERS = 1 << 21  # of an answer: 40 MB as JSON, and as many in memory
BASE64_NUMBERS = 1 << 23  # the same: they take a quarter


@dataclass(frozen=True, slots=True)
class Embeddings:
    """How this model's are made."""

    pooling: Pooling = Pooling.LAST
    size: int = 1  # numbers of one


class EmbeddingBody(Body):
    """POST /v1/embeddings."""

    model: Annotated[str, Field(min_length=1, max_length=512, description="the served name")]
    input: Annotated[
        list[Prompt], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True), BeforeValidator(as_prompts)
    ] = Field(description=f"one or up to {MAX_TEXTS:,}, each text or token ids")
    encoding_format: Literal["float", "base64"] | None = asks(
        "`base64`: the numbers as 32-bit floats, little-endian; default: `float`"
    )
    add_special_tokens: bool = asks("put what the model expects around a text", True)
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = asks("as in a chat", 0)
    cache_salt: Annotated[str, Field(min_length=1, max_length=512)] | None = asks("as in a chat")
    user: Label | None = ignored("who asks is told by the API key; nothing is kept of it")

    unsupported: ClassVar[Mapping[str, Refused]] = {
        "dimensions": Refused("the model was not trained to be cut short, or does not say so"),
    }


def embedding_requests(
    body: EmbeddingBody, tokenizer: Tokenizer, caller: Caller, limits: Limits, made: Embeddings
) -> list[Request]:
    """A request for each text, in order; raises RequestError. May run in a thread."""
    _check_answer(body, made.size)
    prompts = [_ids(text, body, tokenizer, limits) for text in body.input]
    return [
        make_request(body, prompt, COMPUTED, caller, limits, number=index, pooling=made.pooling)
        for index, prompt in enumerate(prompts)
    ]


def _check_answer(body: EmbeddingBody, size: int) -> None:
    packed = body.encoding_format == "base64"
    most = max(1, (BASE64_NUMBERS if packed else MAX_NUMBERS) // size)
    if len(body.input) > most:
        remedy = "" if packed else "; with encoding_format: base64 four times as many do"
        message = f"input: of this model's embeddings, {size:,} numbers each, one answer has room for {most}{remedy}"
        raise RequestError(message, param="input")


def _ids(text: str | list[int], body: EmbeddingBody, tokenizer: Tokenizer, limits: Limits) -> list[int]:
    ids = tokenizer.encode(text, add_special_tokens=body.add_special_tokens) if isinstance(text, str) else text
    check_ids(ids, "input", limits)
    check_length(ids, "input", limits, answer=0)
    return list(ids)


@dataclass(frozen=True, slots=True)
class EmbeddingWriter:
    """Puts what was read of the requests' prompts into the answer."""

    model: str
    body: EmbeddingBody
    requests: Sequence[Request]

    def answer(self, _: Sequence[Delta], counts: Json) -> Json:
        """The whole answer, the embeddings in the order of the texts; raises ClientDisconnect if it has ended some."""
        if any(request.finish_reason is FinishReason.ABORT for request in self.requests):
            raise ClientDisconnect
        return {
            "object": "list",
            "data": [self._embedding(index, request) for index, request in enumerate(self.requests)],
            "model": self.model,
            "usage": {"prompt_tokens": counts["prompt_tokens"], "total_tokens": counts["prompt_tokens"]},
        }

    def _embedding(self, index: int, request: Request) -> Json:
        assert isinstance(request.reading, HiddenSum)
        values = request.reading.direction()
        written = as_base64(values) if self.body.encoding_format == "base64" else values.tolist()
        return {"object": "embedding", "index": index, "embedding": written}


def as_base64(values: array[float]) -> str:
    """32-bit floats, little-endian, in base64."""
    if sys.byteorder == "big":
        values = array("f", values)
        values.byteswap()
    return base64.b64encode(values.tobytes()).decode()
