"""The OpenAPI document says what the server does: its routes, and which bodies it takes."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.errors import RequestError
from octavo_engine.server.fields import parse_body
from octavo_engine.server.openapi import GETS, POSTS, document
from octavo_engine.server.responses import ResponsesBody, as_chat

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": MESSAGES},
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/embeddings": {"model": "m", "input": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
}


def validator(path: str) -> jsonschema.Draft202012Validator:
    """Of a route's bodies, as somebody reads them out of the document."""
    (content,) = document()["paths"][path]["post"]["requestBody"]["content"].values()
    return jsonschema.Draft202012Validator(document() | content["schema"])


def takes(path: str, body: dict[str, Any]) -> bool:
    try:
        parse_body(POSTS[path][0], body)
    except RequestError:
        return False
    return True


def test_every_schema_is_one_and_leads_somewhere() -> None:
    for name in document()["components"]["schemas"]:
        schema = document() | {"$ref": f"#/components/schemas/{name}"}
        jsonschema.Draft202012Validator.check_schema(document()["components"]["schemas"][name])
        list(jsonschema.Draft202012Validator(schema).iter_errors({}))  # a reference to nothing raises


def test_the_routes_are_those_of_the_server() -> None:
    from octavo_engine.server.routes import build_routes

    served = {
        (route.path.replace(":path", ""), method.lower())  # type: ignore[attr-defined]
        for route in build_routes(None).routes  # type: ignore[arg-type]
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    assert served == {(path, method) for path, ways in document()["paths"].items() for method in ways}
    assert set(document()["paths"]) == {*POSTS, *GETS}


@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_is_taken_is_described_and_what_is_refused_by_its_schema_too(path: str) -> None:
    schema = validator(path)
    assert schema.is_valid(BODIES[path])
    assert not schema.is_valid({})
    assert not schema.is_valid(BODIES[path] | {"nonsense": 1})
    for name, refused in POSTS[path][0].unsupported.items():
        assert all(schema.is_valid(BODIES[path] | {name: value}) for value in refused.harmless)
        assert not schema.is_valid(BODIES[path] | {name: {"x": ["y"]}})


VALUES: Any = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 30), st.sampled_from([0.5, 2.5, "", "x", [], ["x"], [1], {}, {"x": 1}])
)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@given(data=st.data())
def test_a_field_that_is_taken_is_described_as_taken(path: str, data) -> None:
    schema = POSTS[path][0]
    name = data.draw(st.sampled_from([*schema.model_fields, *schema.unsupported]))
    body = BODIES[path] | {name: data.draw(VALUES)}
    if takes(path, body):
        assert validator(path).is_valid(body)
        if path == "/v1/responses":  # the conversation that it stands for is none of ours to fail at
            as_chat(parse_body(ResponsesBody, body))
