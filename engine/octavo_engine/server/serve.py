"""`octavo serve`: how everything is put together, from settings to a serving process and to its end."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from octavo_engine import termination
from octavo_engine.assembly import Assembly, assemble
from octavo_engine.async_engine import AsyncEngine
from octavo_engine.config import ServerConfig, ServeSettings
from octavo_engine.errors import EngineDead, RequestFailed
from octavo_engine.history.decisions import DecisionLog
from octavo_engine.history.recent import History
from octavo_engine.metrics import Metrics
from octavo_engine.model.huggingface.pooling_config import read_pooling
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.values.sampling_defaults import OPENAI, SamplingDefaults
from octavo_engine.request import Pooling
from octavo_engine.runtime import host
from octavo_engine.server.app import build_app
from octavo_engine.server.context import Context
from octavo_engine.server.door import Door, open_door
from octavo_engine.server.embeddings import Embeddings
from octavo_engine.server.intake import Limits
from octavo_engine.server.lifecycle import Lifecycle, State
from octavo_engine.server.listeners import api_listener, bind, start_management, url_of
from octavo_engine.server.management import build_management_app
from octavo_engine.server.own_look import OwnLook
from octavo_engine.server.reporting import Reporting
from octavo_engine.server.shutdown import ENGINE_DEAD, Stop, died_of, drain_and_stop, leave_broken, leave_stuck
from octavo_engine.server.startup import StartupReport, spare_the_collector
from octavo_engine.server.tools import Formats
from octavo_engine.server.warm_up import warm_up
from octavo_engine.server.watchdog import Limits as StepLimits
from octavo_engine.server.watchdog import Watchdog
from octavo_engine.server.watchers import Watchers, open_watchers
from octavo_engine.structured import Forms
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from octavo_engine.vllm_names import VllmNames

log = logging.getLogger(__name__)


def serve(
    settings: ServeSettings,
    environment: Mapping[str, str],
    build: Callable[..., Assembly] = assemble,
    *,
    began: float | None = None,
) -> int:
    """Load, serve until a signal, drain; returns the exit code. Raises StartupError when it cannot come to serving.

    `build` makes the engine, with the arguments of `assemble`. `began` is when the process did, in monotonic seconds.
    """
    config, server, imported = settings.engine, settings.server, time.monotonic()
    began = imported if began is None else began
    lifecycle = Lifecycle(model_name=model_name(settings), max_num_seqs=config.max_num_seqs, began=began)
    registry, history = CollectorRegistry(), History()
    metrics = Metrics(registry, model_name=lifecycle.model_name, stats=lifecycle.stats)
    metrics.server_state(lifecycle.states)
    metrics.cpu_periods(host.cpu_periods)
    if server.metrics_compat == "vllm":
        registry.register(VllmNames(metrics.series))
    lifecycle.estimate = metrics.estimated_queue_seconds
    lifecycle.limit = OwnLook(metrics.series).limit
    door = open_door(server, environment, metrics.reloaded)
    watchers = open_watchers(server, lifecycle.model_name, environment, sys.stdout)
    api_socket = bind("--port", server.host, server.port)
    management_socket = bind("--management-port", server.management_host, server.management_port)
    start_management(build_management_app(lifecycle, registry, history, metrics.flushed), management_socket)
    log.info("management on %s", url_of(management_socket))

    decisions = DecisionLog(sys.stdout) if server.log_decisions else None
    report, recorder = StartupReport(metrics), Reporting(metrics, history, decisions)
    report.phase("imports", imported - began)
    with report.timed("tokenizer"):
        tokenizer = load_tokenizer(config.model, server.chat_template)
    pooling = pooling_of(server, config.model)
    assembly = build(config, tokenizer, recorder, on_progress=report.progress, on_phase=report.phase)
    metrics.turns = assembly.engine.turns
    report.built(assembly, config)
    if defaults := str(sampling_defaults(server, assembly.spec)):
        log.info("the model's own defaults (--generation-config): %s", defaults)
    parts = Parts(
        settings=settings,
        lifecycle=lifecycle,
        metrics=metrics,
        recorder=recorder,
        report=report,
        tokenizer=tokenizer,
        pooling=pooling,
        assembly=assembly,
        door=door,
        watchers=watchers,
        forms=open_forms(tokenizer, assembly.spec, metrics),
        api_socket=api_socket,
    )
    try:
        return asyncio.run(run(parts))
    finally:
        assembly.close()
        parts.forms.close()
        watchers.close()
        if decisions is not None:
            decisions.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that is there before the event loop is."""

    settings: ServeSettings
    lifecycle: Lifecycle
    metrics: Metrics
    recorder: Reporting
    report: StartupReport
    tokenizer: Tokenizer
    pooling: Pooling
    assembly: Assembly
    door: Door
    watchers: Watchers
    forms: Forms
    api_socket: socket.socket


async def run(parts: Parts) -> int:
    """Start the stepping thread and its watchdog, warm up, serve until the end; returns the exit code."""
    stop = Stop(asyncio.get_running_loop())
    engine = start_engine(parts, stop)
    watch_ranks(parts, engine)
    watchdog = build_watchdog(parts, engine)
    watchdog.start()
    try:
        if not await warmed_up(parts, engine):
            return 1
        return await serve_until_stopped(parts, engine, stop)
    finally:
        watchdog.stop()


async def warmed_up(parts: Parts, engine: AsyncEngine) -> bool:
    """Compute a first token; False, with a word on why, when that fails."""
    parts.lifecycle.state = State.WARMING
    try:
        with parts.report.timed("warm_up"):
            await warm_up(engine)
    except (RequestFailed, EngineDead):
        log.exception("the first token cannot be computed")
        fault = parts.lifecycle.fault or "the first token cannot be computed; the log has the cause"
        termination.leave_word(ENGINE_DEAD, fault)
        return False
    return True


async def serve_until_stopped(parts: Parts, engine: AsyncEngine, stop: Stop) -> int:
    """Open the API, wait for the end, drain; returns the exit code."""
    lifecycle = parts.lifecycle
    parts.recorder.counting = True
    lifecycle.engine = engine
    door = parts.door
    listener = api_listener(build_app(build_context(parts, engine)), door.deadlines, door.certificates)
    stop.on_signals()
    await listener.start(parts.api_socket, on_end=stop.asked.set)
    spare_the_collector()
    lifecycle.serving()
    if parts.assembly.errand is not None:
        engine.do_between_steps(parts.assembly.errand)
    name, url = lifecycle.model_name, url_of(parts.api_socket, door.scheme)
    log.info("serving %s on %s after %.1f s", name, url, lifecycle.startup_seconds)
    await stop.asked.wait()
    return await drain_and_stop(lifecycle, engine, listener, parts.settings.server.drain_seconds)


def start_engine(parts: Parts, stop: Stop) -> AsyncEngine:
    """The stepping thread, with its bounded queue. When it dies, the process ends and is restarted."""
    config = parts.settings.engine

    def died(error: BaseException) -> None:
        parts.lifecycle.fault = died_of(error)
        stop.from_any_thread()

    engine = AsyncEngine(
        parts.assembly.engine,
        max_waiting_requests=config.queue_limit,
        max_waiting_prompt_tokens=config.max_waiting_prompt_tokens,
        max_prompt_tokens=config.max_prompt_tokens,
        retry_after=parts.metrics.estimated_queue_seconds,
        on_reject=parts.metrics.rejected,
        on_death=died,
    )
    engine.start()
    return engine


def build_watchdog(parts: Parts, engine: AsyncEngine) -> Watchdog:
    """What ends the process when the step thread is lost."""
    server = parts.settings.server
    limits = StepLimits(
        decode=server.stuck_decode_seconds,
        prefill=server.stuck_prefill_seconds,
        warm_up=server.stuck_warm_up_seconds,
    )

    def lost(fault: str) -> None:
        place = f"; at {engine.place}" if engine.place else ""
        leave_stuck(parts.lifecycle, engine, fault + place + parts.assembly.circumstances(), parts.assembly.show_stacks)

    return Watchdog(lambda: engine.beat, limits, lost)


def watch_ranks(parts: Parts, engine: AsyncEngine) -> None:
    """From now on, the loss of another rank ends the process."""
    if parts.assembly.ranks is not None:
        parts.assembly.ranks.team.on_fault(lambda fault: leave_broken(parts.lifecycle, engine, fault))


def build_context(parts: Parts, engine: AsyncEngine) -> Context:
    """What the API's routes work with."""
    config, server, assembly = parts.settings.engine, parts.settings.server, parts.assembly
    limits = Limits(
        max_model_len=assembly.max_model_len,
        max_prompt_tokens=config.max_prompt_tokens or assembly.max_model_len,
        vocab_size=assembly.spec.vocab,
        timeout_seconds=server.request_timeout_seconds,
        queue_seconds=server.queue_timeout_seconds or math.inf,
        has_priorities=config.scheduling_policy == "priority",
        sampling=sampling_defaults(server, assembly.spec),
    )
    return Context(
        model_name=parts.lifecycle.model_name,
        engine=engine,
        tokenizer=parts.tokenizer,
        limits=limits,
        keys=parts.door.keys,
        origins=parts.door.origins,
        body_seconds=parts.door.deadlines.body,
        lifecycle=parts.lifecycle,
        max_body_bytes=server.max_body_bytes,
        forms=parts.forms,
        formats=Formats.of(parts.tokenizer.chat_template, server.tool_call_parser, server.reasoning_parser),
        share_prefixes=config.prefix_cache_scope == "server",
        embeddings=Embeddings(parts.pooling, parts.assembly.spec.hidden),
        on_reject=parts.metrics.rejected,
        on_refused=parts.recorder.refused,
        on_end=parts.watchers.tell,
    )


def open_forms(tokenizer: Tokenizer, spec: ModelSpec, metrics: Metrics) -> Forms:
    """What compiles the forms of answers, and tells the metrics of it."""
    forms = Forms(tokenizer, {*spec.eos_ids, *tokenizer.eos_ids}, tried=True, on_asked=metrics.form)
    metrics.forms_kept(lambda: forms.kept_bytes)
    return forms


def sampling_defaults(server: ServerConfig, spec: ModelSpec) -> SamplingDefaults:
    """What holds for a request that does not say."""
    return spec.sampling if server.generation_config == "auto" else OPENAI


def pooling_of(server: ServerConfig, model: str) -> Pooling:
    """How embeddings are made; raises ModelUnsupported where the checkpoint's authors make them in another way."""
    if server.embedding_pooling != "auto":
        return Pooling(server.embedding_pooling)
    return read_pooling(model) or Pooling.LAST


def model_name(settings: ServeSettings) -> str:
    """What clients call the model."""
    return settings.server.served_model_name or Path(settings.engine.model).resolve().name.removesuffix(".gguf")
