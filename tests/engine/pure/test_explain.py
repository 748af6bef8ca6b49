"""What `octavo explain` prints and advises, from documents as the server makes them."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from octavo_engine.config import EngineConfig, ServerConfig, flag
from octavo_engine.explain import advice as words
from octavo_engine.explain.advice import advice, queue_advice
from octavo_engine.explain.report import BAR_WIDTH, COLOURS, SHADES, Style, queue_report, request_report
from octavo_engine.history.documents import summary, timeline_document
from octavo_engine.history.timeline import State, timeline
from octavo_engine.request import (
    Event,
    EventKind,
    PreemptReason,
    RejectReason,
    Request,
    SamplingParams,
    WaitReason,
)

PLAIN = Style()


def document(*events: Event, prompt: int = 1200, cached: int = 0, output: int = 0, gap: float = 0.0) -> dict[str, Any]:
    made = Request(
        id="chatcmpl-7-0", tokens=[1] * prompt, params=SamplingParams(), arrival=100.0, x_request_id="seen-by-client"
    )
    made.tokens += [7] * output
    made.num_cached = cached
    made.num_preemptions = sum(event.what is EventKind.PREEMPTED for event in events)
    made.longest_gap, made.longest_gap_at, made.longest_gap_prompt = gap, 105.0, 640
    return timeline_document([timeline(made, [*made.events, *events], 120.0)], wall_offset=1_700_000_000.0)


def whole_life() -> dict[str, Any]:
    return document(
        Event(100.02, EventKind.SUBMITTED),
        Event(100.03, EventKind.QUEUED),
        Event(100.03, EventKind.WAITING, WaitReason.KV_FULL),
        Event(104.0, EventKind.ADMITTED, tokens=1184),
        Event(104.0, EventKind.COMPUTED, tokens=16, steps=1, until=104.1),
        Event(104.1, EventKind.FIRST_TOKEN),
        Event(106.0, EventKind.PREEMPTED, PreemptReason.KV_FULL, "chatcmpl-9-0"),
        Event(107.0, EventKind.ADMITTED, tokens=1216),
        Event(107.0, EventKind.COMPUTED, tokens=4, steps=1, until=107.1),
        Event(108.0, EventKind.FINISHED, "length"),
        cached=1184,
        output=120,
        gap=1.1,
    )


def test_a_request_told_to_a_person() -> None:
    text = request_report(whole_life(), PLAIN)
    assert text.splitlines()[:3] == [
        "chatcmpl-7-0: finished (length) after 8.00 s",
        "  received 2023-11-14 22:15:00 UTC, x-request-id seen-by-client",
        "  1,200 prompt tokens, 1,184 of them cached; 120 generated, the first at 4.100 s, preempted once",
    ]
    for line in (
        "    4.000 s  admitted, 1,184 tokens cached",
        "    4.000 s  computed 16 tokens in 1 step, until 4.100 s",
        "    6.000 s  preempted: kv_full, for chatcmpl-9-0",
        "    8.000 s  finished: length",
    ):
        assert line in text
    assert re.search(r"░ waiting kv_full +3\.97 s +50 %  █{12}\n", text)
    assert "The longest pause between two tokens was 1.10 s, until 5.000 s, in a step that computed 640 prompt" in text
    assert " ".join(text.split()).endswith(f"{words.WAITING['kv_full'].was} {words.WAITING['kv_full'].change}")
    assert max(map(len, text[text.index("The longest pause") :].splitlines())) <= 100
    assert "\x1b" not in text


def test_a_pause_without_blocks_is_told_as_that() -> None:
    events = (
        Event(101.0, EventKind.FIRST_TOKEN),
        Event(103.0, EventKind.PREEMPTED, PreemptReason.KV_FULL, "chatcmpl-7-0"),
        Event(104.0, EventKind.ADMITTED),
        Event(104.0, EventKind.COMPUTED, tokens=1202, steps=1, until=105.0),
        Event(109.0, EventKind.FINISHED, "length"),
    )
    found = document(*events, output=3, gap=2.0)  # from 3 to 5 s
    text = request_report(found, PLAIN)
    assert "was 2.00 s, until 5.000 s: it had lost its blocks." in text
    assert "preempted: kv_full, for its own next block" in text
    assert "one pause" not in advice(found)
    assert "one pause" in advice(found | {"spans": []})


def test_the_bar_is_the_life_from_left_to_right() -> None:
    (bar,) = (line for line in request_report(whole_life(), PLAIN).splitlines() if line.startswith("  |"))
    drawn = bar.strip().strip("|")
    assert len(drawn) == BAR_WIDTH
    assert re.fullmatch(r"░{24}▒█{11}╳{6}█{6}", drawn.replace("▓", "█")), drawn


def test_colours_change_no_letter() -> None:
    plain, coloured = (request_report(whole_life(), Style(colour=colour)) for colour in (False, True))
    assert "\x1b[33m" in coloured
    assert re.sub(r"\x1b\[[0-9]+m", "", coloured) == plain


def test_every_state_can_be_seen() -> None:
    ends = {State.FINISHED, State.REJECTED}
    assert set(SHADES) == {state.value for state in State if state not in ends}
    assert len(set(SHADES.values())) == len(SHADES)
    assert set(SHADES) <= set(COLOURS)


def test_live_requests_are_told_so_far() -> None:
    text = request_report(document(Event(101.0, EventKind.SUBMITTED)), PLAIN)
    assert text.startswith("chatcmpl-7-0: waiting (new) for 20.00 s\n")
    assert "0 generated, no token yet" in text


def test_a_refused_request_is_told() -> None:
    found = document(Event(100.001, EventKind.SUBMITTED), Event(100.001, EventKind.REJECTED, RejectReason.QUEUE_FULL))
    text = request_report(found, PLAIN)
    assert text.startswith("chatcmpl-7-0: rejected (queue_full) after 1.0 ms\n")
    assert "--max-waiting-requests" in text


def test_a_long_story_is_cut_in_the_middle() -> None:
    events = [Event(101.0 + i, EventKind.PREEMPTED, "kv_full", "x-0") for i in range(100)]
    text = request_report(document(Event(100.5, EventKind.QUEUED), *events), PLAIN)
    assert text.count("preempted: kv_full") == 38
    assert "62 lines more" in text


# -- advice -----------------------------------------------------------------------------------------------------------


def largest(state: str, why: str = "", **rest: Any) -> dict[str, Any]:
    shares = [{"state": state, "why": why, "seconds": 9.0, "share": 0.9}]
    plain = {"tokens": {"prompt": 100, "cached": 10, "output": 90}, "longest_gap": None, "spans": [], "shares": shares}
    return plain | {"state": "finished", "largest": shares[0]} | rest


def test_there_is_a_sentence_for_every_reason() -> None:
    assert set(words.WAITING) == {reason.value for reason in WaitReason}
    assert set(words.PREEMPTED) == {reason.value for reason in PreemptReason}
    for reason in WaitReason:
        assert advice(largest("waiting", reason.value)).startswith(words.WAITING[reason.value].was)
        assert queue_advice({"reason": reason.value}).startswith(words.WAITING[reason.value].is_now)
    for lost in PreemptReason:
        assert advice(largest("preempted", lost.value)) == words.PREEMPTED[lost.value]


def test_there_is_a_sentence_for_every_refusal_and_every_state() -> None:
    refused = {reason.value for reason in RejectReason} - {"invalid"}  # that is a 400, and never a request
    assert refused <= set(words.REJECTED)
    for state in ("receiving", "prefill", "recompute", "decode"):
        assert advice(largest(state)) != words.UNKNOWN


def test_a_prompt_that_was_read_is_not_to_be_found_in_the_cache() -> None:
    tokens = {"prompt": 100, "cached": 0, "output": 0}
    assert advice(largest("prefill", tokens=tokens | {"read": 99})) == words.READ
    assert "prefix cache" in advice(largest("prefill", tokens=tokens | {"read": 1}))  # an embedding of the last token


def test_flags_that_are_named_exist() -> None:
    known = {flag(item.name) for config in (EngineConfig, ServerConfig) for item in fields(config)}
    texts = [*(wait.change for wait in words.WAITING.values()), *words.PREEMPTED.values(), *words.REJECTED.values()]
    steps = [{"state": "prefill", "steps": 9}]
    gap = {"seconds": 5.0, "prompt_tokens_in_step": 2048, "at": 1.0}
    texts += [
        advice(largest("decode")),
        advice(largest("decode", longest_gap=gap)),
        advice(largest("prefill", spans=steps)),
    ]
    named = {name for text in texts for name in re.findall(r"--[a-z-]+", text)}
    assert len(named) > 5
    assert named <= known


def test_a_pause_that_others_prompts_made_is_told_apart_from_a_long_answer() -> None:
    gap = {"seconds": 5.0, "prompt_tokens_in_step": 2048, "at": 1.0}
    assert "one pause of 5.00 s" in advice(largest("decode", longest_gap=gap))
    assert "10.0 tokens a second" in advice(largest("decode", longest_gap=gap | {"seconds": 0.1}))
    assert "10 of its 100 prompt tokens were cached" in advice(largest("prefill"))


# -- the queue --------------------------------------------------------------------------------------------------------


def queue(**rest: Any) -> dict[str, Any]:
    known = {
        "model_name": "assistant", "state": "serving", "waiting": {"new": 0, "kv_full": 3}, "running": 8,
        "max_num_seqs": 16, "oldest_wait_seconds": 12.0, "kv_cache_usage_ratio": 0.97, "estimated_queue_seconds": 7.5,
        "reason": "kv_full", "reason_seconds": 11.0, "waiting_prompt_tokens": 3600, "running_prompt_tokens": 0,
    }  # fmt: skip
    return known | rest


def test_the_queue_told_to_a_person() -> None:
    made = Request(id="cmpl-1-0", tokens=[1] * 10, params=SamplingParams(), arrival=100.0)
    item = summary(timeline(made, [*made.events, Event(101.0, EventKind.SUBMITTED)], 103.0), 0.0)
    text = queue_report({"queue": queue(), "live": [item], "slowest": [item], "ended_known": 1024}, PLAIN)
    assert text.splitlines()[:4] == [
        "assistant: serving, 3 waiting, 8 running",
        "  3 kv_full (kv_full for 11.00 s); the oldest has waited 12.00 s",
        "  3,600 prompt tokens wait, 0 are being computed: about 7.50 s",
        "  8 of 16 seats and 97 % of the KV blocks are taken",
    ]
    assert queue_advice(queue()) in " ".join(text.split())
    assert "Slowest of the last 1,024" in text
    assert "cmpl-1-0" in text
    assert "most: waiting new 67 %" in text


def test_an_idle_queue_needs_no_advice() -> None:
    nothing = {"reason_seconds": 0.0, "estimated_queue_seconds": 0.0, "waiting_prompt_tokens": 0, "running": 0}
    idle = queue(waiting={"kv_full": 0}, reason=None, **nothing)
    text = queue_report({"queue": idle, "live": [], "slowest": [], "ended_known": 0}, PLAIN)
    assert text == "assistant: serving, 0 waiting, 0 running\n  0 of 16 seats and 97 % of the KV blocks are taken\n"
    assert queue_advice(idle) == "Nobody waits."
