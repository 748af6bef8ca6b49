"""A TLS proxy between an operator and the API server that makes calls fail by rule, and keeps a record of all of them.

It passes the caller's own bearer token on, so the API server authorizes and audits as it would without the proxy. It
runs in a thread; tests set rules and read records from theirs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

import fault_watch
from fault_rules import (
    Answer,
    Call,
    Delay,
    Fault,
    Garbage,
    HalfBody,
    OldAnswer,
    Reset,
    Rule,
    Silence,
    Stream,
    read_call,
    status_document,
)
from patience import PATIENCE_SECONDS

_PASSED_ON = ("authorization", "content-type", "accept", "user-agent")
_CLOSING_SECONDS = 0.1  # TLS connections that were closed say goodbye in later turns of the loop
_CHUNK_END = b"0\r\n\r\n"


@dataclass(frozen=True)
class Record:
    """A call and what became of it.

    Attributes:
        at: monotonic seconds when it came.
        status: what the caller was told; 0 when the connection broke.
        injected: the proxy had its hand in it.
    """

    at: float
    call: Call
    status: int
    injected: bool


@dataclass(frozen=True)
class Request:
    """A request as read from the wire."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """An answer with its whole body."""

    status: int
    headers: dict[str, str]
    body: bytes


class Broken(Exception):
    """This connection is to be reset."""


class FaultProxy:
    """Listens on a port of 127.0.0.1 between `start` and `stop`.

    Args:
        upstream: URL of the API server; `trusted`: its certificate authority, as base64 of PEM like in a kubeconfig.
        folder: where the proxy's own certificate goes.
    """

    def __init__(self, upstream: str, trusted: str, folder: Path) -> None:
        self._upstream = upstream.rstrip("/")
        self._trusted = trusted
        self._key, self.certificate = self_signed(folder)
        self._rules: list[Rule] = []
        self._firsts: dict[str, Reply] = {}
        self._cut: Cut | None = None
        self._streams: set[asyncio.StreamWriter] = set()
        self._cleared = asyncio.Event()
        self._stopped = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._listening = threading.Event()
        self.records: list[Record] = []
        self.url = ""

    def start(self) -> FaultProxy:
        """Returns once it listens."""
        self._thread.start()
        assert self._listening.wait(PATIENCE_SECONDS), "the proxy does not listen"
        return self

    def stop(self) -> None:
        """Breaks all connections."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(PATIENCE_SECONDS)

    @contextmanager
    def failing(self, *rules: Rule) -> Iterator[tuple[Rule, ...]]:
        """These rules, and no others, for the length of the block."""
        self.set(*rules)
        try:
            yield rules
        finally:
            self.set()

    def set(self, *rules: Rule) -> None:
        """Replaces all rules. Open watches and silent calls break, so that they begin again under the new ones."""
        self._do(lambda: self._set(list(rules)))

    def cut(self, after: int, act: Callable[[], None]) -> None:
        """Calls `act` once the API server has done so many writes that count; nothing is answered from then on."""
        self._do(lambda: setattr(self, "_cut", Cut(after, act)))

    def mend(self) -> None:
        """Ends a cut."""
        self._do(lambda: setattr(self, "_cut", None))

    def writes(self, since: float = 0.0) -> list[Call]:
        """Writes that count, and that the API server did, that came after a monotonic time."""
        done = [item for item in list(self.records) if item.at >= since and 200 <= item.status < 300]
        return [record.call for record in done if record.call.counts]

    def remember(self) -> None:
        """Forgets all answers: `OldAnswer` gives those that come from now on."""
        self._do(self._firsts.clear)

    def calls(self, since: float = 0.0) -> list[Call]:
        """All calls, leases aside, that came after a monotonic time."""
        return [item.call for item in list(self.records) if item.at >= since and not item.call.renews_the_lease]

    def _do(self, act: Callable[[], None]) -> None:
        done = threading.Event()

        def both() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(both)
        assert done.wait(PATIENCE_SECONDS), "the proxy is stuck"

    def _set(self, rules: list[Rule]) -> None:
        self._rules = rules
        self._cleared.set()
        self._cleared = asyncio.Event()
        for writer in self._streams:
            _reset(writer)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
            self._loop.run_until_complete(asyncio.sleep(_CLOSING_SECONDS))
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self._key)
        trusting = ssl.create_default_context(cadata=base64.b64decode(self._trusted).decode())
        connector = aiohttp.TCPConnector(limit=0, ssl=trusting)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            self._session = session
            server = await asyncio.start_server(self._connection, "127.0.0.1", 0, ssl=context)
            self.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._listening.set()
            await self._stopped.wait()
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await _read_request(reader):
                await self._unless_gone(reader, self._answer(request, writer))
        except (Broken, fault_watch.BrokenStream, aiohttp.ClientError, OSError, asyncio.IncompleteReadError):
            _reset(writer)
        except asyncio.CancelledError:  # the proxy stops
            _reset(writer)
        finally:
            writer.close()

    async def _unless_gone(self, reader: asyncio.StreamReader, answering: Coroutine[Any, Any, None]) -> None:
        """Answers, unless the caller hangs up before: an upstream stream must not outlive who asked for it."""
        answer = asyncio.ensure_future(answering)
        gone = asyncio.ensure_future(_at_end(reader))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Broken
            answer.result()
        finally:
            for task in (answer, gone):
                task.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Every call is on record before its caller hears of it."""
        call, came = read_call(request.method, request.target), time.monotonic()
        fault = next((rule.fault for rule in self._rules if rule.claims(call)), None)

        def record(status: int) -> None:
            self.records.append(Record(came, call, status, fault is not None))

        if call.verb == "watch" and (fault is None or isinstance(fault, Stream)):
            record(200)
            await self._stream(request, writer, fault_watch.STREAMS[fault.how] if fault else fault_watch.honest)
            return
        try:
            reply = await self._reply(request, call, fault)
        except BaseException:
            record(0)
            raise
        record(reply.status)
        writer.write(_encoded(reply, half=isinstance(fault, HalfBody)))
        await writer.drain()
        if isinstance(fault, HalfBody):
            raise Broken

    async def _reply(self, request: Request, call: Call, fault: Fault | None) -> Reply:
        """Everything but streams; raises `Broken` where the connection is to break."""
        match fault:
            case Answer(status, retry_after):
                headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}
                return _json_reply(status, status_document(status), headers)
            case Garbage(body):
                return Reply(200, {"Content-Type": "application/json"}, body)
            case Reset(done=False):
                raise Broken
            case Silence():
                await self._cleared.wait()
                raise Broken
            case Delay(seconds):
                await asyncio.sleep(seconds)
            case OldAnswer() if call.target in self._firsts:
                return self._firsts[call.target]
        reply = await self._forward(request, call)
        if isinstance(fault, Reset):
            raise Broken
        return reply

    async def _forward(self, request: Request, call: Call) -> Reply:
        counted = self._cut if call.counts else None
        if self._cut and self._cut.done:
            raise Broken
        if counted is None:
            return await self._ask(request, call)
        async with counted.one_at_a_time:
            if counted.done:
                raise Broken
            reply = await self._ask(request, call)
            if reply.status < 300 and counted.reached():
                raise Broken
            return reply

    async def _ask(self, request: Request, call: Call) -> Reply:
        async with self._upstream_request(request) as response:
            reply = Reply(response.status, {"Content-Type": response.content_type}, await response.read())
        if request.method == "GET" and reply.status == 200:
            self._firsts.setdefault(call.target, reply)
        return reply

    async def _stream(
        self,
        request: Request,
        writer: asyncio.StreamWriter,
        transform: Callable[[fault_watch.Lines], fault_watch.Lines],
    ) -> None:
        if self._cut and self._cut.done:
            raise Broken
        self._streams.add(writer)
        try:
            await self._copy(request, writer, transform)
        finally:
            self._streams.discard(writer)

    async def _copy(
        self,
        request: Request,
        writer: asyncio.StreamWriter,
        transform: Callable[[fault_watch.Lines], fault_watch.Lines],
    ) -> None:
        async with self._upstream_request(request) as response:
            if response.status != 200:
                writer.write(
                    _encoded(Reply(response.status, {"Content-Type": "application/json"}, await response.read()))
                )
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            await writer.drain()
            async for line in transform(_lines(response.content)):
                if line:
                    writer.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                    await writer.drain()
            writer.write(_CHUNK_END)
            await writer.drain()

    def _upstream_request(self, request: Request) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {name: value for name, value in request.headers.items() if name in _PASSED_ON}
        headers["Accept-Encoding"] = "identity"
        target = URL(self._upstream + request.target, encoded=True)  # escapes stay as the caller wrote them
        return self._session.request(request.method, target, headers=headers, data=request.body or None)


class Cut:
    """Counts writes that were done and acts after the last that is allowed."""

    def __init__(self, after: int, act: Callable[[], None]) -> None:
        self._left = after
        self._act = act
        self.one_at_a_time = asyncio.Lock()
        self.done = False

    def reached(self) -> bool:
        """Counts one; whether it was the last."""
        self._left -= 1
        if self._left == 0:
            self.done = True
            self._act()
        return self.done


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate for 127.0.0.1, good for a day."""
    key, certificate = folder / "proxy.key", folder / "proxy.crt"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-days", "1", "-subj", "/CN=fault-proxy", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *subject, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return key, certificate


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a kept connection; None when there is none."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = head[0].split(" ")
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body)


async def _at_end(reader: asyncio.StreamReader) -> None:
    """Returns when the other side has closed; reads nothing, so that a next request stays whole."""
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.05)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines, however long."""
    rest = b""
    async for data in content.iter_any():
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            if line.strip():
                yield line + b"\n"


def _encoded(reply: Reply, half: bool = False) -> bytes:
    headers = {**reply.headers, "Content-Length": str(len(reply.body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    body = reply.body[: len(reply.body) // 2] if half else reply.body
    return f"HTTP/1.1 {reply.status} Injected\r\n{head}\r\n".encode() + body


def _json_reply(status: int, document: object, headers: dict[str, str]) -> Reply:
    return Reply(status, {"Content-Type": "application/json", **headers}, json.dumps(document).encode())


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection the rude way."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
