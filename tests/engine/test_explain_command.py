"""`octavo explain` asks a real server over HTTP: about ended, live, waiting and refused requests, or in vain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from octavo_engine import cli
from octavo_engine.server.listeners import bind, start_management, url_of
from octavo_engine.server.management import build_management_app
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from scripted_server import DEADLINE_SECONDS, ScriptedServer, scripted_server, until
from turnstile import Turnstile

pytestmark = pytest.mark.engine

COMPLETIONS = "/v1/completions"
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture
def server(tokenizer: Tokenizer) -> Iterator[ScriptedServer]:
    with scripted_server(tokenizer, max_num_seqs=1, max_waiting=2) as server:
        yield server


@pytest.fixture
def management(server: ScriptedServer) -> Iterator[str]:
    app = build_management_app(server.context.lifecycle, CollectorRegistry(), server.recorder.history)
    bound = bind("--management-port", "127.0.0.1", 0)
    listener = start_management(app, bound)
    yield url_of(bound)
    listener.should_exit = True


@pytest.fixture
def ask(management: str, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run the command; its exit code, what it printed and what it complained of."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["explain", *arguments, *(() if "--url" in arguments else ("--url", management))])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_an_answer_is_explained_by_each_id_that_the_client_saw(server: ScriptedServer, ask: Ask) -> None:
    reply = server.post(COMPLETIONS, prompt="tell me a tale", max_tokens=3)
    name = reply.json()["id"]
    code, text, complaint = ask(name)
    assert (code, complaint) == (0, "")
    assert text.startswith(f"{name}-0: finished (length) after ")
    assert "What to change" in text
    assert "\x1b" not in text  # no terminal, no colours
    assert ask(reply.headers["x-request-id"])[1] == text


def test_as_json_it_is_the_whole_document_with_the_advice(server: ScriptedServer, ask: Ask) -> None:
    name = server.post(COMPLETIONS, prompt="tell me a tale", max_tokens=3, n=2).json()["id"]
    document = json.loads(ask(name, "--json")[1])
    assert document["id"] == f"{name}-0"
    assert document["other_choices"] == [f"{name}-1"]
    assert document["advice"]
    assert sum(share["share"] for share in document["shares"]) == pytest.approx(1, abs=0.01)
    other = json.loads(ask(f"{name}-1", "--json")[1])
    waits = {share["why"] for share in other["shares"] if share["state"] == "waiting"}
    assert "batch_full" in waits  # one at a time runs


def post(server: ScriptedServer, name: str) -> httpx.Response:
    with server.client as client:
        body = {"model": "scripted", "prompt": f"{name} " * 9, "max_tokens": 50, "ignore_eos": True}
        return client.post(COMPLETIONS, json=body, headers={"x-request-id": name})


def test_a_full_queue_says_why_it_waits_and_whom_it_refused(
    server: ScriptedServer, ask: Ask, clients: ThreadPoolExecutor
) -> None:
    turnstile: Any = Turnstile()
    server.model.gate = turnstile
    asked: dict[str, Future[httpx.Response]] = {}
    for number, name in enumerate(("first", "second", "third")):
        asked[name] = clients.submit(post, server, name)
        until(lambda arrivals=number + 1: server.engine.arrivals == arrivals, f"{name} is there")
    turnstile.grant(1)  # the step that was under way ends, and the next has looked at them
    until(lambda: server.engine.stats().waiting["batch_full"] == 2, "both are looked at")
    assert post(server, "fourth").status_code == 429

    code, text, _ = ask()
    assert code == 0
    assert "scripted: serving, 2 waiting, 1 running" in text
    assert "2 batch_full (batch_full for " in text
    assert "--max-num-seqs" in text
    assert "Live, the oldest first" in text

    assert "waiting (batch_full) for " in ask("second")[1]
    assert "decode for " in ask("first")[1]
    refused = ask("fourth")[1]
    assert "rejected (queue_full) after " in refused
    assert "--max-waiting-requests" in refused

    turnstile.set()
    assert [reply.result(DEADLINE_SECONDS).status_code for reply in asked.values()] == [200] * 3
    document = json.loads(ask("third", "--json")[1])
    assert document["largest"]["why"] == "batch_full"
    assert json.loads(ask("--json")[1])["queue"]["reason"] is None


def test_what_cannot_be_told_has_an_exit_code_and_one_line(ask: Ask) -> None:
    for code, arguments in (
        (1, ["chatcmpl-unknown"]),
        (1, ["../../metrics"]),
        (2, ["--url", "ftp://x"]),
        (2, ["--limit", "0"]),
        (3, ["--url", "http://127.0.0.1:1"]),
    ):
        seen, out, complaint = ask(*arguments)
        assert (seen, out, complaint.count("\n")) == (code, "", 1), arguments


def test_the_api_port_is_told_from_the_management_port(server: ScriptedServer, ask: Ask) -> None:
    code, _, complaint = ask("--url", server.url)
    assert code == 3
    assert "--url" in complaint
