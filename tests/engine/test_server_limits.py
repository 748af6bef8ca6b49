"""The whole server against clients that take too long, too much, or come from elsewhere; on real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from octavo_engine.batch import SchedulerStats
from octavo_engine.metrics import Metrics
from octavo_engine.request import FinishReason, RejectReason
from octavo_engine.server import app
from octavo_engine.server.auth import KeyRing
from octavo_engine.server.deadlines import Deadlines
from octavo_engine.server.quotas import Quotas
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from patience import PATIENCE_SECONDS
from scripted_server import ScriptedServer, exchange, scripted_server, until

COMPLETIONS = "/v1/completions"
ORIGIN = "https://app.example.com"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
KEY, KEY_LINE = {"Authorization": "Bearer k"}, b"Authorization: Bearer k\r\n"


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture(scope="module")
def shared(tokenizer: Tokenizer) -> Iterator[ScriptedServer]:
    """With one key, and one origin of web pages."""
    with scripted_server(tokenizer, keys=KeyRing(("k",)), origins=(ORIGIN,)) as server:
        yield server


@pytest.fixture
def impatient(tokenizer: Tokenizer) -> Iterator[ScriptedServer]:
    """With one key, and little patience for bodies."""
    with scripted_server(tokenizer, keys=KeyRing(("k",)), deadlines=Deadlines(body=0.3)) as server:
        yield server


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# -- clients that take too long ----------------------------------------------------------------------------------------


def test_half_a_body_is_told_so_and_the_engine_hears_nothing(impatient: ScriptedServer) -> None:
    reply = exchange(impatient, HEAD + b'Authorization: Bearer k\r\nContent-Length: 100\r\n\r\n{"model": ')
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "request_timeout"
    assert impatient.engine.arrivals == 0


def test_a_body_that_no_key_opens_the_door_for_is_not_waited_for(impatient: ScriptedServer) -> None:
    reply = exchange(impatient, HEAD + b"Content-Length: 100\r\n\r\nhalf")
    assert reply.startswith(b"HTTP/1.1 401 ")  # at once; and then the connection is closed, or this would not return


def test_a_reader_that_stops_is_cut_off_and_its_blocks_are_free(tokenizer: Tokenizer) -> None:
    with scripted_server(tokenizer, deadlines=Deadlines(write=0.3)) as server:
        launch = server.model.launch

        def stopping(batch: Any) -> Any:
            """More is written than anything between us holds; then no step ends before the reader is given up."""
            if any(piece.request.num_output == 60 for piece in batch.slices):
                until(lambda: len(server.engine._cancelled) == 8, "it is cut off")
            return launch(batch)

        server.model.launch = stopping  # type: ignore[method-assign]
        body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "n": 8, "stream": True}
        body |= {"logprobs": True, "top_logprobs": 20, "ignore_eos": True, "max_tokens": 200}
        # Accepted connections take after the one that listens: the kernel holds as little for the server, too.
        server.listener.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with small_socket(server) as connection:
            connection.sendall(posted("/v1/chat/completions", body))
            until(lambda: server.engine.arrivals == 8, "it is begun")
            until(lambda: len(server.recorder.ended) == 8, "all its choices are ended")
            until(server.idle, "its blocks are free")
            assert {request.finish_reason for request in server.recorder.ended} == {FinishReason.ABORT}
            assert server.post(COMPLETIONS, prompt="x", max_tokens=1).status_code == 200


@contextmanager
def small_socket(server: ScriptedServer) -> Iterator[socket.socket]:
    """One that takes little before its owner reads."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.address)
        yield connection


def posted(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
        (b"X: " + b"a" * 40_000 + b"\r\nContent-Length: 2\r\n\r\n{}", None),
        (b"X: " + b"a" * 16_000_000, None),
    ],
    ids=["two framings", "a long head in one piece", "a head without an end"],
)
def test_heads_that_are_refused_end_their_connection(shared: ScriptedServer, head: bytes, status: int | None) -> None:
    reply = exchange(shared, HEAD + KEY_LINE + head)  # which returns when the server has closed
    assert reply.startswith(b"HTTP/1.1 %d " % status) if status else reply[:13] in (b"", b"HTTP/1.1 431 ")
    with shared.client as client:
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("length", [1, 127, 128])
def test_a_prompt_may_be_as_long_as_it_may(shared: ScriptedServer, length: int) -> None:
    with shared.client as client:
        body = {"model": "scripted", "prompt": [5] * length, "max_tokens": 1}
        assert client.post(COMPLETIONS, json=body, headers=KEY).json()["usage"]["prompt_tokens"] == length


