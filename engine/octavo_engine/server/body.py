"""A request body: bytes, then strict JSON. Every refusal has a constant text."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from octavo_engine.server.replies import Refusal

MAX_DEPTH = 64
LONG_BODY_BYTES = 16 * 1024  # parsing and tokenizing this takes the event loop about 10 ms

_NOT_JSON = "the body is not valid JSON"
# Possessive, and matching an unfinished string too: otherwise each quote in one would be tried to the end again.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A parsed object and how many bytes it took: long ones are also long to tokenize."""

    value: dict[str, Any]
    size: int

    @property
    def long(self) -> bool:
        """True when work on it should leave the event loop."""
        return self.size > LONG_BODY_BYTES


async def read_json(request: Request, max_bytes: int, seconds: float) -> JsonBody:
    """The body, which may take so many seconds to come, as a JSON object; raises Refusal 400, 408, 413 or 415."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise Refusal(415, "send the body as Content-Type: application/json", code="unsupported_media_type")
    body = await _read(request, max_bytes, seconds)
    long = len(body) > LONG_BODY_BYTES
    return JsonBody(await asyncio.to_thread(parse_object, body) if long else parse_object(body), len(body))


async def _read(request: Request, max_bytes: int, seconds: float) -> bytes:
    too_long = Refusal(
        413, f"the body is longer than {max_bytes} bytes", code="request_too_large", headers={"Connection": "close"}
    )
    if int(request.headers.get("content-length", "0")) > max_bytes:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise too_long
    except TimeoutError:
        message = "the body did not arrive in time"
        raise Refusal(408, message, code="request_timeout", headers={"Connection": "close"}) from None
    return bytes(body)


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse RFC 8259 JSON in UTF-8, one object without duplicate keys, NaN, lone surrogates or deep nesting."""
    try:
        text = body.decode("utf-8")
        _check_depth(text)
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # fails for half a surrogate pair
    except (ValueError, RecursionError):
        raise Refusal(400, _NOT_JSON, code="invalid_json") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object", code="invalid_json")
    return value


def _check_depth(text: str) -> None:
    """Refuse deep nesting before the parser recurses into it."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise Refusal(400, f"the body is nested deeper than {MAX_DEPTH} levels", code="invalid_json")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refusal(400, "the body has a key twice", code="invalid_json")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(name)
