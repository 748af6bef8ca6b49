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
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from octavo_engine.batch import SchedulerStats
from octavo_engine.engine import Engine, Output
from octavo_engine.errors import Draining, EngineDead, OctavoError, Overloaded, RequestFailed
from octavo_engine.output import Delta
from octavo_engine.request import FinishReason, RejectReason, Request, WaitReason

log = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down; try again: another replica takes new requests"


class Stream:
    """The deltas of one request, to be read by one task of the loop that submitted it.

    Iteration ends after the delta with a finish reason. It raises RequestFailed when the request failed inside,
    Draining when the server stopped before the request was begun, and EngineDead when the engine ended.
    """

    def __init__(self, request: Request, cancel: Callable[[], None]) -> None:
        self.request = request
        self.cancel = cancel  # ends the request in whatever state, within one step; harmless after its end
        self.loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Delta | OctavoError] = asyncio.Queue()

    def put(self, item: Delta | OctavoError) -> None:
        """Called on the stream's own loop."""
        self._queue.put_nowait(item)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while True:
            item = await self._queue.get()
            if isinstance(item, OctavoError):
                raise item
            if item.finish_reason is FinishReason.ERROR:
                raise RequestFailed(f"request {self.request.id} failed inside the engine; its log has the cause")
            yield item
            if item.finish_reason is not None:
                return


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
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._max_waiting_requests = max_waiting_requests
        self._max_waiting_prompt_tokens = max_waiting_prompt_tokens
        self._retry_after = retry_after
        self._on_reject = on_reject
        self._on_death = on_death
        self._wake = threading.Condition()
        self._new: list[Request] = []
        self._cancelled: list[str] = []
        self._streams: dict[str, Stream] = {}
        self._refusal: OctavoError | None = None  # why `submit` takes nothing more
        self._stopping = self._sending_away = False
        self._step_began: float | None = None
        self._thread = threading.Thread(target=self._run, name="octavo-step", daemon=True)
        self.max_prompt_tokens = max_prompt_tokens
        self.arrivals = 0
        self.completions = 0

    # -- from any thread -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False once the step loop has ended, on purpose or not."""
        return self._thread.is_alive()

    @property
    def step_seconds(self) -> float:
        """How long the present step has been running; 0 between steps and at rest. The heartbeat of `/livez`."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

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

    def submit(self, request: Request) -> Stream:
        """Queue a request. Raises RequestError, Overloaded, Draining or EngineDead; then nothing was queued."""
        self._engine.check(request)
        self._check_queue(request)
        stream = Stream(request, lambda: self._cancel(request.id))
        with self._wake:
            if self._refusal is not None:
                self._on_reject(RejectReason.DRAINING)
                raise self._refusal
            self._streams[request.id] = stream
            self._new.append(request)
            self.arrivals += 1
            self._wake.notify()
        return stream

    def _check_queue(self, request: Request) -> None:
        stats = self.stats()
        if sum(stats.waiting.values()) >= self._max_waiting_requests:
            self._overloaded(
                RejectReason.QUEUE_FULL, f"{self._max_waiting_requests} requests are waiting already", stats
            )
        if stats.waiting_prompt_tokens + request.num_prompt > self._max_waiting_prompt_tokens:
            limit = self._max_waiting_prompt_tokens
            self._overloaded(RejectReason.QUEUE_TOKENS_FULL, f"more than {limit} prompt tokens would wait", stats)

    def _overloaded(self, reason: RejectReason, message: str, stats: SchedulerStats) -> None:
        self._on_reject(reason)
        seconds = max(1, min(60, round(self._retry_after(stats))))
        raise Overloaded(f"{message}; try again in {seconds} s", reason=reason, retry_after=seconds)

    def _cancel(self, request_id: str) -> None:
        with self._wake:
            self._cancelled.append(request_id)
            self._wake.notify()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, send away those not begun, let the others run for `seconds`, then end them and the
        thread."""
        deadline = time.monotonic() + seconds
        with self._wake:
            self._refusal = Draining(SHUTTING_DOWN)
            self._sending_away = True
            self._wake.notify()
        while self.alive and self._streams and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for request_id in list(self._streams):
            self._cancel(request_id)
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """End the step loop after the present step and wait for it."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()

    # -- the step thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._step_began = time.monotonic()
                self._deliver(self._engine.step())
                self._step_began = None
        except BaseException:
            log.exception("the step loop has ended")
            with self._wake:
                self._refusal = EngineDead("the engine has stopped")
            self._post({name: [self._refusal] for name in list(self._streams)})
            self._on_death()

    def _take_commands(self) -> bool:
        """Wait for work, take what came in since the last step; False when it is time to stop."""
        with self._wake:
            self._wake.wait_for(
                lambda: self._new or self._cancelled or self._stopping or self._sending_away or self._engine.has_work
            )
            new, self._new = self._new, []
            cancelled, self._cancelled = self._cancelled, []
            sending_away, self._sending_away = self._sending_away, False
            stopping = self._stopping
            for request in new:
                self._engine.add(request)
            self._engine.publish()
        if sending_away:
            self._send_away()
        ended = [output for name in cancelled if (output := self._engine.abort(name)) is not None]
        if sending_away or ended:
            self._engine.publish()
        self._deliver(ended)
        return not stopping

    def _send_away(self) -> None:
        for request in self._engine.never_admitted():
            self._engine.abort(request.id)
            self._post({request.id: [Draining(SHUTTING_DOWN)]})

    def _deliver(self, outputs: list[Output]) -> None:
        """Hand tokens to their readers. The engine has published its state before: an end seen is blocks seen free."""
        items: dict[str, list[Delta | OctavoError]] = defaultdict(list)
        for output in outputs:
            items[output.request.id].append(output.delta)
        self._post(items)

    def _post(self, items: dict[str, list[Delta | OctavoError]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Delta | OctavoError]]] = defaultdict(list)
        for name, values in items.items():
            stream = self._streams.get(name)
            if stream is None:
                continue
            by_loop[stream.loop].extend((stream, value) for value in values)
            if isinstance(values[-1], OctavoError) or values[-1].finish_reason is not None:
                del self._streams[name]
                self.completions += 1
        for loop, pairs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put_all, pairs)
            except RuntimeError:  # that loop is closed: nobody listens any more
                for stream, _ in pairs:
                    stream.cancel()


def _put_all(pairs: list[tuple[Stream, Delta | OctavoError]]) -> None:
    for stream, item in pairs:
        stream.put(item)