@pytest.mark.parametrize("prompt", [[], [5] * 129, "a" * 60_000, "\U0001f600" * 5_000, "e\u0301\u0302" * 8_000])
def test_and_no_longer(shared: ScriptedServer, prompt: str | list[int]) -> None:
    before = shared.engine.arrivals
    with shared.client as client:
        body = {"model": "scripted", "prompt": prompt, "max_tokens": 1}
        reply = client.post(COMPLETIONS, json=body, headers=KEY)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")
    assert shared.engine.arrivals == before


# -- web pages, and ids ------------------------------------------------------------------------------------------------

PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}


def test_a_preflight_needs_no_key_and_allows_what_clients_send(shared: ScriptedServer) -> None:
    with shared.client as client:
        reply = client.options(COMPLETIONS, headers=PREFLIGHT)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in reply.headers["access-control-allow-methods"]
    allowed = reply.headers["access-control-allow-headers"]
    assert set(PREFLIGHT["Access-Control-Request-Headers"].split(",")) <= set(allowed.split(","))
    assert "access-control-allow-credentials" not in reply.headers
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/models", KEY, 200),
        ("GET", "/v1/models", {}, 401),
        ("GET", "/nowhere", KEY, 404),
        ("GET", COMPLETIONS, KEY, 405),
        ("POST", COMPLETIONS, KEY, 415),
        ("POST", COMPLETIONS, KEY | {"Content-Type": "application/json"}, 400),
        ("GET", "/health", {f"x-{n}": "1" for n in range(120)}, 431),
    ],
)
def test_a_page_can_read_every_answer_errors_too(
    shared: ScriptedServer, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    with shared.client as client:
        reply = client.request(method, path, headers=headers | {"Origin": ORIGIN})
    assert reply.status_code == status
    assert reply.headers["access-control-allow-origin"] == ORIGIN
    assert "x-request-id" in reply.headers["access-control-expose-headers"]
    assert "Origin" in reply.headers["vary"]


def test_pages_of_other_origins_may_not(shared: ScriptedServer) -> None:
    for origin in ("https://evil.example.com", "null", ORIGIN + ".evil.com", "http://app.example.com"):
        with shared.client as client:
            reply = client.options(COMPLETIONS, headers=PREFLIGHT | {"Origin": origin})
            assert reply.status_code == 400
            assert "access-control-allow-origin" not in reply.headers
            reply = client.get("/v1/models", headers=KEY | {"Origin": origin})
            assert reply.status_code == 200
            assert "access-control-allow-origin" not in reply.headers


def test_any_origin_is_a_star_without_credentials_and_none_is_nothing(tokenizer: Tokenizer) -> None:
    for origins, star in ((("*",), "*"), ((), None)):
        with scripted_server(tokenizer, origins=origins) as server, server.client as client:
            preflight = client.options(COMPLETIONS, headers=PREFLIGHT)
            reply = client.get("/v1/models", headers={"Origin": ORIGIN})
        assert preflight.status_code == (200 if star else 405)
        for each in (preflight, reply):
            assert each.headers.get("access-control-allow-origin") == star
            assert "access-control-allow-credentials" not in each.headers


@pytest.mark.parametrize("given", ["mine-1.2_3", "a" * 64])
def test_a_well_formed_id_comes_back_with_every_answer(shared: ScriptedServer, given: str) -> None:
    with shared.client as client:
        for path in ("/health", "/v1/models", "/nowhere"):
            assert client.get(path, headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 65, "a b", "a\tb", 'a"}\\', "é", "a;DROP", "%0d%0a"])
def test_another_id_is_replaced(shared: ScriptedServer, given: str) -> None:
    with shared.client as client:
        reply = client.get("/health", headers={b"X-Request-Id": given.encode("latin-1")})
    assert len(reply.headers["x-request-id"]) == 32
    assert given not in reply.headers["x-request-id"] or not given


# -- keys and what they may take ---------------------------------------------------------------------------------------


@contextmanager
def keyed(tokenizer: Tokenizer, path: Path, *entries: dict[str, Any]) -> Iterator[tuple[ScriptedServer, Clock]]:
    """A server with a file of keys, and the clock by which it looks at that."""
    clock = Clock()
    write_keys(path, *entries)
    with scripted_server(tokenizer, keys=KeyRing((), str(path), clock)) as server:
        yield server, clock


def write_keys(path: Path, *entries: dict[str, Any]) -> None:
    path.write_text("\n".join(map(json.dumps, entries)))


