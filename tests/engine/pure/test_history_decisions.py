"""The log of decisions, from a real scheduler: every decision once, with its reason, and no step that waits for it."""

from __future__ import annotations

import json
import time
from typing import Any

from held_output import DEADLINE_SECONDS, Out
from octavo_engine.batch import Batch
from octavo_engine.history.decisions import DecisionLog
from octavo_engine.history.recent import History
from octavo_engine.request import EventKind, FinishReason, RejectReason, Request
from octavo_engine.scheduling.scheduler import Scheduler
from scheduling_helpers import request, run, scheduler


def lines(out: Out, until: str) -> list[dict[str, Any]]:
    """What was written, once `until` is the last decision."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (text := out.getvalue()).endswith("\n") or json.loads(text.splitlines()[-1])["decision"] != until:
        assert time.monotonic() < deadline, text
        time.sleep(0.005)
    return [json.loads(line) for line in text.splitlines()]


class Story:
    """A scheduler whose steps are reported."""

    def __init__(self, made: Scheduler) -> None:
        self.scheduler, self.out, self.now = made, Out(), 0.0
        self.recorders = (History(), DecisionLog(self.out, wall=lambda: 1000.0 + self.now))

    def add(self, item: Request) -> Request:
        item.note(self.now, EventKind.QUEUED)
        self.scheduler.add(item)
        return item

    def step(self) -> Batch:
        batch = self.scheduler.schedule(self.now)
        self.now += 0.25
        for recorder in self.recorders:
            recorder.step(batch, 0.25)
        run(self.scheduler, batch)
        return batch

    def finish(self, item: Request) -> None:
        self.scheduler.finish(item, FinishReason.ABORT, self.now)
        for recorder in self.recorders:
            recorder.finished(item, self.now)


def test_a_story_in_decisions() -> None:
    story = Story(scheduler(blocks=6, seqs=4))
    first = story.add(request(8, max_tokens=40))
    second = story.add(request(8, max_tokens=40))
    third = story.add(request(8, max_tokens=40))
    for _ in range(30):
        if story.step().preempted:
            break
    story.finish(first)
    for _ in range(30):
        if second in story.step().admitted:
            break
    story.finish(second)
    story.finish(third)

    told = lines(story.out, "finish")
    kinds = [(line["decision"], line.get("request")) for line in told]
    assert kinds[:3] == [("admit", first.id), ("admit", second.id), ("wait", None)]
    assert (told[2]["reason"], told[2]["before"]) == ("kv_full", None)
    waits = [(line["before"], line["reason"]) for line in told if line["decision"] == "wait"]
    assert all(before != reason for before, reason in waits)
    assert [reason for _, reason in waits[:-1]] == [before for before, _ in waits[1:]]
    (preempted,) = (line for line in told if line["decision"] == "preempt")
    assert preempted == preempted | {"request": second.id, "reason": "kv_full", "by": first.id}
    again = next(
        line for line in told if line["decision"] == "admit" and line["request"] == second.id and line["again"]
    )
    assert again["cached"] > 0
    assert set(again["waited"]) == {"kv_full"}
    assert again["waited"]["kv_full"] > 0
    ends = [line for line in told if line["decision"] == "finish"]
    assert [line["request"] for line in ends] == [first.id, second.id, third.id]
    assert [line["reason"] for line in ends] == ["abort"] * 3
    assert [line["preemptions"] for line in ends][:2] == [0, 1]
    assert [line["step"] for line in told] == sorted(line["step"] for line in told)
    assert told[0]["at"] == 1000.0  # when it was decided, not when it was computed
    assert "tokens" in told[0]
    assert not any(str(token) in json.dumps(told) for token in first.tokens[:8])


def test_evictions_are_one_line_a_step() -> None:
    story = Story(scheduler(blocks=4))
    for _ in range(2):
        item = story.add(request(15, max_tokens=1))
        story.step()
        story.recorders[1].finished(item, story.now)
    assert [line["blocks"] for line in lines(story.out, "finish") if line["decision"] == "evict"] == [3]


def test_nothing_decided_nothing_written() -> None:
    story = Story(scheduler())
    item = story.add(request(4, max_tokens=50))
    for _ in range(20):
        story.step()
    story.finish(item)
    assert [line["decision"] for line in lines(story.out, "finish")] == ["admit", "finish"]


def test_a_refusal_names_its_reason() -> None:
    out, item = Out(), request(4)
    log = DecisionLog(out)
    item.note(1.0, EventKind.REJECTED, RejectReason.QUEUE_FULL)
    log.refused([item])
    (line,) = lines(out, "reject")
    assert (line["request"], line["reason"]) == (item.id, "queue_full")


def test_who_does_not_read_loses_lines_and_holds_nobody_up() -> None:
    out = Out()
    out.gate.clear()
    log, item = DecisionLog(out, waiting=10), request(4)
    item.finish_reason = FinishReason.STOP
    for _ in range(1000):
        log.finished(item, 1.0)
    out.gate.set()
    told = lines(out, "left_out")
    written = sum(line["decision"] == "finish" for line in told)
    assert 10 <= written < 1000
    assert written + sum(line["lines"] for line in told if line["decision"] == "left_out") == 1000


def test_a_closed_output_ends_the_writing_and_nothing_else() -> None:
    out = Out()
    out.close()
    log, item = DecisionLog(out, waiting=10), request(4)
    item.finish_reason = FinishReason.STOP
    for _ in range(100):
        log.finished(item, 1.0)
    log._lines._writer.join(DEADLINE_SECONDS)
    assert not log._lines._writer.is_alive()
    log.close()  # and nothing is waited for


def test_what_waits_at_the_end_is_written() -> None:
    out, item = Out(), request(4)
    log = DecisionLog(out)
    item.finish_reason = FinishReason.STOP
    for _ in range(100):
        log.finished(item, 1.0)
    log.close()
    assert len(out.getvalue().splitlines()) == 100


def test_an_output_that_is_held_up_does_not_hold_up_the_end() -> None:
    out = Out()
    out.gate.clear()
    log, item = DecisionLog(out, waiting=1), request(4)
    item.finish_reason = FinishReason.STOP
    for _ in range(3):
        log.finished(item, 1.0)
    assert not log._lines.close(0.01)
    out.gate.set()
