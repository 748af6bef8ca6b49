"""Answers in OpenAI's form. A stream's chunks and the plain answer are made from the same deltas by the same code."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from octavo_engine.output import Delta
from octavo_engine.request import FinishReason, Request, Sampled
from octavo_engine.server.completion_tokens import CompletionTokens, Echo, joined
from octavo_engine.server.tools import CallPart, MessageReader, Said
from octavo_engine.tokenizer import Tokenizer

Json = dict[str, Any]


def best(deltas: Sequence[Delta], copies: int, kept: int) -> list[Delta]:
    """Of each prompt's `copies` the `kept` whose tokens were likeliest on the whole, the best first."""
    if copies == kept:
        return list(deltas)
    groups = (deltas[start : start + copies] for start in range(0, len(deltas), copies))
    return [delta for group in groups for delta in sorted(group, key=_mean_logprob, reverse=True)[:kept]]


def _mean_logprob(delta: Delta) -> float:
    """An answer without a token is the last choice."""
    logprobs = [token.logprob.logprob for token in delta.tokens if token.logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else -math.inf


def usage(requests: Sequence[Request], choices_per_prompt: int) -> Json:
    """Token counts of a whole answer. A prompt counts once, however many choices it has."""
    firsts = requests[::choices_per_prompt]
    prompt = sum(request.num_prompt for request in firsts)
    completion = sum(request.num_output for request in requests)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(request.num_cached for request in firsts)},
    }


class Form(Protocol):
    """How one route writes its choices."""

    plain: str  # the `object` of a plain answer
    chunk: str  # the `object` of a stream's chunk

    @property
    def verbatim(self) -> bool:
        """True when nothing but a delta's text makes one chunk of a choice differ from the next."""

    def whole(self, index: int, delta: Delta) -> Json:
        """A choice of the plain answer."""

    def opening(self, index: int) -> Json | None:
        """The choice of a stream's first chunk, before any text."""

    def piece(self, index: int, delta: Delta) -> Json | None:
        """A choice of a later chunk; None when there is nothing to say yet."""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Puts choices into answers and chunks with what they have in common. `beside`: more fields of the plain answer."""

    id: str
    model: str
    form: Form
    beside: Callable[[], Json] = dict
    created: int = field(default_factory=lambda: int(time.time()))

    def answer(self, deltas: Sequence[Delta], counts: Json) -> Json:
        """The plain answer."""
        choices = [self.form.whole(index, delta) for index, delta in enumerate(deltas)]
        return self._envelope(self.form.plain, choices) | {"usage": counts} | self.beside()

    def chunk(self, choice: Json) -> Json:
        """A chunk with one choice."""
        return self._envelope(self.form.chunk, [choice])

    def last(self, counts: Json) -> Json:
        """The chunk with the usage, which has no choices."""
        return self._envelope(self.form.chunk, []) | {"usage": counts}

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


class ChatForm:
    """/v1/chat/completions. `reader` makes what reads the text of one choice; None: the text is its content.

    `reasoning` False leaves out what the model thought.
    """

    plain, chunk = "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        logprobs: bool,
        reader: Callable[[int], MessageReader] | None = None,
        reasoning: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._reader = reader
        self._reasoning = reasoning
        self._readers: dict[int, MessageReader] = {}
        self.verbatim = reader is None and not logprobs

    def whole(self, index: int, delta: Delta) -> Json:
        """A choice with its message."""
        message: Json = {"role": "assistant", "content": delta.text, "refusal": None}
        if self._reader is None:
            return {"index": index, "message": message} | self._rest(delta)
        said = self._reader(index).push(delta.text, last=True)
        message["content"] = None if said.calls else ""
        message |= self._written(said, whole=True)
        return {"index": index, "message": message} | self._rest(delta, called=bool(said.calls))

    def opening(self, index: int) -> Json:
        """The role comes first."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, delta: Delta) -> Json | None:
        """A choice with what was added to its message."""
        if self._reader is None:
            return {"index": index, "delta": {"content": delta.text} if delta.text else {}} | self._rest(delta)
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = self._reader(index)
        ended = delta.finish_reason is not None
        change = self._written(reader.push(delta.text, last=ended), whole=False)
        if not (change or ended or self._logprobs):
            return None
        return {"index": index, "delta": change} | self._rest(delta, called=reader.called)

    def _written(self, said: Said, *, whole: bool) -> Json:
        """The fields of a message, or of a change to one, for what was said."""
        fields: Json = {"content": said.content} if said.content else {}
        if said.reasoning and self._reasoning:
            fields["reasoning_content"] = said.reasoning
        if said.calls:
            fields["tool_calls"] = [_call(part, whole=whole) for part in said.calls]
        return fields

    def _rest(self, delta: Delta, *, called: bool = False) -> Json:
        logprobs = {"content": [self._token(token) for token in delta.tokens]} if self._logprobs else None
        end = _end(delta)
        if called and delta.finish_reason is FinishReason.STOP:  # it waits for the results of its calls
            end["finish_reason"] = "tool_calls"
        return {"logprobs": logprobs} | end

    def _token(self, token: Sampled) -> Json:
        assert token.logprob is not None
        others = [self._entry(other.token_id, other.logprob) for other in token.top_logprobs]
        return self._entry(token.token_id, token.logprob.logprob) | {"top_logprobs": others}

    def _entry(self, token_id: int, logprob: float) -> Json:
        spelled = self._tokenizer.token_bytes(token_id)
        return {"token": spelled.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(spelled)}


