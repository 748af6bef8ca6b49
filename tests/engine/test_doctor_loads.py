"""Rows of the table of symptoms, provoked on a real engine: the doctor names each, with figures and what to change."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import held_server
from going_on import going_on
from octavo_engine.diagnosis.scrape import Scrape
from octavo_engine.doctor.command import doctor
from octavo_engine.explain.top import top
from octavo_engine.roofline_share import limiter
from patience import PATIENCE_SECONDS
from serving_process import PORTS, ServingProcess, launch, serving_process

pytestmark = pytest.mark.engine

JSON = {"content-type": "application/json"}
TIGHT = (
    "--served-model-name=m",
    "--threads=1",
    "--max-num-seqs=4",
    "--max-waiting-requests=64",
    "--max-model-len=512",
    "--kv-cache-memory-bytes=16000000",  # 43 blocks: two prompts of 300 tokens fit, and four short ones with ease
    "--no-enable-prefix-caching",
    # A machine that others keep busy is no reason to give up a client, or a step.
    *(f"--{part}-timeout-seconds={PATIENCE_SECONDS:g}" for part in ("header", "body", "write")),
    *(f"--stuck-{phase}-seconds={PATIENCE_SECONDS:g}" for phase in ("decode", "prefill")),
)


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While it is there, the steps of `tight` stand still."""
    return tmp_path_factory.mktemp("tight") / "hold"


@pytest.fixture(scope="module")
def tight(smollm2_gguf: Path, hold: Path) -> Iterator[ServingProcess]:
    with launch(held_server.__file__, str(hold), str(smollm2_gguf), *PORTS, *TIGHT) as server:
        server.until(lambda: " serving " in server.output, "it serves")
        yield server


def ask(server: ServingProcess, prompt: int, answer: int, seed: int) -> None:
    """A completion of so many random prompt tokens, which begins like no other, and so many generated ones."""
    tokens = random.Random(seed).choices(range(1000, 40_000), k=prompt)
    body = {"model": "m", "prompt": tokens, "max_tokens": answer, "temperature": 0, "ignore_eos": True}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE_SECONDS).raise_for_status()


@contextmanager
def clients(
    server: ServingProcess, number: int, *, prompt: int, answer: int, reason: str = "", pause: float = 0.0
) -> Iterator[None]:
    """So many clients, each of which asks again `pause` seconds after it has its answer, until the body ends.

    It begins when one is served and, with a `reason`, another waits for it.
    """
    with going_on(number, lambda client, turn: ask(server, prompt, answer, 1000 * client + turn), pause):
        server.until(lambda: begun(server.load(), reason), f"a client is served, and another waits: {reason or 'none'}")
        yield


@contextmanager
def unread_streams(server: ServingProcess, number: int) -> Iterator[None]:
    """So many answers, four of which have room at once, and of which nobody reads a byte; in the end all hang up."""
    body = {"model": "m", "prompt": [1000] * 8, "max_tokens": 150, "ignore_eos": True, "stream": True}
    content = json.dumps(body).encode()
    head = ("POST /v1/completions HTTP/1.1", "Host: m", "Content-Type: application/json")
    lines = "\r\n".join((*head, f"Content-Length: {len(content)}", "", ""))
    place, sockets = urlsplit(server.url), []
    try:
        for _ in range(number):
            sockets.append(socket.socket())
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)  # a few tokens fill it
            sockets[-1].settimeout(PATIENCE_SECONDS)
            sockets[-1].connect((place.hostname, place.port))
            sockets[-1].sendall(lines.encode() + content)
        yield
    finally:
        for connection in sockets:
            connection.close()


@contextmanager
def large_bodies(server: ServingProcess, number: int) -> Iterator[None]:
    """So many clients that send prompts of 800,000 tokens, one after another: read, then refused."""
    content = json.dumps({"model": "m", "prompt": [1000] * 800_000, "max_tokens": 1}, separators=(",", ":")).encode()
    answers: list[httpx.Response] = []

    def send(*_: int) -> None:
        answers.append(
            httpx.post(f"{server.url}/v1/completions", content=content, headers=JSON, timeout=PATIENCE_SECONDS)
        )

    with going_on(number, send):
        server.until(lambda: bool(answers), "one of them is refused")
        yield
    assert {answer.status_code for answer in answers} == {400}


