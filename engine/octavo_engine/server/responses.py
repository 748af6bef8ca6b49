"""POST /v1/responses: its body, and the conversation that it stands for.

What it has beyond a conversation (kept responses, tools that run at the server) is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from octavo_engine.errors import RequestError
from octavo_engine.server.fields import Body, Refused, asks, ignored, parse_body
from octavo_engine.server.forms import FormDescription, FormName
from octavo_engine.server.messages import MAX_MESSAGES, MAX_TOOLS, CallId, FunctionName
from octavo_engine.server.schemas import MAX_TOKENS, ChatBody, Label, Metadata

_PARTS = ("input_text", "output_text", "text")
_CHAT_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
# What is flat here, and nested in a chat.
_FLATTER = (("].function.", "]."), ("response_format.json_schema.", "text.format."))


def _text_of_parts(value: Any) -> Any:
    """A text, or the text of parts; anything else is told in words that name what is taken."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(part, dict) for part in value):
        texts = [part.get("text") for part in value if part.get("type") in _PARTS]
        if len(texts) == len(value) and all(isinstance(text, str) for text in texts):
            return "\n".join(texts)
    raise ValueError("this server takes text, or parts of the types input_text and output_text")


Text = Annotated[str, BeforeValidator(_text_of_parts)]
Id = Annotated[str, Field(max_length=128)]


class Item(Body):
    """What all items of an input share: what an answer had, a client may send back."""

    id: Id | None = None
    status: Label | None = None


class MessageItem(Item):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text


class CallItem(Item):
    """A call that the model has made."""

    type: Literal["function_call"]
    call_id: CallId
    name: FunctionName
    arguments: str


class ResultItem(Item):
    """What the called function gave."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: Text


class ReasoningItem(Item):
    """What the model has thought; chat templates leave the thoughts of earlier turns out, and so do we."""

    type: Literal["reasoning"]
    summary: list[Any] = Field(default_factory=list)
    content: list[Any] | None = None
    encrypted_content: None = None


def _kind(value: Any) -> str | None:
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) else None


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]


class FunctionTool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenFunction(Body):
    """The choice of one function."""

    type: Literal["function"]
    name: FunctionName


class Reasoning(Body):
    """How much to think; see `reasoning_effort` of a chat."""

    effort: Annotated[str, Field(max_length=32)] | None = None
    summary: None = None


class TextFormat(Body):
    """The form of the answer: `response_format` of a chat, written flat."""

    type: Literal["text", "json_object", "json_schema"]
    name: FormName | None = None
    description: FormDescription | None = None
    form: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None  # it is enforced whether strict or not

    @model_validator(mode="after")
    def _whole(self) -> TextFormat:
        if self.type == "json_schema":
            if self.name is None or self.form is None:
                raise ValueError("the type json_schema needs a name and a schema")
        elif self._details():
            raise ValueError("name, schema, description and strict belong to the type json_schema, and to no other")
        return self

    def told(self) -> dict[str, Any]:
        """As it comes back with the response."""
        return {"type": self.type} | self._details()

    def for_chat(self) -> dict[str, Any]:
        """The same as `response_format`."""
        details = self._details()
        return {"type": self.type} | ({"json_schema": details} if details else {})

    def _details(self) -> dict[str, Any]:
        given = {"name": self.name, "description": self.description, "schema": self.form, "strict": self.strict}
        return {name: value for name, value in given.items() if value is not None}


class TextOptions(Body):
    """How the answer's text shall be."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None  # the usual: how long it shall be is for a message to say


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponsesBody(Body):
    """POST /v1/responses."""

    model: Annotated[str, Field(min_length=1, max_length=512, description="the served name")]
    input: Annotated[
        list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True), BeforeValidator(_as_items)
    ] = Field(description="a text, or messages, calls of functions and what these gave")
    instructions: str | None = asks("a system message before the input")
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = asks("most tokens to generate")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = asks("as in a chat")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = asks("as in a chat")
    stream: bool | None = asks("server-sent events, OpenAI's typed ones")
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = asks("functions")
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = asks("as in a chat")
    parallel_tool_calls: bool | None = asks("false: the answer has one call at most")
    reasoning: Reasoning | None = asks("`effort`, as `reasoning_effort` in a chat")
    text: TextOptions | None = asks(
        "`format`: `text`, `json_object`, or `json_schema` with a schema that the answer keeps to: see"
        " [STRUCTURED_OUTPUT.md](STRUCTURED_OUTPUT.md); no `verbosity` but `medium`"
    )
    metadata: Metadata | None = asks("comes back with the answer")
    user: Label | None = ignored("who asks is told by the API key")
    safety_identifier: Label | None = ignored("who asks is told by the API key")
    prompt_cache_key: Label | None = ignored("every prompt's longest known prefix is found without it")
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = ignored(
        "prefixes stay for as long as there is room"
    )

    unsupported: ClassVar[Mapping[str, Refused]] = {
        "previous_response_id": Refused("answers are not kept; send the items of the conversation"),
        "conversation": Refused("answers are not kept; send the items of the conversation"),
        "store": Refused("answers are not kept", (None, False)),
        "background": Refused("an answer is waited for, or streamed", (None, False)),
        "background_options": Refused("an answer is waited for, or streamed"),
        "include": Refused("there is nothing more to include", (None, [])),
        "prompt": Refused("there are no kept prompts"),
        "truncation": Refused("a conversation that is too long is refused", (None, "disabled")),
        "max_tool_calls": Refused("functions run at the client, who counts them"),
        "top_logprobs": Refused("ask /v1/chat/completions", (None, 0)),
        "service_tier": Refused("there is one tier", (None, "auto", "default")),
        "stream_options": Refused("a stream needs none", (None, {}, {"include_obfuscation": False})),
        "access_programs": Refused("there are none"),
        "context_management": Refused("a conversation is read as it is", (None, [])),
        "image": Refused("messages are text"),
        "moderation": Refused("there is no moderation model"),
        "prompt_cache_options": Refused("prefixes are found and kept without it"),
    }

    @property
    def form(self) -> TextFormat | None:
        """The form of the answer, if one is asked for."""
        return None if self.text is None else self.text.format


