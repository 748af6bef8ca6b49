"""The AI SDK for JavaScript by each of its ways to OpenAI's API (any server's, OpenAI's chats and responses), with the
real model."""

from __future__ import annotations

from typing import Any

import pytest

from client_environments import Clients, Place

pytestmark = pytest.mark.engine

WAYS = ("compatible", "chat", "responses")
CITIES = ("Paris", "Nice", "Lyon")


@pytest.fixture(scope="module")
def everything(clients: Clients, place: Place) -> Any:
    return clients.run_node("ai_sdk.mjs", place)


@pytest.fixture(params=WAYS)
def seen(everything: Any, request: pytest.FixtureRequest) -> Any:
    return everything[request.param]


def test_a_stream_comes_to_the_plain_answer(seen: Any) -> None:
    assert "Paris" in seen["text"]["plain"]
    assert seen["text"]["streamed"] == seen["text"]["plain"]


def test_conversations_in_parts_with_ends_and_counts(seen: Any) -> None:
    assert seen["chat"]["plain"] == seen["chat"]["streamed"]
    text, end, (prompt, output) = seen["chat"]["plain"]
    assert text
    assert end in ("stop", "length")
    assert prompt > 20
    assert 1 <= output <= 4


def test_the_settings_of_sampling_are_taken(seen: Any) -> None:
    assert seen["sampling"]["end"] in ("stop", "length")


def test_objects_keep_to_their_schema_whole_and_in_pieces(seen: Any) -> None:
    for found in (seen["object"], seen["pieces"]["whole"]):
        assert set(found) == {"city", "size"}
        assert len(found["city"]) <= 20
        assert found["size"] in ("small", "large")
    assert seen["pieces"]["partial"] > 1


def test_calls_are_made_run_and_their_results_told(seen: Any) -> None:
    first, second = seen["called"]["steps"]
    for step in (first, second):
        assert step["end"] == "tool-calls"
        assert {name for name, _ in step["inputs"]} == {"weather"}
        assert all(given["city"] in CITIES for _, given in step["inputs"])
    assert first["results"] == [{"city": given["city"], "degrees": 21} for _, given in first["inputs"]]
    ((name, given),) = seen["called"]["streamed"]
    assert (name, given["city"] in CITIES) == ("weather", True)


def test_calls_of_its_own_are_held_to_the_schemas_of_strict_tools(seen: Any) -> None:
    """The model has been told of calls with a city that the schema does not have, and makes one with another."""
    offered = seen["offered"]
    ((name, given), *_) = offered["loose"]
    assert (name, given["city"] in CITIES) == ("weather", False)
    (((name, given), *_), end) = offered["plain"]
    assert (name, given["city"] in CITIES, end) == ("weather", True, "tool-calls")
    assert offered["streamed"] == offered["plain"]


def test_a_refusal_is_an_error_of_its_own_kind(seen: Any) -> None:
    wrong = seen["wrong"]
    assert (wrong["known"], wrong["status"], wrong["retry"]) == (True, 400, False)
    assert wrong["says"].startswith("temperature: ")


def test_embeddings_are_the_same_by_either_provider(everything: Any) -> None:
    told = everything["embeddings"]
    assert len(told["compatible"]) == 2
    for one, other in zip(told["compatible"], told["openai"], strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_a_text_is_continued(everything: Any) -> None:
    assert "Paris" in everything["completion"]
