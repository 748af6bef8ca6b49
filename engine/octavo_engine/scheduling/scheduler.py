"""Decides each step: how many tokens of which request, who is admitted, who must give its blocks back.

One rule instead of phases. Every request has known tokens and computed tokens; a step gives each some of the
difference within one token budget. Chunked prefill, decode, resumption after preemption and prefix hits are all that
rule. Requests that need one token come first, so that a long prompt never delays a decode; the rest of the budget
goes to prompts in the order of arrival.
"""

from __future__ import annotations

from collections import Counter

from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.request import EventKind, FinishReason, PreemptReason, Request, Status, WaitReason
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.policy import WaitingQueue


class Scheduler:
    """Owns every live request. `schedule` decides, `computed` records what was done, `finish` ends a request in any
    state.

    Guarantees: the oldest running request always progresses, since victims are taken from the newest; a request ends
    exactly once; and its blocks are free when `finish` returns.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        enable_chunked_prefill: bool = True,
    ) -> None:
        self._cache = cache
        self._budget = max_num_batched_tokens
        self._max_seqs = max_num_seqs
        self._chunked = enable_chunked_prefill
        self._waiting = WaitingQueue()
        self._running: list[Request] = []  # oldest admission first
        self._order: dict[str, int] = {}  # request id -> place in the order of arrival
        self._arrivals = 0
        # First come, first served: what holds the head of the queue holds everyone behind it, so one reason serves
        # them all.
        self._blocked: WaitReason = WaitReason.NEW
        self._num_new = 0

    # -- requests come and go ------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True while a step would do something."""
        return bool(self._running or self._waiting)

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that fits when it is alone."""
        return self._cache.num_blocks * self._cache.block_size

    def add(self, request: Request) -> None:
        """Queue a request. The caller has checked that it fits into `capacity_tokens`."""
        self._arrivals += 1
        self._order[request.id] = self._arrivals
        self._waiting.append(request)
        self._num_new += 1

    def finish(self, request: Request, reason: FinishReason, now: float) -> None:
        """End a live request, whatever its state; its blocks are free when this returns."""
        assert request.status is not Status.FINISHED, f"request {request.id} finished twice"
        if request.status is Status.WAITING:
            self._waiting.remove(request)
            self._num_new = min(self._num_new, len(self._waiting))
        else:
            self._running.remove(request)
        self._cache.release(request)
        del self._order[request.id]
        request.status, request.finish_reason = Status.FINISHED, reason
        request.note(now, EventKind.FINISHED, reason)

    def flush(self) -> int:
        """Forget the cached prefixes that no running request holds; returns how many blocks that frees."""
        return self._cache.flush()

    # -- the step ------------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> Batch:
        """Decide the next step at time `now`. Blocks are taken here; nothing is computed yet."""
        plan = _Plan(self._budget, now, self._cache.evicted_blocks)
        decodes = [request for request in self._running if request.num_missing == 1]
        prefills = [request for request in self._running if request.num_missing > 1]
        for request in (*decodes, *prefills):
            self._continue(request, plan)
        self._admit(plan)
        return plan.batch(self._cache.evicted_blocks, self._blocked if self._waiting else None)

    def computed(self, batch: Batch) -> None:
        """Record that a batch's K/V is written; its full blocks become findable. Call before new tokens are
        appended."""
        for piece in batch.slices:
            request = piece.request
            if request.status is not Status.RUNNING:
                continue
            request.num_recompute = max(0, request.num_recompute - piece.count)
            request.num_computed = piece.stop
            self._cache.publish(request, piece.start, piece.stop)

    def _continue(self, request: Request, plan: _Plan) -> None:
        """Give a running request its share, taking blocks from the newest if there are none left."""
        if request.status is not Status.RUNNING:  # it lost its blocks to an older one in this very step
            return
        share = self._share(request, plan)
        if share == 0:
            return
        while not self._cache.grow(request, request.num_computed + share):
            victim = max(self._running, key=lambda other: self._order[other.id])
            self._preempt(victim, plan, by=request)
            if victim is request:
                return
        plan.add(request, share)

    def _share(self, request: Request, plan: _Plan) -> int:
        """How many of a request's missing tokens this step may compute."""
        missing = request.num_missing
        if missing <= plan.budget:
            return missing
        # Without chunking a prompt waits for a step that has room for all of it; the config sees to it that one can.
        return plan.budget if self._chunked else 0

    def _preempt(self, victim: Request, plan: _Plan, by: Request) -> None:
        self._running.remove(victim)
        victim.num_recompute = victim.num_computed
        self._cache.release(victim)
        victim.status = Status.WAITING
        victim.num_preemptions += 1
        victim.note(plan.now, EventKind.PREEMPTED, PreemptReason.KV_FULL, by=by.id)
        self._waiting.push_back(victim)
        plan.take_back(victim)

    def _admit(self, plan: _Plan) -> None:
        """Admit from the head of the queue while everything fits; note why the head waits otherwise."""
        while (request := self._waiting.head) is not None:
            if (blocked := self._try_admit(request, plan)) is not None:
                self._blocked = blocked
                break
        self._num_new = 0

    def _try_admit(self, request: Request, plan: _Plan) -> WaitReason | None:
        if len(self._running) >= self._max_seqs:
            return WaitReason.BATCH_FULL
        if plan.budget == 0:
            return WaitReason.TOKEN_BUDGET
        if plan.preempted:  # blocks just taken away are for those who run
            return WaitReason.KV_FULL
        prefix = self._cache.find_prefix(request)
        needed = self._cache.blocks_for(request.num_tokens) - len(prefix.blocks) + prefix.num_idle
        # Alone it may take everything; beside others it leaves them what their prompts still need, and a block each
        # to grow.
        owed = sum(self._cache.missing_blocks(other, other.num_tokens) + 1 for other in self._running)
        if needed > self._cache.num_available - owed:
            return WaitReason.KV_FULL
        self._cache.attach(request, prefix)
        share = self._share(request, plan)
        if share == 0:
            self._cache.release(request)
            return WaitReason.TOKEN_BUDGET
        grown = self._cache.grow(request, request.num_computed + share)
        assert grown, "admission was decided on blocks that are not there"
        self._start(request, plan, share)
        return None

    def _start(self, request: Request, plan: _Plan, share: int) -> None:
        self._waiting.pop()
        request.status = Status.RUNNING
        request.num_recompute = max(0, request.num_recompute - request.num_computed)
        if not request.num_preemptions:
            request.num_cached = request.num_computed
        self._running.append(request)
        request.note(plan.now, EventKind.ADMITTED, tokens=request.num_computed)
        plan.admitted.append(request)
        plan.add(request, share)

    # -- what can be seen ----------------------------------------------------------------------------------------------

    def stats(self) -> SchedulerStats:
        """A snapshot, cheap enough for every scrape."""
        waiting = Counter(dict.fromkeys(WaitReason, 0))
        waiting[WaitReason.NEW] += self._num_new
        waiting[self._blocked] += len(self._waiting) - self._num_new
        head = self._waiting.head
        held = sum(len(request.blocks) for request in self._running)
        stored = sum(request.num_computed for request in self._running)
        return SchedulerStats(
            waiting=waiting,
            waiting_prompt_tokens=self._waiting.num_prompt_tokens,
            running_prompt_tokens=sum(missing for other in self._running if (missing := other.num_missing) > 1),
            running=len(self._running),
            oldest_arrival=head.arrival if head else None,
            free_blocks=self._cache.num_free,
            cached_blocks=self._cache.num_cached,
            used_blocks=self._cache.num_used,
            unused_slots=held * self._cache.block_size - stored,
            block_size=self._cache.block_size,
        )


class _Plan:
    """The step being decided: what is left of the budget, and the slices so far."""

    def __init__(self, budget: int, now: float, evicted_before: int) -> None:
        self.budget = budget
        self.now = now
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self._slices: dict[str, Slice] = {}
        self._evicted_before = evicted_before

    def add(self, request: Request, count: int) -> None:
        self._slices[request.id] = Slice(request, request.num_computed, count, samples=count == request.num_missing)
        self.budget -= count

    def take_back(self, victim: Request) -> None:
        """A victim computes nothing in this step, even if it had its share already."""
        self.preempted.append(victim)
        if (piece := self._slices.pop(victim.id, None)) is not None:
            self.budget += piece.count

    def batch(self, evicted: int, blocked: WaitReason | None) -> Batch:
        """The decisions as a value; single tokens come first, as the kernels expect."""
        return Batch(
            slices=tuple(sorted(self._slices.values(), key=lambda piece: piece.count > 1)),
            admitted=tuple(self.admitted),
            preempted=tuple((request, PreemptReason.KV_FULL) for request in self.preempted),
            evicted_blocks=evicted - self._evicted_before,
            at=self.now,
            blocked=blocked,
        )
