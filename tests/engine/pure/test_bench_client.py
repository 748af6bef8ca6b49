"""The load test's client: each way in which a server can answer or fail, and what is counted."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moved_clock import MovedClock
from octavo_engine import __version__
from octavo_engine.bench.answer import Answer
from octavo_engine.bench.client import Client, NotAnswered, Question, failure_of, fetch_json
from octavo_engine.bench.outcome import Failure, Outcome
from octavo_engine.bench.wire import Connections, Target
from octavo_engine.errors import InvalidConfiguration
from patience import PATIENCE_SECONDS
from told_server import HEAD, OpenAI, Piece, ToldServer, chunk, event, reply, said, stream, told_server, usage

WHOLE = stream({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, said("a"), said("b"), said("c"),
               usage(7, 4, 2), "[DONE]")  # fmt: skip


def question(*, keep_text: bool = False) -> Question:
    return Question(
        path="/v1/chat/completions",
        body={"messages": []},
        turn=0,
        prompt_tokens=7,
        output_tokens=4,
        keep_text=keep_text,
    )


async def ask(
    url: str, *, times: int = 1, seconds: float = PATIENCE_SECONDS, api_key: str | None = None
) -> list[Outcome]:
    """Ask one after another over one set of connections."""
    outcomes: list[Outcome] = []
    connections = Connections(Target.of(url), api_key=api_key, seconds=seconds)
    client = Client(connections, outcomes.append)
    for _ in range(times):
        await client.ask(question())
    connections.close()
    return outcomes


async def answered_with(*pieces: Piece) -> Outcome:
    with told_server(lambda path, body: pieces) as server:
        (outcome,) = await ask(server.url)
        return outcome


async def test_an_answer_is_counted_by_the_server_and_timed_by_its_chunks_with_text() -> None:
    outcome = await answered_with(WHOLE)
    assert outcome.whole
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (7, 4, 2)
    assert len(outcome.gaps) == 2  # three chunks have text; the role has none
    assert outcome.first_token is not None
    assert outcome.last_token == pytest.approx(outcome.first_token + sum(outcome.gaps))
    assert outcome.time_per_output_token == pytest.approx(sum(outcome.gaps) / 3)


async def test_without_the_servers_account_chunks_are_tokens() -> None:
    outcome = await answered_with(stream(said("a"), said("b"), "[DONE]"))
    assert outcome.whole
    assert (outcome.prompt_tokens, outcome.output_tokens) == (None, 2)


ERROR = {"error": {"message": "say  no\nmore", "type": "x"}}


@pytest.mark.parametrize(
    ("pieces", "failure", "words"),
    [
        ([reply(401, ERROR)], Failure.UNAUTHORIZED, "401: say no more"),
        ([reply(403, b"<html>")], Failure.UNAUTHORIZED, "403: <html>"),
        ([reply(429, ERROR, "Retry-After: 3")], Failure.OVERLOADED, "429: say no more"),
        ([reply(404, {"detail": "Not Found"})], Failure.REJECTED, "404: Not Found"),
        ([reply(400, {"error": "plain"})], Failure.REJECTED, "400: plain"),
        ([reply(503, b"")], Failure.SERVER_ERROR, "503"),
        ([stream(said("a"), ERROR, "[DONE]")], Failure.ERROR_EVENT, "say no more"),
        ([HEAD + chunk(event(said("a"))), None], Failure.CUT, "the connection ended"),
        ([HEAD + chunk(event(ERROR)), None], Failure.ERROR_EVENT, "say no more"),
        ([None], Failure.CUT, "the connection ended"),
        ([stream(said("a"))], Failure.CUT, "no [DONE]"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n", None], Failure.MALFORMED, "no HTTP"),
        ([reply(200, {"choices": []})], Failure.MALFORMED, 'no events: {"choices": []}'),
        ([stream("{", "[DONE]")], Failure.MALFORMED, "no JSON object: {"),
        ([stream("7", "[DONE]")], Failure.MALFORMED, "no JSON object: 7"),
        ([stream(usage(7, 0), "[DONE]")], Failure.EMPTY, "no text"),
    ],
)
async def test_each_failure_is_of_a_kind_and_keeps_what_was_said(
    pieces: Sequence[Piece], failure: Failure, words: str
) -> None:
    outcome = await answered_with(*pieces)
    assert outcome.failure is failure
    assert words in outcome.detail


async def test_a_closed_port_refuses() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        outcome, again = await ask(f"http://127.0.0.1:{taken.getsockname()[1]}", times=2)
    assert outcome.failure is again.failure is Failure.REFUSED


def test_errors_of_the_network_are_told_apart() -> None:
    assert failure_of(TimeoutError())[0] is Failure.TIMEOUT
    assert failure_of(TimeoutError(110, "Connection timed out"))[0] is Failure.UNREACHABLE
    assert failure_of(ConnectionResetError("gone"))[0] is Failure.CUT
    assert failure_of(socket.gaierror(-2, "Name or service not known"))[0] is Failure.UNREACHABLE
    assert failure_of(OSError(24, "Too many open files"))[0] is Failure.CLIENT
    several = OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] Connect call ...")
    assert failure_of(several)[0] is Failure.REFUSED


async def test_who_does_not_answer_in_time_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, never, came, body = MovedClock(monkeypatch), threading.Event(), asyncio.Event(), Answer.body

    def noted(answer: Answer, data: bytes, at: float) -> None:
        body(answer, data, at)
        came.set()

    monkeypatch.setattr(Answer, "body", noted)
    with told_server(lambda path, body: [HEAD + chunk(event(said("a"))), never]) as server:
        asked = asyncio.create_task(ask(server.url, seconds=60.0))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await came.wait()
            clock.move_on(60.0)
            (outcome,) = await asked
        never.set()
    assert outcome.failure is Failure.TIMEOUT
    assert outcome.output_tokens == 1


async def test_what_is_cancelled_is_recorded_as_interrupted() -> None:
    came, never = threading.Event(), threading.Event()

    def told(path: str, body: dict[str, object]) -> list[Piece]:
        came.set()
        return [never]

    outcomes: list[Outcome] = []
    with told_server(told) as server:
        connections = Connections(Target.of(server.url), api_key=None, seconds=PATIENCE_SECONDS)
        task = asyncio.create_task(Client(connections, outcomes.append).ask(question()))
        assert await asyncio.to_thread(came.wait, PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        never.set()
        connections.close()
    assert [outcome.failure for outcome in outcomes] == [Failure.INTERRUPTED]


async def test_a_connection_is_kept_for_the_next_request() -> None:
    with told_server(lambda path, body: [WHOLE]) as server:
        assert all(outcome.whole for outcome in await ask(server.url, times=3))
        assert server.connections == 1


@pytest.mark.parametrize("announced", [True, False])
async def test_a_connection_that_the_server_closes_is_made_anew(announced: bool) -> None:
    head = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") if announced else HEAD
    with told_server(lambda path, body: [head + WHOLE.removeprefix(HEAD), None]) as server:
        assert all(outcome.whole for outcome in await ask(server.url, times=3))
        assert server.connections == 3


async def test_a_stream_without_a_length_ends_with_its_connection() -> None:
    body = event(said("a")) + event("[DONE]")
    outcome = await answered_with(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + body, None)
    assert outcome.whole


async def test_an_interim_reply_is_passed_over() -> None:
    outcome = await answered_with(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WHOLE)
    assert outcome.whole
    assert outcome.output_tokens == 4


async def test_a_servers_log_can_tell_who_loads_it() -> None:
    with told_server(lambda path, body: [WHOLE]) as server:
        await ask(server.url)
    assert server.agents == [f"octavo-bench/{__version__}"]


async def test_the_key_is_sent_as_a_bearer_token() -> None:
    with told_server(lambda path, body: [WHOLE]) as server:
        await ask(server.url, api_key="sesame")
        await ask(server.url)
    assert server.keys == ["Bearer sesame", None]


@given(st.lists(st.integers(0, 400), max_size=12), st.sampled_from([b"\n", b"\r\n"]))
def test_events_may_be_cut_anywhere(cuts: list[int], newline: bytes) -> None:
    texts = ["日本", "and 👍🏽", " so", "\n\ndata: [DONE]"]
    raw = b"".join(event(said(text)) for text in texts) + b": a comment\n\n" + event(usage(1, 9)) + event("[DONE]")
    raw = raw.replace(b"\n", newline)
    answer, edges = Answer(keep_text=True), [0, *sorted(cuts), len(raw)]
    answer.head(200)
    for at, (low, high) in enumerate(pairwise(edges)):
        answer.body(raw[low:high], float(at))
    assert answer.problem() is None
    assert answer.text == "".join(texts)
    assert len(answer.arrivals) == 4
    assert answer.arrivals == sorted(answer.arrivals)
    assert answer.count("completion_tokens") == 9


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_text_of_every_kind_is_made_of_tokens(delta: dict[str, object]) -> None:
    answer = Answer()
    answer.head(200)
    answer.body(event({"choices": [{"delta": delta}]}) + event("[DONE]"), 1.0)
    assert answer.problem() is None
    assert answer.arrivals == [1.0]


@pytest.mark.parametrize("odd", [{"choices": None}, {"choices": [3]}, {"choices": [{"delta": None}]}, {"usage": 3}, {}])
def test_odd_chunks_are_no_text(odd: dict[str, object]) -> None:
    answer = Answer()
    answer.head(200)
    answer.body(event(odd) + event("[DONE]"), 1.0)
    assert answer.problem() == (Failure.EMPTY, "the answer has no text")
    assert answer.count("completion_tokens") is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000"),
        ("https://user:secret@models.example/team/v1", "https://models.example:443/team"),
    ],
)
def test_a_server_is_named_with_or_without_v1_and_shown_without_credentials(url: str, shown: str) -> None:
    assert Target.of(url).url == shown


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:y", "http://x:99999"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfiguration, match="--url is"):
        Target.of(url)


async def test_what_is_asked_before_a_test_is_told_with_its_place() -> None:
    async def models(server: ToldServer) -> object:
        connections = Connections(Target.of(server.url), api_key=None, seconds=PATIENCE_SECONDS)
        try:
            return await fetch_json(connections, "GET", "/v1/models")
        finally:
            connections.close()

    with told_server(OpenAI()) as server:
        assert await models(server) == {"data": [{"id": "told"}]}
    for pieces, words in (
        ([reply(401, ERROR)], "say no more"),
        ([reply(200, b"[")], "no JSON"),
        ([reply(200, b"[]")], "object"),
    ):
        with told_server(lambda path, body, pieces=pieces: pieces) as server, pytest.raises(NotAnswered, match=words):
            await models(server)
