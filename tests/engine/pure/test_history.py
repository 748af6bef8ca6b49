"""Timelines told from real requests and batches: what each waited for, who took its blocks, where the time went."""

from __future__ import annotations

import pytest

from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.history.documents import slowest, timeline_document
from octavo_engine.history.queue_log import CHANGES_KEPT, MAX_WAIT_LINES, Change, QueueLog
from octavo_engine.history.recent import History
from octavo_engine.history.timeline import State, Timeline
from octavo_engine.request import (
    MAX_EVENTS,
    EventKind,
    FinishReason,
    PreemptReason,
    RejectReason,
    Request,
    SamplingParams,
    Status,
    WaitReason,
)


class Life:
    """A request that a test leads through its life, with its history."""

    def __init__(self, history: History | None = None, *, id: str = "a-0", arrival: float = 100.0) -> None:
        self.history = history or History()
        self.request = Request(id=id, tokens=[1] * 40, params=SamplingParams(), arrival=arrival, x_request_id=f"x-{id}")

    def queued(self, at: float) -> None:
        self.request.note(at - 0.5, EventKind.SUBMITTED)
        self.request.note(at, EventKind.QUEUED)

    def admitted(self, at: float, *, cached: int = 0, seconds: float = 0.2, blocked: WaitReason | None = None) -> None:
        """A step at `at` admits it and computes all that it knows, less what is cached."""
        request = self.request
        request.status, request.num_computed = Status.RUNNING, cached
        request.num_cached = request.num_cached or cached
        request.note(at, EventKind.ADMITTED, tokens=cached)
        piece = Slice(request, cached, request.num_missing, samples=True)
        self.history.step(Batch(slices=(piece,), admitted=(request,), at=at, blocked=blocked), seconds)
        request.num_computed = request.num_tokens

    def token(self, at: float) -> None:
        self.request.tokens.append(7)
        if self.request.num_output == 1:
            self.request.note(at, EventKind.FIRST_TOKEN)

    def preempted(self, at: float, by: str = "b-0") -> None:
        self.request.num_preemptions += 1
        self.request.num_computed = 0
        self.request.note(at, EventKind.PREEMPTED, PreemptReason.KV_FULL, by=by)

    def finished(self, at: float, reason: FinishReason = FinishReason.LENGTH) -> Timeline:
        self.request.status, self.request.finish_reason = Status.FINISHED, reason
        self.request.note(at, EventKind.FINISHED, reason)
        self.history.finished(self.request, at)
        return self.history.ended()[0]

    def so_far(self, now: float) -> Timeline:
        (item,) = self.history.live([self.request], SchedulerStats(), now)
        return item


def told(item: Timeline) -> list[tuple[str, str, float, float]]:
    return [(span.state.value, str(span.why), round(span.began, 6), round(span.ended, 6)) for span in item.spans()]


def test_a_whole_life() -> None:
    life = Life()
    life.queued(101.0)
    life.history.queue.note(101.0, WaitReason.BATCH_FULL)
    life.history.queue.note(103.0, WaitReason.KV_FULL)
    life.admitted(104.0, cached=16)
    life.token(104.2)
    life.token(104.5)
    life.preempted(105.0)
    life.admitted(107.0, seconds=0.5)
    life.token(107.5)
    item = life.finished(110.0)

    assert told(item) == [
        ("receiving", "", 0.0, 0.5),
        ("waiting", "new", 0.5, 1.0),
        ("waiting", "batch_full", 1.0, 3.0),
        ("waiting", "kv_full", 3.0, 4.0),
        ("prefill", "", 4.0, 4.2),
        ("decode", "", 4.2, 5.0),
        ("preempted", "kv_full", 5.0, 7.0),
        ("recompute", "", 7.0, 7.5),
        ("decode", "", 7.5, 10.0),
    ]
    assert (item.state, item.why, item.seconds, item.first_token) == (
        State.FINISHED,
        "length",
        10.0,
        pytest.approx(4.2),
    )
    assert (item.counts.prompt, item.counts.cached, item.counts.output, item.counts.preemptions) == (40, 16, 3, 1)
    assert item.spans()[6].by == "b-0"
    assert (item.spans()[4].tokens, item.spans()[4].steps) == (24, 1)
    assert (item.spans()[7].tokens, item.spans()[7].steps) == (42, 1)
    assert item.shares()[0] == (State.DECODE, "", pytest.approx(3.3))
    assert sum(seconds for _, _, seconds in item.shares()) == pytest.approx(item.seconds)


