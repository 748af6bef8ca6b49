"""The step: schedule, launch, update, report. Single-threaded, and the only writer of scheduler state.

With `overlap` a step is decided and launched while the device still computes the one before, whose tokens are known
only then. Until they are, they are PROMISED: what is decided depends on how many tokens there are, not on which.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.errors import EngineDead, FormTooComplex, PromptTooLong
from octavo_engine.output import Answer, Delta, IncrementalText, merge
from octavo_engine.prompt_reading import PromptReading
from octavo_engine.pulse import Pulse
from octavo_engine.request import PROMISED, EventKind, FinishReason, Request, Sampled, Status
from octavo_engine.scheduling.pace import Pacer
from octavo_engine.scheduling.scheduler import Scheduler
from octavo_engine.turns import Turns

log = logging.getLogger(__name__)

# A forward pass that fails again and again will not recover by itself: a fresh process might.
MAX_FAILED_STEPS = 3


class Pending(Protocol):
    """A launched batch."""

    def wait(self) -> list[Sampled]:
        """The outcomes of each of `batch.sampling`, one after another, when they are computed."""

    def readings(self) -> Sequence[PromptReading]:
        """What was read for each of `batch.reading`, in that order; asked after `wait`, where there are any."""


class Runner(Protocol):
    """Computes batches, in the order in which they are launched."""

    def launch(self, batch: Batch) -> Pending:
        """Begin to compute a batch. Raises EngineDead when it cannot go on at all; other errors end the requests of the
        batch. Blocks that are given to another request meanwhile are written by a later batch, and so after this."""


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


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch that is being computed."""

    batch: Batch
    pending: Pending
    at: float  # seconds on the engine's clock, when its step began


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
        overlap: bool = False,
        turns: Turns | None = None,
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
        self._overlap = overlap  # False where the host computes: it has nothing to do meanwhile
        self._num_dependent = 0  # requests that need their own tokens
        self._flight: Flight | None = None
        self._landed = -math.inf  # when the latest flight did
        self.pulse = Pulse()
        self.turns = turns or Turns()  # of the thread that steps
        self.snapshot: SchedulerStats = scheduler.stats()

    @property
    def has_work(self) -> bool:
        """True while a step would do something."""
        return self._scheduler.has_work or self._flight is not None

    def publish(self) -> None:
        """Replace `snapshot`, which any thread may read. A step does so as soon as it has decided, and at its end."""
        self.snapshot = self._scheduler.stats()

    def check(self, request: Request) -> None:
        """Raise PromptTooLong for a request that can never fit; safe from any thread."""
        room = min(self.max_model_len, self._scheduler.capacity_tokens)
        if request.num_prompt == 0:
            raise PromptTooLong("the prompt is empty: at least one token is needed", param="prompt")
        if request.num_prompt + request.generates > room:
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

    def add(self, request: Request) -> Output | None:
        """Queue a request that `check` has passed. Returns how it ended, where it can have no answer."""
        try:
            answer = Answer(
                request, self._detokenizer(request), eos_ids=self._eos_ids, max_model_len=self.max_model_len
            )
        except Exception:
            log.exception("request %s failed", request.id)
            return self._drop(request, self._clock())
        self._requests[request.id], self._answers[request.id] = request, answer
        for deadline in {request.deadline, min(request.deadline, request.queue_deadline)}:
            heapq.heappush(self._deadlines, (deadline, request.id))
        request.note(self._clock(), EventKind.QUEUED)
        self._num_dependent += request.needs_own_tokens
        self._scheduler.add(request)
        return None

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Output | None:
        """End a live request in any state; None if it has ended already. Its blocks are free when this returns."""
        if (request := self._requests.get(request_id)) is None:
            return None
        try:
            delta = self._answers[request_id].end(reason)
        except Exception:  # a text that cannot be told is no reason to keep its blocks
            log.exception("request %s failed at its end", request_id)
            delta = Delta("", (), reason)
        self._finish(request, reason, self._clock())
        return Output(request, delta)

    def flush(self) -> int:
        """Forget the cached prefixes that no running request holds; returns how many blocks that frees."""
        blocks = self._scheduler.flush()
        self.publish()
        return blocks

    def step(self) -> list[Output]:
        """Launch a batch, and tell what came of the one before, or of this one where they do not overlap.

        Raises EngineDead when steps fail again and again.
        """
        started = self._clock()
        outputs = list(self._expire(started))
        if not self._overlaps:
            outputs += self._land()
        try:
            pace = self._pacer.pace if self._pacer else None
            batch = self._scheduler.schedule(started, pace, drafts=not self._overlaps)
        except Exception:
            return outputs + self._begin_anew()
        self.publish()
        try:
            flight = self._launch(batch, started) if batch.slices else None
        except EngineDead:
            raise  # the runner itself knows that no later step can be computed
        except Exception:
            outputs += self._land()
            self._metrics.step(batch, self._clock() - started)
            return outputs + self._fail(batch)
        outputs += self._land()
        self._take_off(flight)
        if not self._overlaps:
            outputs += self._land()
        self.publish()
        return outputs

    @property
    def _overlaps(self) -> bool:
        return self._overlap and not self._num_dependent

    def _launch(self, batch: Batch, started: float) -> Flight:
        with self.pulse.computing(batch):
            return Flight(batch, self._runner.launch(batch), started)

    def _take_off(self, flight: Flight | None) -> None:
        """Account for a launched batch as if it were computed: whatever depends on it is computed after it."""
        self._flight = flight
        if flight is not None:
            self._scheduler.computed(flight.batch)
            if self._overlaps:
                self._promise(flight.batch)

    def _promise(self, batch: Batch) -> None:
        """Count the tokens of a launched batch."""
        for piece in batch.sampling:
            request = piece.request
            if request.status is Status.FINISHED:  # by a token that the step before gave, when this was launched
                continue
            request.tokens.append(PROMISED)
            if len(request.tokens) >= self._answers[request.id].limit:
                self._scheduler.expect_end(request)

    def _land(self) -> list[Output]:
        """Wait for the batch that is being computed, if one is, and take its tokens in."""
        flight, self._flight = self._flight, None
        if flight is None:
            return []
        sampled, readings = self._wait(flight)
        now = self._clock()
        seconds, self._landed = now - max(flight.at, self._landed), now  # the device had another batch before
        self._failed_steps = 0
        self._metrics.step(flight.batch, seconds)
        if self._pacer is not None:
            self._pacer.observe(flight.batch, seconds)
        outputs = self._take_in(flight.batch, readings)
        outcomes = iter(sampled)
        for piece in flight.batch.sampling:
            own = list(islice(outcomes, piece.num_outcomes)) if piece.draft else [next(outcomes)]
            if piece.request.status is Status.FINISHED:
                continue
            if piece.draft:
                outputs.append(self._follow(piece, own, now))
            else:
                outputs.append(self._append(piece.request, piece.stop, own[0], now))
        return outputs

    def _take_in(self, batch: Batch, readings: Sequence[PromptReading]) -> list[Output]:
        """Keep what was read of prompts, and end those that wanted no more, or whose numbers mean nothing."""
        ends: list[tuple[Request, FinishReason]] = []
        for read, reading in zip(batch.reading, readings, strict=True):
            request = read.request
            if not reading.sound:
                log.error("request %s failed: its prompt's numbers are none", request.id)
                ends.append((request, FinishReason.ERROR))
            elif request.reading is None:
                request.reading = reading
            else:
                request.reading.join(reading)
        ends += [(request, FinishReason.LENGTH) for request in batch.ending]
        outputs = (self.abort(request.id, reason) for request, reason in ends)  # of those that have not ended yet
        return [output for output in outputs if output is not None]

    def _wait(self, flight: Flight) -> tuple[list[Sampled], Sequence[PromptReading]]:
        try:
            with self.pulse.computing(flight.batch, launched=True):
                with self.turns.away():
                    sampled = flight.pending.wait()
                return sampled, flight.pending.readings() if flight.batch.reading else ()
        except EngineDead:
            raise
        except Exception as error:  # whatever was launched after it rests on keys and values that may not be there
            log.exception("a launched step failed")
            raise EngineDead("a step failed after it was launched; the device may be lost") from error

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

    def _follow(self, piece: Slice, sampled: Sequence[Sampled], now: float) -> Output:
        """Take in a slice's token, and those that follow it for as long as what was guessed has come true."""
        request, deltas = piece.request, list[Delta]()
        request.num_drafted += len(piece.draft)
        for ahead, (outcome, guess) in enumerate(zip(sampled, (*piece.draft, None), strict=True)):
            deltas.append(self._append(request, piece.start + piece.known + ahead, outcome, now).delta)
            if deltas[-1].finish_reason is not None or outcome.token_id != guess:
                break
            if sampled[ahead + 1].error is not None:  # a fault is told by the step that needs no guess to come to it
                break
            request.num_accepted += 1
            self._scheduler.come_true(request)
        return Output(request, merge(deltas))

    def _append(self, request: Request, place: int, sampled: Sampled, now: float) -> Output:
        """Take one token in. What goes wrong here is one request's, never its neighbours'."""
        try:
            if isinstance(sampled.error, FormTooComplex):
                raise sampled.error
            if sampled.error is not None:
                raise RuntimeError(sampled.error)
            request.tokens[place:] = (sampled.token_id,)  # in the place of what was promised, if it was
            delta = self._answers[request.id].push(sampled)
        except FormTooComplex as refusal:
            request.refusal, delta = refusal, Delta("", (), FinishReason.FORM_TOO_COMPLEX)
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
        self._count_failure(len(batch.slices))
        outputs = [self.abort(piece.request.id, FinishReason.ERROR) for piece in batch.slices]
        self.publish()
        return [output for output in outputs if output is not None]

    def _begin_anew(self) -> list[Output]:
        """No batch could be decided: nobody knows how far that came, nor whose fault it is.

        So every live request ends with an error, and what the scheduler knew is forgotten, cached prefixes too.
        """
        flight, self._flight = self._flight, None
        if flight is not None:
            self._wait(flight)  # it writes to blocks that are given anew from here on
        requests, now = list(self._requests.values()), self._clock()
        self._count_failure(len(requests))
        self._scheduler.reset()
        self._requests.clear()
        self._answers.clear()
        self._num_dependent = 0
        outputs = [self._drop(request, now) for request in requests]
        self.publish()
        return outputs

    def _drop(self, request: Request, now: float) -> Output:
        """End a request with an error that the scheduler does not know, or not any more."""
        request.forget_promised()
        request.blocks.clear()
        request.status, request.finish_reason = Status.FINISHED, FinishReason.ERROR
        request.note(now, EventKind.FINISHED, FinishReason.ERROR)
        self._metrics.finished(request, now)
        return Output(request, Delta("", (), FinishReason.ERROR))

    def _count_failure(self, ended: int) -> None:
        """A step failed, and `ended` requests with it. Raises EngineDead for the last of several in a row."""
        self._failed_steps += 1
        log.exception("step failed (%d in a row): %d requests end", self._failed_steps, ended)
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise EngineDead("the engine's steps fail again and again") from None

    def _finish(self, request: Request, reason: FinishReason, now: float) -> None:
        request.forget_promised()
        self._num_dependent -= request.needs_own_tokens
        self._scheduler.finish(request, reason, now)
        del self._requests[request.id], self._answers[request.id]
        self._metrics.finished(request, now)
