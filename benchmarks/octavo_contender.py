"""Octavo as its users meet it: `octavo serve` in a process of its own, asked over HTTP, with streams."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from measurement import Answer, Load

READY_SECONDS = 120
REQUEST_SECONDS = 300
CACHE_BYTES = 1 << 30


class Octavo:
    """A running server; a context manager."""

    name = "octavo"

    def __init__(self, checkpoint: Path, threads: int) -> None:
        self._port, self._management = free_port(), free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        flags = {
            "--port": self._port,
            "--management-port": self._management,
            "--dtype": "bfloat16",
            "--threads": threads,
            "--kv-cache-memory-bytes": CACHE_BYTES,
            "--served-model-name": "smollm2",
        }
        command = [sys.executable, "-m", "octavo_engine", "serve", str(checkpoint)]
        command += [str(word) for pair in flags.items() for word in pair]
        self._process = subprocess.Popen(command, stderr=self._log)

    def __enter__(self) -> Self:
        deadline = time.monotonic() + READY_SECONDS
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._log.seek(0)
                raise RuntimeError("octavo did not start:\n" + self._log.read().decode(errors="replace"))
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._management}/readyz", timeout=2):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def run(self, load: Load, seed: int) -> list[Answer]:
        """All requests at once."""
        return asyncio.run(self._ask_all(load, seed))

    async def _ask_all(self, load: Load, seed: int) -> list[Answer]:
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        connections = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connections) as session:
            return list(await asyncio.gather(*(self._ask(session, prompt, load) for prompt in load.prompts(seed))))

    async def _ask(self, session: aiohttp.ClientSession, prompt: list[int], load: Load) -> Answer:
        body = {
            "model": "smollm2",
            "prompt": prompt,
            "max_tokens": load.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent, times, tokens = time.perf_counter(), [], 0
        async with session.post(f"http://127.0.0.1:{self._port}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                if chunk["choices"]:
                    times.append(time.perf_counter())
                if chunk.get("usage"):
                    tokens = chunk["usage"]["completion_tokens"]
        return Answer(sent, times[0], times[-1], tokens)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
