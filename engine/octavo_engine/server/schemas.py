"""The request bodies, OpenAI's names and ours: every field with its bounds. What is not listed here is refused by name.

Extra sampling fields carry vLLM's names. The descriptions are the tables of docs/API.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from octavo_engine.server.fields import Body, Contradiction, Refused, asks, ignored, parse_body
from octavo_engine.server.forms import Options, ResponseFormat, Schema, StructuredOutputs
from octavo_engine.server.messages import Messages, NamedTool, Tool, ToolChoice, Tools

__all__ = ["Body", "ChatBody", "CompletionBody", "DetokenizeBody", "Sampling", "TokenizeBody", "parse_body"]

MAX_CHOICES = 8
MAX_PROMPTS = 16
MAX_TOKENS = 2**31 - 1
MAX_PRIORITY = 1000

TokenId = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
Label = Annotated[str, Field(max_length=512)]
Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _bias_by_id(value: Any) -> Any:
    """`{"50256": -100}` to pairs: JSON has no integer keys."""
    if not isinstance(value, dict):
        return value
    if not all(key.isascii() and key.isdigit() and len(key) < 11 for key in value):
        raise ValueError("keys must be token ids")
    return {int(key): bias for key, bias in value.items()}


def as_prompts(value: Any) -> Any:
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


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("keep at least one token, or -1 for as many as there is room for")
    return value


_MOST_TOKENS = (
    "most tokens to generate; default: 16 for completions, the model's or what the window leaves for chats; 0, with"
    " `echo`: the prompt is told, and nothing is generated"
)

Prompt = Annotated[Any, BeforeValidator(_check_prompt)]
LogitBias = Annotated[
    dict[TokenId, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=300), BeforeValidator(_bias_by_id)
]
StopStrings = Annotated[list[StopString], Field(max_length=4, fail_fast=True), BeforeValidator(_as_list)]
TokenIds = Annotated[list[TokenId], Field(max_length=64, fail_fast=True)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class StreamOptions(Body):
    """What a stream carries beside the answer."""

    include_usage: bool = False
    continuous_usage_stats: bool | None = None  # vLLM's; load clients ask for it

    @model_validator(mode="after")
    def _agree(self) -> StreamOptions:
        if self.continuous_usage_stats and not self.include_usage:
            raise ValueError("continuous_usage_stats needs include_usage: true")
        return self


def _stream_options(value: Any) -> Any:
    """`include_obfuscation` asks for noise that hides the lengths of chunks from who watches the network."""
    if isinstance(value, dict) and "include_obfuscation" in value:
        if value["include_obfuscation"] not in (None, False):
            raise ValueError("include_obfuscation is not supported: TLS ends before the server, and so would the noise")
        return {name: item for name, item in value.items() if name != "include_obfuscation"}
    return value


class Sampling(Body):
    """The fields of both ways to generate text."""

    model: Annotated[str, Field(min_length=1, max_length=512, description="the served name")]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = asks(_MOST_TOKENS)
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = asks(
        "end tokens and stop ids do not end the answer before; up to `max_tokens`", 0
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = asks(
        "0 always takes the likeliest token; default: the model's, else 1"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = asks("nucleus sampling")
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = asks("the likeliest k only; 0 and -1: all")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = asks("at least this share of the likeliest token's probability")
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = asks(
        "the same seed gives the same answer; choice i of `n` uses `seed` + i"
    )
    presence_penalty: Penalty | None = asks("taken from the logits of tokens that the answer has")
    frequency_penalty: Penalty | None = asks("the same, for each time it has them")
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = asks("over prompt and output; 1 is none")
    logit_bias: LogitBias | None = asks("added to the logits, by token id; up to 300 ids, -100 to 100")
    stop: StopStrings | None = asks(
        "a string or up to 4, of 256 characters: the text ends before the first complete one"
    )
    stop_token_ids: TokenIds = asks("up to 64 ids: the text ends before them", [])
    include_stop_str_in_output: bool = asks("keep the stop string in the text", False)
    skip_special_tokens: bool = asks("leave special tokens out of the text", True)
    ignore_eos: bool = asks("go on to `max_tokens`", False)
    n: Choices | None = asks("choices for each prompt")
    stream: bool | None = asks("server-sent events")
    stream_options: Annotated[StreamOptions, BeforeValidator(_stream_options)] | None = asks(
        '`{"include_usage": true}` adds a last chunk with the token counts, and `continuous_usage_stats` beside it puts'
        " those so far into every chunk; `include_obfuscation` may be false only"
    )
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = asks(
        "the lower is served first; other than 0 only under `--scheduling-policy priority`, else a 400:"
        " see [SCHEDULING.md](SCHEDULING.md)",
        0,
    )
    cache_salt: Annotated[str, Field(min_length=1, max_length=512)] | None = asks(
        "prefixes are shared only with requests of the same salt (and of the same API key, as ever)"
    )
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKENS), AfterValidator(_not_zero)] | None = asks(
        "keep this many tokens of a longer prompt, its last; -1: as many as `max_tokens` leaves room for"
    )
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = asks(
        "tell each prompt token's log-probability and rank, but the first one's, and those of so many likeliest;"
        " not streamed; the prompt is computed whole, whatever is cached of it"
    )
    response_format: ResponseFormat | None = asks(
        "`text`, `json_object`, or `json_schema` with a schema that the answer keeps to:"
        " see [STRUCTURED_OUTPUT.md](STRUCTURED_OUTPUT.md)"
    )
    structured_outputs: StructuredOutputs | None = asks(
        "another form to keep to: one of `json` (a schema), `json_object`, `regex`, `choice` and `grammar`"
    )
    guided_json: Schema | None = asks("older name of `structured_outputs.json`")
    guided_regex: str | None = asks("older name of `structured_outputs.regex`")
    guided_choice: Options | None = asks("older name of `structured_outputs.choice`")
    guided_grammar: str | None = asks("older name of `structured_outputs.grammar`")
    user: Label | None = ignored("who asks is told by the API key; nothing is kept of it")

    unsupported: ClassVar[Mapping[str, Refused]] = {
        "suffix": Refused("the model continues a text, and does not fill gaps", (None, "")),
        "use_beam_search": Refused("each choice is sampled by itself", (None, False)),
        "length_penalty": Refused("it belongs to beam search", (None, 1)),
        "allowed_token_ids": Refused("use logit_bias"),
        "bad_words": Refused("use logit_bias", (None, [])),
        "spaces_between_special_tokens": Refused("tokens are joined as they are spelled", (None, True)),
        "return_tokens_as_token_ids": Refused("logprobs have the tokens' bytes", (None, False)),
        "return_token_ids": Refused("ask /tokenize", (None, False)),
        "logits_processors": Refused("clients bring no code"),
        "request_id": Refused("send the header x-request-id"),
        "kv_transfer_params": Refused("keys and values stay in one replica"),
        "vllm_xargs": Refused("there are no further arguments", (None, {})),
    }

    @model_validator(mode="after")
    def _agree(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise Contradiction("stream_options", "stream_options needs stream: true")
        if self.stream and self.prompt_logprobs is not None:
            message = "prompt_logprobs are not streamed; completions stream them with echo and logprobs"
            raise Contradiction("prompt_logprobs", message)
        return self

    @property
    def include_usage(self) -> bool:
        """True when a stream ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """True when each chunk of a stream has the token counts so far."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    @property
    def kept(self) -> int:
        """Choices that each prompt's answer has."""
        return self.n or 1

    @property
    def copies(self) -> int:
        """Choices that are generated for each prompt."""
        return self.kept


