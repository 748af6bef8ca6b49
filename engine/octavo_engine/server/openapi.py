"""The API as an OpenAPI 3.2 document, made from the schemas that bodies are checked with.

3.1 has no word for the events of a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from octavo_engine.server.answer_schemas import ANSWERS, SCHEMAS
from octavo_engine.server.embeddings import EmbeddingBody
from octavo_engine.server.fields import Body
from octavo_engine.server.responses import ResponsesBody
from octavo_engine.server.schemas import (
    MAX_PROMPTS,
    MAX_TOKENS,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)

Json = dict[str, Any]

_REFS = "#/components/schemas/{model}"
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKENS}, "minItems": 1}
_PROMPT: Json = {"anyOf": [{"type": "string"}, _TOKENS]}
_PROMPTS: Json = {"type": "array", "items": _PROMPT, "minItems": 1, "maxItems": MAX_PROMPTS}
_STOP = {"type": "string", "minLength": 1, "maxLength": 256}
_BIASES = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "maxProperties": 300,
}
# What is brought into another form before it is checked, as clients write it.
_SAMPLING: dict[str, Json] = {
    "stop": {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": 4}, {"type": "null"}]},
    "logit_bias": {"anyOf": [_BIASES, {"type": "null"}]},
}
_AS_WRITTEN: dict[type[Body], dict[str, Json]] = {
    ChatBody: _SAMPLING,
    CompletionBody: _SAMPLING | {"prompt": {"anyOf": [*_PROMPT["anyOf"], _PROMPTS]}},
    EmbeddingBody: {"input": {"anyOf": [*_PROMPT["anyOf"], _PROMPTS]}},
    ResponsesBody: {
        "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}
    },
}
# Of fields of which one is needed, as no single field's schema says.
_EITHER: dict[type[Body], Json] = {TokenizeBody: {"anyOf": [{"required": ["prompt"]}, {"required": ["messages"]}]}}
POSTS: dict[str, tuple[type[Body], bool]] = {  # and whether it can answer with a stream
    "/v1/chat/completions": (ChatBody, True),
    "/v1/completions": (CompletionBody, True),
    "/v1/responses": (ResponsesBody, True),
    "/v1/embeddings": (EmbeddingBody, False),
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
    429: "The queue is full, or the key has had its share; come back after `Retry-After` seconds",
    431: "The head is too long, or has too many headers",
    500: "This request failed; its id is in the message",
    503: "The server starts, drains or has stopped; another replica may take it",
    504: "The request waited and ran longer than the server allows",
}
_FAULTS_OF_GETS = (401, 404, 431, 500)
_ID = {"x-request-id": {"description": "What the server's log calls this request", "schema": {"type": "string"}}}


@cache
def document(model: str | None = None) -> Json:
    """The whole document; the same on every call. With a `model`, of the server that serves it: no other will do."""
    paths = {path: {"post": _post(path)} for path in POSTS} | {path: {"get": _get(path, model)} for path in GETS}
    bodies = dict(item for schema, _ in POSTS.values() for item in _schemas(schema, model))
    return {
        "openapi": "3.2.0",
        "info": {"title": "Octavo", "version": "1", "description": "The OpenAI API of one model."},
        "paths": paths,
        "components": {
            "schemas": bodies | {name: SCHEMAS[name] for name in _answers_told()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _answers_told() -> list[str]:
    answers = [ANSWERS[path] for path in (*POSTS, *GETS)]
    return [*dict.fromkeys(name for answer in answers for name in (answer.plain, answer.event) if name), "Error"]


def _schemas(body: type[Body], model: str | None) -> Iterator[tuple[str, Json]]:
    """A body's schema and those it refers to, by name."""
    described = body.model_json_schema(ref_template=_REFS)
    yield from described.pop("$defs", {}).items()
    properties = described["properties"]
    if model is not None and "model" in properties:
        needed = "model" in described.get("required", ())
        properties["model"] = {"enum": [model] if needed else [model, None], "description": "the served name"}
    for name, written in _AS_WRITTEN.get(body, {}).items():
        told = {key: properties[name][key] for key in ("description", "default") if key in properties[name]}
        properties[name] = written | told
    for name, refused in body.unsupported.items():
        properties[name] = {"enum": list(refused.harmless), "description": f"Not supported: {refused.why}"}
    yield body.__name__, described | _EITHER.get(body, {})


def _post(path: str) -> Json:
    schema, streams = POSTS[path]
    body = {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": _REFS.format(model=schema.__name__)}}},
    }
    summary = (schema.__doc__ or "").partition("\n")[0]
    return {"summary": summary, "requestBody": body, "responses": _good(path, streams=streams) | _bad(_FAULTS)}


def _get(path: str, model: str | None) -> Json:
    if path == "/health":  # which asks for no key, and says 503 in the same words as 200
        said = _content(ANSWERS[path].plain)
        others = {"503": {"description": _FAULTS[503], "headers": _ID, "content": said}} | _bad((431, 500))
        return {"summary": GETS[path], "security": [], "responses": _good(path) | others}
    got: Json = {"summary": GETS[path], "responses": _good(path) | _bad(_FAULTS_OF_GETS)}
    if "{name}" in path:
        name: Json = {"type": "string"} if model is None else {"enum": [model]}
        got["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": name}]
    return got


def _good(path: str, *, streams: bool = False) -> Json:
    answer = ANSWERS[path]
    content = _content(answer.plain)
    if streams:
        assert answer.event is not None, "a stream has events"
        content["text/event-stream"] = {"itemSchema": _event(answer.event)}
    return {"200": {"description": "The answer", "headers": _ID, "content": content}}


def _event(name: str) -> Json:
    """An event of a stream: a part of the answer, the error that ended it, or the mark of its end."""
    data = {"anyOf": [{"$ref": _REFS.format(model=each)} for each in (name, "Error")]}
    part = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {"type": "object", "required": ["data"], "properties": {"data": {"anyOf": [{"const": "[DONE]"}, part]}}}


def _bad(statuses: Iterable[int]) -> Json:
    content = _content("Error")
    return {str(each): {"description": _FAULTS[each], "headers": _ID, "content": content} for each in statuses}


def _content(name: str) -> Json:
    return {"application/json": {"schema": {"$ref": _REFS.format(model=name)}}}
