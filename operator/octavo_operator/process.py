"""An operator process: wires the parts together, holds the Lease, and stops as a whole when any part stops."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from octavo_operator import cluster, handlers, health
from octavo_operator.cluster import Cluster
from octavo_operator.config import OperatorConfig
from octavo_operator.errors import ApiError, LeaseLost, Throttled
from octavo_operator.lease import Lease
from octavo_operator.metrics import Metrics
from octavo_operator.names import Key
from octavo_operator.reconcile import Reconciler
from octavo_operator.scaler import Scaler
from octavo_operator.scraping import Scraper
from octavo_operator.work_queue import WorkQueue

log = logging.getLogger(__name__)

STALLED_SECONDS = 60.0
_CRD_RETRY = 5.0


class Operator:
    """The parts of one process that share a queue."""

    def __init__(self, config: OperatorConfig, api: Cluster, session: aiohttp.ClientSession, metrics: Metrics) -> None:
        self._config = config
        self._api = api
        self._metrics = metrics
        self.queue: WorkQueue[Key] = WorkQueue()
        scraper = Scraper(session, config.scrape_timeout_seconds)
        self.scaler = Scaler(scraper, metrics, config.scale_down_seconds, time.monotonic)
        self._reconciler = Reconciler(api, self.scaler, config.engine_image, _wall_time)
        self.leading = False

    async def work(self, key: Key) -> None:
        """Reconciles one key; whatever goes wrong is this key's own matter."""
        started = time.monotonic()
        self._metrics.queue_depth.set(len(self.queue))
        try:
            again = await self._reconciler.reconcile(key)
        except ApiError as error:
            delay = self.queue.failed(key, error.retry_after if isinstance(error, Throttled) else 0.0)
            result = "error"
            log.warning("%s: %s; again in %.1f s", key, error, delay)
        except Exception:
            # A bug met by one resource must not stop the others; it is loud, and it is retried.
            delay = self.queue.failed(key)
            result = "bug"
            log.exception("%s: unexpected error; again in %.1f s", key, delay)
        else:
            self.queue.succeeded(key)
            if again is not None:
                self.queue.add_later(key, again)
            result = "ok"
        self._metrics.reconciles.labels(result).inc()
        self._metrics.reconcile_seconds.observe(time.monotonic() - started)

    async def sample(self) -> None:
        """Samples every service's load, for ever."""
        while True:
            started = time.monotonic()
            for key in await self.scaler.tick():
                self.queue.add(key)
            await asyncio.sleep(max(0.1, self._config.scrape_seconds - (time.monotonic() - started)))

    async def resync(self) -> None:
        """Lists everything at the start and every few minutes: what events missed is found here."""
        while True:
            pause = self._config.resync_seconds
            try:
                keys = await self._api.service_keys()
                for key in keys | self.scaler.known():  # a known one that is gone is forgotten by its reconcile
                    self.queue.add(key)
            except ApiError as error:
                log.warning("resync: %s", error)
                pause = min(pause, _CRD_RETRY)
            await asyncio.sleep(pause)

    def trouble(self) -> str | None:
        """For /livez: a sampler that has not finished a round for long means a stuck event loop."""
        silent = time.monotonic() - self.scaler.last_tick
        return f"no sample finished for {silent:.0f} s" if self.leading and silent > STALLED_SECONDS else None


async def run(config: OperatorConfig) -> int:
    """Runs until a signal or a failure; returns the exit status."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    metrics = Metrics(registry)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(Cluster.connect(config, metrics))
        session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        operator = Operator(config, api, session, metrics)
        port = health.serve(config.health_host, config.health_port, registry, operator.trouble, lambda: api.trouble)
        await stack.enter_async_context(port)
        lease = Lease(api, config.holder, config.lease_seconds, time.monotonic)
        if not await _unless(stop, lease.acquire()):
            return 0
        metrics.leading.set(1)
        try:
            return await _lead(config, operator, api, lease, stop)
        finally:
            await lease.release()


async def _lead(config: OperatorConfig, operator: Operator, api: Cluster, lease: Lease, stop: asyncio.Event) -> int:
    """Everything an active operator does at the same time; the first part to end ends all."""
    tasks = [asyncio.create_task(_keep_or_exit(lease), name="lease")]
    try:
        if not await _unless(stop, _crd_installed(api)):
            return 0
        operator.scaler.last_tick = time.monotonic()
        operator.leading = True
        parts = {
            "watch": handlers.watch(config, operator.queue.add, lambda: cluster.credentials(config), stop),
            "sample": operator.sample(),
            "resync": operator.resync(),
            **{f"worker {n}": operator.queue.run_worker(operator.work) for n in range(config.workers)},
        }
        tasks += [asyncio.create_task(part, name=name) for name, part in parts.items()]
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in ended if task.exception()]
        for task in failed:
            log.error("the part %r failed", task.get_name(), exc_info=task.exception())
        return 1 if failed else 0
    finally:
        stop.set()
        for task in tasks:
            if task.get_name() != "watch":
                task.cancel()
        await asyncio.wait(tasks, timeout=5)


async def _keep_or_exit(lease: Lease) -> None:
    try:
        await lease.keep()
    except LeaseLost as error:
        # No clean-up may come between: another operator is about to act, and a cancelled task could still write.
        log.critical("%s: exiting", error)
        logging.shutdown()
        os._exit(1)


async def _crd_installed(api: Cluster) -> None:
    """Waits for the resource's kind, so that charts may be installed in any order."""
    while True:
        try:
            await api.service_keys()
            return
        except ApiError as error:
            log.warning("waiting until InferenceServices can be listed: %s", error)
            await asyncio.sleep(_CRD_RETRY)


async def _unless(stop: asyncio.Event, wanted: Coroutine[Any, Any, None]) -> bool:
    """Awaits `wanted` unless `stop` is set first; whether it was finished."""
    task, stopped = asyncio.create_task(wanted), asyncio.create_task(stop.wait())
    done, pending = await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for other in pending:
        other.cancel()
    if task in done:
        task.result()
    return task in done


def _wall_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
