"""An operator process: wires the parts together, holds the Lease, and stops as a whole when any part stops."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from octavo_operator import health
from octavo_operator.cluster import Cluster
from octavo_operator.config import OperatorConfig
from octavo_operator.errors import ApiError, LeaseLost
from octavo_operator.lease import Lease
from octavo_operator.loops import Operator
from octavo_operator.metrics import Metrics

log = logging.getLogger(__name__)

_CRD_RETRY = 5.0
_SWITCH_SECONDS = 0.0005
"""The informer's thread computes while this one sends and receives: by default each call waits 5 ms for its turn."""


async def run(config: OperatorConfig) -> int:
    """Runs until a signal or a failure; returns the exit status."""
    sys.setswitchinterval(_SWITCH_SECONDS)
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
            "stop": _until(stop),
            "watch": operator.informer.run(),
            "sample": operator.sample(),
            "resync": operator.resync(),
            "heartbeat": operator.beat(),
            **{f"worker {n}": operator.queue.run_worker(operator.work) for n in range(config.workers)},
        }
        tasks += [asyncio.create_task(part, name=name) for name, part in parts.items()]
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in ended if task.exception()]
        for task in failed:
            log.error("the part %r failed", task.get_name(), exc_info=task.exception())
        return 1 if failed else 0
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


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