def begun(load: dict[str, Any], reason: str) -> bool:
    return bool(load["running"] and (not reason or load["waiting"][reason]))


def told(server: ServingProcess, *flags: str, seconds: float = 1.2) -> list[dict[str, Any]]:
    """What the doctor finds, the most important first."""
    out = StringIO()
    assert doctor([f"--url={server.management_url}", f"--seconds={seconds}", "--json", *flags], out) == 0
    findings: list[dict[str, Any]] = json.loads(out.getvalue())["findings"]
    assert all(finding["evidence"] and finding["advice"] and finding["effect"] for finding in findings)
    return findings


def finding(findings: list[dict[str, Any]], name: str) -> dict[str, Any]:
    found = [item for item in findings if item["limiter"] == name]
    assert found, findings
    return found[0]


def found_in_time(server: ServingProcess, name: str, *flags: str) -> dict[str, Any]:
    """The finding, as soon as a look has it: on a busy machine a second may hold too little to say so."""
    looks: list[list[dict[str, Any]]] = []

    def named() -> bool:
        looks.append(told(server, *flags))
        return any(item["limiter"] == name for item in looks[-1])

    server.until(named, f"the doctor names {name}")
    return finding(looks[-1], name)


def test_an_idle_engine_waits_for_its_clients(tight: ServingProcess) -> None:
    (only,) = told(tight, seconds=0.3)
    assert only["limiter"] == "load"
    assert "between them and the server" in only["effect"]


def test_clients_that_pause_between_requests_leave_an_engine_that_could_do_more(tight: ServingProcess) -> None:
    with clients(tight, 1, prompt=8, answer=2, pause=0.5):
        found = found_in_time(tight, "load")
    assert "of the time, and" in found["evidence"]
    assert found["advice"] == "send more at the same time"
    assert "times as much" in found["effect"]


def test_clients_that_never_read_do_not_keep_steps_from_following_each_other(tight: ServingProcess) -> None:
    """So nothing is said of them; what they do not take waits outside of the engine, and who comes behind is served."""
    with unread_streams(tight, 40):
        tight.until(lambda: tight.load()["running"] == 4, "as many as may are served")
        found = told(tight)
        assert tight.load()["running"], "some were served all the time"
    assert {item["limiter"] for item in found}.isdisjoint({"http", "load"}), found
    tight.until(lambda: not tight.load()["running"], "an idle engine")


def test_bodies_whose_reading_keeps_the_interpreter_are_told_by_how_long_steps_waited(tight: ServingProcess) -> None:
    with clients(tight, 4, prompt=8, answer=60), large_bodies(tight, 3):
        found = found_in_time(tight, "http")
    assert "of the time steps waited for the interpreter" in found["evidence"]
    assert "--max-body-bytes" in found["advice"]
    assert "times as many tokens a second" in found["effect"]


def test_full_batches_make_a_queue_and_top_says_the_same(tight: ServingProcess) -> None:
    pages: list[str] = []

    def shown() -> bool:
        """At a moment between two requests of a client nobody may wait."""
        out = StringIO()
        assert top([f"--url={tight.management_url}", "--once", "--interval=0.5"], out, {}) == 0
        pages.append(" ".join(out.getvalue().split()))
        return "limited by queue: " in pages[-1]

    with clients(tight, 8, prompt=8, answer=24, reason="batch_full"):
        found = found_in_time(tight, "queue")
        tight.until(shown, "top names the queue")
    assert " for batch_full" in found["evidence"]
    assert found["advice"] == "raise --max-num-seqs from 4 to 8"
    assert " at once" in found["effect"]
    assert found["advice"] in pages[-1]


