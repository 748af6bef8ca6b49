"""The thread that steps, and the bridge between it and asyncio: submit, stream, cancel, drain.

Only the step thread touches the engine. Other threads put commands into an inbox, which is emptied between two steps,
and read an immutable snapshot that the step thread leaves behind. What a step produced reaches an event loop in one
call per loop, not per token.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from octavo_engine.batch import SchedulerStats
from octavo_engine.engine import Engine, Output
from octavo_engine.errors import Draining, EngineDead, Interrupted, OctavoError, Overloaded, RequestFailed
from octavo_engine.mailbox import Item, Mailbox
from octavo_engine.output import Delta
from octavo_engine.pulse import Beat, place_of
from octavo_engine.request import EventKind, FinishReason, RejectReason, Request, WaitReason

log = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down; try again: another replica takes new requests"
INTERRUPTED = "the server had to shut down before this answer was complete; try again"

FAILED = frozenset({FinishReason.ERROR, FinishReason.FORM_TOO_COMPLEX})
"""How requests end that have no answer, only an error: ours, or what came of what the client has asked for."""

IDLE_BEAT_SECONDS = 0.25  # a thread that waits for work shows this often that it would notice some: well within a limit


class Stream:
    """The deltas of one request, to be read by one task of the loop that submitted it.

    Iteration ends after the delta with a finish reason. It raises RequestFailed when the request failed inside,
    Draining when the server stopped before the request was begun, Interrupted when it stopped before the end, and
    EngineDead when the engine ended.
    """

    def __init__(self, request: Request, body: Sequence[Request], cancel: Callable[[], None]) -> None:
        self.request = request
        self.body = body  # the requests that came together, this one among them
        self.cancel = cancel  # ends the request in whatever state, within one step; harmless after its end
        self.loop = asyncio.get_running_loop()
        self._mailbox, self._place = Mailbox(), 0

    @property
    def begun(self) -> bool:
        """True when the body is accepted: a step has begun one of its requests, which gives the others their right."""
        return any(request.begun for request in self.body)

    def deliver_to(self, mailbox: Mailbox, place: int) -> None:
        """From now on, put what comes into `mailbox` under the number `place`; called before anything has come."""
        self._mailbox, self._place = mailbox, place

    def put(self, item: Item) -> None:
        """Called on the stream's own loop."""
        self._mailbox.put(self._place, item)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while True:
            for _, item in await self._mailbox.take():
                if isinstance(item, OctavoError):
                    raise item
                if item.finish_reason in FAILED:
                    raise failure_of(self.request)
                yield item
                if item.finish_reason is not None:
                    return


def failure_of(request: Request) -> OctavoError:
    """What the reader of a request is told that ended with one of FAILED."""
    return request.refusal or RequestFailed(f"request {request.id} failed inside the engine; its log has the cause")


