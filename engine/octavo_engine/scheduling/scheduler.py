"""Decides each step: how many tokens of which request, who is admitted, who must give its blocks back.

One rule instead of phases. Every request has known tokens and computed tokens; a step gives each some of the
difference within one token budget. Chunked prefill, decode, resumption after preemption and prefix hits are all that
rule. Requests that need one token come first; prompts share what is left, or what the pace leaves them beside decodes,
in the policy's order. docs/SCHEDULING.md tells it as a user meets it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import attrgetter

from octavo_engine.batch import SCORED_ROWS, Batch, SchedulerStats
from octavo_engine.request import EventKind, FinishReason, PreemptReason, Request, Status, WaitReason
from octavo_engine.scheduling.drafts import Drafter
from octavo_engine.scheduling.kv_cache import KVCache, Prefix, Returns
from octavo_engine.scheduling.pace import Pace
from octavo_engine.scheduling.plan import Plan
from octavo_engine.scheduling.policy import Policy

FCFS = Policy()
_rank = attrgetter("rank")

NOBODY = dict.fromkeys(WaitReason, 0)


class Scheduler:
    """Owns every live request. `schedule` decides, `computed` records what was done, `finish` ends a request in any
    state.

    Guarantees: of the running requests the first in rank always progresses, since victims are taken from the last; of
    the waiting ones the queue's head is the next to be admitted; a request ends exactly once; and its blocks are free
    when `finish` returns.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        enable_chunked_prefill: bool = True,
        policy: Policy = FCFS,
        drafter: Drafter | None = None,
    ) -> None:
        self._cache = cache
        self._drafter = drafter
        self._budget = self._step_tokens = max_num_batched_tokens
        self._max_seqs = max_num_seqs
        self._chunked = enable_chunked_prefill
        self._policy = policy
        self._arrivals = 0  # how many came
        self._begin()

    def _begin(self) -> None:
        """With nobody there."""
        self._waiting = self._policy.make_queue(self._cache)
        self._running: list[Request] = []  # by rank
        self._prefilling: dict[Request, None] = {}  # those running that need more than one token
        self._ending: set[Request] = set()  # those running that need nothing more
        self._seen = self._arrivals  # how many of those that came a step has looked at
        self._num_new = 0
        # What holds the head of the queue holds everyone behind it, so one reason serves them all.
        self._blocked: WaitReason = WaitReason.NEW
        self._decided = 0.0

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
        self._num_new += 1
        request.rank = self._policy.rank(request, self._arrivals)
        self._waiting.add(request)

    def finish(self, request: Request, reason: FinishReason, now: float) -> None:
        """End a live request, whatever its state; its blocks are free when this returns."""
        assert request.status is not Status.FINISHED, f"request {request.id} finished twice"
        if request.status is Status.WAITING:
            self._waiting.remove(request)
            self._num_new -= request.rank[1] > self._seen
        else:
            self._stop(request)
        if self._drafter is not None:
            self._drafter.forget(request)
        request.status, request.finish_reason = Status.FINISHED, reason
        request.note(now, EventKind.FINISHED, reason)

    def flush(self) -> int:
        """Forget the cached prefixes that no running request holds; returns how many blocks that frees."""
        return self._cache.flush()

    def reset(self) -> None:
        """Forget every request, and all that is cached, whatever state that is in. Whoever steps ends the requests."""
        self._cache.reset()
        if self._drafter is not None:
            self._drafter.reset()
        self._begin()

    def _stop(self, request: Request) -> None:
        """Take a running request out, and its blocks back."""
        del self._running[bisect_left(self._running, request.rank, key=_rank)]
        self._prefilling.pop(request, None)
        self._ending.discard(request)
        self._cache.release(request)
        self._waiting.stopped(request)

    # -- the step ------------------------------------------------------------------------------------------------------

    def schedule(self, now: float, pace: Pace | None = None, *, drafts: bool = True) -> Batch:
        """Decide the next step at time `now`. Blocks are taken here; nothing is computed yet.

        `pace`: how much of prompts a step may compute, and what a guess must be worth; None: all that
        the token budget allows, and no guesses. `drafts`: False while a batch is being computed: what a guess would
        follow is not known.
        """
        plan = Plan(self._budget, now, self._cache.evicted_blocks)
        prefills = sorted(self._prefilling, key=_rank)
        decodes = self._running.copy()
        if prefills or self._ending:
            others = self._ending.union(self._prefilling)
            decodes = [request for request in decodes if request not in others]
        if pace is not None:
            prompts = self._num_prompts(len(prefills))
            if decodes:
                plan.limit_prompts(pace.prompt_tokens(prompts))
            elif prompts > 1:  # one alone keeps nobody waiting
                plan.limit_prompts(pace.most_tokens)
            self._step_tokens = min(self._budget, pace.most_tokens)
        if len(decodes) < self._budget:
            self._decode(decodes, plan)
        else:  # decodes alone would take the whole budget: rank decides, or a prompt might never have a turn
            prefills = self._running.copy()
        for request in prefills:
            if self._policy.preempts:
                self._admit(plan, before=request)
            self._continue(request, plan)
        self._admit(plan)
        if drafts and self._drafter is not None and pace is not None and not plan.has_preempted:
            self._draft(self._drafter, pace, plan)
        self._num_new, self._seen, self._decided = 0, self._arrivals, now
        if not self._waiting:
            self._blocked = WaitReason.NEW
        return plan.batch(self._cache.evicted_blocks, self._blocked if self._waiting else None)

    def computed(self, batch: Batch) -> None:
        """Record that a batch's K/V is written, or will be before a later batch is computed; its full blocks become
        findable. Call before new tokens are appended, and after those before are known."""
        for request, start, count, samples, draft in batch.slices:
            if request.status is not Status.RUNNING:
                continue
            if request.num_recompute:
                request.num_recompute = max(0, request.num_recompute - (count - len(draft)))
            if samples and self._prefilling:
                self._prefilling.pop(request, None)
            if keys := self._cache.written(request, start, start + count - len(draft)):
                self._waiting.published(keys)
        for read in batch.reading:
            read.request.num_read = read.stop
        for request in batch.ending:
            self._prefilling.pop(request, None)
            self.expect_end(request)

    def come_true(self, request: Request) -> None:
        """The first token of a running request that does not count as computed is what was guessed: its K/V is there.
        Call after it was appended."""
        if keys := self._cache.written(request, request.num_computed, request.num_computed + 1):
            self._waiting.published(keys)

    def expect_end(self, request: Request) -> None:
        """The last that a running request wants is being computed: no step gives it more. Call after `computed`."""
        if request.status is Status.RUNNING:
            self._ending.add(request)

    def _num_prompts(self, prefilling: int) -> int:
        """Prompts that are being computed, and those that wait for that alone."""
        candidates = len(self._waiting) - self._waiting.num_pending
        if self._blocked is WaitReason.KV_FULL:
            return prefilling
        return prefilling + min(candidates, self._max_seqs - len(self._running))

    def _decode(self, decodes: Sequence[Request], plan: Plan) -> None:
        """One token for each: the most frequent decision, which needs no more than a look when a block has room."""
        size = self._cache.block_size
        for request in decodes:
            if request.num_computed < len(request.blocks) * size and request.status is Status.RUNNING:
                plan.add_single(request)
            else:
                self._continue(request, plan)

    def _continue(self, request: Request, plan: Plan) -> None:
        """Give a running request its share, taking blocks from the last in rank if there are none left."""
        if request.status is not Status.RUNNING or request in self._ending:
            return  # it lost its blocks to a better one in this very step, or it only waits for its last token
        missing = request.num_missing
        share = self._share(missing, plan)
        if share == 0:
            return
        while not self._cache.grow(request, request.num_computed + share):
            victim = self._running[-1]
            self._preempt(victim, plan, PreemptReason.KV_FULL, by=request)
            if victim is request:
                return
        plan.add(request, share, missing)

    def _draft(self, drafter: Drafter, pace: Pace, plan: Plan) -> None:
        """Guess what decodes say next, with the tokens and blocks that everybody else has left."""
        singles = plan.singles()
        logits = max(self._max_seqs, SCORED_ROWS) - len(singles)  # no more of them than without drafts
        rows = min(plan.budget, logits, pace.drafted_tokens(plan.prompt_tokens))
        if not singles or rows <= 0:
            return
        drafts = drafter.draft([piece.request for piece in singles], pace.price(len(singles)), rows)
        for piece, draft in zip(singles, drafts, strict=True):
            room = len(draft)
            if not self._cache.grow(piece.request, piece.stop + room):
                room = len(piece.request.blocks) * self._cache.block_size - piece.stop
            if draft and room:
                plan.extend(piece, draft[:room])

    def _share(self, missing: int, plan: Plan) -> int:
        """How many of a request's missing tokens this step may compute."""
        if missing == 1:
            return min(1, plan.budget)
        if self._chunked:
            return min(missing, plan.prompt_budget)
        # Without chunking a prompt waits for a step that has room for all of it; the config sees to it that one can.
        return missing if missing <= plan.budget else 0

    def _preempt(self, victim: Request, plan: Plan, reason: PreemptReason, by: Request) -> None:
        victim.num_recompute = victim.num_computed
        victim.num_lost = max(victim.num_lost, victim.num_computed)
        self._stop(victim)
        victim.status = Status.WAITING
        victim.num_preemptions += 1
        victim.note(plan.now, EventKind.PREEMPTED, reason, by=by.id)
        self._waiting.add(victim)
        plan.take_back(victim, reason)

    # -- admission -----------------------------------------------------------------------------------------------------

    def _admit(self, plan: Plan, before: Request | None = None) -> None:
        """Admit from the head of the queue while everything fits; note why the head waits otherwise.

        `before`: a running request that has not had its share yet; only those who outrank it go first.
        """
        while self._waiting:
            request = self._waiting.head(plan.now)
            if request is None:
                self._blocked = WaitReason.PREFIX_PENDING
                return
            if before is not None and not self._policy.outranks(request, before):
                return
            if (blocked := self._try_admit(request, plan)) is not None:
                self._blocked = blocked
                return

    def _try_admit(self, request: Request, plan: Plan) -> WaitReason | None:
        place = self._find_place(request, plan)
        if isinstance(place, WaitReason):
            if not self._make_room(request, plan):
                return place
            place = self._cache.find_prefix(request)
        missing = request.num_tokens - len(place.blocks) * self._cache.block_size
        share = self._share(missing, plan)
        if share == 0:
            return WaitReason.TOKEN_BUDGET
        self._cache.attach(request, place)
        grown = self._cache.grow(request, request.num_computed + share)
        assert grown, "admission was decided on blocks that are not there"
        self._start(request, plan, share)
        return None

    def _find_place(self, request: Request, plan: Plan) -> Prefix | WaitReason:
        """The cached prefix of a request that can be admitted, or why it cannot."""
        if len(self._running) >= self._max_seqs:
            return WaitReason.BATCH_FULL
        if plan.has_preempted:  # blocks just taken away are for whom they were taken
            return WaitReason.KV_FULL
        prefix = self._cache.find_prefix(request)
        if plan.owed_blocks is None:
            plan.owed_blocks = sum(map(self._owed, self._prefilling)) + len(self._running) - len(self._prefilling)
        needed = self._cache.blocks_for(request.num_tokens) - len(prefix.blocks) + prefix.num_idle
        if needed > self._cache.num_available - plan.owed_blocks:
            return WaitReason.KV_FULL
        return prefix

    def _owed(self, running: Request) -> int:
        """Blocks that admission leaves to a running request: what its prompt still needs, and one to grow.

        Alone a request may take everything; beside others, a nearly full cache would admit and preempt in turn.
        """
        return self._cache.missing_blocks(running, running.num_tokens) + 1

    def _make_room(self, request: Request, plan: Plan) -> bool:
        """Preempt whom a waiting request outranks, the last in rank first, if that gives it its place."""
        if not (self._running and self._policy.outranks(request, self._running[-1])):
            return False
        prefix = self._cache.find_prefix(request)
        if not self._share(request.num_tokens - len(prefix.blocks) * self._cache.block_size, plan):
            return False
        victims = self._victims(request, prefix)
        for victim in victims or ():
            self._preempt(victim, plan, PreemptReason.PRIORITY, by=request)
        return victims is not None

    def _victims(self, request: Request, prefix: Prefix) -> list[Request] | None:
        """The fewest running requests, from the last in rank, whose end would admit `request`; None if none would."""
        victims: list[Request] = []
        returns = Returns(self._cache, kept=prefix.blocks)
        needed = self._cache.blocks_for(request.num_tokens) - len(prefix.blocks) + prefix.num_idle
        owed = sum(map(self._owed, self._running))
        for victim in [None, *reversed(self._running)]:
            if victim is not None:
                if not self._policy.outranks(request, victim):
                    return None
                victims.append(victim)
                owed -= self._owed(victim)
                returns.add(victim)
            has_seat = len(self._running) - len(victims) < self._max_seqs
            if has_seat and needed <= self._cache.num_available + returns.num_blocks - owed:
                return victims
        return None

    def _start(self, request: Request, plan: Plan, share: int) -> None:
        missing = request.num_missing
        self._waiting.started(request)
        request.status = Status.RUNNING
        request.num_recompute = max(0, request.num_recompute - request.num_computed)
        if not request.num_preemptions:
            request.num_cached = request.num_computed
        insort(self._running, request, key=_rank)
        if missing > 1:
            self._prefilling[request] = None
        if plan.owed_blocks is not None:
            plan.owed_blocks += self._owed(request)
        request.note(plan.now, EventKind.ADMITTED, tokens=request.num_computed)
        plan.admit(request)
        plan.add(request, share, missing)

    # -- what can be seen ----------------------------------------------------------------------------------------------

    def stats(self) -> SchedulerStats:
        """A snapshot, as cheap with a thousand requests as with one."""
        waiting, cache = NOBODY.copy(), self._cache
        waiting[WaitReason.NEW] += self._num_new
        waiting[WaitReason.PREFIX_PENDING] += self._waiting.num_pending
        waiting[self._blocked] += len(self._waiting) - self._num_new - self._waiting.num_pending
        oldest = self._waiting.oldest
        return SchedulerStats(
            waiting=waiting,
            waiting_prompt_tokens=self._waiting.num_prompt_tokens,
            waiting_answer_tokens=self._waiting.num_answer_tokens,
            running_prompt_tokens=sum(request.num_missing for request in self._prefilling),
            running=len(self._running),
            seats=self._max_seqs,
            step_tokens=self._step_tokens,
            oldest_arrival=oldest.arrival if oldest else None,
            blocked=self._blocked if self._waiting else None,
            decided=self._decided,
            free_blocks=cache.num_free,
            cached_blocks=cache.num_cached,
            used_blocks=cache.num_used,
            unused_slots=cache.held_slots - cache.stored_tokens,
            block_size=cache.block_size,
        )