def test_prompts_that_find_no_blocks_are_limited_by_the_cache(tight: ServingProcess) -> None:
    with clients(tight, 5, prompt=300, answer=24, reason="kv_full"):
        found = found_in_time(tight, "kv")
    assert " for blocks" in found["evidence"]
    assert "--kv-cache-memory-bytes" in found["advice"]


def test_prompts_computed_again_and_again_are_told_beside_the_switch_that_is_off(tight: ServingProcess) -> None:
    with clients(tight, 1, prompt=400, answer=1):
        found = found_in_time(tight, "prefix", "--seconds=6")  # a slow processor takes seconds for two prompts
    assert "prompt tokens were found" in found["evidence"]
    assert found["advice"] == "start it with --enable-prefix-caching"


@pytest.mark.soak
def test_steps_are_bounded_by_what_the_exported_roofline_says(tight: ServingProcess) -> None:
    with clients(tight, 1, prompt=8, answer=200):
        last = told(tight)[-1]
        scrape = Scrape.read(tight.management("/metrics").text, 0.0)
    shares = {
        bound: scrape.value("octavo_roofline_ratio", phase="decode", bound=bound) for bound in ("memory", "compute")
    }
    assert last["limiter"] in ("memory", "overhead")  # one stream reads all weights for one token; never compute
    if abs(shares["memory"] - 0.5) > 0.05:  # the share moves a little between the two looks
        assert last["limiter"] == limiter(shares)
    assert last["evidence"].startswith("decode steps took")


def test_a_large_batch_is_told_where_tokens_come_slower_than_they_should(tight: ServingProcess) -> None:
    with clients(tight, 4, prompt=8, answer=60):
        found = found_in_time(tight, "batch", "--inter-token-seconds=0.001")
    assert "P99 between two tokens is" in found["evidence"]
    assert found["advice"].startswith(("lower --max-num-seqs to ", "lower --max-num-batched-tokens from 2,048"))


def test_gauges_are_right_at_once_when_all_come_and_when_all_hang_up(tight: ServingProcess, hold: Path) -> None:
    """Nothing is rounded to a step, and nothing is left over of those who have gone. Until they have, no step ends."""

    def now() -> tuple[float, float, float, float]:
        scrape = Scrape.read(tight.management("/metrics").text, 0.0)
        waiting, running = scrape.total("octavo_requests_waiting"), scrape.total("octavo_requests_running")
        usage, oldest = scrape.total("octavo_kv_cache_usage_ratio"), scrape.total("octavo_queue_oldest_seconds")
        return waiting, running, usage, oldest

    def aborted() -> float:
        scrape = Scrape.read(tight.management("/metrics").text, 0.0)
        return scrape.value("octavo_requests_total", finish_reason="abort")

    tight.until(lambda: now() == (0, 0, 0, 0), "an idle engine")
    before = aborted()
    hold.touch()
    try:
        with unread_streams(tight, 12):
            tight.until(lambda: sum(now()[:2]) == 12, "everybody is counted")
            waiting, running, usage, oldest = now()
            assert running >= 1
            assert waiting >= 8  # four may run
            assert running + waiting == 12
            assert usage > 0
            assert oldest > 0
    finally:
        hold.unlink()
    tight.until(lambda: now() == (0, 0, 0, 0), "nobody is counted")
    assert aborted() - before == 12


@pytest.mark.soak
@pytest.mark.heavy
def test_long_prompts_among_short_ones_are_told(smollm2_gguf: Path) -> None:
    """Without chunks, who comes while a long prompt is computed waits for all of it."""
    flags = ("--served-model-name=m", "--threads=1", "--max-model-len=2048", "--no-enable-chunked-prefill")
    with serving_process(smollm2_gguf, *flags) as server:
        looked = threading.Thread(target=lambda: found.extend(told(server, seconds=12)))
        found: list[dict[str, Any]] = []
        looked.start()
        seed = 0
        while looked.is_alive():
            seed += 1
            ask(server, 1900 if seed % 20 == 10 else 16, 2, seed)
        looked.join()
    named = finding(found, "prompts")
    assert "tokens at the median" in named["evidence"]
    assert named["advice"] == "start it with --enable-chunked-prefill"
