"""The live view, from two scrapes of real metrics, and its command against a server that is written down."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from octavo_engine import cli
from octavo_engine.batch import SchedulerStats
from octavo_engine.diagnosis.scrape import Between, Scrape
from octavo_engine.explain.board import BLOCKS, Board, sparkline
from octavo_engine.explain.report import Style
from octavo_engine.explain.top import CLEAR, top
from octavo_engine.metrics import Metrics, Source
from octavo_engine.request import Request, SamplingParams
from patience import PATIENCE_SECONDS

LOAD: dict[str, Any] = {
    "model_name": "assistant",
    "state": "serving",
    "waiting": {"new": 1, "kv_full": 2, "batch_full": 0},
    "running": 8,
    "max_num_seqs": 16,
    "oldest_wait_seconds": 1.25,
    "estimated_queue_seconds": 3.0,
    "kv_cache_usage_ratio": 0.71,
}


class Engine:
    """Metrics that a test fills."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, model_name="m", stats=SchedulerStats)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def scrape(self, at: float) -> Scrape:
        return Scrape.read(self.text(), at)

    def answers(self, first: float, gaps: list[float]) -> None:
        made = Request(id="a-0", tokens=[1], params=SamplingParams(), arrival=0.0)
        for at in (first, *(first + sum(gaps[: i + 1]) for i in range(len(gaps)))):
            self.metrics.token(made, at)


def test_rates_and_quantiles_are_of_what_happened_in_between() -> None:
    engine = Engine()
    engine.answers(100.0, [5.0] * 10)  # long before
    before = engine.scrape(10.0)
    engine.answers(0.25, [0.02] * 99)
    seen = Between(before, engine.scrape(12.0))
    assert seen.rate("octavo_generation_tokens_total") == 50.0
    median = seen.quantile("octavo_inter_token_latency_seconds", 0.5)
    assert median is not None
    assert 0.015 <= median <= 0.03
    first = seen.quantile("octavo_time_to_first_token_seconds", 0.99)
    assert first is not None
    assert 0.2 <= first <= 0.3
    assert Between(before, engine.scrape(13.0)).increase("octavo_time_to_first_token_seconds_count") == 1
    nothing = Between(engine.scrape(12.0), engine.scrape(13.0))
    assert nothing.quantile("octavo_time_to_first_token_seconds", 0.5) is None


def test_a_quantile_beyond_the_last_bound_is_that_bound() -> None:
    engine, before = Engine(), Engine().scrape(0.0)
    engine.answers(9999.0, [])
    assert Between(before, engine.scrape(1.0)).quantile("octavo_time_to_first_token_seconds", 0.5) == 300.0


def test_a_restart_counts_from_zero() -> None:
    old, new = Engine(), Engine()
    old.answers(0.1, [0.1] * 50)
    new.answers(0.1, [0.1] * 2)
    seen = Between(old.scrape(0.0), new.scrape(1.0))
    assert seen.increase("octavo_generation_tokens_total") == 3


def test_the_page_has_the_four_numbers() -> None:
    engine = Engine()
    before = engine.scrape(0.0)
    engine.answers(0.25, [0.02] * 19)
    engine.metrics._prompt[Source.CACHED].add(600)
    board = Board(Style())
    text = board.page(Between(before, engine.scrape(2.0)), LOAD)
    lines = text.splitlines()
    assert lines[0] == "assistant: serving"
    assert lines[2].startswith("time to first token   p50 ")
    assert lines[2].endswith(", of 1")
    assert lines[4].startswith("inter-token latency   p50 ")
    assert lines[6] == "tokens a second       10 generated; prompts: 300 cached"
    assert lines[8] == (
        "queue                 3 waiting (1 new, 2 kv_full), 8 of 16 running; the oldest for 1.25 s; about 3.00 s ahead"
    )
    assert lines[10] == "KV cache              71 % used, no prompt looked up, 0 preempted"
    assert lines[12].startswith("limited by            load: steps took 0 % of the time")
    assert "  send more at the same time; expected: " in lines[13]
    again = board.page(Between(engine.scrape(2.0), engine.scrape(4.0)), LOAD | {"running": 0})
    assert "time to first token   none, of 0" in again
    assert again.splitlines()[7] == f"  {BLOCKS[7]}{BLOCKS[0]}"


def test_lines_of_blocks() -> None:
    assert sparkline([0, 1, 2, 4, 8]) == "▁▂▃▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


@contextmanager
def management_port(metrics: bytes) -> Iterator[str]:
    """A management port that says the same again and again."""
    body = {"/metrics": metrics, "/load": json.dumps(LOAD).encode()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body[self.path])

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(PATIENCE_SECONDS)


@pytest.fixture
def url() -> Iterator[str]:
    with management_port(Engine().text().encode()) as address:
        yield address


@pytest.mark.parametrize("metrics", [b"<html>", b"python_info 1.0\n", b""])
@pytest.mark.parametrize("command", [["top", "--once", "--interval", "0.1"], ["doctor", "--seconds", "0.1"]])
def test_metrics_of_another_program_are_told_in_a_line(
    command: list[str], metrics: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with management_port(metrics) as address:
        assert cli.main([*command, "--url", address]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_once_is_one_page(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--url", url, "--once", "--interval", "0.1"]) == 0
    assert capsys.readouterr().out.startswith("assistant: serving\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_goes_on_until_it_is_interrupted(url: str) -> None:
    out, rests = Terminal(), iter((1, 2, 3))

    def rest(_: float) -> None:
        if next(rests) == 3:
            raise KeyboardInterrupt

    assert top(["--url", url], out, {}, rest) == 0
    assert out.getvalue().count(CLEAR) == 2
    assert out.getvalue().count("assistant: serving") == 2


@pytest.mark.parametrize(("code", "arguments"), [(2, ["--interval", "0"]), (3, ["--url", "http://127.0.0.1:1"])])
def test_what_goes_wrong_is_one_line(code: int, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", *arguments]) == code
    assert capsys.readouterr().err.count("\n") == 1
