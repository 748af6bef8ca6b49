"""Sentences in which there is one of something, or of everything: numbers agree with their words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from octavo_engine.batch import Batch, Slice
from octavo_engine.counted import counted
from octavo_engine.diagnosis.diagnose import diagnose
from octavo_engine.diagnosis.facts import Facts, Settings, Spread
from octavo_engine.diagnosis.findings import Limiter
from octavo_engine.explain.advice import advice
from octavo_engine.explain.report import Style, queue_report, request_report
from octavo_engine.history.documents import timeline_document
from octavo_engine.history.timeline import timeline
from octavo_engine.request import Event, EventKind, Request, SamplingParams
from one_of_each import disagreements

SHARES = {phase: {"memory": 0.1, "compute": 0.1} for phase in ("prefill", "decode", "mixed")}
NUMBERS = (0, 1, 2)


def facts(number: float, **changes: Any) -> Facts:
    """Whatever can be counted is there so many times."""
    same = Facts(
        seconds=1.0, running=number, always_running=True, waiting={"kv_full": number}, kv_usage=1.0, preempted=number,
        rejected=number, generated=number, step_seconds={"prefill": 0.8, "decode": 0.2, "mixed": 0.0}, shares=SHARES,
        steps=dict.fromkeys(SHARES, number), found=number, missed=1000.0, evicted=number,
        settings=Settings(max_num_seqs=4, max_num_batched_tokens=64),
    )  # fmt: skip
    return replace(same, **changes)


def looks(number: float) -> Iterator[Facts]:
    yield facts(number)
    yield facts(number, waiting={"batch_full": number}, preempted=0.0, kv_usage=0.1)
    yield facts(number, waiting={"token_budget": number}, preempted=0.0, kv_usage=0.1)
    yield facts(number, first_token=Spread(10, 0.1, 2.0), prompts=Spread(10, number, 100.0))
    yield facts(max(2, number), inter_token=Spread(100, 0.1, 9.0), throttled=1.0, waited={"interpreter": 1.0})
    yield facts(number, always_running=False, step_seconds=dict.fromkeys(SHARES, 0.01), waiting={}, preempted=0.0,
                kv_usage=0.0)  # fmt: skip


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (0, "0 requests wait"),
        (1, "1 request waits"),
        (1.4, "1 request waits"),
        (1.6, "2 requests wait"),
        (12_000, "12,000 requests wait"),
    ],
)
def test_the_number_that_is_told_decides(number: float, told: str) -> None:
    assert counted(number, "request waits", "requests wait") == told


def test_most_words_only_need_an_s() -> None:
    told = [counted(number, "prompt token") for number in NUMBERS]
    assert told == ["0 prompt tokens", "1 prompt token", "2 prompt tokens"]


@pytest.mark.parametrize("number", [0.0, 1.0, 1.2, 2.0])
def test_findings_agree_with_their_numbers(number: float) -> None:
    found = [finding for each in looks(number) for finding in diagnose(each)]
    assert [wrong for finding in found for wrong in disagreements(finding.sentence)] == []


def test_every_finding_is_among_those() -> None:
    told = {finding.limiter for number in NUMBERS for each in looks(number) for finding in diagnose(each)}
    assert told >= set(Limiter) - {Limiter.MEMORY, Limiter.COMPUTE}  # whose figures are shares


def life(number: int, *, gap: float = 0.0) -> dict[str, Any]:
    made = Request(id="r", tokens=[1] * max(1, number), params=SamplingParams(), arrival=100.0)
    made.tokens += [7] * number
    made.num_cached, made.events_left_out = number, number
    made.longest_gap, made.longest_gap_at, made.longest_gap_prompt = gap, 110.0, number
    done = (
        Event(100.1, EventKind.SUBMITTED),
        Event(100.1, EventKind.QUEUED),
        Event(100.2, EventKind.ADMITTED, tokens=number),
        Event(100.2, EventKind.COMPUTED, tokens=max(1, number), steps=max(1, number), until=101.0),
        Event(101.0, EventKind.FIRST_TOKEN),
        Event(111.0, EventKind.FINISHED, "stop"),
    )
    return timeline_document([timeline(made, [*made.events, *done], 120.0)], wall_offset=0.0)


@pytest.mark.parametrize("number", NUMBERS)
def test_reports_of_a_request_and_of_the_queue_agree_with_their_numbers(number: int) -> None:
    queue = {
        "model_name": "m", "state": "serving", "waiting": {"kv_full": number}, "running": number,
        "max_num_seqs": max(1, number), "oldest_wait_seconds": 1.0, "kv_cache_usage_ratio": 0.5,
        "estimated_queue_seconds": 1.0, "reason": "kv_full", "reason_seconds": 1.0, "waiting_prompt_tokens": number,
        "running_prompt_tokens": max(1, number),
    }  # fmt: skip
    pages = [
        request_report(life(number), Style()),
        request_report(life(number, gap=9.0), Style()),
        queue_report({"queue": queue, "live": [], "slowest": [], "ended_known": number}, Style()),
    ]
    assert [wrong for page in pages for wrong in disagreements(" ".join(page.split()))] == []


@pytest.mark.parametrize("state", ["prefill", "decode"])
@pytest.mark.parametrize("number", NUMBERS)
def test_advice_agrees_with_its_numbers(state: str, number: int) -> None:
    document = life(number) | {"largest": {"state": state, "why": ""}}
    assert disagreements(advice(document)) == []


@pytest.mark.parametrize("tokens", [1, 2])
def test_the_words_of_a_step_agree_with_its_numbers(tokens: int) -> None:
    request = Request(id="r", tokens=[1] * tokens, params=SamplingParams(), arrival=0.0)
    assert disagreements(Batch(slices=(Slice(request, 0, tokens, True),)).words) == []


@pytest.mark.parametrize(
    "text",
    [
        "1 requests wait",
        "1 request wait",
        "1 prompt tokens",
        "2 request waits",
        "0 token",
        "1 were refused",
        "1 wait for",
    ],
)
def test_the_check_finds_what_does_not_agree(text: str) -> None:
    assert disagreements(f"so that {text}, and 1.0 requests ran of 1 of them") != []
