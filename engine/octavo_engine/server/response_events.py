"""A response in OpenAI's newer form: items that begin, grow and end, told as events or all at once.

The plain answer is what the events of the whole text come to, so the two cannot differ.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from octavo_engine.output import Delta
from octavo_engine.request import FinishReason
from octavo_engine.server.answers import Json
from octavo_engine.server.event_stream import one_line
from octavo_engine.server.responses import ResponsesBody
from octavo_engine.server.tools import CallPart, MessageReader, Said

Event = tuple[str, Json]  # its type, and its fields


class Items:
    """The items of a response. A text that goes from thoughts to words to calls opens an item at each turn."""

    def __init__(self, reader: MessageReader) -> None:
        self._reader = reader
        self._open = False
        self.items: list[Json] = []

    def read(self, text: str, *, last: bool) -> Iterator[Event]:
        """Take a piece of the answer's text; `last`: nothing comes after it."""
        for said in self._in_order(text, last=last):
            if said.reasoning:
                yield from self._grow_text("reasoning", said.reasoning)
            if said.content:
                yield from self._grow_text("message", said.content)
            for call in said.calls:
                yield from self._grow_call(call)
        if last:
            yield from self._end_item()

    def _in_order(self, text: str, *, last: bool) -> Iterator[Said]:
        """What was said, in the order of the text: read by the character, joined where more of the same follows."""
        run: list[Said] = []
        for char in text:
            said = self._reader.push(char)
            if said == Said():
                continue
            if run and _kind(said) != _kind(run[-1]):
                yield _joined(run)
                run = []
            run.append(said)
        if run:
            yield _joined(run)
        if last:
            yield self._reader.push("", last=True)

    def _grow_text(self, kind: str, text: str) -> Iterator[Event]:
        if not self._open or self.items[-1]["type"] != kind:
            yield from self._begin_item(_text_item(kind))
            if kind == "message":
                yield "response.content_part.added", self._place() | {"content_index": 0, "part": _output_text("")}
        part = self.items[-1]["content"][0]
        part["text"] += text
        name, extra = _TEXT_EVENTS[kind]
        yield f"{name}.delta", self._place() | {"content_index": 0, "delta": text} | extra

    def _grow_call(self, part: CallPart) -> Iterator[Event]:
        if part.name is not None:
            item = {"type": "function_call", "id": _new_id("fc"), "call_id": part.id, "name": part.name}
            yield from self._begin_item(item | {"arguments": "", "status": "in_progress"})
        self.items[-1]["arguments"] += part.arguments
        if part.arguments:
            yield "response.function_call_arguments.delta", self._place() | {"delta": part.arguments}

    def _begin_item(self, item: Json) -> Iterator[Event]:
        yield from self._end_item()
        self.items.append(item)
        self._open = True
        shown = item | ({"content": []} if "content" in item else {})
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": shown}

    def _end_item(self) -> Iterator[Event]:
        if not self._open:
            return
        self._open = False
        item = self.items[-1]
        item["status"] = "completed"
        if item["type"] == "function_call":
            whole = {"arguments": item["arguments"], "name": item["name"]}
            yield "response.function_call_arguments.done", self._place() | whole
        else:
            part = item["content"][0]
            name, extra = _TEXT_EVENTS[item["type"]]
            yield f"{name}.done", self._place() | {"content_index": 0, "text": part["text"]} | extra
            if item["type"] == "message":
                yield "response.content_part.done", self._place() | {"content_index": 0, "part": part}
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item}

    def _place(self) -> Json:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}


def _kind(said: Said) -> tuple[bool, bool, tuple[int, ...]]:
    """What a character added to."""
    return bool(said.content), bool(said.reasoning), tuple(call.index for call in said.calls)


def _joined(run: Sequence[Said]) -> Said:
    """Several of one kind as one."""
    columns = zip(*(said.calls for said in run), strict=True)
    calls = tuple(parts[0]._replace(arguments="".join(part.arguments for part in parts)) for parts in columns)
    return Said("".join(said.content for said in run), "".join(said.reasoning for said in run), calls)


_TEXT_EVENTS: dict[str, tuple[str, Json]] = {
    "message": ("response.output_text", {"logprobs": []}),
    "reasoning": ("response.reasoning_text", {}),
}


def _text_item(kind: str) -> Json:
    if kind == "reasoning":
        content = [{"type": "reasoning_text", "text": ""}]
        return {"type": kind, "id": _new_id("rs"), "summary": [], "content": content, "status": "in_progress"}
    content = [_output_text("")]
    return {"type": kind, "id": _new_id("msg"), "role": "assistant", "content": content, "status": "in_progress"}


def _output_text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


class ResponseWriter:
    """Writes one response, plain (`answer`) or as events (`opening`, `pieces`, `closing`); used once."""

    def __init__(self, name: str, model: str, body: ResponsesBody, reader: MessageReader) -> None:
        self._items = Items(reader)
        self._number = 0
        self._end: FinishReason | None = None
        self._common = _common(name, model, body)

    def answer(self, deltas: Sequence[Delta], counts: Json) -> Json:
        """The plain answer; there is one choice."""
        self.pieces(list(enumerate(deltas)))
        return self._response(counts)

    def opening(self, choices: int) -> bytes:
        """The response before it has an item."""
        assert choices == 1
        response = self._common | {"status": "in_progress", "usage": None}
        return self._written([(f"response.{name}", {"response": response}) for name in ("created", "in_progress")])

    def pieces(self, deltas: list[tuple[int, Delta]]) -> bytes:
        """What the deltas add."""
        events: list[Event] = []
        for _, delta in deltas:
            self._end = delta.finish_reason
            events += self._items.read(delta.text, last=delta.finish_reason is not None)
        return self._written(events)

    def closing(self, counts: Json) -> bytes:
        """The whole response."""
        response = self._response(counts)
        return self._written([(f"response.{response['status']}", {"response": response})])

    def _response(self, counts: Json) -> Json:
        cut = self._end is FinishReason.LENGTH
        return self._common | {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._items.items,
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            },
        }

    def _written(self, events: Sequence[Event]) -> bytes:
        lines = []
        for kind, fields in events:
            value = {"type": kind, "sequence_number": self._number} | fields
            self._number += 1
            lines.append(f"event: {kind}\ndata: {one_line(json.dumps(value, ensure_ascii=False))}\n\n")
        return "".join(lines).encode()


def _common(name: str, model: str, body: ResponsesBody) -> Json:
    """The fields that do not change while a response grows: mostly what was asked for."""
    asked: dict[str, Any] = body.model_dump(exclude_none=True, include={"tools", "tool_choice", "reasoning"})
    return {
        "id": name,
        "object": "response",
        "created_at": int(time.time()),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None} | asked.get("reasoning", {}),
        "store": False,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"} if body.form is None else body.form.told()},
        "tool_choice": asked.get("tool_choice", "auto"),
        "tools": asked.get("tools", []),
        "top_p": body.top_p,
        "truncation": "disabled",
        "metadata": body.metadata or {},
    }
