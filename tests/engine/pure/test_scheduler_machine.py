"""Random histories of arrivals, steps, aborts and evictions under every policy: the accounts always balance, whose turn
it is progresses, and everyone gets their end."""

from __future__ import annotations

import math

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo_engine.batch import Batch
from octavo_engine.request import FinishReason, PreemptReason, Request, Status, WaitReason
from octavo_engine.scheduling.drafts import Drafter
from octavo_engine.scheduling.pace import Pace
from octavo_engine.scheduling.policy import Policy
from scheduling_helpers import BLOCK, SmallPolicy, check_accounting, request, run, scheduler

# Few distinct tokens make equal prefixes likely; so do these stems.
STEMS = [[1] * 9, [1] * 4 + [2] * 8, [3] * 16, [3] * 24]

POLICIES = st.one_of(
    st.just(Policy()),
    st.builds(Policy, level_seconds=st.sampled_from([0.0, 2.0, 50.0])),
    st.builds(SmallPolicy, window_seconds=st.sampled_from([0.0, 3.0, 100.0]), looks=st.sampled_from([1, 2, 256])),
)
DEAR = st.floats(0.1, 50) | st.just(math.inf)  # tokens of drafts that take as long as all decodes
PACES = st.one_of(
    st.none(), st.builds(Pace, equal_tokens=st.floats(0, 40), slowdown=st.floats(1, 3), equal_drafted=DEAR)
)