class ChatBody(Sampling):
    """POST /v1/chat/completions."""

    messages: Messages = Field(
        description="up to 4,096, each with a `role` (`system`, `developer`, `user`, `assistant` or `tool`) and a"
        " `content`: text, or parts of type `text`, which are joined with line breaks"
    )
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = asks("replaces `max_tokens`")
    logprobs: bool | None = asks("tell each token's log-probability, in the model's own distribution, and its bytes")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = asks("and those of so many likeliest; needs `logprobs`")
    tools: Tools | None = asks("up to 128 functions; where the model's chat template has a place for them, else a 400")
    tool_choice: ToolChoice | None = asks(
        "`none`; `auto`: the model decides, and its calls keep to the schemas of `strict` tools; `required`, or a"
        " function by its name: the answer is calls, held to their schemas; default: `auto`"
    )
    parallel_tool_calls: bool | None = asks("false: the answer has one call at most")
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = asks(
        "given to the chat template, if that knows it, else a 400"
    )
    include_reasoning: bool = asks("false: leave `reasoning_content` out of the answer", True)
    add_generation_prompt: bool | None = asks(
        "end the prompt with what opens an answer; default: true, unless `continue_final_message`"
    )
    continue_final_message: bool = asks("the answer goes on where the last message, the assistant's, ends", False)
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=16)] | None = asks(
        "variables of the model's chat template, such as `enable_thinking`; those that it does not read are a 400"
    )
    metadata: Metadata | None = ignored("answers are not kept, so there is nothing to attach it to")
    safety_identifier: Label | None = ignored("who asks is told by the API key")
    prompt_cache_key: Label | None = ignored("every prompt's longest known prefix is found without it")
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = ignored(
        "prefixes stay for as long as there is room"
    )

    unsupported: ClassVar[Mapping[str, Refused]] = {
        **Sampling.unsupported,
        "functions": Refused("it was replaced by tools", (None, [])),
        "function_call": Refused("it was replaced by tool_choice", (None, "none")),
        "modalities": Refused("answers are text", (None, ["text"])),
        "audio": Refused("answers are text"),
        "prediction": Refused(
            "drafts are made from the prompt and the answer: what is predicted can stand in the prompt", (None,)
        ),
        "moderation": Refused("there is no moderation model"),
        "web_search_options": Refused("the server reaches no network"),
        "prompt_cache_options": Refused("prefixes are found and kept without it"),
        "verbosity": Refused("say it in a message", (None, "medium")),
        "service_tier": Refused("there is one tier", (None, "auto", "default")),
        "store": Refused("answers are not kept", (None, False)),
        "chat_template": Refused("the template is the server's (--chat-template)"),
        "documents": Refused("put them into a message", (None, [])),
        "add_special_tokens": Refused("the chat template writes them", (None, False)),
        "echo": Refused("the answer is the new text", (None, False)),
        "best_of": Refused("it is a field of completions", (None, 1)),
        "mm_processor_kwargs": Refused("messages are text"),
    }

    @model_validator(mode="after")
    def _agree_on_chat(self) -> ChatBody:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise Contradiction("max_tokens", "max_completion_tokens replaces max_tokens: send one of them")
        if self.top_logprobs and not self.logprobs:
            raise Contradiction("top_logprobs", "top_logprobs needs logprobs: true")
        if self.tool_choice not in (None, "none") and not self.tools:
            raise Contradiction("tool_choice", "tool_choice needs tools")
        if self.continue_final_message and self.add_generation_prompt:
            message = "continue_final_message goes on with a message, add_generation_prompt opens one"
            raise Contradiction("add_generation_prompt", message)
        if self.continue_final_message and self.messages[-1].role != "assistant":
            message = "continue_final_message needs a last message of the role assistant"
            raise Contradiction("continue_final_message", message)
        return self

    @property
    def limit(self) -> int | None:
        """Most tokens to generate; None: what the window leaves."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def limit_name(self) -> str:
        """The field that the client wrote the limit in."""
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @property
    def offered(self) -> list[Tool]:
        """The tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def must_call(self) -> bool:
        """True when the answer has to be a call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def named_tool(self) -> str | None:
        """The function that the answer has to call."""
        return self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else None

    @property
    def most_calls(self) -> int | None:
        """How many calls an answer may have; None: any number."""
        return 1 if self.parallel_tool_calls is False else None

    @property
    def opens_answer(self) -> bool:
        """True when the prompt ends with what opens an answer."""
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt


class CompletionBody(Sampling):
    """POST /v1/completions."""

    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = asks(_MOST_TOKENS)
    prompt: Annotated[
        list[Prompt], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), BeforeValidator(as_prompts)
    ] = Field(description="one or up to 16, each text or token ids")
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = asks(
        "tell each token's log-probability, and those of so many likeliest"
    )
    echo: bool = asks(
        "the text begins with the prompt, and with `logprobs` the lists with its tokens, of which the first has no"
        " log-probability",
        False,
    )
    best_of: Choices | None = asks(
        "generate so many for each prompt and keep the `n` with the highest mean log-probability; not streamed"
    )
    add_special_tokens: bool = asks("put what the model expects around a text prompt, usually a BOS", True)

    @model_validator(mode="after")
    def _agree_on_completion(self) -> CompletionBody:
        if self.best_of is not None and self.best_of < self.kept:
            raise Contradiction("best_of", "best_of must be at least n")
        if self.stream and self.copies > self.kept:
            raise Contradiction("best_of", "best_of needs all choices to know the best: it cannot be streamed")
        if self.max_tokens == 0 and not self.echo:
            raise Contradiction("max_tokens", "max_tokens 0 generates nothing: with echo: true, the prompt is told")
        return self

    @property
    def copies(self) -> int:
        """Choices that are generated for each prompt."""
        return self.best_of or self.kept


class TokenizeBody(Body):
    """POST /tokenize: a prompt, or a conversation."""

    model: Annotated[str, Field(max_length=512)] | None = asks("the served name")
    prompt: str | None = asks("a text")
    messages: Messages | None = asks("or a conversation")
    tools: Tools | None = asks("with the tools of a conversation")
    add_special_tokens: bool = asks("put what the model expects around a text, usually a BOS", True)
    add_generation_prompt: bool = asks("end a conversation with what opens an answer", True)

    @model_validator(mode="after")
    def _one_of_them(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise Contradiction("messages", "send either prompt or messages")
        return self


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: Annotated[str, Field(max_length=512)] | None = asks("the served name")
    tokens: Annotated[list[TokenId], Field(max_length=1_000_000, fail_fast=True)] = Field(description="token ids")
