"""Clients of streams that cost little: raw HTTP over asyncio, one connection each, counting events as they come."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

from measurement import Load

EVENT = b"data: {"
END = b"data: [DONE]"
TIMEOUT_SECONDS = 240


@dataclass
class Reader(asyncio.Protocol):
    """One stream: how many events came when."""

    done: asyncio.Future[None]
    sent: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    _rest: bytes = b""

    def data_received(self, data: bytes) -> None:
        """Count the events that `data` completes; no event's beginning is lost between two packets."""
        whole = self._rest + data
        count = whole.count(EVENT)
        if count:
            self.arrivals.append((time.perf_counter(), count))
        if END in whole and not self.done.done():
            self.done.set_result(None)
        cut = whole.rfind(EVENT)
        self._rest = whole[cut + len(EVENT) :][-len(END) :] if cut >= 0 else whole[-len(END) :]

    def connection_lost(self, exc: Exception | None) -> None:
        """A stream that ends before its end has failed."""
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the stream was cut"))

    def gaps(self) -> list[float]:
        """Seconds between events, as who reads them sees it: those that come together have none between them."""
        gaps: list[float] = []
        for (before, _), (now, count) in zip(self.arrivals, self.arrivals[1:], strict=False):
            gaps += [now - before] + [0.0] * (count - 1)
        return gaps


def run_load(port: int, load: Load, seed: int) -> list[Reader]:
    """All streams at once, to their end."""
    return asyncio.run(_run_load(port, load, seed))


async def _run_load(port: int, load: Load, seed: int) -> list[Reader]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return list(await asyncio.gather(*(_ask(port, prompt, load) for prompt in load.prompts(seed))))


async def _ask(port: int, prompt: list[int], load: Load) -> Reader:
    loop = asyncio.get_running_loop()
    body = {"model": "m", "prompt": prompt, "max_tokens": load.output_tokens, "temperature": 0}
    raw = json.dumps(body | {"ignore_eos": True, "stream": True}).encode()
    transport, reader = await loop.create_connection(lambda: Reader(loop.create_future()), "127.0.0.1", port)
    reader.sent = time.perf_counter()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}"
    transport.write(head.encode() + b"\r\n\r\n" + raw)
    await reader.done
    transport.close()
    events = sum(count for _, count in reader.arrivals)
    if events != load.output_tokens:
        raise RuntimeError(f"{events} events instead of {load.output_tokens}")
    return reader