class SchedulerMachine(RuleBasedStateMachine):
    """Policy x blocks x prefix cache x pace x preemption x abort x deadline. The clock ticks once a step."""

    @initialize(
        policy=POLICIES,
        blocks=st.integers(4, 24),
        budget=st.integers(1, 40),
        seqs=st.integers(1, 6),
        chunked=st.booleans(),
        caching=st.booleans(),
        guesses=st.sampled_from([0, 1, 9]),
    )
    def start(
        self, *, policy: Policy, blocks: int, budget: int, seqs: int, chunked: bool, caching: bool, guesses: int
    ) -> None:
        if not chunked:  # as the config demands: any sequence fits into one step
            budget = blocks * BLOCK
        caching = caching or policy.window_seconds is not None
        self.policy, self.now = policy, 0.0
        drafter = Drafter(guesses, max_model_len=blocks * BLOCK) if guesses else None
        options = {"budget": budget, "seqs": seqs, "chunked": chunked, "caching": caching, "policy": policy}
        self.scheduler = scheduler(blocks, **options, drafter=drafter)
        self.all: list[Request] = []

    @property
    def live(self) -> list[Request]:
        return [item for item in self.all if item.status is not Status.FINISHED]

    def with_status(self, status: Status) -> list[Request]:
        return sorted((item for item in self.all if item.status is status), key=lambda item: item.rank)

    @rule(
        stem=st.sampled_from([[], *STEMS]),
        tail=st.lists(st.integers(1, 3), max_size=10),
        max_tokens=st.integers(1, 30),
        namespace=st.sampled_from(["a", "b"]),
        priority=st.integers(-2, 2),
        patience=st.sampled_from([2.0, 1000.0]),
        lateness=st.sampled_from([0.0, 0.0, 5.0]),  # one may be in the queue later than others that came after it
        copies=st.integers(1, 3),
    )
    def arrive(
        self,
        *,
        stem: list[int],
        tail: list[int],
        max_tokens: int,
        namespace: str,
        priority: int,
        patience: float,
        lateness: float,
        copies: int,
    ) -> None:
        for _ in range(copies):
            item = request([*stem, *tail] or [1], max_tokens=max_tokens, namespace=namespace, priority=priority)
            item.arrival = self.now - lateness
            item.deadline = self.now + patience
            if item.max_total_tokens <= self.scheduler.capacity_tokens:
                self.all.append(item)
                self.scheduler.add(item)

    @precondition(lambda self: self.live)
    @rule(token=st.integers(1, 3), pace=PACES, true=st.integers(0, 9))
    def step(self, token: int, pace: Pace | None, true: int) -> None:
        self.now += 1
        for item in self.live:
            if item.deadline <= self.now:
                self.scheduler.finish(item, FinishReason.DEADLINE, self.now)
        if not self.live:
            return
        first = min(self.live, key=lambda item: item.rank)
        running = self.with_status(Status.RUNNING)
        turns = [(item, item.num_computed, item.num_tokens) for item in {first, *running[:1]}]
        batch = self.scheduler.schedule(self.now, pace)
        check_accounting(self.scheduler, self.live)
        self.check_batch(batch)
        self.check_order(batch)
        self.check_victims(batch, running)
        still = [other for other in self.with_status(Status.RUNNING) if not self.policy.outranks(first, other)]
        run(self.scheduler, batch, token=token, true=true)
        for item, computed, known in turns:
            if item.status is Status.FINISHED or (item.num_computed, item.num_tokens) != (computed, known):
                continue
            if item is first and item.status is Status.WAITING:
                self.check_wait(still, batch)
            else:  # only one that has just come and is first can have taken the turn of the first that ran
                assert any(self.policy.outranks(other, item) for other in batch.admitted)

    def check_batch(self, batch: Batch) -> None:
        assert batch.slices, "live requests, but nothing to do"
        assert batch.num_tokens == sum(piece.count for piece in batch.slices) <= self.scheduler._budget
        assert len(batch.slices) <= self.scheduler._max_seqs
        ids = [piece.request.id for piece in batch.slices]
        assert len(ids) == len(set(ids))
        singles = [piece.count == 1 for piece in batch.slices]
        assert singles == sorted(singles, reverse=True)
        assert batch.num_singles == sum(singles)
        continuing = [piece.known == 1 for piece in batch.slices]
        assert continuing == sorted(continuing, reverse=True)
        assert batch.num_continuing == sum(continuing)
        assert batch.num_drafted == sum(len(piece.draft) for piece in batch.slices)
        for piece in batch.slices:
            assert piece.start == piece.request.num_computed
            assert 1 <= piece.known <= piece.request.num_missing
            assert not piece.draft or (piece.samples and piece.known == piece.request.num_missing == 1)
            assert piece.stop < piece.request.max_total_tokens or not piece.draft
            assert piece.stop <= len(piece.request.blocks) * BLOCK

    def check_order(self, batch: Batch) -> None:
        """Nobody is admitted before one whose turn was earlier."""
        lost = {item for item, _ in batch.preempted}
        left = [item for item in self.with_status(Status.WAITING) if item not in lost]
        for item in batch.admitted:
            if self.policy.window_seconds is None:
                assert all(item.rank < other.rank for other in left)
            elif not item.num_preemptions:
                earlier = [other for other in left if other.rank < item.rank]
                assert all(item.arrival <= other.arrival + self.policy.window_seconds for other in earlier)
                assert not any(other.num_preemptions for other in left)

    def check_victims(self, batch: Batch, running: list[Request]) -> None:
        """Victims are the last in rank; and who takes a place has the higher priority."""
        kept = [item for item in running if item.status is Status.RUNNING]
        for victim, why in batch.preempted:
            assert all(item.rank < victim.rank for item in kept)
            if why is PreemptReason.PRIORITY:
                assert any(self.policy.outranks(item, victim) for item in batch.admitted)

    def check_wait(self, still: list[Request], batch: Batch) -> None:
        """Who is first in rank and waits has a reason that no preemption could have removed."""
        if not self.scheduler._chunked or self.policy.window_seconds is not None:
            return
        assert self.policy.preempts, "the oldest of all waits"
        assert still, "nobody is in its way"
        if batch.blocked is WaitReason.TOKEN_BUDGET:
            assert any(piece.request in still for piece in batch.slices)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 1000))
    def abort(self, pick: int) -> None:
        item = self.live[pick % len(self.live)]
        self.scheduler.finish(item, FinishReason.ABORT, self.now)
        assert not item.blocks

    @rule()
    def flush(self) -> None:
        self.scheduler.flush()
        assert self.scheduler.cache.num_cached == 0

    @invariant()
    def accounts_balance(self) -> None:
        if hasattr(self, "scheduler"):
            check_accounting(self.scheduler, self.live)
            stats = self.scheduler.stats()
            assert sum(stats.waiting.values()) + stats.running == len(self.live)
            assert min(stats.waiting.values()) >= 0
            assert stats.free_blocks + stats.cached_blocks + stats.used_blocks == stats.total_blocks
            waiting = self.with_status(Status.WAITING)
            assert stats.waiting_prompt_tokens == sum(item.num_prompt for item in waiting)
            assert stats.oldest_arrival == min((item.arrival for item in waiting), default=None)

    def teardown(self) -> None:
        """Whatever happened: left alone, every request comes to its end, exactly once, and all blocks are there
        again."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if not self.live:
                break
            self.step(token=1, pace=None, true=0)
        assert not self.live
        assert all(len([e for e in item.events if e.what == "finished"]) == 1 for item in self.all)
        assert self.scheduler.cache.num_used == 0


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase
