"""`octavo serve`: from settings to a serving process, and from SIGTERM to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from prometheus_client import CollectorRegistry

from octavo_engine.assembly import Assembly, assemble
from octavo_engine.async_engine import AsyncEngine
from octavo_engine.config import EngineConfig, ServerConfig, ServeSettings, read_environment
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.metrics import Metrics
from octavo_engine.server.app import build_app
from octavo_engine.server.auth import KeyRing
from octavo_engine.server.context import Context, Timelines
from octavo_engine.server.intake import Limits
from octavo_engine.server.lifecycle import Lifecycle, State
from octavo_engine.server.listeners import Listener, api_listener, bind, start_management, url_of
from octavo_engine.server.management import build_management_app
from octavo_engine.server.warm_up import Uncounted, warm_up
from octavo_engine.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)

STOP_MARGIN_SECONDS = 5.0  # for the step that runs when the drain ends


def serve(settings: ServeSettings, environment: Mapping[str, str]) -> int:
    """Load, serve until SIGTERM or SIGINT, drain; returns the exit code. Raises StartupError before it serves."""
    config, server = settings.engine, settings.server
    lifecycle = Lifecycle(model_name=model_name(settings), max_num_seqs=config.max_num_seqs)
    registry, timelines = CollectorRegistry(), Timelines()
    keys = open_keys(server, environment)
    api_socket = bind("--port", server.host, server.port)
    management_socket = bind("--management-port", server.management_host, server.management_port)
    start_management(build_management_app(lifecycle, registry, timelines), management_socket)
    log.info("management on %s, while loading too", url_of(management_socket))
    metrics = Metrics(registry, model_name=lifecycle.model_name, stats=lifecycle.stats)
    signal.signal(signal.SIGTERM, _leave_while_loading)

    tokenizer = load_timed_tokenizer(config, server, metrics)
    recorder = Uncounted(metrics)
    assembly = assemble(config, tokenizer, recorder, on_progress=Progress(), on_phase=phase_reporter(metrics))
    describe(assembly, metrics, config)

    def build_context(engine: AsyncEngine) -> Context:
        return Context(
            model_name=lifecycle.model_name,
            engine=engine,
            tokenizer=tokenizer,
            limits=limits(assembly, config, server),
            keys=keys,
            lifecycle=lifecycle,
            max_body_bytes=server.max_body_bytes,
            share_prefixes=config.prefix_cache_scope == "server",
            timelines=timelines,
            on_reject=metrics.rejected,
        )

    async def run() -> int:
        stop = Stop(asyncio.get_running_loop())
        engine = start_engine(assembly, config, metrics, stop)
        began = time.monotonic()
        await warm_up(engine)
        phase_reporter(metrics)("warm_up", time.monotonic() - began)
        recorder.counting = True
        lifecycle.engine = engine
        listener = api_listener(build_app(build_context(engine)))
        listening = asyncio.create_task(listen(listener, api_socket, stop))
        await listener_started(listener, listening)
        lifecycle.serving()
        log.info("serving %s on %s after %.1f s", lifecycle.model_name, url_of(api_socket), lifecycle.startup_seconds)
        await stop.asked.wait()
        return await shut_down(lifecycle, engine, listener, listening, server.drain_seconds)

    return asyncio.run(run())


def model_name(settings: ServeSettings) -> str:
    """What clients call the model."""
    return settings.server.served_model_name or Path(settings.engine.model).resolve().name.removesuffix(".gguf")


def open_keys(server: ServerConfig, environment: Mapping[str, str]) -> KeyRing:
    """The accepted API keys; raises InvalidConfiguration when their file cannot be read."""
    try:
        return KeyRing((*server.api_key, *read_environment(environment)), server.api_key_file)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"--api-key-file: {server.api_key_file} cannot be read") from error


def load_timed_tokenizer(config: EngineConfig, server: ServerConfig, metrics: Metrics) -> Tokenizer:
    """The tokenizer; the time it took goes to the log and the metrics."""
    began = time.monotonic()
    tokenizer = load_tokenizer(config.model, server.chat_template)
    phase_reporter(metrics)("tokenizer", time.monotonic() - began)
    return tokenizer


class Progress:
    """Logs how far the weights have come, at most every two seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 2

    def __call__(self, done: int, total: int) -> None:
        """Note `done` of `total` bytes."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 2
            log.info("weights: %d of %d MB", done // 2**20, total // 2**20)


class PhaseReporter:
    """Logs a phase of the start and records it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, name: str, seconds: float) -> None:
        """Phase `name` has ended after `seconds`."""
        self._metrics.startup(name, seconds)
        log.info("%s: %.2f s", name.replace("_", " "), seconds)


def phase_reporter(metrics: Metrics) -> PhaseReporter:
    """Where phases are reported to."""
    return PhaseReporter(metrics)


def describe(assembly: Assembly, metrics: Metrics, config: EngineConfig) -> None:
    """Say what was built, in the log and as labels."""
    dtype, gib = str(assembly.dtype).removeprefix("torch."), 2.0**30
    metrics.engine_info(
        architecture=assembly.spec.architecture,
        dtype=dtype,
        device=assembly.device.type,
        attention_backend=assembly.attention_backend,
        max_model_len=str(assembly.max_model_len),
    )
    metrics.cache_info(
        block_size=str(config.block_size),
        num_blocks=str(assembly.num_blocks),
        enable_prefix_caching=str(config.enable_prefix_caching).lower(),
    )
    log.info(
        "%s in %s on %s, %s attention; weights %.2f GiB; KV cache %.2f GiB, %d blocks of %d tokens; window %d tokens",
        assembly.spec.architecture,
        dtype,
        assembly.device,
        assembly.attention_backend,
        assembly.weight_bytes / gib,
        assembly.cache_bytes / gib,
        assembly.num_blocks,
        config.block_size,
        assembly.max_model_len,
    )


def limits(assembly: Assembly, config: EngineConfig, server: ServerConfig) -> Limits:
    """What one request may be."""
    return Limits(
        max_model_len=assembly.max_model_len,
        max_prompt_tokens=config.max_prompt_tokens or assembly.max_model_len,
        vocab_size=assembly.spec.vocab,
        timeout_seconds=server.request_timeout_seconds,
    )


class Stop:
    """The one reason to end: a signal, or an engine or a listener that has ended by itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self._loop = loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if self.asked.is_set():
            log.warning("a second signal: leaving at once")
            os._exit(1)
        log.info("asked to stop")
        self.asked.set()

    def from_any_thread(self) -> None:
        """Ask to end."""
        self._loop.call_soon_threadsafe(self.asked.set)


def _leave_while_loading(number: int, frame: FrameType | None) -> None:
    """Nothing was accepted yet. As process 1 of a container, the default action would be to ignore the signal."""
    log.info("asked to stop while loading")
    os._exit(0)


def start_engine(assembly: Assembly, config: EngineConfig, metrics: Metrics, stop: Stop) -> AsyncEngine:
    """The stepping thread."""
    engine = AsyncEngine(
        assembly.engine,
        max_waiting_requests=config.queue_limit,
        max_waiting_prompt_tokens=config.max_waiting_prompt_tokens,
        max_prompt_tokens=config.max_prompt_tokens,
        on_reject=metrics.rejected,
        on_death=stop.from_any_thread,
    )
    engine.start()
    return engine


async def listen(listener: Listener, bound: socket.socket, stop: Stop) -> None:
    """Serve the API until it is told to exit."""
    try:
        await listener.serve(sockets=[bound])
    finally:
        stop.asked.set()


async def listener_started(listener: Listener, listening: asyncio.Task[None]) -> None:
    """Wait until the port accepts connections; raises what ended the listener before."""
    while not listener.started:
        if listening.done():
            await listening
            raise InvalidConfiguration("the API port could not be opened")
        await asyncio.sleep(0.01)


async def shut_down(
    lifecycle: Lifecycle,
    engine: AsyncEngine,
    listener: Listener,
    listening: asyncio.Task[None],
    drain_seconds: float,
) -> int:
    """Refuse what is new, finish what was begun, flush the replies. Returns 0, or 1 when the engine has died."""
    died = not engine.alive
    lifecycle.state = State.DRAINING
    log.info("draining: %d running, at most %.0f s", lifecycle.stats().running, drain_seconds)
    try:
        async with asyncio.timeout(drain_seconds + STOP_MARGIN_SECONDS):
            await engine.drain(drain_seconds)
    except TimeoutError:
        log.error("the step loop does not end: leaving without it")
        os._exit(1)
    listener.should_exit = True
    await listening
    lifecycle.state = State.STOPPED
    log.info("stopped")
    return 1 if died else 0