def _call(part: CallPart, *, whole: bool) -> Json:
    """A call of a message, or, in a stream, more of one: what does not change is told once."""
    if part.name is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    place = {} if whole else {"index": part.index}
    function = {"name": part.name, "arguments": part.arguments}
    return place | {"id": part.id, "type": "function", "function": function}


class CompletionForm:
    """/v1/completions. Remembers how far each choice's tokens have come.

    `top`: of an echoed prompt's tokens, how many of the likeliest are told. `echoes` are what the choices begin with;
    none: they begin with the model's text. `beside`: further fields of a choice of the plain answer.
    """

    plain = chunk = "text_completion"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        logprobs: bool,
        top: int = 0,
        skip_special_tokens: bool = True,
        echoes: Sequence[Echo] = (),
        beside: Callable[[int], Json] = lambda _: {},
    ) -> None:
        self._make_tokens = partial(CompletionTokens, tokenizer, top=top, skip_special_tokens=skip_special_tokens)
        self._echoes = echoes
        self._beside = beside
        self._tokens: dict[int, CompletionTokens] = {}
        self.verbatim = not logprobs

    def opening(self, index: int) -> Json | None:
        """Nothing comes before the text, unless it begins with the prompt. How likely that was is known no sooner than
        the first token: then both come together."""
        if not self._echoes or not self.verbatim:
            return None
        return self._choice(index, Delta(self._echoes[index].text), None)

    def whole(self, index: int, delta: Delta) -> Json:
        """A choice with its text."""
        if self._echoes and self.verbatim:
            delta = delta._replace(text=self._echoes[index].text + delta.text)
        return self.piece(index, delta) | self._beside(index)

    def piece(self, index: int, delta: Delta) -> Json:
        """A choice with what was added to its text."""
        if self.verbatim:
            return self._choice(index, delta, None)
        known = self._tokens.get(index)
        tokens = self._tokens[index] = known or self._make_tokens()
        if known is not None or not self._echoes:
            return self._choice(index, delta, tokens.answer(delta.tokens))
        echo = self._echoes[index]
        lists = joined(tokens.echo(echo), tokens.answer(delta.tokens))
        return self._choice(index, delta._replace(text=echo.text + delta.text), lists)

    @staticmethod
    def _choice(index: int, delta: Delta, logprobs: Json | None) -> Json:
        return {"index": index, "text": delta.text, "logprobs": logprobs} | _end(delta)


def _end(delta: Delta) -> Json:
    """Why a choice ended, with the stop string or id that did it as an extra, which clients may ignore."""
    reason = None if delta.finish_reason is None else delta.finish_reason.value
    return {"finish_reason": reason} | ({} if delta.stop_reason is None else {"stop_reason": delta.stop_reason})
