"""The loops of an active operator: workers on one queue, the sampler, the full list, the heartbeat of the watches."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import aiohttp

from octavo_operator import cluster, handlers, logs
from octavo_operator.cluster import Cluster
from octavo_operator.config import OperatorConfig
from octavo_operator.desired import Defaults
from octavo_operator.errors import ApiError, Refused, Throttled
from octavo_operator.events import Recorder
from octavo_operator.heartbeat import Heartbeat, Identity, Sight
from octavo_operator.informer import Informer
from octavo_operator.manifests import ManagementPeers
from octavo_operator.metrics import Metrics, Result
from octavo_operator.names import Key
from octavo_operator.reconcile import Reconciler
from octavo_operator.scaler import Scaler
from octavo_operator.scraping import Scraper
from octavo_operator.watched import SERVICES, Watched, sight
from octavo_operator.work_queue import WorkQueue

log = logging.getLogger(__name__)

STALLED_SECONDS = 60.0
"""A sampler that finishes no round, or watches that stay dead after they were begun anew, for this long: not alive."""
_RETRY_SECONDS = 5.0


class Operator:
    """The parts of one process that share a queue."""

    def __init__(self, config: OperatorConfig, api: Cluster, session: aiohttp.ClientSession, metrics: Metrics) -> None:
        self._config = config
        self._api = api
        self._metrics = metrics
        self.queue: WorkQueue[Key] = WorkQueue(metrics.queue_wait_seconds.observe)
        metrics.queue_depth.set_function(lambda: len(self.queue))
        scraper = Scraper(session, config.scrape_timeout_seconds)
        self.scaler = Scaler(scraper, metrics, config.scale_down_seconds, time.monotonic)
        events = Recorder(api, time.monotonic, _wall_time, config.holder)
        defaults = Defaults(config.engine_image, ManagementPeers.of(config), config.cache_group_id)
        self._reconciler = Reconciler(
            *(api, self.scaler, defaults, events),
            services=metrics.services,
            now=_wall_time,
            clock=time.monotonic,
            crowded=self.queue.crowded,
        )
        self.informer = Informer(self._watch, self._watching)
        self._heartbeat = Heartbeat()
        self._silent_since: float | None = None
        self._resync = asyncio.Event()
        self._woken = False
        self._inbox: deque[tuple[Watched, dict[str, Any], bool]] = deque()
        self._loop = asyncio.get_running_loop()
        self.leading = False

    async def work(self, key: Key) -> None:
        """Reconciles one key; whatever goes wrong is this key's own matter."""
        started = time.monotonic()
        with logs.about(namespace=key.namespace, service=key.name, reconcile=uuid.uuid4().hex[:8]):
            result = await self._reconcile(key)
            seconds = time.monotonic() - started
            log.debug("%s: %s", key, result, extra={"fields": {"result": result, "seconds": round(seconds, 4)}})
        self._metrics.reconciles.labels(result).inc()
        self._metrics.reconcile_seconds.observe(seconds)

    async def _reconcile(self, key: Key) -> Result:
        """Returns how it went."""
        try:
            again = await self._reconciler.reconcile(key)
        except ApiError as error:
            delay = self.queue.failed(key, error.retry_after if isinstance(error, Throttled) else 0.0)
            self._metrics.errors.labels(type(error).__name__).inc()
            log.warning("%s: %s; again in %.1f s", key, error, delay)
            return Result.ERROR
        except Exception as error:
            # A bug met by one resource must not stop the others; it is loud, and it is retried.
            delay = self.queue.failed(key)
            self._metrics.errors.labels(type(error).__name__).inc()
            log.exception("%s: unexpected error; again in %.1f s", key, delay)
            return Result.BUG
        self.queue.succeeded(key)
        if again is not None:
            self.queue.add_later(key, again)
        return Result.OK

    async def sample(self) -> None:
        """Samples every service's load, for ever."""
        while True:
            started = time.monotonic()
            for key in await self.scaler.tick():
                self.queue.add(key)
            await asyncio.sleep(max(0.1, self._config.scrape_seconds - (time.monotonic() - started)))

    async def resync(self) -> None:
        """Lists everything at the start, when watching begins anew, and every few minutes: what was missed is found."""
        while True:
            self._resync.clear()
            pause = await self._caught_up()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._resync.wait()

    async def _caught_up(self) -> float:
        """Has every service looked at; returns the seconds until that should be done again."""
        pause = self._config.resync_seconds
        try:
            await self._api.fill()
        except ApiError as error:
            # Until everything can be listed each look asks for what it needs, and tells in status what it may not see.
            log.warning("resync: %s", error)
            pause = pause if isinstance(error, Refused) else min(pause, _RETRY_SECONDS)
        try:
            keys = await self._api.service_keys()
        except ApiError as error:
            log.warning("resync: %s", error)
            return min(pause, _RETRY_SECONDS)
        # A known one that is gone is forgotten by its reconcile.
        for key in keys | self.scaler.known() | self._metrics.services.known():
            self.queue.add(key)
        return pause

    async def beat(self) -> None:
        """Holds what the watches told against a list, for ever: finds missed changes, and watches that are dead.

        No watch tells of kinds that are installed: that is asked for, too, and all services are looked at again.
        """
        while True:
            await asyncio.sleep(self._config.heartbeat_seconds)
            since = self._api.store.mark()
            try:
                listed = await self._api.sights()
                if await self._api.monitoring_changed():
                    self._resync.set()
            except ApiError as error:
                log.warning("heartbeat: %s", error)
                continue
            self._compare(listed, since)

    def _compare(self, listed: dict[Identity, Sight], since: int) -> None:
        verdict = self._heartbeat.compare(listed)
        for key in verdict.missed | self._api.store.behind(listed, since):
            self._api.store.doubt(key)
            self.queue.add(key)
        self._metrics.missed_events.inc(len(verdict.missed))
        if not verdict.silent:
            self._silent_since = None
            return
        self._silent_since = self._silent_since or time.monotonic()
        log.warning("the watches of %s say nothing of changes: they begin anew", ", ".join(sorted(verdict.silent)))
        self.informer.restart()

    async def _watch(self, stop: asyncio.Event) -> None:
        """One life of the informer, in its own thread: what it tells is heard here."""

        def tell(watched: Watched, body: dict[str, Any], gone: bool) -> None:
            self._inbox.append((watched, body, gone))
            if not self._woken:  # otherwise the loop is on its way, and waking it is what costs
                self._woken = True
                with suppress(RuntimeError):  # the process ends, and its loop is closed
                    self._loop.call_soon_threadsafe(self._read_inbox)

        await handlers.watch(self._config, tell, lambda: cluster.credentials(self._config), stop)

    def _watching(self) -> None:
        self._metrics.watch_starts.inc()
        self._heartbeat.restarted()
        self._api.store.restarted()
        self._resync.set()

    def _read_inbox(self) -> None:
        """Hears what the informer's thread has told. What that one adds from now on wakes the loop again."""
        self._woken = False
        while self._inbox:
            self._told(*self._inbox.popleft())

    def _told(self, watched: Watched, body: dict[str, Any], gone: bool) -> None:
        identity, seen = sight(watched, body)
        self._heartbeat.told(identity, seen, gone)
        if self._api.store.told(watched.plural, body, gone) and seen.key:
            self.queue.add(seen.key, urgent=watched == SERVICES)

    def trouble(self) -> str | None:
        """For /livez: a stuck event loop, or watches that stay dead."""
        if not self.leading:
            return None
        silent = time.monotonic() - self.scaler.last_tick
        if silent > STALLED_SECONDS:
            return f"no sample finished for {silent:.0f} s"
        deaf = time.monotonic() - (self._silent_since or time.monotonic())
        return f"the watches have told nothing of changes for {deaf:.0f} s" if deaf > STALLED_SECONDS else None


def _wall_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
