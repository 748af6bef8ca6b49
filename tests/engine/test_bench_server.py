"""`octavo bench` against the real server: prompts to the token, and figures that agree with the server's own."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.bench.command import bench
from octavo_engine.diagnosis.scrape import Between, Scrape
from octavo_engine.request import EventKind
from octavo_engine.server.auth import KeyRing
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from scripted_server import ScriptedServer, scripted_server
from serving_process import serving_process

pytestmark = pytest.mark.engine

LOAD = (
    "--requests=24",
    "--concurrency=6",
    "--input-tokens=uniform:40-60",
    "--output-tokens=uniform:2-12",
    "--warmup=2",
)


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture
def server(tokenizer: Tokenizer) -> Iterator[ScriptedServer]:
    with scripted_server(tokenizer) as server:
        yield server


def measured(server: ScriptedServer, folder: Path, *arguments: str, key: str = "") -> tuple[int, str, dict[str, Any]]:
    """The exit code, the report, and the document."""
    out, path = StringIO(), folder / "run.json"
    environment = {"OCTAVO_API_KEY": key} if key else {}
    code = bench(["--url", server.url, *LOAD, f"--json={path}", *arguments], out, environment)
    return code, out.getvalue(), json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("prefix", ["0", "32"])
def test_prompts_and_answers_are_as_long_as_asked_for(
    server: ScriptedServer, tmp_path: Path, endpoint: str, prefix: str
) -> None:
    code, text, document = measured(server, tmp_path, f"--endpoint={endpoint}", f"--shared-prefix-tokens={prefix}")
    assert code == 0, text
    assert document["prompts_counted"]
    assert document["summary"]["exact_prompts"] == 1.0
    served = sorted((ended.num_prompt, ended.num_output) for ended in server.recorder.ended[2:])
    seen = sorted((request["prompt_tokens"], request["output_tokens"]) for request in document["requests"])
    assert seen == served
    assert all(request["output_tokens"] == request["wanted_output_tokens"] for request in document["requests"])
    if prefix == "32":
        assert document["summary"]["cached_share"] > 0.2


def test_a_tokenizer_at_hand_counts_like_the_server(server: ScriptedServer, tmp_path: Path, smollm2_gguf: Path) -> None:
    code, text, document = measured(server, tmp_path, f"--tokenizer={smollm2_gguf}", "--model=scripted")
    assert code == 0, text
    assert document["summary"]["exact_prompts"] == 1.0


def test_the_time_to_the_first_token_is_the_servers_and_a_little_more(server: ScriptedServer, tmp_path: Path) -> None:
    """One request at a time: the client cannot see a token before the server has it."""
    code, text, document = measured(server, tmp_path, "--concurrency=1", "--warmup=0")
    assert code == 0, text
    ended = server.recorder.ended
    assert len(ended) == len(document["requests"])
    for request, own in zip(document["requests"], ended, strict=True):
        (first,) = (event.at for event in own.events if event.what is EventKind.FIRST_TOKEN)
        assert request["first_token"] >= first - own.arrival


def test_keys_and_a_full_queue_are_told(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with scripted_server(tokenizer, keys=KeyRing(("sesame",)), max_waiting=1, max_num_seqs=1) as server:
        code, text, document = measured(server, tmp_path, "--concurrency=16", key="sesame")
        assert document["requests"], text
        refused = document["summary"]["failures"].get("queue full (429)", 0)
        assert (code, document["summary"]["whole"] + refused) == (1 if refused else 0, 24), text
        out = StringIO()
        assert bench(["--url", server.url, *LOAD], out, {"OCTAVO_API_KEY": "wrong"}) == 3


@pytest.mark.soak
@pytest.mark.heavy
def test_a_sweep_starts_measures_and_stops_real_servers(smollm2_gguf: Path, tmp_path: Path) -> None:
    """A long prompt that all begin with: its tokens come from the cache, or are computed each time."""
    out, path = StringIO(), tmp_path / "run.json"
    load = ("--concurrency=2", "--requests=12", "--shared-prefix-tokens=300", "--input-tokens=40", "--output-tokens=4")
    sweep = ("--sweep=enable-prefix-caching=true,false", f"--json={path}", "--", str(smollm2_gguf), "--threads=1")
    assert bench([*load, *sweep], out, {}) == 0
    with_it, without = (json.loads((tmp_path / f"run-{value}.json").read_text("utf-8")) for value in ("true", "false"))
    assert with_it["serve"] == {"enable-prefix-caching": "true"}
    assert with_it["summary"]["cached_share"] > 0.7
    assert without["summary"]["cached_share"] == 0.0
    assert with_it["readings"]
    assert "| --enable-prefix-caching |" in out.getvalue()


@pytest.mark.soak
@pytest.mark.heavy
def test_the_engines_histograms_say_the_same(smollm2_gguf: Path, tmp_path: Path) -> None:
    """One load, seen by both: as many answers and gaps, and quantiles in the same bucket or the next."""
    with serving_process(smollm2_gguf, "--threads=1") as server:
        before = Scrape.read(server.management("/metrics").text, 0.0)
        path, out = tmp_path / "run.json", StringIO()
        load = ("--concurrency=4", "--requests=24", "--input-tokens=64", "--output-tokens=24", "--warmup=0")
        assert bench(["--url", server.url, *load, f"--json={path}"], out, {}) == 0, out.getvalue()
        seen = Between(before, Scrape.read(server.management("/metrics").text, 1.0))
    summary = json.loads(path.read_text(encoding="utf-8"))["summary"]
    for name, own in (("octavo_time_to_first_token_seconds", "ttft"), ("octavo_inter_token_latency_seconds", "itl")):
        bounds = sorted(float(le) for le in seen.after.by(f"{name}_bucket", "le"))
        for share, word in ((0.5, "p50"), (0.9, "p90")):
            told = seen.quantile(name, share)
            assert told is not None
            apart = bisect_left(bounds, told) - bisect_left(bounds, summary[own][word])
            assert abs(apart) <= 1, (name, word, told, summary[own])
    assert seen.increase("octavo_time_to_first_token_seconds_count") == summary["ttft"]["count"] == 24
    assert seen.increase("octavo_generation_tokens_total") == 24 * 24