def test_it_tells_of_a_request_at_any_moment() -> None:
    life = Life()
    assert told(life.so_far(100.2)) == [("receiving", "", 0.0, 0.2)]
    life.queued(101.0)
    assert told(life.so_far(101.0))[-1] == ("waiting", "new", 1.0, 1.0)
    life.history.queue.note(101.0, WaitReason.KV_FULL)
    assert told(life.so_far(102.0))[-1] == ("waiting", "kv_full", 1.0, 2.0)
    assert (life.so_far(102.0).state, life.so_far(102.0).why) == (State.WAITING, "kv_full")
    life.admitted(103.0)
    assert told(life.so_far(103.1))[-1] == ("prefill", "", 3.0, 3.2)  # the step that computes it was said to take that
    life.token(103.2)
    assert life.so_far(105.0).state is State.DECODE
    life.preempted(105.0, by="c-1")
    assert told(life.so_far(106.0))[-1] == ("preempted", "kv_full", 5.0, 6.0)
    life.admitted(107.0)
    assert ("recompute", "", 7.0, 7.2) in told(life.so_far(108.0))
    assert told(life.so_far(108.0))[-1] == ("decode", "", 7.2, 8.0)


def test_a_step_that_is_being_computed_has_decided_already() -> None:
    """What it decided is recorded at its end; who looks before that is told of it all the same."""
    history, waits, runs = History(), Life(id="w-0"), Life(id="r-0")
    history.queue.note(100.0, WaitReason.BATCH_FULL)
    for life in (waits, runs):
        life.queued(101.0)
    runs.request.note(105.0, EventKind.ADMITTED)
    stats = SchedulerStats(blocked=WaitReason.KV_FULL, decided=105.0)
    waiting, running = history.live([waits.request, runs.request], stats, 107.0)
    assert told(waiting)[2:] == [("waiting", "batch_full", 1.0, 5.0), ("waiting", "kv_full", 5.0, 7.0)]
    assert told(running)[2:] == [("waiting", "batch_full", 1.0, 5.0), ("prefill", "", 5.0, 7.0)]
    assert history.queue_at(stats).present is WaitReason.KV_FULL
    assert history.queue.present is WaitReason.BATCH_FULL


def test_looking_changes_nothing() -> None:
    life = Life()
    life.queued(101.0)
    life.history.queue.note(101.0, WaitReason.KV_FULL)
    before = list(life.request.events)
    assert len(life.so_far(102.0).events) == len(before) + 1
    assert life.request.events == before


def test_chunks_are_one_line_however_many() -> None:
    life = Life()
    life.queued(101.0)
    request = life.request
    request.note(101.0, EventKind.ADMITTED)
    for number in range(10):
        chunk = Slice(request, 4 * number, 4, samples=number == 9)
        admitted = (request,) if number == 0 else ()
        life.history.step(Batch(slices=(chunk,), admitted=admitted, at=101.0 + number), 1.0)
    life.token(111.0)
    item = life.finished(111.0)
    computed = [event for event in item.events if event.what is EventKind.COMPUTED]
    assert [(event.at, event.until, event.tokens, event.steps) for event in computed] == [(101.0, 111.0, 40, 10)]


