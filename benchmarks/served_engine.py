"""The engine and the API of the comparison in `one_or_two_processes.py`: in one process, or on two sides of a socket.

With two, the step thread reads and writes the socket itself, between steps: as little stands between engine and HTTP as
can be. Frames are msgpack: `["add", id, prompt, params]`, `["cancel", id]`, and back, once a step, a list of
`[id, text, token ids, finish reason]`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import select
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgpack
import torch
from checkpoint import packaged_gguf
from null_engine import null_engine
from prometheus_client import CollectorRegistry

from octavo_engine.assembly import assemble
from octavo_engine.async_engine import AsyncEngine, Stream
from octavo_engine.batch import SchedulerStats
from octavo_engine.config import EngineConfig
from octavo_engine.engine import Engine
from octavo_engine.metrics import Metrics
from octavo_engine.output import Delta
from octavo_engine.request import FinishReason, Request, Sampled, SamplingParams
from octavo_engine.server.app import build_app
from octavo_engine.server.auth import KeyRing
from octavo_engine.server.context import Context
from octavo_engine.server.intake import Limits
from octavo_engine.server.lifecycle import Lifecycle
from octavo_engine.server.listeners import api_listener, bind
from octavo_engine.structured import Forms
from octavo_engine.tokenizer import load_tokenizer

WINDOW = 2_048
PAUSE_SECONDS = 0.02
BLOCKS = 60_000
CACHE_BYTES = 512 << 20  # for 256 streams of 64 tokens
READ_BYTES = 1 << 18
PARAMS = [field.name for field in dataclasses.fields(SamplingParams) if field.init]


def build_engine(model: str, threads: int) -> Engine:
    """One of `null`, `paced` and `smollm2`."""
    if model != "smollm2":
        torch.set_num_threads(1)
        pause = PAUSE_SECONDS if model == "paced" else 0.0
        return null_engine(max_model_len=WINDOW, blocks=BLOCKS, pause=pause).engine
    config = EngineConfig(
        model=str(packaged_gguf()),
        dtype="bfloat16",
        threads=threads,
        kv_cache_memory_bytes=CACHE_BYTES,
        max_model_len=WINDOW,
    )
    metrics = Metrics(CollectorRegistry(), model_name="smollm2", stats=SchedulerStats)
    return assemble(config, load_tokenizer(config.model), metrics).engine


# -- the side of HTTP --------------------------------------------------------------------------------------------------


async def serve_api(engine: Any, port: int) -> None:
    """The real API over an AsyncEngine, or over what behaves like one, until the process is ended."""
    lifecycle = Lifecycle(model_name="m", max_num_seqs=1_024, engine=engine)
    tokenizer = load_tokenizer(str(packaged_gguf()))
    context = Context(
        model_name="m",
        engine=engine,
        tokenizer=tokenizer,
        limits=Limits(
            max_model_len=WINDOW, max_prompt_tokens=WINDOW, vocab_size=tokenizer.vocab_size, timeout_seconds=600
        ),
        keys=KeyRing(()),
        lifecycle=lifecycle,
        max_body_bytes=1 << 20,
        forms=Forms(tokenizer, tokenizer.eos_ids),
    )
    lifecycle.serving()
    listener, ended = api_listener(build_app(context)), asyncio.Event()
    await listener.start(bind("--port", "127.0.0.1", port), on_end=ended.set)
    await ended.wait()


def one_process(model: str, threads: int, port: int, switch_seconds: float) -> None:
    """The engine in a thread beside the API."""
    sys.setswitchinterval(switch_seconds)
    engine = AsyncEngine(
        build_engine(model, threads), max_waiting_requests=10_000, max_waiting_prompt_tokens=10_000_000
    )
    engine.start()
    asyncio.run(serve_api(engine, port))


class RemoteEngine:
    """What the API needs of an AsyncEngine, with the engine in another process."""

    max_prompt_tokens = None
    died = False

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._streams: dict[str, Stream] = {}

    def stats(self) -> SchedulerStats:
        """Nothing waits in this comparison."""
        return SchedulerStats()

    def retry_seconds(self) -> int:
        """Nobody is sent away."""
        return 1

    def submit_all(self, requests: Sequence[Request]) -> list[Stream]:
        """Send the requests over."""
        streams = [Stream(request, requests, partial(self._send, "cancel", request.id)) for request in requests]
        for stream in streams:
            request = stream.request
            self._streams[request.id] = stream
            self._send("add", request.id, request.tokens, [getattr(request.params, name) for name in PARAMS])
        return streams

    def _send(self, *words: Any) -> None:
        self._writer.write(msgpack.packb(words))

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Hand out what the engine sends, until it ends."""
        unpacker = msgpack.Unpacker()
        while data := await reader.read(READ_BYTES):
            unpacker.feed(data)
            for frame in unpacker:
                for name, text, ids, reason in frame:
                    self._hand_out(name, text, ids, reason)

    def _hand_out(self, name: str, text: str, ids: list[int], reason: str | None) -> None:
        stream = self._streams.get(name) if reason is None else self._streams.pop(name, None)
        if stream is not None:
            stream.request.tokens += ids
            stream.put(Delta(text, tuple(map(Sampled, ids)), None if reason is None else FinishReason(reason)))


def api_process(path: str, port: int) -> None:
    """The API, with the engine at the other end of the socket `path`."""

    async def run() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        engine = RemoteEngine(writer)
        reading = asyncio.create_task(engine.read(reader))
        await serve_api(engine, port)
        await reading

    asyncio.run(run())


# -- the side of the engine --------------------------------------------------------------------------------------------


def engine_process(model: str, threads: int, path: str) -> None:
    """Steps, and talks to the one who connects to `path`."""
    engine = build_engine(model, threads)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path + ".new")
        listener.listen()
        os.rename(path + ".new", path)  # who sees it can connect
        peer, _ = listener.accept()
        step_and_talk(engine, peer)


def step_and_talk(engine: Engine, peer: socket.socket) -> None:
    """Until the peer has gone."""
    unpacker = msgpack.Unpacker()
    while True:
        readable, _, _ = select.select([peer], [], [], 0 if engine.has_work else None)
        if readable:
            data = peer.recv(READ_BYTES)
            if not data:
                return
            unpacker.feed(data)
            for words in unpacker:
                obey(engine, words)
        outputs = engine.step() if engine.has_work else []
        if outputs:
            peer.sendall(
                msgpack.packb(
                    [
                        (request.id, delta.text, [token.token_id for token in delta.tokens], delta.finish_reason)
                        for request, delta in outputs
                    ]
                )
            )


def obey(engine: Engine, words: list[Any]) -> None:
    """One frame from the API."""
    kind, name = words[:2]
    if kind == "cancel":
        engine.abort(name)
        return
    values = (tuple(value) if isinstance(value, list) else value for value in words[3])
    params = SamplingParams(**dict(zip(PARAMS, values, strict=True)))
    engine.add(Request(id=name, tokens=words[2], params=params, arrival=0.0))
