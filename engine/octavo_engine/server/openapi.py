"""The API as an OpenAPI 3.1 document, made from the schemas that bodies are checked with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from octavo_engine.server.fields import Body
from octavo_engine.server.responses import ResponsesBody
from octavo_engine.server.schemas import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody

Json = dict[str, Any]

_REFS = "#/components/schemas/{model}"
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
# What is brought into another form before it is checked, as clients write it.
_AS_WRITTEN: dict[str, Json] = {
    "prompt": {
        "anyOf": [{"type": "string"}, _TOKENS, {"type": "array", "items": {"anyOf": [{"type": "string"}, _TOKENS]}}]
    },
    "stop": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 4}, {"type": "null"}]
    },
    "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]},
    "logit_bias": {"anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}]},
}
# Of fields of which one is needed, as no single field's schema says.
_EITHER: dict[type[Body], Json] = {TokenizeBody: {"anyOf": [{"required": ["prompt"]}, {"required": ["messages"]}]}}
POSTS: dict[str, tuple[type[Body], bool]] = {  # and whether it can answer with a stream
    "/v1/chat/completions": (ChatBody, True),
    "/v1/completions": (CompletionBody, True),
    "/v1/responses": (ResponsesBody, True),
    "/tokenize": (TokenizeBody, False),
    "/detokenize": (DetokenizeBody, False),
}
GETS = {
    "/v1/models": "The one model there is",
    "/v1/models/{name}": "The one model, by its name",
    "/health": "200 while new requests are welcome",
}
_FAULTS = {
    400: "The request is wrong; `param` names the field",
    401: "No valid API key",
    404: "There is no such route or model",
    408: "The body did not arrive in time",
    413: "The body is too long",
    415: "The body is not sent as application/json",
    429: "The queue is full; come back after `Retry-After` seconds",
    431: "The head is too long, or has too many headers",
    500: "This request failed; its id is in the message",
    503: "The server starts, drains or has stopped; another replica may take it",
    504: "The request waited and ran longer than the server allows",
}
_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


@cache
def document() -> Json:
    """The whole document; the same on every call."""
    paths = {path: {"post": _post(path)} for path in POSTS} | {path: {"get": _get(path)} for path in GETS}
    schemas = dict(item for schema, _ in POSTS.values() for item in _schemas(schema))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": "1", "description": "The OpenAI API of one model."},
        "paths": paths,
        "components": {
            "schemas": schemas | {"Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _schemas(body: type[Body]) -> Iterator[tuple[str, Json]]:
    """A body's schema and those it refers to, by name."""
    described = body.model_json_schema(ref_template=_REFS)
    yield from described.pop("$defs", {}).items()
    properties = described["properties"]
    for name, written in _AS_WRITTEN.items():
        if name in properties:
            told = {key: properties[name][key] for key in ("description", "default") if key in properties[name]}
            properties[name] = written | told
    for name, refused in body.unsupported.items():
        properties[name] = {"enum": list(refused.harmless), "description": f"Not supported: {refused.why}"}
    yield body.__name__, described | _EITHER.get(body, {})


def _post(path: str) -> Json:
    schema, streams = POSTS[path]
    answers: Json = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        answers["text/event-stream"] = {"schema": {"type": "string"}}
    body = {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": _REFS.format(model=schema.__name__)}}},
    }
    summary = (schema.__doc__ or "").partition("\n")[0]
    return {"summary": summary, "requestBody": body, "responses": _answers(answers)}


def _get(path: str) -> Json:
    got: Json = {"summary": GETS[path], "responses": _answers({"application/json": {"schema": {"type": "object"}}})}
    if "{name}" in path:
        got["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return got


def _answers(good: Json) -> Json:
    error = {"application/json": {"schema": {"$ref": _REFS.format(model="Error")}}}
    faults = {str(status): {"description": why, "content": error} for status, why in _FAULTS.items()}
    return {"200": {"description": "The answer", "content": good}} | faults
