"""A real engine under load, seen by a real Prometheus: figures that agree, vLLM's names, and alerts that fire and end.

Both are processes on this machine: pods have other tests. The alerts' minutes last a second.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

import prometheus_server
from boards import rules
from cluster_tools import wait_for
from cpu_limited import cpu_limited
from node import config, model
from octavo_engine.bench.command import bench
from octavo_engine.diagnosis.scrape import Between, Scrape
from octavo_engine.doctor.command import doctor
from patience import PATIENCE_SECONDS
from prometheus_server import Prometheus, hastened, hastened_text, static_job, wait_state
from serving_process import ServingProcess, serving_process

SERVICE = "assistant"
LABELS = {"namespace": "team", "pod": "assistant-1", "inferenceservice": SERVICE}
FLAGS = (
    "--served-model-name=m",
    "--metrics-compat=vllm",
    "--threads=1",
    "--max-model-len=512",
    "--max-num-seqs=16",
    "--max-waiting-requests=24",
    "--kv-cache-memory-bytes=16000000",  # 43 blocks: a few answers of 400 tokens take each other's
)
REQUESTS, WARM_UP, OUTPUT = 20, 2, 16
LOADS = 5
LOAD = (
    "--concurrency=4",
    f"--requests={REQUESTS}",
    f"--warmup={WARM_UP}",
    "--input-tokens=64",
    f"--output-tokens={OUTPUT}",
)
HISTOGRAMS = {"octavo_time_to_first_token_seconds": "ttft", "octavo_inter_token_latency_seconds": "itl"}
SHARES = {0.5: "p50", 0.9: "p90"}


@dataclass(frozen=True)
class Seen:
    """One load, as the load test, the engine's own page and Prometheus tell of it."""

    engine: ServingProcess
    prometheus: Prometheus
    summary: dict[str, Any]
    own: Between
    began: float  # by the monotonic clock

    @property
    def seconds(self) -> int:
        """Back from now, in which all of it lies."""
        return int(time.monotonic() - self.began) + 3