def as_chat(body: ResponsesBody) -> ChatBody:
    """The same question to /v1/chat/completions; raises RequestError in this route's names."""
    chat: dict[str, Any] = {
        "model": body.model,
        "messages": _messages(body),
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "stream": body.stream,
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        "response_format": None if body.form is None else body.form.for_chat(),
    }
    if body.tools:
        chat["tools"] = [_tool(tool) for tool in body.tools]
    if body.tool_choice is not None:
        choice = body.tool_choice
        named = (
            {"type": "function", "function": {"name": choice.name}} if isinstance(choice, ChosenFunction) else choice
        )
        chat["tool_choice"] = named
    return parse_body(ChatBody, chat)


def _tool(tool: FunctionTool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function | {"strict": tool.strict}}


def _messages(body: ResponsesBody) -> list[dict[str, Any]]:
    """Calls that follow each other, and the text before them, are one message of the assistant."""
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    for item in body.input:
        match item:
            case MessageItem():
                messages.append({"role": item.role, "content": item.content})
            case CallItem():
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                messages[-1].setdefault("tool_calls", []).append(_call(item))
            case ResultItem():
                messages.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
    return messages


def _call(item: CallItem) -> dict[str, Any]:
    function = {"name": item.name, "arguments": item.arguments}
    return {"id": item.call_id, "type": "function", "function": function}


def our_name(theirs: str) -> str:
    """What a field of the conversation is called in the body that it was made of."""
    ours = _CHAT_NAMES.get(theirs, theirs)
    for nested, flat in _FLATTER:
        ours = ours.replace(nested, flat)
    return ours


def in_our_names(error: RequestError) -> RequestError:
    """An error about the conversation, as one about the body that it was made of."""
    theirs = error.param or ""
    if (ours := our_name(theirs)) == theirs:
        return error
    message = str(error).removeprefix(f"{error.param}: ")
    return type(error)(f"{ours}: {message}", param=ours, code=error.code)
