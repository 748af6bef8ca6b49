"""Who may come in: keys, their file, and every route there is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo_engine.server.admission import OPEN_PATHS
from octavo_engine.server.auth import KeyRing
from octavo_engine.server.framing import MAX_HEAD_BYTES
from octavo_engine.server.routes import build_routes
from octavo_engine.tokenizer import load_tokenizer
from scripted_server import ScriptedServer, exchange, scripted_server

KEY = {"Authorization": "Bearer first-key"}
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[ScriptedServer]:
    with scripted_server(load_tokenizer(str(smollm2_gguf)), keys=KeyRing(("first-key", "other-key"))) as server:
        yield server


def test_every_route_but_the_open_ones_needs_a_key_for_every_method(server: ScriptedServer) -> None:
    paths = {getattr(route, "path", "") for route in build_routes(server.context).routes}
    assert paths >= OPEN_PATHS
    unknown = {
        "/",
        "/unknown",
        "/metrics",
        "/docs",
        "/health/",
        "//health",
        "/HEALTH",
        "/health%2f",
        "/v1/%2e%2e/health",
    }
    with server.client as client:
        for path in (paths - OPEN_PATHS) | unknown:
            for method in METHODS:
                assert client.request(method, path).status_code == 401, (method, path)
                assert client.request(method, path, headers=KEY).status_code != 401, (method, path)
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer wrong",
        "Basic first-key",
        "first-key",
        "Bearer first-key other-key",
        "Bearer é",
        "Bearer " + "k" * 30_000,
    ],
)
def test_what_is_not_a_key(server: ScriptedServer, value: str) -> None:
    with server.client as client:
        reply = client.get("/v1/models", headers={b"Authorization": value.encode("latin-1")})
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.json()["error"]["code"] == "invalid_api_key"


def test_a_key_in_the_query_is_no_key(server: ScriptedServer) -> None:
    with server.client as client:
        assert client.get("/v1/models?api_key=first-key").status_code == 401


HOSTS = [b"x", b"x/health", b"x?/health", b"x#/health", b"@health", b"user@x", b"", b"a\r\nHost: b"]
UNKNOWN_TARGETS = [
    *(b"health", b"*", b"/", b"//health", b"/health.", b"/health/", b"/HEALTH", b"/health%00", b"/health%2f"),
    *(b"http://x/health", b"http://health", b"/v1/models/../../health", b"/v1/models?/health", b"/v1/models#/health"),
    *(b"/v1//models", b"/V1/models", b"/v1/models/", b"/v1/models%3f", b"//v1/models", b"http://x/v1/models"),
]
"""None of them is the open route, whatever they look like to others."""


def status(server: ScriptedServer, target: bytes, host: bytes, key: bytes = b"") -> int:
    authorization = b"Authorization: Bearer " + key + b"\r\n" if key else b""
    head = b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n" + authorization
    return int(exchange(server, head + b"Connection: close\r\n\r\n").split()[1])


@pytest.mark.parametrize("host", HOSTS)
def test_the_verdict_depends_on_the_path_alone(server: ScriptedServer, host: bytes) -> None:
    """Of every route, and of what only looks like one; two hosts are no HTTP."""
    malformed = b"Host:" in host
    routes = {getattr(route, "path", "").encode() for route in build_routes(server.context).routes}
    assert len(routes) == 9
    for target in (*(routes - {path.encode() for path in OPEN_PATHS}), *UNKNOWN_TARGETS):
        assert status(server, target, host) == (400 if malformed else 401), target
        passed = status(server, target, host, b"first-key")
        assert passed == 400 if malformed else passed in (200, 404, 405), target
    for target in (b"/health", b"/%68ealth", b"/health?x=/v1/models"):
        assert status(server, target, host) == (400 if malformed else 200), target


@pytest.mark.parametrize(
    "unfinished",
    [b"Authorization: Bearer " + b"k" * (1 << 20), b"X: " + b"a" * (1 << 24), b"X-1: a\r\n" * 5_000, b"X" * (1 << 20)],
    ids=["a key of 1 MiB", "a header of 16 MiB", "5,000 headers", "a name of 1 MiB"],
)
def test_a_head_is_refused_at_the_byte_that_is_too_many(server: ScriptedServer, unfinished: bytes) -> None:
    head = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + unfinished
    reply = exchange(server, head[: MAX_HEAD_BYTES + 1])  # which returns when the server has closed
    assert reply.startswith(b"HTTP/1.1 431 ")
    assert b'"head_too_long"' in reply


def test_callers_have_namespaces_of_their_own(server: ScriptedServer) -> None:
    prompt = list(range(200, 264))
    cached = []
    for key in ("first-key", "other-key", "first-key"):
        with server.client as client:
            body = {"model": "scripted", "prompt": prompt, "max_tokens": 1}
            answer = client.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}).json()
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_changed_key_file_is_read_again_and_a_lost_one_keeps_its_keys(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys", Clock()
    path.write_text("one\n# a comment\n\n two \n")
    ring = KeyRing((), str(path), clock)
    assert ring.identify("Bearer one") != ring.identify("Bearer two") is not None
    path.write_text("three\n")
    assert ring.identify("Bearer three") is None, "looked at once a second"
    clock.now += 2
    assert ring.identify("Bearer three") is not None
    assert ring.identify("Bearer one") is None
    os.unlink(path)
    clock.now += 2
    assert ring.identify("Bearer three") is not None
    path.write_text("")
    clock.now += 2
    assert ring.identify("Bearer three") is None
    assert ring.required, "an empty file opens nothing"


def test_without_keys_none_is_needed() -> None:
    assert not KeyRing(()).required
    with pytest.raises(OSError, match="No such file"):
        KeyRing((), "/nonexistent/keys")