@pytest.fixture(scope="module")
def engine(settings: config.Settings) -> Iterator[ServingProcess]:
    with serving_process(model.ensure_file(settings), *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(settings: config.Settings, engine: ServingProcess) -> Iterator[Prometheus]:
    address = engine.management_url.removeprefix("http://")
    groups = [group for group in rules.everything() if group["name"] != "octavo-operator"]
    with prometheus_server.prometheus(settings, [static_job("octavo", address, **LABELS)], hastened(groups)) as server:
        wait_for(lambda: server.value("count(octavo_requests_running)"), "the first scrape")
        yield server


@pytest.fixture(scope="module")
def seen(engine: ServingProcess, prometheus: Prometheus, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return under_load(engine, prometheus, tmp_path_factory.mktemp("bench") / "run.json")


def under_load(engine: ServingProcess, prometheus: Prometheus, path: Path) -> Seen:
    out = StringIO()
    began, before = time.monotonic(), Scrape.read(engine.management("/metrics").text, 0.0)
    assert bench(["--url", engine.url, *LOAD, f"--json={path}"], out, {}) == 0, out.getvalue()
    after = Scrape.read(engine.management("/metrics").text, 1.0)
    ended = after.total("octavo_requests_total")
    wait_for(lambda: prometheus.value("sum(octavo_requests_total)") == ended, "the scrape after the load")
    summary = json.loads(path.read_text(encoding="utf-8"))["summary"]
    return Seen(engine, prometheus, summary, Between(before, after), began)


def test_counts_agree_exactly(seen: Seen) -> None:
    whole = REQUESTS + WARM_UP
    assert seen.summary["whole"] == REQUESTS
    assert seen.own.increase("octavo_time_to_first_token_seconds_count") == whole
    assert seen.own.increase("octavo_generation_tokens_total") == OUTPUT * whole
    for metric in ("octavo_generation_tokens_total", "octavo_time_to_first_token_seconds_count"):
        assert seen.prometheus.value(metric) == seen.own.after.total(metric)


def test_quantiles_agree_within_a_bucket(seen: Seen, tmp_path: Path) -> None:
    """The same load by three: the client, the engine's histograms, and what Prometheus makes of its scrapes of them.

    The client also sees the way to it, and the engine's page holds the two answers of the warm-up. A client that a busy
    machine keeps waiting sees more, of that load: then there is another one.
    """
    for number in range(LOADS):
        if number:
            seen = under_load(seen.engine, seen.prometheus, tmp_path / f"run-{number}.json")
        if not (found := disagreements(seen)):
            return
    pytest.fail(f"in {LOADS} loads, of the last one: {found}")


def disagreements(seen: Seen) -> list[object]:
    """Figures that are more than a bucket apart."""
    wrong: list[object] = []
    for name, client in HISTOGRAMS.items():
        bounds = sorted(float(le) for le in seen.own.after.by(f"{name}_bucket", "le"))
        for share, word in SHARES.items():
            buckets = f"sum by (le) (rate({name}_bucket[{seen.seconds}s]))"
            told = {
                "client": seen.summary[client][word],
                "engine": seen.own.quantile(name, share),
                "prometheus": seen.prometheus.value(f"histogram_quantile({share}, {buckets})"),
            }
            assert None not in told.values(), told
            places = [bisect_left(bounds, value) for value in told.values()]
            if max(places) - min(places) > 1:
                wrong.append((name, word, told))
    return wrong


def test_the_recorded_series_have_values(seen: Seen) -> None:
    """Rules are well, and what they record of this service is there."""
    groups = seen.prometheus.rules()
    assert {rule["health"] for group in groups.values() for rule in group} == {"ok"}
    recorded = [rule["name"] for rule in groups["octavo-recorded"]]
    assert len(recorded) >= 10
    # Ratios and quantiles have none while nothing comes: the load is over, and their five minutes are five seconds.
    for name in (name for name in recorded if name.endswith((":sum", ":max", ":rate5m"))):
        assert seen.prometheus.query(f'{name}{{inferenceservice="{SERVICE}"}}'), name


def quantile(share: float, histogram: str) -> str:
    return f'histogram_quantile({share}, sum by (le) (rate(vllm:{histogram}_bucket{{model_name="m"}}[$window])))'


def mean(histogram: str) -> str:
    return f"sum(rate(vllm:{histogram}_sum[$window])) / sum(rate(vllm:{histogram}_count[$window]))"


def spread(histogram: str) -> str:
    return f"sum by (le) (increase(vllm:{histogram}_bucket[$window]))"


VLLM_QUERIES = (
    'vllm:num_requests_running{model_name="m"}',
    'vllm:num_requests_waiting{model_name="m"}',
    "sum by (model_name) (vllm:num_requests_running + vllm:num_requests_waiting)",
    'vllm:kv_cache_usage_perc{model_name="m"}',
    'max by (model_name) (vllm:gpu_cache_usage_perc{engine="0"})',
    "vllm:cache_config_info",
    'sum(rate(vllm:prompt_tokens_total{model_name="m"}[$window])) > 0',
    'sum(rate(vllm:generation_tokens_total{model_name="m"}[$window])) > 0',
    'sum by (finished_reason) (increase(vllm:request_success_total{model_name="m"}[$window])) > 0',
    'increase(vllm:request_success_total{finished_reason="length"}[$window]) > 0',
    "rate(vllm:num_preemptions_total[$window]) >= 0",
    "sum(rate(vllm:prefix_cache_hits_total[$window])) / sum(rate(vllm:prefix_cache_queries_total[$window]))",
    quantile(0.99, "time_to_first_token_seconds"),
    quantile(0.5, "time_to_first_token_seconds"),
    mean("time_to_first_token_seconds"),
    quantile(0.99, "inter_token_latency_seconds"),
    quantile(0.95, "time_per_output_token_seconds"),
    mean("time_per_output_token_seconds"),
    quantile(0.95, "e2e_request_latency_seconds"),
    mean("e2e_request_latency_seconds"),
    mean("request_queue_time_seconds"),
    mean("request_prefill_time_seconds"),
    mean("request_decode_time_seconds"),
    spread("request_prompt_tokens"),
    spread("request_generation_tokens"),
    mean("request_generation_tokens"),
    quantile(0.5, "iteration_tokens_total"),
)
"""What boards made for vLLM ask, as its documentation names the metrics; written here."""


def test_queries_made_for_vllm_find_data(seen: Seen) -> None:
    empty = []
    for query in VLLM_QUERIES:
        found = seen.prometheus.query(query.replace("$window", f"{seen.seconds + 10}s"))
        if not found or any(sample["value"][1] == "NaN" for sample in found):
            empty.append(query)
    assert not empty
    assert len(set(VLLM_QUERIES)) > 25


def test_every_duration_of_the_rules_is_shortened() -> None:
    """Otherwise a story would wait for hours, or an alert would be silent for another reason than its bounds."""
    assert hastened_text("5m", 1) == "5s"
    assert (
        hastened_text("rate(a[1h]) > b offset 10m and (c)[30m:1m]", 3) == "rate(a[180s]) > b offset 30s and (c)[90s:3s]"
    )
    assert hastened_text("inferenceservice:x:rate5m + p99_5m", 1) == "inferenceservice:x:rate5m + p99_5m"
    for group in hastened(rules.everything()):
        for rule in group["rules"]:
            assert not [text for text in (rule["expr"], rule.get("for", "")) if text and _lasts_minutes(text)], rule


def _lasts_minutes(text: str) -> bool:
    return any(f"{digit}{unit}{end}" in f"{text} " for digit in "0123456789" for unit in "mh" for end in "]:) ")


def test_a_cpu_limit_is_what_the_doctor_names_first(seen: Seen) -> None:
    """The kernel's own, on the real process: the engine counts the periods in which it stood still."""
    out = StringIO()
    with cpu_limited(seen.engine.process.pid, share=0.3), crowd(seen.engine.url, a_second=5):
        assert doctor([seen.engine.management_url, "--seconds=4", "--json"], out) == 0
    first = json.loads(out.getvalue())["findings"][0]
    assert first["limiter"] == "cpu", out.getvalue()
    assert "of the scheduler's periods" in first["evidence"]
    assert first["advice"].startswith("raise resources.limits.cpu")
    wait_for(lambda: seen.engine.load()["running"] == 0, "an engine at rest")


class Crowd:
    """Clients that come one after another and want long answers; they hang up together."""

    def __init__(self, url: str, a_second: float) -> None:
        self._url, self._pause = url, 1 / a_second
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._come)]
        self._threads[0].start()

    def _come(self) -> None:
        while not self._over.wait(self._pause):
            self._threads.append(threading.Thread(target=self._ask, args=(len(self._threads),)))
            self._threads[-1].start()

    def _ask(self, number: int) -> None:
        body = {"model": "m", "prompt": [1000 + number] * 8, "max_tokens": 400, "ignore_eos": True, "stream": True}
        with (
            httpx.Client(timeout=PATIENCE_SECONDS) as client,
            client.stream("POST", f"{self._url}/v1/completions", json=body) as answer,
        ):
            assert answer.status_code in (200, 429)
            for _ in answer.iter_lines():
                if self._over.is_set():
                    return

    def leave(self) -> None:
        """Everybody hangs up."""
        self._over.set()
        for thread in list(self._threads):
            thread.join(60)


