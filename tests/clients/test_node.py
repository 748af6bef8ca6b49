"""The official OpenAI client for Node, each of its parts, with the real model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from client_environments import Clients, Place
from serving_process import ServingProcess

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def seen(clients: Clients, place: Place) -> Any:
    return clients.run_node("openai.mjs", place)


def test_a_stream_comes_to_the_plain_answer(seen: Any) -> None:
    assert "Paris" in seen["chat"]["text"]
    assert seen["chat"]["streamed"] == seen["chat"]["text"]
    assert "Paris" in seen["completions"]["text"]
    assert seen["completions"]["streamed"] == seen["completions"]["text"]


def test_its_own_collector_of_chunks_finds_ends_tokens_and_counts(seen: Any) -> None:
    assert seen["usage"]["plain"] == seen["usage"]["streamed"]
    assert seen["usage"]["plain"]["end"] == "length"
    assert seen["usage"]["plain"]["output"] == len(seen["usage"]["plain"]["tokens"]) == 3


def test_calls_come_whole_and_in_pieces_and_their_results_go_back(seen: Any) -> None:
    calls = seen["calls"]
    assert calls["plain"] == calls["streamed"]
    ((name, arguments),) = calls["plain"]["calls"]
    assert (name, calls["plain"]["end"]) == ("get_weather", "tool_calls")
    assert json.loads(arguments)["city"] in ("Paris", "Nice", "Lyon")
    assert calls["after"] in ("stop", "length")


def test_an_answer_keeps_to_its_schema(seen: Any) -> None:
    assert set(seen["structured"]) == {"city", "size"}
    assert seen["structured"]["size"] in ("small", "large")


def test_responses_plain_as_events_and_collected(seen: Any) -> None:
    told = seen["responses"]
    assert "Paris" in told["text"]
    assert told["deltas"] == told["final"] == told["text"]
    assert told["status"] in ("completed", "incomplete")


def test_embeddings_as_numbers_and_in_base64(seen: Any) -> None:
    told = seen["embeddings"]
    assert len(told["plain"]) == 2
    for coded, plain in zip(told["coded"], told["plain"], strict=True):
        assert coded == pytest.approx(plain, abs=1e-6)
        assert sum(number * number for number in plain) == pytest.approx(1, abs=1e-4)
    assert told["tokens"] > 2


def test_models(seen: Any) -> None:
    assert seen["models"] == {"listed": ["smollm2"], "one": "smollm2"}


def test_what_is_aborted_ends_here_too(seen: Any, server: ServingProcess, freed: None) -> None:
    assert seen["abort"] == {"first": "chat.completion.chunk"}


def test_errors_have_their_classes_and_say_what_was_wrong(seen: Any) -> None:
    errors = seen["errors"]
    wrong, stranger, unknown = errors["wrong"], errors["stranger"], errors["unknown"]
    assert (wrong["kind"], wrong["status"], wrong["param"], wrong["code"]) == (
        "BadRequestError", 400, "temperature", "invalid_value",
    )  # fmt: skip
    assert (stranger["kind"], stranger["status"], stranger["code"]) == ("AuthenticationError", 401, "invalid_api_key")
    assert (unknown["kind"], unknown["status"], unknown["code"]) == ("NotFoundError", 404, "model_not_found")
    assert all(error["id"] for error in (wrong, stranger, unknown))


def test_a_crowd_is_served_or_told_to_come_back(seen: Any) -> None:
    crowd = seen["errors"]["crowd"]
    assert {(error["kind"], error["status"]) for error in crowd} == {("RateLimitError", 429)}
    assert seen["errors"]["served"] == 40 - len(crowd) >= 4