def test_a_request_that_never_ran_tells_what_it_waited_for() -> None:
    life = Life()
    life.queued(101.0)
    life.history.queue.note(100.5, WaitReason.KV_FULL)
    item = life.finished(130.0, FinishReason.DEADLINE)
    assert told(item)[-1] == ("waiting", "kv_full", 1.0, 30.0)
    assert (item.state, item.why, item.first_token) == (State.FINISHED, "deadline", None)


def test_a_reason_of_its_own_comes_before_the_queues() -> None:
    life = Life()
    life.queued(101.0)
    life.history.queue.note(101.0, WaitReason.KV_FULL)
    life.request.note(102.0, EventKind.WAITING, WaitReason.PREFIX_PENDING, by="c-0")
    life.request.note(104.0, EventKind.WAITING)
    life.history.queue.note(105.0, WaitReason.TOKEN_BUDGET)
    life.admitted(106.0)
    assert told(life.so_far(106.2))[2:6] == [
        ("waiting", "kv_full", 1.0, 2.0),
        ("waiting", "prefix_pending", 2.0, 4.0),
        ("waiting", "kv_full", 4.0, 5.0),
        ("waiting", "token_budget", 5.0, 6.0),
    ]
    assert [span.by for span in life.so_far(106.2).spans()[2:6]] == ["", "c-0", "", ""]


def test_a_reason_of_its_own_while_it_is_preempted_leaves_that_one_stretch() -> None:
    life = Life()
    life.queued(101.0)
    life.admitted(101.0)
    life.token(101.2)
    life.preempted(102.0, by="b-0")
    life.request.note(103.0, EventKind.WAITING, WaitReason.PREFIX_PENDING, by="c-0")
    life.admitted(105.0)
    lost = [(told(life.so_far(106.0))[i], span.by) for i, span in enumerate(life.so_far(106.0).spans()) if span.by]
    assert lost == [(("preempted", "kv_full", 2.0, 3.0), "b-0"), (("preempted", "kv_full", 3.0, 5.0), "b-0")]


def test_a_prompt_of_which_one_token_is_left_is_a_chunk_too() -> None:
    life = Life()
    life.queued(101.0)
    life.admitted(101.0, cached=39)
    assert [event.tokens for event in life.request.events if event.what is EventKind.COMPUTED] == [1]


def test_a_wait_whose_reason_flutters_has_one_line_for_each_reason() -> None:
    life = Life()
    life.queued(101.0)
    for number in range(100):
        life.history.queue.note(101.0 + number, (WaitReason.KV_FULL, WaitReason.TOKEN_BUDGET)[number % 2])
    life.admitted(201.0)
    waits = [event for event in life.request.events if event.what is EventKind.WAITING]
    assert len(waits) == 2 <= MAX_WAIT_LINES
    assert life.so_far(201.2).shares()[:2] == [
        (State.WAITING, "kv_full", pytest.approx(50.0)),
        (State.WAITING, "token_budget", pytest.approx(50.0)),
    ]


def test_who_comes_to_an_empty_queue_does_not_inherit_an_old_reason() -> None:
    life = Life()
    life.history.queue.note(50.0, WaitReason.KV_FULL)
    life.history.queue.note(60.0, None)
    life.queued(101.0)
    life.admitted(101.5)
    assert ("waiting", "new", 1.0, 1.5) in told(life.so_far(101.7))


def test_the_log_of_the_queue_is_bounded() -> None:
    log = QueueLog()
    for number in range(3 * CHANGES_KEPT):
        log.note(float(number), (WaitReason.KV_FULL, WaitReason.TOKEN_BUDGET)[number % 2])
    assert len(log._changes) == CHANGES_KEPT
    assert log.between(0.0, 1.0) == [Change(0.0, WaitReason.NEW)]
    log.note(1e6, WaitReason.TOKEN_BUDGET)
    assert log.since == 3 * CHANGES_KEPT - 1  # no change, no line


