"""What a request says wins over the model's own defaults, and these over OpenAI's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from known_models import LLAMA_3_8B
from octavo_engine.config import ServerConfig
from octavo_engine.errors import RequestError
from octavo_engine.model.fields import Fields
from octavo_engine.model.values.sampling_defaults import (
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    SamplingDefaults,
    from_generation_config,
)
from octavo_engine.request import SamplingParams
from octavo_engine.server.intake import Caller, Limits, make_requests
from octavo_engine.server.schemas import ChatBody, CompletionBody, parse_body
from octavo_engine.server.serve import sampling_defaults

pytestmark = pytest.mark.engine
OWN = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.05, max_tokens=40)
CALLER = Caller(name="c", arrival=0.0, namespace="")
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def params(body: dict[str, Any], defaults: SamplingDefaults = OWN, window: int = 100) -> SamplingParams:
    """How a prompt of ten tokens is sampled."""
    limits = Limits(
        max_model_len=window, max_prompt_tokens=window, vocab_size=1000, timeout_seconds=60, sampling=defaults
    )
    schema = ChatBody if "messages" in body else CompletionBody
    (request,) = make_requests(parse_body(schema, body), [[1] * 10], CALLER, limits)
    return request.params


def test_a_request_that_says_nothing_gets_the_models_defaults() -> None:
    assert params(CHAT) == SamplingParams(
        temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.05, max_tokens=40
    )
    nothing = dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"))
    assert params(CHAT | nothing) == params(CHAT)


def test_without_a_word_from_the_model_they_are_openais() -> None:
    assert params(CHAT, SamplingDefaults()) == SamplingParams(max_tokens=90)
    assert params({"model": "m", "prompt": "hello"}, SamplingDefaults()) == SamplingParams(max_tokens=16)


@pytest.mark.parametrize(
    ("field", "value", "taken"),
    [
        ("temperature", 0.0, 0.0),
        ("temperature", 1.0, 1.0),
        ("top_p", 1.0, 1.0),
        ("top_k", 5, 5),
        ("top_k", 0, None),
        ("top_k", -1, None),
        ("min_p", 0.0, 0.0),
        ("repetition_penalty", 1.0, 1.0),
        ("max_tokens", 50, 50),
    ],
)
def test_what_a_request_says_wins(field: str, value: float, taken: float | None) -> None:
    assert params(CHAT | {field: value}) == replace(params(CHAT), **{field: taken})


def test_a_default_length_is_for_chats_and_never_too_long() -> None:
    assert params({"model": "m", "prompt": "hello"}).max_tokens == 16
    assert params(CHAT, window=30).max_tokens == 20
    assert params(CHAT | {"max_completion_tokens": 60}).max_tokens == 60
    assert params(CHAT | {"min_tokens": 50}).max_tokens == 50
    with pytest.raises(RequestError, match="min_tokens"):
        params(CHAT | {"min_tokens": 91})


def test_a_flag_switches_them_off() -> None:
    spec = replace(LLAMA_3_8B, sampling=OWN)
    assert sampling_defaults(ServerConfig(), spec) is OWN
    assert sampling_defaults(ServerConfig(generation_config="off"), spec) == SamplingDefaults()


@pytest.mark.parametrize(
    ("field", "most"),
    [("temperature", MAX_TEMPERATURE), ("repetition_penalty", MAX_REPETITION_PENALTY), ("top_p", 1.0), ("min_p", 1.0)],
)
def test_bounds_are_those_of_requests(field: str, most: float) -> None:
    assert getattr(params(CHAT | {field: most}), field) == most
    assert getattr(from_generation_config(Fields({field: most}, "g")), field) == most
    with pytest.raises(RequestError, match=field):
        params(CHAT | {field: most + 0.01})
