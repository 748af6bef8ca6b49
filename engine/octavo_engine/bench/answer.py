"""A streamed answer as it comes: when its text came, how much, how it ended. Pure: it is fed bytes with their times.

What counts is what vLLM's load client counts: the time to the first token runs from sending to the first chunk that has
text, the inter-token latency is each gap between two such chunks. A chunk with several tokens is one arrival, so it
makes one gap, however many tokens it holds; `Outcome.time_per_output_token` divides by tokens. Chunks without text (the
role, the finish reason, the usage) are no arrivals; neither is a token that the server holds back, as part of a
character, until its text is whole.
"""

from __future__ import annotations

import json
from typing import Any

from octavo_engine.bench.outcome import Failure

Json = dict[str, Any]
DETAIL_CHARACTERS = 300
ERROR_BYTES = 64 * 1024  # of a refusal: more than any has that people wrote
TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class Answer:
    """Receives one streamed answer. `keep_text`: it is wanted for the next turn."""

    def __init__(self, *, keep_text: bool = False) -> None:
        self.status = 0
        self.arrivals: list[float] = []
        self.usage: Json = {}
        self.ended = False  # by [DONE]
        self.failure: tuple[Failure, str] | None = None
        self._keep_text = keep_text
        self._texts: list[str] = []
        self._rest = b""

    @property
    def text(self) -> str:
        """What it said, where that was to be kept."""
        return "".join(self._texts)

    def head(self, status: int) -> None:
        """The status of the reply."""
        self.status = status

    def body(self, data: bytes, at: float) -> None:
        """Bytes of the reply, cut anywhere."""
        if self.status != 200:
            self._rest = (self._rest + data)[:ERROR_BYTES]
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), at)

    def problem(self) -> tuple[Failure, str] | None:
        """What is wrong with it, now that the reply is whole."""
        if self.status != 200:
            return refusal(self.status, self._rest)
        if self.failure is not None:
            return self.failure
        if not self.arrivals and not self.ended:
            return Failure.MALFORMED, f"the reply holds no events: {_line(self._rest)}"
        if not self.ended:
            return Failure.CUT, "the stream has no [DONE]"
        return None if self.arrivals else (Failure.EMPTY, "the answer has no text")

    def _event(self, payload: bytes, at: float) -> None:
        """One event; servers of this API write each on one line."""
        if payload == b"[DONE]":
            self.ended = True
            return
        try:
            chunk = json.loads(payload)
        except ValueError:
            chunk = None
        if not isinstance(chunk, dict):
            self.failure = self.failure or (Failure.MALFORMED, f"an event is no JSON object: {_line(payload)}")
            return
        if chunk.get("error"):
            self.failure = self.failure or (Failure.ERROR_EVENT, _message(chunk))
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = usage
        if text := _text(chunk):
            self.arrivals.append(at)
            if self._keep_text:
                self._texts.append(text)

    def count(self, *path: str) -> int | None:
        """A figure of the server's own account, such as `prompt_tokens`; None where it has none."""
        value: Any = self.usage
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def refusal(status: int, body: bytes) -> tuple[Failure, str]:
    """What a reply with another status than 200 means."""
    try:
        said = _message(json.loads(body))
    except ValueError:
        said = _line(body)
    detail = f"{status}: {said}" if said else str(status)
    if status in (401, 403):
        return Failure.UNAUTHORIZED, detail
    if status == 429:
        return Failure.OVERLOADED, detail
    return Failure.SERVER_ERROR if status >= 500 else Failure.REJECTED, detail


def _text(chunk: Json) -> str:
    """All text that a chunk adds, of whatever kind: each kind is made of tokens."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return ""
    if isinstance(text := choice.get("text"), str):
        return text
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return ""
    found = "".join(value for name in TEXTS if isinstance(value := delta.get(name), str))
    return found or (json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else "")


def _message(document: Any) -> str:
    """What an error says, in OpenAI's form or in others'."""
    error = document.get("error", document) if isinstance(document, dict) else document
    said = error.get("message") or error.get("detail") or error if isinstance(error, dict) else error
    return _line(said if isinstance(said, str) else json.dumps(said))


def _line(said: str | bytes) -> str:
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else said
    return " ".join(text.split())[:DETAIL_CHARACTERS]
