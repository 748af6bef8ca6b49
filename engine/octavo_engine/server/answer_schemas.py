"""What the API's routes answer, as JSON schemas for the OpenAPI document; tests hold real answers against them.

Objects are open: a field may join an answer at any time, and clients must not mind. Whether a stream's text is cut
here or there is nobody's promise, so of its chunks the forms are told and not how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_engine.request import FinishReason
from octavo_engine.server.lifecycle import State

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The forms of one route's answer: their names among the document's schemas."""

    plain: str
    event: str | None = None  # of each event's data in a stream, but for the mark of its end; None: it does not stream


def _object(required: Mapping[str, Json], optional: Mapping[str, Json] | None = None) -> Json:
    return {"type": "object", "required": [*required], "properties": {**required, **(optional or {})}}


def _list(items: Json, **bounds: int) -> Json:
    return {"type": "array", "items": items, **bounds}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _one(*values: str) -> Json:
    return {"type": "string", "enum": [*values]}


_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_NUMBER: Json = {"type": "number"}
_NULL: Json = {"type": "null"}
_ANY_OBJECT: Json = {"type": "object"}
_ENDS = [FinishReason.STOP.value, FinishReason.LENGTH.value]  # other ends are errors

_USAGE = _object(
    {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT},
    {"prompt_tokens_details": _object({"cached_tokens": _COUNT})},
)
_STOPPED_BY = {"stop_reason": {"type": ["string", "integer"], "description": "the stop string or id that ended it"}}


def _envelope(kind: str, choice: Json, *, whole: bool) -> Json:
    """What answers and chunks have around their choices. In a stream the last chunk alone has the usage, if wanted."""
    head = {"id": _TEXT, "object": _one(kind), "created": _COUNT, "model": _TEXT, "choices": _list(choice)}
    return _object(head | {"usage": _USAGE}) if whole else _object(head, {"usage": _or_null(_USAGE)})


# -- chats -------------------------------------------------------------------------------------------------------------

_ENTRY: dict[str, Json] = {
    "token": _TEXT,
    "logprob": _NUMBER,
    "bytes": _list({"type": "integer", "minimum": 0, "maximum": 255}),
}
_CHAT_LOGPROBS = _or_null(_object({"content": _list(_object(_ENTRY | {"top_logprobs": _list(_object(_ENTRY))}))}))
_CALL = _object(
    {"id": _TEXT, "type": _one("function"), "function": _object({"name": _TEXT, "arguments": _TEXT})},
)
_MESSAGE = _object(
    {"role": _one("assistant"), "content": _or_null(_TEXT), "refusal": _NULL},
    {"reasoning_content": _TEXT, "tool_calls": _list(_CALL, minItems=1)},
)
_CHAT_ENDS = [*_ENDS, "tool_calls"]
_CHAT_CHOICE = _object(
    {"index": _COUNT, "message": _MESSAGE, "logprobs": _CHAT_LOGPROBS, "finish_reason": _one(*_CHAT_ENDS)}, _STOPPED_BY
)
_CALL_PART = _object(
    {"index": _COUNT, "function": _object({"arguments": _TEXT}, {"name": _TEXT})},
    {"id": _TEXT, "type": _one("function")},
)
_DELTA = _object(
    {},
    {"role": _one("assistant"), "content": _TEXT, "reasoning_content": _TEXT, "tool_calls": _list(_CALL_PART)},
)
_CHAT_PIECE = _object(
    {"index": _COUNT, "delta": _DELTA, "logprobs": _CHAT_LOGPROBS, "finish_reason": _or_null(_one(*_CHAT_ENDS))},
    _STOPPED_BY,
)

# -- completions -------------------------------------------------------------------------------------------------------

_COMPLETION_LOGPROBS = _or_null(
    _object(
        {
            "tokens": _list(_TEXT),
            "token_logprobs": _list(_or_null(_NUMBER)),
            "top_logprobs": _list(_or_null({"type": "object", "additionalProperties": _NUMBER})),
            "text_offset": _list(_COUNT),
        }
    )
)


def _completion_choice(end: Json) -> Json:
    return _object(
        {"index": _COUNT, "text": _TEXT, "logprobs": _COMPLETION_LOGPROBS, "finish_reason": end}, _STOPPED_BY
    )