def test_a_request_preempted_for_ever_does_not_fill_the_memory() -> None:
    life = Life()
    life.queued(101.0)
    life.admitted(101.0)
    life.token(101.2)
    for number in range(1000):
        life.preempted(102.0 + number)
        life.admitted(102.5 + number)
    item = life.finished(2000.0)
    assert len(item.events) <= MAX_EVENTS + 1
    assert item.left_out > 1000
    assert item.state is State.FINISHED
    assert sum(span.seconds for span in item.spans()) == pytest.approx(item.seconds)


def test_the_latest_are_kept_and_refusals_wash_nothing_away() -> None:
    history = History(ended=3, refused=2)
    for number in range(5):
        Life(history, id=f"r{number}-0").finished(101.0)
    for number in range(9):
        life = Life(history, id=f"n{number}-0")
        life.request.note(100.1, EventKind.REJECTED, RejectReason.QUEUE_FULL)
        history.refused([life.request])
    assert [item.id for item in history.ended()] == ["r4-0", "r3-0", "r2-0", "n8-0", "n7-0"]
    (refused,) = history.find("n8", (), SchedulerStats(), 0.0)
    assert (refused.state, refused.why, refused.seconds) == (State.REJECTED, "queue_full", pytest.approx(0.1))
    assert refused not in slowest(history.ended(), 10)


def test_it_is_found_by_each_of_its_names() -> None:
    history = History()
    first, second = Life(history, id="cmpl-7-1"), Life(history, id="cmpl-7-0")
    first.finished(101.0)
    live = [second.request]
    assert [item.id for item in history.find("cmpl-7", live, SchedulerStats(), 102.0)] == ["cmpl-7-0", "cmpl-7-1"]
    assert [item.id for item in history.find("cmpl-7-1", live, SchedulerStats(), 102.0)] == ["cmpl-7-1"]
    assert [item.id for item in history.find("x-cmpl-7-0", live, SchedulerStats(), 102.0)] == ["cmpl-7-0"]
    assert history.find("cmpl", live, SchedulerStats(), 102.0) == []
    assert history.find("", live, SchedulerStats(), 102.0) == []


def test_of_one_that_has_just_ended_the_end_is_told() -> None:
    life = Life(id="cmpl-7-0")
    life.finished(101.0)
    life.request.events.pop()  # as it was a moment ago, when somebody looked at the live ones
    (found,) = life.history.find("cmpl-7", [life.request], SchedulerStats(), 105.0)
    assert found.state is State.FINISHED


def test_of_requests_with_the_same_name_the_latest_comes_first() -> None:
    history = History()
    for number, arrival in enumerate((100.0, 300.0, 200.0)):
        life = Life(history, id=f"cmpl-{number}-0", arrival=arrival)
        life.request.x_request_id = "same"
        life.finished(arrival + 1.0)
    assert [item.arrival for item in history.find("same", (), SchedulerStats(), 400.0)] == [300.0, 200.0, 100.0]


def test_the_document_says_all_of_it_and_no_text() -> None:
    life = Life()
    life.queued(101.0)
    life.admitted(102.0, cached=16)
    life.token(102.2)
    item = life.finished(104.0)
    document = timeline_document([item], wall_offset=1000.0)
    assert document["received"] == 1100.0
    assert document["tokens"] == {"prompt": 40, "cached": 16, "output": 1}
    assert document["largest"] == {"state": "decode", "why": "", "share": 0.45}
    assert sum(share["share"] for share in document["shares"]) == pytest.approx(1.0, abs=0.001)
    assert document["events"][0] == {"seconds": 0.0, "what": "arrived", "why": ""}
    assert document["events"][3] == {"seconds": 2.0, "what": "admitted", "why": "", "tokens": 16}
    assert document["spans"][-1] == {"state": "decode", "why": "", "began": 2.2, "seconds": 1.8}
    assert document["other_choices"] == []
