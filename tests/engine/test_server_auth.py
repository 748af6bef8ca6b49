"""Who may come in: keys, their file, and every route there is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo_engine.server.admission import OPEN_PATHS
from octavo_engine.server.auth import KeyRing
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


@pytest.mark.parametrize("host", [b"x/health", b"x?/health", b"@health", b"", b"a\r\nHost: b"])
@pytest.mark.parametrize("target", [b"/v1/models", b"http://x/v1/models", b"/v1/models?/health", b"/v1/models#/health"])
def test_the_verdict_depends_on_the_path_alone(server: ScriptedServer, host: bytes, target: bytes) -> None:
    reply = exchange(server, b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
    assert reply.startswith((b"HTTP/1.1 400", b"HTTP/1.1 401"))


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