def ask(server: ScriptedServer, key: str, **body: Any) -> httpx.Response:
    with server.client as client:
        asked = {"model": "scripted", "prompt": [5], "max_tokens": 1} | body
        return client.post(COMPLETIONS, json=asked, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.usefixtures("no_time_goes_by")
def test_a_key_gets_its_tokens_and_is_told_what_is_left(tokenizer: Tokenizer, tmp_path: Path) -> None:
    entries = {"key": "a", "name": "team-a", "tokens_per_minute": 100, "requests_per_minute": 10}, {"key": "b"}
    with keyed(tokenizer, tmp_path / "keys", *entries) as (server, _):
        reply = ask(server, "a", prompt=[5] * 40, max_tokens=30)
        assert reply.status_code == 200
        told = {name: reply.headers[f"x-ratelimit-{name}"] for name in ("limit-tokens", "limit-requests")}
        assert told == {"limit-tokens": "100", "limit-requests": "10"}
        # Told before it is known what it will use.
        assert int(reply.headers["x-ratelimit-remaining-tokens"]) == 30
        assert int(reply.headers["x-ratelimit-remaining-requests"]) == 9
        assert reply.headers["x-ratelimit-reset-requests"].endswith("s")
        used = reply.json()["usage"]["total_tokens"]
        arrivals = server.engine.arrivals
        refused = ask(server, "a", prompt=[5] * 100, max_tokens=20)
        assert server.engine.arrivals == arrivals
        error = refused.json()["error"]
        assert (refused.status_code, error["type"], error["code"]) == (429, "tokens", "rate_limit_exceeded")
        assert 1 <= int(refused.headers["retry-after"]) <= used * 0.6 + 1
        assert int(refused.headers["x-ratelimit-remaining-tokens"]) == 100 - used
        assert server.recorder.rejected == [RejectReason.RATE_LIMITED]
        assert "connection" not in refused.headers
        free = ask(server, "b", prompt=[5] * 100, max_tokens=20)
        assert free.status_code == 200
        assert not [name for name in free.headers if name.startswith("x-ratelimit")]


@pytest.mark.parametrize("stream", [True, False])
def test_a_key_has_so_many_requests_at_once_and_gets_its_place_back(
    tokenizer: Tokenizer, tmp_path: Path, stream: bool
) -> None:
    with keyed(tokenizer, tmp_path / "keys", {"key": "a", "max_concurrent_requests": 1}) as (server, _):
        server.model.gate.clear()
        gone = socket.create_connection(server.address)
        body = {"model": "scripted", "prompt": [5], "stream": stream, "ignore_eos": True, "max_tokens": 50}
        gone.sendall(posted(COMPLETIONS, body).replace(b"\r\n", b"\r\nAuthorization: Bearer a\r\n", 1))
        until(lambda: server.engine.arrivals == 1, "the first runs")
        refused = ask(server, "a")
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "requests")
        assert refused.headers["retry-after"] == "1"
        gone.close()
        server.model.gate.set()
        until(lambda: ask(server, "a").status_code == 200, "its place is free when its client has gone")
        assert ask(server, "a", stream=stream).status_code == 200
        assert ask(server, "a", temperature=9).status_code == 400
        assert ask(server, "a").status_code == 200, "neither an answer nor a refusal keeps a place"


BESIDE = {
    "/tokenize": ({"prompt": "a" + " a" * 29}, "count"),
    "/detokenize": ({"tokens": [5] * 30}, "prompt"),
    "/v1/embeddings": ({"input": [[5] * 30]}, "data"),
}
"""Routes without an answer of tokens: a body of theirs that takes 30, and what is in the reply."""


