"""The form of calls: of an answer that has to be some, and of those that a model may make."""

from __future__ import annotations

from octavo_engine.errors import RequestError
from octavo_engine.server.schemas import ChatBody
from octavo_engine.server.strict_calls import strict_calls
from octavo_engine.server.tools.enforced import one_call, some_calls
from octavo_engine.server.tools.formats import ToolFormat
from octavo_engine.structured import Spec, spec
from octavo_engine.structured.vocabulary import Tokens

MOST_CALLS = 16  # of a client that sets no bound: nothing but the limit of tokens would end a list that the model likes


def call_form(body: ChatBody, tool_format: ToolFormat | None, tokenizer: Tokens) -> Spec | None:
    """What the answer has to be where `tool_choice` leaves the model no other, or its calls where a tool is strict;
    raises RequestError. tool_format: in which the model makes those that it need not make; None: it makes none."""
    if body.must_call:
        return _required(body)
    if tool_format is None or not any(tool.function.strict for tool in body.offered):
        return None
    one = body.most_calls == 1
    if one and body.ignore_eos:
        message = "ignore_eos: an answer ends with its only call; leave out this, strict or parallel_tool_calls"
        raise RequestError(message, param="ignore_eos")
    return strict_calls(tool_format.name, body.offered, tokenizer, one=one)


def _required(body: ChatBody) -> Spec:
    if body.ignore_eos:
        message = (
            "ignore_eos: an answer that has to be a call ends where that is complete; leave out this or tool_choice"
        )
        raise RequestError(message, param="ignore_eos")
    functions = {tool.function.name: tool.function.parameters for tool in body.offered}
    named = body.named_tool
    schema = some_calls(functions, body.most_calls or MOST_CALLS) if named is None else one_call(functions[named])
    return spec.json_schema(schema, "tools")