# -- responses ---------------------------------------------------------------------------------------------------------

_STATUS = _one("in_progress", "completed", "incomplete")


def _item(kind: str, more: Mapping[str, Json]) -> Json:
    return _object({"type": _one(kind), "id": _TEXT, "status": _STATUS, **more})


_ITEM: Json = {
    "oneOf": [
        _item("message", {"role": _one("assistant"), "content": _list(_object({"type": _TEXT, "text": _TEXT}))}),
        _item("function_call", {"call_id": _TEXT, "name": _TEXT, "arguments": _TEXT}),
        _item("reasoning", {"summary": _list(_ANY_OBJECT), "content": _list(_object({"type": _TEXT, "text": _TEXT}))}),
    ]
}
_RESPONSE = _object(
    {
        "id": _TEXT,
        "object": _one("response"),
        "created_at": _COUNT,
        "status": _STATUS,
        "error": _NULL,
        "incomplete_details": _or_null(_object({"reason": _TEXT})),
        "instructions": _or_null(_TEXT),
        "max_output_tokens": _or_null(_COUNT),
        "metadata": {"type": "object", "additionalProperties": _TEXT},
        "model": _TEXT,
        "output": _list(_ITEM),
        "parallel_tool_calls": {"type": "boolean"},
        "temperature": _or_null(_NUMBER),
        "text": _object({"format": _object({"type": _TEXT})}),
        "tool_choice": {"type": ["string", "object"]},
        "tools": _list(_ANY_OBJECT),
        "top_p": _or_null(_NUMBER),
        "usage": _or_null(_object({"input_tokens": _COUNT, "output_tokens": _COUNT, "total_tokens": _COUNT})),
    }
)

# -- the others --------------------------------------------------------------------------------------------------------

_MODEL = _object(
    {"id": _TEXT, "object": _one("model"), "created": _COUNT, "owned_by": _TEXT, "max_model_len": _COUNT},
)
_EMBEDDING = _object(
    {
        "object": _one("embedding"),
        "index": _COUNT,
        "embedding": {"anyOf": [_list(_NUMBER, minItems=1), {"type": "string", "description": "base64 of float32"}]},
    }
)
ERROR = _object(
    {
        "error": _object(
            {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            }
        )
    }
)

SCHEMAS: dict[str, Json] = {
    "ChatAnswer": _envelope("chat.completion", _CHAT_CHOICE, whole=True),
    "ChatChunk": _envelope("chat.completion.chunk", _CHAT_PIECE, whole=False),
    "CompletionAnswer": _envelope("text_completion", _completion_choice(_one(*_ENDS)), whole=True),
    "CompletionChunk": _envelope("text_completion", _completion_choice(_or_null(_one(*_ENDS))), whole=False),
    "Response": _RESPONSE,
    "ResponseEvent": _object({"type": _TEXT, "sequence_number": _COUNT}, {"response": _RESPONSE, "item": _ITEM}),
    "Embeddings": _object(
        {
            "object": _one("list"),
            "data": _list(_EMBEDDING),
            "model": _TEXT,
            "usage": _object({"prompt_tokens": _COUNT, "total_tokens": _COUNT}),
        }
    ),
    "Models": _object({"object": _one("list"), "data": _list(_MODEL)}),
    "Model": _MODEL,
    "Tokens": _object({"tokens": _list(_COUNT), "count": _COUNT, "max_model_len": _COUNT}),
    "Prompt": _object({"prompt": _TEXT}),
    "Health": _object({"status": _one(*State)}),
    "Error": ERROR,
}
ANSWERS: dict[str, Answer] = {
    "/v1/chat/completions": Answer("ChatAnswer", "ChatChunk"),
    "/v1/completions": Answer("CompletionAnswer", "CompletionChunk"),
    "/v1/responses": Answer("Response", "ResponseEvent"),
    "/v1/embeddings": Answer("Embeddings"),
    "/v1/models": Answer("Models"),
    "/v1/models/{name}": Answer("Model"),
    "/tokenize": Answer("Tokens"),
    "/detokenize": Answer("Prompt"),
    "/health": Answer("Health"),
}