@pytest.fixture
def no_time_goes_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes back to a key, however slow a machine is."""
    monkeypatch.setattr(app, "Quotas", partial(Quotas, clock=lambda: 1000.0))


@pytest.mark.usefixtures("no_time_goes_by")
@pytest.mark.parametrize("path", BESIDE)
def test_what_generates_nothing_takes_of_a_key_too(tokenizer: Tokenizer, tmp_path: Path, path: str) -> None:
    body, told = BESIDE[path]
    entry = {"key": "a", "requests_per_minute": 4, "tokens_per_minute": 75}
    with keyed(tokenizer, tmp_path / "keys", entry) as (server, _), server.client as client:

        def post(**fields: Any) -> httpx.Response:
            return client.post(path, json=body | {"model": "scripted"} | fields, headers={"Authorization": "Bearer a"})

        def left(reply: httpx.Response) -> tuple[str, str]:
            return reply.headers["x-ratelimit-remaining-tokens"], reply.headers["x-ratelimit-remaining-requests"]

        replies = [post() for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert told in replies[0].json()
        assert [left(reply) for reply in replies] == [("45", "3"), ("15", "2"), ("15", "1")]
        assert (replies[2].json()["error"]["type"], replies[2].headers["retry-after"]) == ("tokens", "12")
        wrong = post(nonsense=1)
        assert (wrong.status_code, left(wrong)) == (400, ("15", "1")), "while it was read it had a place"
        assert ask(server, "a", prompt=[5] * 15, max_tokens=1).status_code == 429, "one account for all routes"
        assert left(ask(server, "a", prompt=[5] * 14, max_tokens=1)) == ("0", "1"), "and refusals took nothing"
        assert server.recorder.rejected.count(RejectReason.RATE_LIMITED) == 2


@pytest.mark.usefixtures("no_time_goes_by")
def test_who_has_no_place_is_told_so_before_the_body_is_read(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """So nothing is parsed, tokenized or compiled for it; and its connection goes on behind that body."""
    with keyed(tokenizer, tmp_path / "keys", {"key": "a", "requests_per_minute": 1}) as (server, _):
        assert ask(server, "a").status_code == 200
        for path in (COMPLETIONS, "/v1/chat/completions", "/v1/responses", *BESIDE):
            head = HEAD.replace(COMPLETIONS.encode(), path.encode()) + b"Authorization: Bearer a\r\n"
            with socket.create_connection(server.address, timeout=PATIENCE_SECONDS) as connection:
                connection.sendall(head + b"Content-Length: 2\r\n\r\n")
                received = b""
                while not received.endswith(b"}}") and (piece := connection.recv(65536)):
                    received += piece
                assert received.startswith(b"HTTP/1.1 429 "), (path, received)
                assert b"x-ratelimit-remaining-requests: 0" in received
                connection.sendall(b"{}GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 "), path


def test_looks_take_nothing_of_a_key(tokenizer: Tokenizer, tmp_path: Path) -> None:
    limits = {"key": "a", "requests_per_minute": 1, "max_concurrent_requests": 1}
    with keyed(tokenizer, tmp_path / "keys", limits) as (server, _), server.client as client:
        for path in ("/v1/models", "/v1/models/scripted", "/health") * 2:
            reply = client.get(path, headers={"Authorization": "Bearer a"})
            assert (reply.status_code, "x-ratelimit-limit-requests" in reply.headers) == (200, False)
        assert ask(server, "a").status_code == 200


def test_a_key_that_is_taken_away_is_refused_and_what_it_has_begun_ends(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with keyed(tokenizer, path, {"key": "old"}) as (server, clock), server.client as client:
        server.model.gate.clear()
        body = {"model": "scripted", "prompt": [5], "max_tokens": 5, "ignore_eos": True, "stream": True}
        old, new = ({"Authorization": f"Bearer {key}"} for key in ("old", "new"))
        request = client.build_request("POST", COMPLETIONS, json=body, headers=old)
        sent = socket.create_connection(server.address)
        sent.sendall(posted(COMPLETIONS, body).replace(b"\r\n", b"\r\nAuthorization: Bearer old\r\n", 1))
        until(lambda: server.engine.arrivals == 1, "it runs")
        write_keys(path, {"key": "new"})
        clock.now += 2
        assert client.send(request).status_code == 401
        assert client.get("/v1/models", headers=new).status_code == 200
        server.model.gate.set()
        received = b""
        while b"[DONE]" not in received and (piece := sent.recv(65536)):
            received += piece
        assert b"[DONE]" in received
        sent.close()


@pytest.mark.usefixtures("no_time_goes_by")
def test_openais_client_knows_what_it_is_told(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with keyed(tokenizer, tmp_path / "keys", {"key": "a", "requests_per_minute": 1}) as (server, _):
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="a", max_retries=0)
        with client:
            client.completions.create(model="scripted", prompt="x", max_tokens=1)
            with pytest.raises(openai.RateLimitError) as refused:
                client.completions.create(model="scripted", prompt="x", max_tokens=1)
    assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "requests")
    assert int(refused.value.response.headers["retry-after"]) == 60


# -- what a client says makes no series --------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_odd_names_make_no_series(tokenizer: Tokenizer, tmp_path: Path, odd: int) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, model_name="scripted", stats=SchedulerStats)
    clock = Clock()
    write_keys(tmp_path / "keys", *({"key": f"k{n}", "name": f"name-{n}", "requests_per_minute": 1} for n in range(9)))
    keys = KeyRing((), str(tmp_path / "keys"), clock)
    with scripted_server(tokenizer, keys=keys, metrics=metrics) as server, server.client as client:
        series = set()
        for number in range(odd + 2):
            name = f'odd-{number}"}} \\ \x1b[31m'
            body = {"model": name, "prompt": [5], "max_tokens": 1, "user": name, "cache_salt": f"s{number}"}
            if number % 2:
                body |= {"model": "scripted"}
            headers = {"Authorization": f"Bearer k{number % 12}", "X-Request-Id": f"id-{number}"}
            client.post(f"{COMPLETIONS}{'' if number % 3 else f'/{number}'}", json=body, headers=headers)
            if number == 1:
                series = series_of(registry)
        assert server.engine.arrivals > 1
        assert series_of(registry) == series


def series_of(registry: CollectorRegistry) -> set[str]:
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}
