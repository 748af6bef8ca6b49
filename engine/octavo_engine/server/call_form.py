"""The form of an answer that has to be a call."""

from __future__ import annotations

from octavo_engine.errors import RequestError
from octavo_engine.server.schemas import ChatBody
from octavo_engine.server.tools.enforced import one_call, some_calls
from octavo_engine.structured import Spec, spec

MOST_CALLS = 16  # of a client that sets no bound: nothing but the limit of tokens would end a list that the model likes


def call_form(body: ChatBody) -> Spec | None:
    """What the answer has to be where `tool_choice` leaves the model no other; raises RequestError."""
    if not body.must_call:
        return None
    if body.ignore_eos:
        message = (
            "ignore_eos: an answer that has to be a call ends where that is complete; leave out this or tool_choice"
        )
        raise RequestError(message, param="ignore_eos")
    functions = {tool.function.name: tool.function.parameters for tool in body.offered}
    named = body.named_tool
    schema = some_calls(functions, body.most_calls or MOST_CALLS) if named is None else one_call(functions[named])
    return spec.json_schema(schema, "tools")