class AsyncEngine:
    """Runs an Engine in a thread of its own. All methods are safe from any thread, `submit` from a running loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        max_waiting_requests: int,
        max_waiting_prompt_tokens: int,
        max_prompt_tokens: int | None = None,
        retry_after: Callable[[SchedulerStats], float] = lambda _: 1.0,
        on_reject: Callable[[RejectReason], None] = lambda _: None,
        on_death: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._engine = engine
        self.max_waiting_requests = max_waiting_requests
        self._max_waiting_prompt_tokens = max_waiting_prompt_tokens
        self._retry_after = retry_after
        self._on_reject = on_reject
        self._on_death = on_death
        self._wake = threading.Condition()
        self._new: list[Request] = []
        self._cancelled: list[str] = []
        self._flushes: list[Future[int]] = []
        self._errand: Callable[[bool], bool] | None = None
        self._streams: dict[str, Stream] = {}
        self._refusal: OctavoError | None = None  # why `submit` takes nothing more
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="octavo-step", daemon=True)
        self.max_prompt_tokens = max_prompt_tokens
        self.arrivals = 0

    # -- from any thread -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False once the step loop has ended, on purpose or not."""
        return self._thread.is_alive()

    @property
    def died(self) -> bool:
        """True when the step loop has ended and nobody asked it to."""
        return self._thread.ident is not None and not self.alive and not self._stopping

    @property
    def beat(self) -> Beat:
        """The step thread's last sign of life; read without a lock."""
        return self._engine.pulse.beat

    @property
    def place(self) -> str:
        """Where in our code the step thread is; read without a lock."""
        return place_of(self._thread.ident)

    @property
    def completions(self) -> int:
        """Requests that have ended, in whatever way."""
        return self.arrivals - len(self._streams)

    def stats(self) -> SchedulerStats:
        """The scheduler after its last change, with what has been submitted since counted as new."""
        with self._wake:
            stats, new = self._engine.snapshot, list(self._new)
        if not new:
            return stats
        return replace(
            stats,
            waiting={**stats.waiting, WaitReason.NEW: stats.waiting.get(WaitReason.NEW, 0) + len(new)},
            waiting_prompt_tokens=stats.waiting_prompt_tokens + sum(request.num_prompt for request in new),
            oldest_arrival=new[0].arrival if stats.oldest_arrival is None else stats.oldest_arrival,
        )

    def retry_seconds(self) -> int:
        """When a request that was sent away may come again: from 1 to 60 whole seconds, as long as the queue is now."""
        return self._retry_seconds(self.stats())

    def live_requests(self) -> list[Request]:
        """Those that somebody waits for. They belong to the step thread: look, and be quick."""
        return [stream.request for stream in list(self._streams.values())]

    def flush(self) -> Future[int]:
        """Forget the cached prefixes that no running request holds; how many blocks, known after the present step.

        Raises EngineDead or Draining, the future too.
        """
        flushed: Future[int] = Future()
        with self._wake:
            if self._refusal is not None:
                raise self._refusal
            self._flushes.append(flushed)
            self._wake.notify()
        return flushed

    def do_between_steps(self, errand: Callable[[bool], bool]) -> None:
        """From now on, let the step thread call `errand` after each step, and at once while there is no work.

        It is told whether there is none, and does a part of what it has to do; it returns False after the last one.
        """
        with self._wake:
            self._errand = errand
            self._wake.notify()

    def submit(self, request: Request) -> Stream:
        """Queue one request: see `submit_all`."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Stream]:
        """Queue the requests of one body, all or none; returns their streams in the same order.

        Raises RequestError, Overloaded, Draining or EngineDead; then nothing was queued.
        """
        for request in requests:
            self._engine.check(request)
            request.note(time.monotonic(), EventKind.SUBMITTED)
        self._check_queue(requests)
        streams = [Stream(request, requests, partial(self._cancel, request.id)) for request in requests]
        with self._wake:
            if self._refusal is not None:
                self._reject(requests, RejectReason.DRAINING)
                raise self._refusal
            self._streams.update({stream.request.id: stream for stream in streams})
            self._new += requests
            self.arrivals += len(requests)
            self._wake.notify()
        return streams

    def _check_queue(self, requests: Sequence[Request]) -> None:
        stats = self.stats()
        if sum(stats.waiting.values()) + len(requests) > self.max_waiting_requests:
            limit = self.max_waiting_requests
            self._reject(requests, RejectReason.QUEUE_FULL)
            raise self._overloaded(RejectReason.QUEUE_FULL, f"more than {limit} requests would wait", stats)
        if stats.waiting_prompt_tokens + sum(r.num_prompt for r in requests) > self._max_waiting_prompt_tokens:
            limit = self._max_waiting_prompt_tokens
            self._reject(requests, RejectReason.QUEUE_TOKENS_FULL)
            raise self._overloaded(RejectReason.QUEUE_TOKENS_FULL, f"more than {limit} prompt tokens would wait", stats)

    def _reject(self, requests: Sequence[Request], reason: RejectReason) -> None:
        self._on_reject(reason)
        for request in requests:
            request.note(time.monotonic(), EventKind.REJECTED, reason)

    def _overloaded(self, reason: RejectReason, message: str, stats: SchedulerStats) -> Overloaded:
        seconds = self._retry_seconds(stats)
        return Overloaded(f"{message}; try again in {seconds} s", reason=reason, retry_after=seconds)

    def _retry_seconds(self, stats: SchedulerStats) -> int:
        return max(1, min(60, round(self._retry_after(stats))))

    def _cancel(self, request_id: str) -> None:
        with self._wake:
            self._cancelled.append(request_id)
            self._wake.notify()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, send away those not begun, let the others run for `seconds`, then interrupt them.

        Returns when nobody waits for an answer any more. The thread goes on until `stop`.
        """
        deadline = time.monotonic() + seconds
        with self._wake:
            self._refusal = self._refusal or Draining(SHUTTING_DOWN)
        self._dismiss(Draining(SHUTTING_DOWN), [s for s in list(self._streams.values()) if not s.begun])
        while self.alive and self._streams and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self._dismiss(Interrupted(INTERRUPTED), list(self._streams.values()))

    def _dismiss(self, error: OctavoError, streams: Sequence[Stream]) -> None:
        """End requests with `error`. Their readers do not wait for the present step, which may be a long one."""
        self._post([(stream.request.id, error) for stream in streams])
        for stream in streams:
            stream.cancel()

    def give_up(self, error: EngineDead) -> None:
        """Tell everyone that the step thread is lost. Takes no lock: it may be the one that the thread hangs on."""
        self._refusal = error
        self._end_all(error)

    def stop(self, seconds: float | None = None) -> bool:
        """End the step loop after the present step and wait for it, at most so long; False if it still runs."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self.alive

    # -- the step thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._engine.turns.of_this_thread():
                while self._take_commands():
                    self._deliver(self._engine.step())
                    self._run_errand()
        except BaseException as error:
            log.exception("the step loop has ended")
            with self._wake:
                self._refusal = EngineDead("the engine has stopped")
            self._end_all(self._refusal)
            self._on_death(error)

    def _take_commands(self) -> bool:
        """Wait for work, take what came in since the last step; False when it is time to stop."""
        with self._wake:
            self._engine.pulse.rest()
            if not self._is_wanted():
                self._wait_for_work()
            new, self._new = self._new, []
            cancelled, self._cancelled = self._cancelled, []
            stopping = self._stopping
            ended = [output for request in new if (output := self._engine.add(request)) is not None]
            self._engine.publish()
        self._flush()
        ended += [output for name in cancelled if (output := self._engine.abort(name)) is not None]
        if ended:
            self._engine.publish()
        self._deliver(ended)
        return not stopping

    def _wait_for_work(self) -> None:
        with self._engine.turns.away():
            while not self._wake.wait_for(self._is_wanted, IDLE_BEAT_SECONDS):
                self._engine.pulse.rest()

    def _is_wanted(self) -> bool:
        return bool(
            self._new
            or self._cancelled
            or self._flushes
            or self._stopping
            or self._errand is not None
            or self._engine.has_work
        )

    def _run_errand(self) -> None:
        if self._errand is None:
            return
        nobody_waits = not (self._new or self._engine.has_work)
        if not self._errand(nobody_waits):
            self._errand = None

    def _flush(self) -> None:
        """Outside the lock: it may take milliseconds, and whoever asked is another thread."""
        while self._flushes:
            flushed = self._flushes.pop(0)
            if flushed.set_running_or_notify_cancel():  # else nobody waits for it any more
                flushed.set_result(self._engine.flush())

    def _deliver(self, outputs: list[Output]) -> None:
        """Hand tokens to their readers. The engine has published its state before: an end seen is blocks seen free."""
        self._post([(request.id, delta) for request, delta in outputs])

    def _end_all(self, error: OctavoError) -> None:
        self._post([(name, error) for name in list(self._streams)])
        while self._flushes:
            self._flushes.pop().set_exception(error)

    def _post(self, items: Iterable[tuple[str, Item]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Item]]] = defaultdict(list)
        for name, item in items:
            last = isinstance(item, OctavoError) or item.finish_reason is not None
            stream = self._streams.pop(name, None) if last else self._streams.get(name)
            if stream is not None:  # else it was ended by another thread
                by_loop[stream.loop].append((stream, item))
        for loop, pairs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, pairs)
            except RuntimeError:  # that loop is closed: nobody listens any more
                for stream, _ in pairs:
                    stream.cancel()


def _put_all(pairs: list[tuple[Stream, Item]]) -> None:
    for stream, item in pairs:
        stream.put(item)