@contextmanager
def crowd(url: str, a_second: float) -> Iterator[None]:
    made = Crowd(url, a_second)
    try:
        yield
    finally:
        made.leave()


PROVOKED = ("OctavoQueueGrowing", "OctavoRequestsRejected", "OctavoKvCacheFull", "OctavoPreemptionStorm")


@pytest.mark.soak
def test_more_than_it_can_take_raises_its_alerts_and_rest_ends_them(seen: Seen) -> None:
    """A tiny cache, and clients that come faster than answers end: each alert is pending, fires, and is over."""
    server, deadline = seen.prometheus, time.monotonic() + 150
    wait_for(lambda: not server.alerts(), f"silence at rest; now: {server.alerts()}")
    states: dict[str, list[str]] = {name: [] for name in PROVOKED}
    with crowd(seen.engine.url, a_second=3):
        while not all("firing" in told for told in states.values()):
            assert time.monotonic() < deadline, (states, server.alerts())
            now = server.alerts()
            for name, told in states.items():
                if (state := now.get((name, SERVICE))) and state not in told:
                    told.append(state)
            time.sleep(0.3)
    assert all(told == ["pending", "firing"] for told in states.values()), states
    for name in PROVOKED:
        wait_state(server, name, SERVICE, None)
    wait_for(lambda: seen.engine.load()["running"] == 0, "an engine at rest")
    assert seen.engine.process.poll() is None
