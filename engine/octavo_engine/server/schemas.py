"""The request bodies, OpenAI's names and ours: every field with its bounds. What is not listed here is refused by name.

Strict: no coercion, no unknown field, no number that is not finite. Extra sampling fields carry vLLM's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from octavo_engine.errors import RequestError

MAX_CHOICES = 8
MAX_PROMPTS = 16
MAX_TOKENS = 2**31 - 1
MAX_PRIORITY = 1000

TokenId = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _bias_by_id(value: Any) -> Any:
    """`{"50256": -100}` to pairs: JSON has no integer keys."""
    if not isinstance(value, dict):
        return value
    if not all(key.isascii() and key.isdigit() and len(key) < 11 for key in value):
        raise ValueError("keys must be token ids")
    return {int(key): bias for key, bias in value.items()}


def _as_prompts(value: Any) -> Any:
    """One prompt or several, each text or token ids, to a list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and not isinstance(value[0], str | list):
        return [value]
    return value


def _check_prompt(value: Any) -> str | list[int]:
    """Checked by hand: a union in the schema would report each wrong item of a million once for each arm."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_TOKENS for item in value):
        return value
    raise ValueError("a prompt is a string or a list of token ids")


Prompt = Annotated[Any, BeforeValidator(_check_prompt)]


class Body(BaseModel):
    """What all bodies share."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True, protected_namespaces=()
    )
    # Documented by OpenAI and not supported (yet): refused by name, unless the value asks for nothing.
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}


class StreamOptions(Body):
    """What a stream carries beside the answer."""

    include_usage: bool = False


class Sampling(Body):
    """The fields of both ways to generate text."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = 0
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    logit_bias: (
        Annotated[
            dict[TokenId, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=300), BeforeValidator(_bias_by_id)
        ]
        | None
    ) = None
    stop: Annotated[list[StopString], Field(max_length=4, fail_fast=True), BeforeValidator(_as_list)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64, fail_fast=True)] = []
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    user: Annotated[str, Field(max_length=512)] | None = None  # accepted for compatibility; nothing depends on it

    @model_validator(mode="after")
    def _agree(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self

    @property
    def include_usage(self) -> bool:
        """True when a stream ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class TextPart(Body):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One turn. `content` in parts is joined with line breaks."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1, max_length=256, fail_fast=True)]
    name: Annotated[str, Field(max_length=64)] | None = None

    def for_template(self) -> dict[str, str]:
        """The form that chat templates know. `developer` is OpenAI's newer word for `system`."""
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        message = {"role": "system" if self.role == "developer" else self.role, "content": text}
        return message if self.name is None else message | {"name": self.name}


class ChatBody(Sampling):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "tools": (None, []),
        "tool_choice": (None, "none"),
        "parallel_tool_calls": (None,),
        "functions": (None, []),
        "function_call": (None, "none"),
        "response_format": (None, {"type": "text"}),
        "modalities": (None, ["text"]),
        "audio": (None,),
        "prediction": (None,),
        "reasoning_effort": (None,),
        "web_search_options": (None,),
        "service_tier": (None, "auto", "default"),
        "store": (None, False),
        "metadata": (None, {}),
        "continue_final_message": (None, False),
        "chat_template": (None,),
        "chat_template_kwargs": (None, {}),
    }

    @model_validator(mode="after")
    def _agree_on_chat(self) -> ChatBody:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_completion_tokens replaces max_tokens: send one of them")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def limit(self) -> int | None:
        """Most tokens to generate; None: what the window leaves."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def limit_name(self) -> str:
        """The field that the client wrote the limit in."""
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"


class CompletionBody(Sampling):
    """POST /v1/completions."""

    prompt: Annotated[
        list[Prompt], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), BeforeValidator(_as_prompts)
    ]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "echo": (None, False),
        "best_of": (None, 1),
        "suffix": (None, ""),
    }


class TokenizeBody(Body):
    """POST /tokenize: a prompt, or a conversation."""

    model: Annotated[str, Field(max_length=512)] | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096, fail_fast=True)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_of_them(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("send either prompt or messages")
        return self


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: Annotated[str, Field(max_length=512)] | None = None
    tokens: Annotated[list[TokenId], Field(max_length=1_000_000, fail_fast=True)]


B = TypeVar("B", bound=Body)


def parse_body(schema: type[B], body: dict[str, Any]) -> B:
    """Check a body; raises RequestError naming the first wrong field."""
    asked = {name for name, harmless in schema.unsupported.items() if name in body and body[name] not in harmless}
    if asked:
        name = min(asked)
        raise RequestError(f"{name} is not supported by this server", param=name, code="unsupported_parameter")
    try:
        return schema.model_validate({name: value for name, value in body.items() if name not in schema.unsupported})
    except ValidationError as error:
        raise _request_error(error) from None


def _request_error(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _path(first["loc"])
    if first["type"] == "extra_forbidden":
        return RequestError(f"{param[:128]} is not a known field", param=param, code="unknown_parameter")
    message = first["msg"].removeprefix("Value error, ")
    return RequestError(f"{param[:128]}: {message}" if param else message, param=param or None)


def _path(location: tuple[int | str, ...]) -> str:
    """`('messages', 0, 'role')` as `messages[0].role`; arms of a union, which are no fields, are left out."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step not in ("str", "int", "float"):
            path += f".{step}" if path else step
        elif not path:
            path = step
    return path
