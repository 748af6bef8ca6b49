"""One replica: a bounded queue, a batch with places and KV blocks, prompts in chunks, decodes that slow each other.

Continuous in time rather than step by step. Between two events (a request comes, ends its prompt, ends, or memory runs
out) every rate is constant: each decoding request gains one token a step, and a step's length follows from the batch.
All decodes progress alike, so one number, `_progress`, counts the tokens of each of them.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass

from octavo_operator.autoscaling import Load

from .requests import Outcome, Request

BLOCK = 16  # tokens in a KV block


@dataclass(frozen=True)
class Profile:
    """How an engine behaves. The defaults are a small model on a small accelerator.

    Attributes:
        step_seconds: a step with no request in it; each decode adds `decode_seconds`.
        prefill_rate: prompt tokens per second, when a step holds nothing else.
        budget: tokens of one step; a prompt is not begun while earlier ones use it up.
    """

    max_num_seqs: int = 16
    kv_tokens: int = 64_000
    step_seconds: float = 0.020
    decode_seconds: float = 0.0006
    prefill_rate: float = 6000.0
    budget: int = 2048

    @property
    def queue_limit(self) -> int:
        """Waiting requests before new ones get 429: the engine's default."""
        return 4 * self.max_num_seqs


class Engine:
    """A replica's requests. `advance` brings it to a time; after it, `next_event` says when to come back."""

    def __init__(self, profile: Profile, now: float) -> None:
        self.profile = profile
        self.waiting: deque[Request] = deque()
        self.arrivals = self.completions = self.preemptions = 0
        self._now = now
        self._progress = 0.0
        self._prefilling: deque[tuple[int, Request]] = deque()
        self._prefill_left = 0.0  # tokens of the first of them
        self._decoding: list[tuple[float, int, Request]] = []  # heap by the progress at which each ends
        self._kv_fixed = 0.0  # tokens in the cache, less one `_progress` for each decode
        self._order = itertools.count()

    @property
    def running(self) -> int:
        """Requests with a place in the batch."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def kv_used(self) -> float:
        """Tokens in the cache."""
        return self._kv_fixed + len(self._decoding) * self._progress

    @property
    def full(self) -> bool:
        """Whether a new request would be refused."""
        return len(self.waiting) >= self.profile.queue_limit

    def submit(self, request: Request) -> None:
        """Takes a request into the queue. The caller has advanced the engine and looked at `full`."""
        self.arrivals += 1
        self.waiting.append(request)
        self._admit()

    def advance(self, now: float) -> list[Request]:
        """Brings the engine to `now`; returns the requests that ended on the way."""
        ended: list[Request] = []
        while (event := self.next_event()) <= now:
            self._flow(event)
            ended += self._settle()
            self._admit()
        self._flow(now)
        return ended

    def next_event(self) -> float:
        """When a rate changes next, if nobody comes."""
        step = self._step()
        due = math.inf
        if self._decoding:
            due = max(0.0, self._decoding[0][0] - self._progress) * step
            if self.running > 1:
                room = max(0.0, self.profile.kv_tokens - self.kv_used)
                due = min(due, room * step / len(self._decoding))
        if self._prefilling:
            due = min(due, self._prefill_left * step / self._chunk())
        return self._now + due

    def drain(self) -> list[Request]:
        """Refuses what waits, as a stopping engine does, and returns it; what runs goes on."""
        refused = list(self.waiting)
        self.waiting.clear()
        return refused

    def cut(self) -> list[Request]:
        """Ends everything that still runs."""
        running = [request for _, request in self._prefilling] + [request for *_, request in self._decoding]
        self._prefilling.clear()
        self._decoding.clear()
        self._kv_fixed = 0.0
        return running

    def load(self, startup_seconds: float) -> Load:
        """What `/load` says."""
        waiting = len(self.waiting)
        blocked = self.running >= self.profile.max_num_seqs or (waiting > 0 and not self._fits(self.waiting[0]))
        return Load(
            waiting=waiting,
            waiting_full=waiting if blocked else 0,
            running=self.running,
            max_num_seqs=self.profile.max_num_seqs,
            arrivals_total=self.arrivals,
            completions_total=self.completions,
            oldest_wait_seconds=max(0.0, self._now - self.waiting[0].arrival) if waiting else 0.0,
            kv_usage=min(1.0, self.kv_used / self.profile.kv_tokens),
            startup_seconds=startup_seconds,
        )

    def _chunk(self) -> float:
        return max(1.0, self.profile.budget - len(self._decoding))

    def _step(self) -> float:
        """Seconds of one step with the present batch."""
        step = self.profile.step_seconds + self.profile.decode_seconds * len(self._decoding)
        return step + self._chunk() / self.profile.prefill_rate if self._prefilling else step

    def _flow(self, until: float) -> None:
        steps = max(0.0, until - self._now) / self._step()
        if self._decoding:
            self._progress += steps
        if self._prefilling:
            self._prefill_left -= steps * self._chunk()
        self._now = max(self._now, until)

    def _settle(self) -> list[Request]:
        """Does what is due now: prompts that are through, requests that end, memory that is full."""
        ended = []
        if self._prefilling and self._prefill_left <= 1e-6:
            order, request = self._prefilling.popleft()
            self._prefill_left = float(self._prefilling[0][1].known) if self._prefilling else 0.0
            heapq.heappush(self._decoding, (self._progress + request.output - request.produced, order, request))
            self._kv_fixed -= self._progress
        while self._decoding and self._decoding[0][0] <= self._progress + 1e-6:
            end, _, request = heapq.heappop(self._decoding)
            self._kv_fixed -= request.prompt + request.output - end
            request.ended, request.outcome = self._now, Outcome.DONE
            self.completions += 1
            ended.append(request)
        if self._decoding and self.running > 1 and self.kv_used >= self.profile.kv_tokens - 1e-6:
            self._preempt()
        return ended

    def _preempt(self) -> None:
        """The newest gives its blocks back and computes again later."""
        newest = max(self._decoding, key=lambda item: item[1])
        if self._prefilling and self._prefilling[-1][0] > newest[1]:
            _, request = self._prefilling.pop()
            self._kv_fixed -= request.known
            self._prefill_left = self._prefill_left if self._prefilling else 0.0
        else:
            end, _, request = newest
            self._decoding.remove(newest)
            heapq.heapify(self._decoding)
            self._kv_fixed -= request.prompt + request.output - end
            request.produced = max(request.produced, int(request.output - (end - self._progress)))
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _fits(self, request: Request) -> bool:
        """Room for the whole prompt, and a block for each running request to grow into."""
        return self.kv_used + request.known + BLOCK * self.running <= self.profile.kv_tokens or not self.running

    def _admit(self) -> None:
        pending = self._prefill_left + sum(request.known for _, request in itertools.islice(self._prefilling, 1, None))
        while self.waiting and self.running < self.profile.max_num_seqs and pending < self.profile.budget:
            if not self._fits(self.waiting[0]):
                break
            request = self.waiting.popleft()
            if request.started is None:
                request.started = self._now
            if not self._prefilling:
                self._prefill_left = float(request.known)
            self._prefilling.append((next(self._order), request))
            self._kv_fixed += request.known
            pending += request.known
