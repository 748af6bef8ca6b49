"""A conversation as clients write it: messages by role, tools and the calls of them; and as chat templates know it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from octavo_engine.server.fields import Body

MAX_MESSAGES = 4096
MAX_TOOLS = 128

Name = Annotated[str, Field(max_length=64)]
CallId = Annotated[str, Field(min_length=1, max_length=128)]
FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class TextPart(Body):
    """A piece of a message."""

    type: Literal["text"]
    text: str


def _only_text(value: Any) -> Any:
    """A clearer word than that of a union, whose first arm would ask for a string."""
    if isinstance(value, list) and any(isinstance(part, dict) and part.get("type") != "text" for part in value):
        raise ValueError("this server takes text alone: each part must have the type 'text'")
    return value


Parts = Annotated[list[TextPart], Field(min_length=1, max_length=256, fail_fast=True)]
Content = Annotated[str | Parts, BeforeValidator(_only_text)]


def text_of(content: str | list[TextPart]) -> str:
    """The text of a content; parts are joined with line breaks."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


class Spoken(Body):
    """A message of the application or of the user. `developer` is OpenAI's newer word for `system`."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: Name | None = None

    def for_template(self) -> dict[str, Any]:
        """The form that chat templates know."""
        message = {"role": "system" if self.role == "developer" else self.role, "content": text_of(self.content)}
        return message if self.name is None else message | {"name": self.name}


class CalledFunction(Body):
    """Which function, with which arguments: JSON as the model wrote it."""

    name: FunctionName
    arguments: str


class ToolCall(Body):
    """A call that the model has made."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Templates write the arguments as JSON themselves, so that an object reaches them as an object."""
        function = {"name": self.function.name, "arguments": _object_or_text(self.function.arguments)}
        return {"id": self.id, "type": "function", "function": function}


def _object_or_text(text: str) -> Any:
    """Models make mistakes, and clients send them back: what is no JSON object stays the text it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


class Answered(Body):
    """What the model has said before: text, calls of tools, or both."""

    role: Literal["assistant"]
    content: Content | None = None
    name: Name | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)] | None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=1024)] | None = None  # of OpenAI's answers; no template has them

    @model_validator(mode="after")
    def _says_something(self) -> Answered:
        if self.content is None and self.tool_calls is None and self.refusal is None:
            raise ValueError("a message of the assistant needs content or tool_calls")
        return self

    def for_template(self) -> dict[str, Any]:
        """The form that chat templates know. Keys that a template asks for are there only if they say something."""
        said = self.refusal or "" if self.content is None else text_of(self.content)
        message: dict[str, Any] = {"role": self.role, "content": said}
        if self.name is not None:
            message["name"] = self.name
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls is not None:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message


class ToolResult(Body):
    """What a called tool gave."""

    role: Literal["tool"]
    content: Content
    tool_call_id: CallId
    name: Name | None = None

    def for_template(self) -> dict[str, Any]:
        """The form that chat templates know."""
        message = {"role": self.role, "content": text_of(self.content), "tool_call_id": self.tool_call_id}
        return message if self.name is None else message | {"name": self.name}


ChatMessage = Annotated[Spoken | Answered | ToolResult, Field(discriminator="role")]
Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


class FunctionSpec(Body):
    """A function that the model may call. `parameters` is a JSON schema, which the model reads.

    `strict` asks for calls that are held to it. So are all that an answer has to be.
    """

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool, of the one kind there is."""

    type: Literal["function"]
    function: FunctionSpec

    def for_template(self) -> dict[str, Any]:
        """The form that chat templates know."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        if self.function.parameters is not None:
            function["parameters"] = self.function.parameters
        return {"type": self.type, "function": function}


class NamedFunction(Body):
    """A function by its name."""

    name: FunctionName


class NamedTool(Body):
    """The choice of one tool."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
