"""LangChain, LlamaIndex, litellm and instructor, as their users call them, with the real model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from client_environments import Clients, Place
from serving_process import ServingProcess

pytestmark = pytest.mark.engine

CITIES = ("Paris", "Nice", "Lyon")


def check_embeddings(found: list[list[float]]) -> None:
    """Of two texts, each of length 1."""
    assert len(found) == 2
    for vector in found:
        assert len(vector) == 576
        assert sum(number * number for number in vector) == pytest.approx(1, abs=1e-4)


def test_langchain(clients: Clients, place: Place, freed: None) -> None:
    seen = clients.run_python("langchain_chat.py", place)
    assert "Paris" in seen["text"]
    assert seen["streamed"] == seen["text"]
    assert seen["usage"][0] == seen["usage"][1] > 0
    assert "Paris" in seen["batch"][0]
    assert len(seen["batch"]) == 2
    assert seen["calls"]["plain"] == seen["calls"]["streamed"]
    ((name, arguments),) = seen["calls"]["plain"]
    assert (name, set(arguments)) == ("GetWeather", {"city"})
    assert arguments["city"] in CITIES
    assert seen["calls"]["pieces"] > 3
    assert seen["calls"]["after"]
    assert set(seen["structured"]) == {"name", "size"}
    check_embeddings(seen["embeddings"])
    assert len(seen["long list"]) == 80  # in one request, as all up to a thousand are


def test_llama_index(clients: Clients, place: Place, freed: None) -> None:
    seen = clients.run_python("llama_index_chat.py", place)
    assert "Paris" in seen["text"]
    assert seen["streamed"] == seen["completed"] == seen["text"]
    assert "Paris" in seen["completion"]["text"]
    assert seen["completion"]["streamed"] == seen["completion"]["text"]
    plain, streamed = seen["calls"]
    assert plain == streamed
    ((name, arguments),) = plain
    assert (name, set(arguments)) == ("get_weather", {"city"})
    assert arguments["city"] in CITIES


def test_litellm(clients: Clients, place: Place, freed: None) -> None:
    seen = clients.run_python("litellm_calls.py", place)
    for provider in ("hosted_vllm", "openai"):
        told = seen[provider]
        assert "Paris" in told["text"], provider
        assert told["streamed"] == told["text"], provider
        assert told["end"] in ("stop", "length")
        assert told["calls"][0] == told["calls"][1]
        ((name, arguments),) = told["calls"][0]
        assert name == "get_weather"
        assert json.loads(arguments)["city"] in CITIES
        check_embeddings(told["embeddings"])
    assert seen["hosted_vllm"] == seen["openai"]
    assert seen["refusal"] == [400, True]


def test_instructor_needs_one_try_each(clients: Clients, place: Place, server: ServingProcess, freed: None) -> None:
    before = server.load()["arrivals_total"]
    seen = clients.run_python("instructor_people.py", place)
    made: list[Any] = [person for people in seen.values() for person in people]
    assert set(seen) == {"JSON_SCHEMA", "TOOLS"}
    assert server.load()["arrivals_total"] - before == len(made) == 6
    for person in made:
        assert 1 <= len(person["name"]) <= 20
        assert 0 <= person["age"] <= 120
        assert 1 <= len(person["languages"]) <= 2
