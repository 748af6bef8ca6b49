"""From a checked body and its prompts to requests for the engine: fields to sampling parameters, with their bounds.

Everything here may run in a thread; nothing reaches the engine before all of a body's prompts have passed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from octavo_engine.errors import PromptTooLong, RequestError
from octavo_engine.model.values.sampling_defaults import OPENAI, SamplingDefaults
from octavo_engine.request import Pooling, Request, SamplingParams
from octavo_engine.server.schemas import ChatBody, CompletionBody

COMPLETION_TOKENS = 16  # OpenAI's default of max_tokens for completions


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may be. Lengths in tokens, times in seconds."""

    max_model_len: int
    max_prompt_tokens: int
    vocab_size: int  # ids the model has embeddings and logits for
    timeout_seconds: float
    queue_seconds: float = math.inf  # of these, how long it may wait for its first step
    has_priorities: bool = False  # the scheduling policy goes by them
    sampling: SamplingDefaults = OPENAI  # for fields that a body leaves out


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks: under which id, since when, and whose prefixes may be shared."""

    name: str
    arrival: float
    namespace: str
    x_request_id: str = ""


def check_ids(ids: list[int], param: str, limits: Limits) -> None:
    """Raise RequestError naming `param` unless the model knows all of `ids`."""
    if ids and max(ids) >= limits.vocab_size:
        raise RequestError(f"{param}: token ids must be below {limits.vocab_size}", param=param)


def make_requests(
    body: ChatBody | CompletionBody,
    prompts: list[list[int]],
    caller: Caller,
    limits: Limits,
    *,
    show_special: bool = False,
) -> list[Request]:
    """`copies` requests for each prompt, in the order of the answer's choices.

    `show_special`: special tokens stay in the text whatever the client wishes, for whoever reads it looks for them.
    """
    copies = body.copies
    return [
        make_request(
            body,
            prompt,
            _params(body, len(prompt), copy, limits, show_special=show_special),
            caller,
            limits,
            number=index * copies + copy,
        )
        for index, prompt in enumerate(prompts)
        for copy in range(copies)
    ]


class Placed(Protocol):
    """The fields of any body that say where its requests stand in the queue, and what they share."""

    priority: int
    cache_salt: str | None


def make_request(
    body: Placed,
    prompt: list[int],
    params: SamplingParams,
    caller: Caller,
    limits: Limits,
    *,
    number: int,
    pooling: Pooling | None = None,
) -> Request:
    """One request of a body, with its number among those; raises RequestError for a priority that would not count."""
    return Request(
        id=f"{caller.name}-{number}",
        tokens=list(prompt),
        params=params,
        pooling=pooling,
        arrival=caller.arrival,
        namespace=_namespace(body, caller),
        x_request_id=caller.x_request_id,
        deadline=caller.arrival + limits.timeout_seconds,
        queue_deadline=caller.arrival + limits.queue_seconds,
        priority=_priority(body, limits),
    )


def _namespace(body: Placed, caller: Caller) -> str:
    """Salted, no guess at another's salt finds what that one has cached. No namespace of a key has a line break."""
    return caller.namespace if body.cache_salt is None else f"{caller.namespace}\n{body.cache_salt}"


def _priority(body: Placed, limits: Limits) -> int:
    """Refused, rather than ignored, where it would change nothing."""
    if body.priority and not limits.has_priorities:
        message = "priority: this server does not go by priorities (--scheduling-policy priority)"
        raise RequestError(message, param="priority", code="unsupported_parameter")
    return body.priority


def _params(
    body: ChatBody | CompletionBody, num_prompt: int, copy: int, limits: Limits, *, show_special: bool
) -> SamplingParams:
    check_ids(body.stop_token_ids, "stop_token_ids", limits)
    check_ids(list(body.logit_bias or ()), "logit_bias", limits)
    defaults = limits.sampling
    max_tokens = _max_tokens(body, limits.max_model_len - num_prompt, defaults.max_tokens)
    if body.min_tokens > max_tokens:
        raise RequestError(f"min_tokens: {body.min_tokens} is more than the {max_tokens} allowed", param="min_tokens")
    return SamplingParams(
        temperature=_or(body.temperature, defaults.temperature),
        top_p=_or(body.top_p, defaults.top_p),
        top_k=defaults.top_k if body.top_k is None else body.top_k if body.top_k > 0 else None,
        min_p=_or(body.min_p, defaults.min_p),
        seed=None if body.seed is None else _wrap(body.seed + copy),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, defaults.repetition_penalty),
        logit_bias=tuple((body.logit_bias or {}).items()),
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        stop=tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids),
        include_stop_str_in_output=body.include_stop_str_in_output,
        ignore_eos=body.ignore_eos,
        skip_special_tokens=body.skip_special_tokens and not show_special,
        logprobs=_logprobs(body),
        prompt_logprobs=_prompt_logprobs(body, copy),
    )


def _max_tokens(body: ChatBody | CompletionBody, room: int, suggested: int | None) -> int:
    """What the client asked for if it fits.

    Without a wish, a completion has a little; a chat what the model suggests, if it does, and else all the room.
    """
    if isinstance(body, CompletionBody):
        wanted = min(COMPLETION_TOKENS, room) if body.max_tokens is None else body.max_tokens
        param = "max_tokens"
    else:
        wanted, param = body.limit or min(max(suggested or room, body.min_tokens), room), body.limit_name
    if wanted > room:
        raise PromptTooLong(
            f"{param}: {wanted} is more than the {room} tokens that the prompt leaves of the model's window",
            param=param,
            code="context_length_exceeded",
        )
    return wanted


def _logprobs(body: ChatBody | CompletionBody) -> int | None:
    if isinstance(body, CompletionBody):
        if body.logprobs is None and body.copies > body.kept:
            return 0  # not to tell, but to choose by
        return body.logprobs
    return (body.top_logprobs or 0) if body.logprobs else None


def _prompt_logprobs(body: ChatBody | CompletionBody, copy: int) -> int | None:
    """As many as any field asks for. In a plain answer one copy of each prompt has them for all its choices."""
    if copy and not body.stream:
        return None
    echoed = body.logprobs if isinstance(body, CompletionBody) and body.echo else None
    return max((top for top in (echoed, body.prompt_logprobs) if top is not None), default=None)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _wrap(seed: int) -> int:
    """Keep a seed that was counted up within 63 bits."""
    return seed % 2**63
