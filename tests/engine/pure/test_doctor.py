"""`octavo doctor`: from what an engine's own metrics say to the one thing that limits it."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from known_models import SMOLLM2_135M
from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.diagnosis.diagnose import diagnose
from octavo_engine.diagnosis.facts import Facts, Settings, Spread, between
from octavo_engine.diagnosis.findings import Limiter
from octavo_engine.diagnosis.scrape import NotAnEngine, Scrape
from octavo_engine.doctor import command
from octavo_engine.doctor.command import as_document, doctor, report
from octavo_engine.explain.fetching import NoAnswer
from octavo_engine.metrics import Metrics
from octavo_engine.model.tensors.costs import cost_of
from octavo_engine.request import RejectReason, Request, SamplingParams, WaitReason
from octavo_engine.roofline import Machine

BUSY = Facts(
    seconds=5.0,
    running=8.0,
    always_running=True,
    waiting={"new": 0.0, "kv_full": 0.0, "batch_full": 0.0, "token_budget": 0.0},
    kv_usage=0.4,
    preempted=0.0,
    rejected=0.0,
    generated=1000.0,
    step_seconds={"prefill": 0.3, "decode": 4.5, "mixed": 0.0},
    shares={
        "prefill": {"memory": 0.1, "compute": 0.6},
        "decode": {"memory": 0.8, "compute": 0.1},
        "mixed": {"memory": 0.0, "compute": 0.0},
    },
)


def limiters(facts: Facts) -> list[Limiter]:
    return [finding.limiter for finding in diagnose(facts)]


def test_a_busy_engine_is_limited_by_what_its_main_steps_reach():
    assert limiters(BUSY) == [Limiter.MEMORY]
    (finding,) = diagnose(BUSY)
    assert "decode steps took 90 % of the time, at 80 % of the memory's speed and 10 % of" in finding.evidence
    prompts = replace(BUSY, step_seconds={"prefill": 4.5, "decode": 0.3, "mixed": 0.0})
    assert limiters(prompts) == [Limiter.COMPUTE]
    slow = replace(BUSY, shares=BUSY.shares | {"decode": {"memory": 0.3, "compute": 0.1}})
    assert limiters(slow) == [Limiter.OVERHEAD]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preempted": 3.0}, "3 requests were preempted"),
        ({"waiting": {"kv_full": 4.0, "new": 1.0}}, "4 wait for blocks"),
        ({"kv_usage": 0.97}, "97 % of the KV blocks are held"),
    ],
)
def test_a_full_cache_comes_before_the_steps(changes, words):
    facts = replace(BUSY, **changes)
    assert limiters(facts) == [Limiter.KV, Limiter.MEMORY]
    assert words in diagnose(facts)[0].evidence


def test_a_queue_names_the_flag_that_makes_it():
    facts = replace(BUSY, waiting={"batch_full": 12.0, "new": 1.0}, rejected=5.0)
    assert limiters(facts) == [Limiter.QUEUE, Limiter.MEMORY]
    first = diagnose(facts)[0]
    assert first.evidence == "12 requests wait for batch_full, and 5 were refused"
    assert first.advice.startswith("raise --max-num-seqs")
    budget = replace(BUSY, waiting={"token_budget": 2.0})
    assert "--max-num-batched-tokens" in diagnose(budget)[0].advice


def test_the_setting_is_told_with_the_value_it_has_and_what_should_come_of_it():
    known = Settings(max_num_seqs=8, max_num_batched_tokens=2048)
    facts = replace(BUSY, waiting={"batch_full": 12.0}, settings=known)
    first = diagnose(facts)[0]
    assert first.advice == "raise --max-num-seqs from 8 to 16"
    assert first.effect.startswith("8 of them start at once")
    full = diagnose(replace(facts, kv_usage=0.8))[0]
    assert (full.limiter, full.advice) == (Limiter.QUEUE, "add replicas")
    budget = diagnose(replace(facts, waiting={"token_budget": 2.0}))[0]
    assert budget.advice == "raise --max-num-batched-tokens from 2,048 to 4,096"
    blocks = diagnose(replace(BUSY, waiting={"kv_full": 4.0}))[0]
    assert blocks.effect == "about 1.5 times the blocks take in all that ask now"
    assert "at most 1.2 times as fast" in diagnose(BUSY)[0].effect


def test_a_container_that_is_stopped_by_its_limit_comes_first():
    facts = replace(BUSY, throttled=0.4, waiting={"batch_full": 12.0})
    assert limiters(facts) == [Limiter.CPU, Limiter.QUEUE, Limiter.MEMORY]
    assert "stopped it in 40 % of" in diagnose(facts)[0].evidence
    assert limiters(replace(BUSY, throttled=0.02)) == [Limiter.MEMORY]


PROMPTS = replace(
    BUSY, step_seconds={"prefill": 3.0, "decode": 1.0, "mixed": 0.8}, found=10.0, missed=9_990.0
)  # most of the time goes to prompts, of which next to nothing is found


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"settings": Settings(prefix_caching=False)}, "start it with --enable-prefix-caching"),
        ({"settings": Settings(prefix_caching=True), "evicted": 40.0}, "give the cache more memory"),
        ({"settings": Settings(prefix_caching=True)}, "if prompts begin alike"),
    ],
)
def test_prefixes_that_are_not_found_are_told_with_the_reason(changes, advice):
    facts = replace(PROMPTS, **changes)
    assert limiters(facts) == [Limiter.PREFIX, Limiter.COMPUTE]
    found = diagnose(facts)[0]
    assert "79 % of the steps' time, and 10 of 10,000 prompt tokens were found" in found.evidence
    assert found.advice.startswith(advice)


@pytest.mark.parametrize(
    "changes",
    [
        {"found": 5_000.0, "missed": 5_000.0},  # found well enough
        {"found": 0.0, "missed": 100.0},  # too few to say
        {"step_seconds": BUSY.step_seconds},  # and no matter, where decodes take the time
    ],
)
def test_prefixes_are_no_matter_where_they_are_found_or_hardly_cost(changes):
    assert Limiter.PREFIX not in limiters(replace(PROMPTS, **changes))


LONG = replace(BUSY, first_token=Spread(40, 0.1, 2.0), prompts=Spread(40, 60.0, 1800.0))


def test_long_prompts_are_told_where_first_tokens_and_lengths_are_far_apart():
    assert limiters(LONG) == [Limiter.PROMPTS, Limiter.MEMORY]
    found = diagnose(LONG)[0]
    assert "after 0.10 s at the median and 2.00 s at P99" in found.evidence
    assert found.advice == "bound them, by --max-prompt-tokens below 1,800"
    off = replace(LONG, settings=Settings(chunked=False))
    assert diagnose(off)[0].advice == "start it with --enable-chunked-prefill"
    for calm in ({"first_token": Spread(40, 0.5, 2.0)}, {"prompts": Spread(40, 60.0, 120.0)},
                 {"first_token": Spread(3, 0.1, 2.0)}):  # fmt: skip
        assert limiters(replace(LONG, **calm)) == [Limiter.MEMORY]


SLOW = replace(BUSY, inter_token=Spread(500, 0.1, 0.31), steps={"prefill": 1.0, "decode": 20.0, "mixed": 0.0})


def test_slow_tokens_are_the_batchs_or_the_chunks():
    assert limiters(SLOW) == [Limiter.BATCH, Limiter.MEMORY]
    batch = diagnose(SLOW)[0]
    assert "P99 between two tokens is 0.31 s, above 0.20 s: a decode of 8 sequences takes 0.23 s" in batch.evidence
    assert batch.advice == "lower --max-num-seqs to 4"
    times = {"prefill": 0.3, "decode": 2.5, "mixed": 2.0}
    chunks = replace(SLOW, step_seconds=times, steps={"prefill": 1.0, "decode": 20.0, "mixed": 5.0},
                     settings=Settings(max_num_batched_tokens=2048))  # fmt: skip
    assert diagnose(chunks)[0].advice == "lower --max-num-batched-tokens from 2,048 to 1,024"
    assert [finding.limiter for finding in diagnose(SLOW, inter_token_seconds=0.5)] == [Limiter.MEMORY]
    assert limiters(replace(SLOW, inter_token=Spread(5, 0.1, 0.31))) == [Limiter.MEMORY]


def test_answers_that_come_late_are_told_beside_an_engine_that_waits_for_requests():
    facts = replace(LONG, always_running=False, running=0.3, step_seconds=dict.fromkeys(BUSY.step_seconds, 0.1))
    assert limiters(facts) == [Limiter.PROMPTS, Limiter.LOAD]


def test_every_finding_has_figures_a_setting_and_an_effect():
    """And none is empty or ends with a full stop, which the sentence sets itself."""
    held = replace(BUSY, throttled=0.4, preempted=2.0, waited={"interpreter": 0.1})
    idle = replace(BUSY, running=0.0, always_running=False, step_seconds=dict.fromkeys(BUSY.step_seconds, 0.0))
    looks = (BUSY, PROMPTS, LONG, SLOW, held, idle)
    for finding in (finding for facts in looks for finding in diagnose(facts)):
        for text in (finding.evidence, finding.advice, finding.effect):
            assert text
            assert not text.endswith(".")
        assert any(character.isdigit() for character in finding.evidence)
        assert finding.sentence.endswith(f": {finding.effect}.")


def test_a_queue_that_only_passes_by_is_no_limit():
    assert limiters(replace(BUSY, waiting={"new": 5.0, "batch_full": 0.2})) == [Limiter.MEMORY]


def test_steps_that_wait_for_the_interpreter_are_kept_by_what_else_the_process_does():
    facts = replace(BUSY, waited={"interpreter": 0.2, "processor": 0.0})
    assert limiters(facts) == [Limiter.HTTP, Limiter.MEMORY]
    first = diagnose(facts)[0]
    assert first.evidence.startswith("for 20 % of the time steps waited for the interpreter")
    assert "--max-body-bytes" in first.advice
    assert first.effect.startswith("1.2 times as many tokens a second")
    assert limiters(replace(facts, waited={"interpreter": 0.06})) == [Limiter.MEMORY]


def test_a_step_below_both_bounds_says_how_long_it_waited_for_a_processor():
    slow = replace(BUSY, shares=BUSY.shares | {"decode": {"memory": 0.3, "compute": 0.1}}, waited={"processor": 0.4})
    (finding,) = diagnose(slow)
    assert finding.limiter is Limiter.OVERHEAD
    assert finding.evidence.endswith("; for 40 % of it they waited for a processor")
    assert "waited" not in diagnose(replace(slow, waited={"processor": 0.05}))[0].evidence


def test_an_engine_with_little_to_do_is_limited_by_its_load():
    facts = replace(BUSY, always_running=False, running=0.3, step_seconds=dict.fromkeys(BUSY.step_seconds, 0.1))
    assert limiters(facts) == [Limiter.LOAD]
    idle = replace(facts, running=0.0, step_seconds=dict.fromkeys(BUSY.step_seconds, 0.0), waiting={})
    assert limiters(idle) == [Limiter.LOAD]


class Engine:
    """Real metrics, and a clock that they and the scrapes share."""

    def __init__(self) -> None:
        self.now, self.stats = 100.0, SchedulerStats()
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, model_name="m", stats=lambda: self.stats, clock=lambda: self.now)
        self.metrics.know(cost_of(SMOLLM2_135M, 2), Machine(name="m", bandwidth=48e9, flops=600e9))

    def decode(self, seconds: float) -> None:
        request = Request(id="r", tokens=[1] * 200, params=SamplingParams(), arrival=0.0)
        request.num_prompt = 100
        self.metrics.step(Batch(slices=(Slice(request, 199, 1, True),), at=self.now), seconds)
        self.now += seconds

    def scrape(self) -> Scrape:
        return Scrape.read(generate_latest(self.registry).decode(), self.now)


def test_facts_are_read_from_an_engines_own_metrics():
    engine = Engine()
    engine.stats = SchedulerStats(
        running=1, waiting={WaitReason.BATCH_FULL: 3}, used_blocks=3, free_blocks=1, block_size=16
    )
    engine.metrics.rejected(RejectReason.INVALID)
    scrapes = [engine.scrape()]
    for _ in range(2):
        engine.decode(0.010)
        engine.metrics.rejected(RejectReason.QUEUE_FULL)
        engine.metrics.rejected(RejectReason.INVALID)
        scrapes.append(engine.scrape())
    facts = between(scrapes)
    assert facts.seconds == pytest.approx(0.020)
    assert facts.step_seconds == pytest.approx({"prefill": 0.0, "decode": 0.020, "mixed": 0.0})
    assert facts.busy == pytest.approx(1.0)
    assert facts.main_phase == "decode"
    assert (facts.running, facts.always_running, facts.kv_usage) == (1.0, True, 0.75)
    assert facts.waiting["batch_full"] == 3.0
    assert facts.rejected == 2.0  # what a client got wrong is no limit of ours
    assert facts.step_mean("decode") == pytest.approx(0.010)
    assert facts.step_mean("mixed") is None
    work = cost_of(SMOLLM2_135M, 2).decode([200])
    assert facts.shares["decode"]["memory"] == pytest.approx(work.bytes / 48e9 / 0.010)
    assert limiters(facts) == [Limiter.QUEUE, Limiter.MEMORY]


def test_a_look_that_ends_some_time_after_the_last_step_still_knows_what_that_reached():
    engine = Engine()
    scrapes = [engine.scrape()]
    engine.decode(0.010)
    scrapes.append(engine.scrape())
    engine.now += 60
    scrapes.append(engine.scrape())
    assert scrapes[-1].value("octavo_roofline_ratio", phase="decode", bound="memory") == 0.0
    assert between(scrapes).shares["decode"]["memory"] > 0.1


def test_a_process_that_was_started_anew_has_done_nothing_negative():
    engine = Engine()
    engine.decode(0.5)
    before, anew = engine.scrape(), Engine()
    anew.now = engine.now + 1
    facts = between([before, anew.scrape()])
    assert min(facts.step_seconds.values()) == 0.0
    assert facts.generated == 0.0


@pytest.mark.parametrize("text", ["", "up 1\n", "octavo_requests_running{ 3", "<html>"])
def test_what_is_no_engine_is_said_so(text):
    with pytest.raises(NotAnEngine, match="metrics"):
        Scrape.read(text, 0.0)


def test_the_report_begins_with_what_happened_and_the_limiter():
    facts = replace(BUSY, waiting={"batch_full": 12.0, "new": 0.0})
    lines = report(facts, diagnose(facts)).splitlines()
    assert lines[0] == (
        "in 5.0 s: 200 tokens/s, 8.0 running, waiting: 12.0 batch_full; steps took 96 % of the time, 40 % of the KV"
        " blocks are held"
    )
    assert lines[1].startswith("it is limited by queue: 12 requests wait for batch_full")
    assert lines[3].startswith("  expected: 12 of them start at once")
    assert lines[4].startswith("then by memory: decode steps took 90 %")
    document = json.loads(as_document(facts, diagnose(facts)))
    assert document["limiter"] == "queue"
    assert [finding["limiter"] for finding in document["findings"]] == ["queue", "memory"]
    assert document["facts"]["busy"] == pytest.approx(0.96)


class TestCommand:
    """Flags, exit codes, and no engine."""

    @pytest.fixture
    def port(self, monkeypatch):
        engine = Engine()

        class Port:
            def __init__(self, url: str) -> None:
                self.url = url

            def text(self, *path: str) -> str:
                assert path == ("metrics",)
                if "away" in self.url:
                    raise NoAnswer(f"{self.url} does not answer")
                return generate_latest(engine.registry).decode()

        monkeypatch.setattr(command, "ManagementPort", Port)

    def test_an_engine_is_looked_at_over_the_whole_time(self, port):
        slept: list[float] = []
        out = StringIO()
        assert doctor(["--seconds=2"], out, slept.append) == 0
        assert sum(slept) == pytest.approx(2.0)
        assert "it is limited by load" in out.getvalue()
        out = StringIO()
        assert doctor(["http://here:8001", "--json"], out, slept.append) == 0
        assert json.loads(out.getvalue())["limiter"] == "load"

    @pytest.mark.parametrize(
        ("args", "code", "words"),
        [
            (["--seconds=0"], 2, "--seconds"),
            (["--inter-token-seconds=0"], 2, "--inter-token-seconds"),
            (["--nope"], 2, "--nope"),
            (["--url=http://away"], 3, "does not answer"),
            (["http://away"], 3, "does not answer"),
        ],
    )
    def test_what_goes_wrong_is_one_line(self, port, args, code, words, capsys):
        assert doctor(args, StringIO(), lambda seconds: None) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
