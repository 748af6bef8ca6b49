"""The step: schedule, run, update, report. Synchronous, single-threaded, and the only writer of scheduler state."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.errors import EngineDead, PromptTooLong
from octavo_engine.output import Answer, Delta, IncrementalText
from octavo_engine.pulse import Pulse
from octavo_engine.request import EventKind, FinishReason, Request, Sampled
from octavo_engine.scheduling.pace import Pacer
from octavo_engine.scheduling.scheduler import Scheduler

log = logging.getLogger(__name__)

# A forward pass that fails again and again will not recover by itself: a fresh process might.
MAX_FAILED_STEPS = 3


class Runner(Protocol):
    """Computes a batch."""

    def run(self, batch: Batch) -> list[Sampled]:
        """One outcome for each of `batch.sampling`, in that order. Raises EngineDead when it cannot go on at all; other
        errors end the requests of the batch."""


class Recorder(Protocol):
    """What the engine tells the metrics."""

    def step(self, batch: Batch, seconds: float) -> None:
        """A batch was computed in `seconds`."""

    def token(self, request: Request, at: float) -> None:
        """A token was appended to `request`."""

    def finished(self, request: Request, at: float) -> None:
        """A request ended."""


class Output(NamedTuple):
    """A delta and the request it belongs to."""

    request: Request
    delta: Delta


class Engine:
    """Continuous batching over one model. Times are in seconds on `clock`, which is monotonic."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        metrics: Recorder,
        detokenizer: Callable[[Request], IncrementalText],
        eos_ids: frozenset[int],
        max_model_len: int,
        pacer: Pacer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._pacer = pacer  # None: prompts take what the token budget allows
        self._runner = runner
        self._metrics = metrics
        self._detokenizer = detokenizer
        self._eos_ids = eos_ids
        self.max_model_len = max_model_len
        self._clock = clock
        self._requests: dict[str, Request] = {}
        self._answers: dict[str, Answer] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._failed_steps = 0
        self.pulse = Pulse()
        self.snapshot: SchedulerStats = scheduler.stats()

    @property
    def has_work(self) -> bool:
        """True while a step would do something."""
        return self._scheduler.has_work

    def publish(self) -> None:
        """Replace `snapshot`, which any thread may read. A step does so as soon as it has decided, and at its end."""
        self.snapshot = self._scheduler.stats()

    def check(self, request: Request) -> None:
        """Raise PromptTooLong for a request that can never fit; safe from any thread."""
        room = min(self.max_model_len, self._scheduler.capacity_tokens)
        if request.num_prompt == 0:
            raise PromptTooLong("the prompt is empty: at least one token is needed", param="prompt")
        if request.num_prompt + 1 > room:
            raise PromptTooLong(
                f"the prompt has {request.num_prompt} tokens, but one request may hold {room}, the answer included",
                param="prompt",
                code="context_length_exceeded",
            )
        if request.max_total_tokens > room:
            raise PromptTooLong(
                f"prompt ({request.num_prompt} tokens) and max_tokens ({request.params.max_tokens}) exceed the {room}"
                f" tokens that one request may hold; lower max_tokens to {room - request.num_prompt} or less",
                param="max_tokens",
                code="context_length_exceeded",
            )

    def add(self, request: Request) -> None:
        """Queue a request that `check` has passed."""
        self._requests[request.id] = request
        self._answers[request.id] = Answer(
            request, self._detokenizer(request), eos_ids=self._eos_ids, max_model_len=self.max_model_len
        )
        for deadline in {request.deadline, min(request.deadline, request.queue_deadline)}:
            heapq.heappush(self._deadlines, (deadline, request.id))
        request.note(self._clock(), EventKind.QUEUED)
        self._scheduler.add(request)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Output | None:
        """End a live request in any state; None if it has ended already. Its blocks are free when this returns."""
        if (request := self._requests.get(request_id)) is None:
            return None
        delta = self._answers[request_id].end(reason)
        self._finish(request, reason, self._clock())
        return Output(request, delta)

    def flush(self) -> int:
        """Forget the cached prefixes that no running request holds; returns how many blocks that frees."""
        blocks = self._scheduler.flush()
        self.publish()
        return blocks

    def step(self) -> list[Output]:
        """Compute one batch. Raises EngineDead when steps fail again and again."""
        started = self._clock()
        expired = list(self._expire(started))
        batch = self._scheduler.schedule(started, self._pacer.pace if self._pacer else None)
        self.publish()
        if not batch.slices:
            return expired
        try:
            with self.pulse.computing(batch.kind):
                sampled = self._runner.run(batch)
        except EngineDead:
            raise  # the runner itself knows that no later step can be computed
        except Exception:
            self._metrics.step(batch, self._clock() - started)
            return expired + self._fail(batch)
        now = self._clock()
        self._failed_steps = 0
        self._metrics.step(batch, now - started)
        if self._pacer is not None:
            self._pacer.observe(batch, now - started)
        outputs = self._update(batch, sampled, now)
        self.publish()
        return expired + outputs

    def _expire(self, now: float) -> Iterator[Output]:
        while self._deadlines and self._deadlines[0][0] <= now:
            at, request_id = heapq.heappop(self._deadlines)
            if (request := self._requests.get(request_id)) is None:
                continue
            reason = FinishReason.DEADLINE if at >= request.deadline else FinishReason.QUEUE_DEADLINE
            if reason is FinishReason.QUEUE_DEADLINE and request.begun:
                continue
            if (output := self.abort(request_id, reason)) is not None:
                yield output

    def _update(self, batch: Batch, sampled: Sequence[Sampled], now: float) -> list[Output]:
        self._scheduler.computed(batch)
        return [self._advance(piece, outcome, now) for piece, outcome in zip(batch.sampling, sampled, strict=True)]

    def _advance(self, piece: Slice, sampled: Sampled, now: float) -> Output:
        """Append one token. What goes wrong here is one request's, never its neighbours'."""
        request = piece.request
        try:
            if sampled.error is not None:
                raise RuntimeError(sampled.error)
            request.tokens.append(sampled.token_id)
            delta = self._answers[request.id].push(sampled)
        except Exception:
            log.exception("request %s failed", request.id)
            delta = Delta("", (), FinishReason.ERROR)
        else:
            if len(request.tokens) == request.num_prompt + 1:
                request.note(now, EventKind.FIRST_TOKEN)
            self._metrics.token(request, now)
        if delta.finish_reason is not None:
            self._finish(request, delta.finish_reason, now)
        return Output(request, delta)

    def _fail(self, batch: Batch) -> list[Output]:
        """A forward pass failed: its requests end with an error, the others go on."""
        self._failed_steps += 1
        log.exception("step failed (%d in a row): %d requests end", self._failed_steps, len(batch.slices))
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise EngineDead("the engine's steps fail again and again") from None
        outputs = [self.abort(piece.request.id, FinishReason.ERROR) for piece in batch.slices]
        self.publish()
        return [output for output in outputs if output is not None]

    def _finish(self, request: Request, reason: FinishReason, now: float) -> None:
        self._scheduler.finish(request, reason, now)
        del self._requests[request.id], self._answers[request.id]
        self._metrics.finished(request, now)
