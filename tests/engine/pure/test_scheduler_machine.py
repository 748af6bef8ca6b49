"""Random histories of arrivals, steps, aborts and evictions: the accounts always balance, and everyone gets their
end."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo_engine.request import FinishReason, Request, Status
from scheduling_helpers import BLOCK, check_accounting, request, run, scheduler

# Few distinct tokens make equal prefixes likely; so do these stems.
STEMS = [[1] * 9, [1] * 4 + [2] * 8, [3] * 16]


class SchedulerMachine(RuleBasedStateMachine):
    """Blocks x prefix cache x preemption x abort."""

    @initialize(
        blocks=st.integers(4, 24),
        budget=st.integers(1, 40),
        seqs=st.integers(1, 6),
        chunked=st.booleans(),
        caching=st.booleans(),
    )
    def start(self, blocks: int, budget: int, seqs: int, chunked: bool, caching: bool) -> None:
        if not chunked:  # as the config demands: any sequence fits into one step
            budget = blocks * BLOCK
        self.scheduler = scheduler(blocks, budget=budget, seqs=seqs, chunked=chunked, caching=caching)
        self.all: list[Request] = []
        self.ends: dict[str, int] = {}

    @property
    def live(self) -> list[Request]:
        return [item for item in self.all if item.status is not Status.FINISHED]

    @rule(
        stem=st.sampled_from([[], *STEMS]),
        tail=st.lists(st.integers(1, 3), max_size=10),
        max_tokens=st.integers(1, 30),
        namespace=st.sampled_from(["a", "b"]),
    )
    def arrive(self, stem: list[int], tail: list[int], max_tokens: int, namespace: str) -> None:
        item = request([*stem, *tail] or [1], max_tokens=max_tokens, namespace=namespace)
        if item.max_total_tokens <= self.scheduler.capacity_tokens:
            self.all.append(item)
            self.scheduler.add(item)

    @precondition(lambda self: self.live)
    @rule(token=st.integers(1, 3))
    def step(self, token: int) -> None:
        oldest = next(iter(self.live))
        before = (oldest.num_computed, oldest.num_tokens)
        batch = self.scheduler.schedule(0.0)
        check_accounting(self.scheduler, self.live)
        self.check_batch(batch)
        run(self.scheduler, batch, token=token)
        progressed = (oldest.num_computed, oldest.num_tokens) != before or oldest.status is Status.FINISHED
        # Without chunking the oldest may wait for a step in which no decode takes from its budget.
        assert progressed or (not self.scheduler._chunked and oldest.status is Status.WAITING)

    def check_batch(self, batch) -> None:
        assert batch.slices, "live requests, but nothing to do"
        assert batch.num_tokens <= self.scheduler._budget
        assert len(batch.slices) <= self.scheduler._max_seqs
        ids = [piece.request.id for piece in batch.slices]
        assert len(ids) == len(set(ids))
        singles = [piece.count == 1 for piece in batch.slices]
        assert singles == sorted(singles, reverse=True)
        for piece in batch.slices:
            assert piece.start == piece.request.num_computed
            assert 1 <= piece.count <= piece.request.num_missing
            assert piece.stop <= len(piece.request.blocks) * BLOCK

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 1000))
    def abort(self, pick: int) -> None:
        item = self.live[pick % len(self.live)]
        self.scheduler.finish(item, FinishReason.ABORT, 0.0)
        assert not item.blocks

    @invariant()
    def accounts_balance(self) -> None:
        if hasattr(self, "scheduler"):
            check_accounting(self.scheduler, self.live)
            stats = self.scheduler.stats()
            assert sum(stats.waiting.values()) + stats.running == len(self.live)
            assert min(stats.waiting.values()) >= 0
            assert stats.free_blocks + stats.cached_blocks + stats.used_blocks == stats.total_blocks

    def teardown(self) -> None:
        """Whatever happened: left alone, every request comes to its end, exactly once, and all blocks are there
        again."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if not self.live:
                break
            self.step(token=1)
        assert not self.live
        assert all(len([e for e in item.events if e.what == "finished"]) == 1 for item in self.all)
        assert self.scheduler.cache.num_used == 0


SchedulerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase
