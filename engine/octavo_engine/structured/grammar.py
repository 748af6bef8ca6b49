"""From a form to a grammar that answers run through, with all that can be refused refused.

The grammar engine, llguidance (https://github.com/guidance-ai/llguidance), derives what it needs of a grammar as the
text goes on, and counts its work: each part has a limit, so that no form takes long to read or to go through.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from octavo_engine.errors import RequestError
from octavo_engine.request import Constraint
from octavo_engine.structured.matching import Blame, FormLost, Matching, limit_met, one_line, panics_as_errors
from octavo_engine.structured.spec import Kind, Spec
from octavo_engine.structured.thought import AfterThought, Thought, everything_but
from octavo_engine.structured.watching import Watched, Watches

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # reading the expressions of a form: about 20 ms
    step_lexer_fuel=200_000,  # of one token: about 15 ms, which the other requests of its step wait
    step_max_items=50_000,  # the same for rules: about 3 ms
    max_lexer_states=50_000,  # of one answer: one or two kilobytes each
    verbose_errors=False,  # they would carry the client's schema into the log
)
# Whitespace may stand where JSON allows it, but a model that has lost its way must not fill an answer with it: a line
# break with an indentation of ten levels is the most.
JSON_STYLE: JsonCompileOptions = {
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,42}",
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
}
REMEDIES = {
    Kind.JSON_OBJECT: "this is a fault of the server",
    Kind.JSON_SCHEMA: "leave out what cannot be enforced (anyOf may do for oneOf), and check the answer for it",
    Kind.REGEX: "write it without lookaround and back references, and with smaller repetitions",
    Kind.CHOICE: "give fewer or shorter choices",
    Kind.GRAMMAR: "write rules as Lark or GBNF has them, with one called start or root",
    Kind.PARTS: "leave out what cannot be enforced (anyOf may do for oneOf), or strict, and check the calls for it",
}
# And where the form can be enforced, but takes too much work.
SIMPLER = {
    Kind.JSON_OBJECT: "this is a fault of the server",
    Kind.JSON_SCHEMA: "use simpler patterns, smaller counts and fewer alternatives at one place",
    Kind.REGEX: "nest no repetitions in each other, and bound them lower or not at all",
    Kind.CHOICE: "give fewer or shorter choices",
    Kind.GRAMMAR: "let fewer rules begin at one place, and write words as one text or one expression each",
    Kind.PARTS: "use simpler patterns, smaller counts and fewer alternatives at one place, or leave out strict",
}
ANEW_SECONDS = 0.05  # nearly all forms are compiled in a tenth of it
DEAD_END = "NoExtension"  # so begins what is said where nothing can come


@dataclass(frozen=True, slots=True)
class Grammar:
    """A form that answers can be kept to. Shared by all that ask for it; safe from any thread."""

    prototype: LLMatcher  # at the beginning; copied, never moved
    end_ids: tuple[int, ...]
    spec: Spec  # as the first wrote it who asked for it
    tokenizer: LLTokenizer
    seconds: float  # of the processor, that it took to compile
    watches: Watches | None = None  # the answer is free but for the forms that it begins; None: it is the form
    worn: Event = field(default_factory=Event)  # set: what its copies share is used up, and another should be made

    def start(self, thought: Thought | None = None, *, param: str | None = None) -> Constraint:
        """What keeps one new answer to the form.

        thought: what it may begin with before that. param: the field, as the one who asks has named it.
        """
        blame = _blame(self.spec, param or self.spec.param)

        def begin() -> Matching:
            return Matching(self.prototype.deep_copy(), self.end_ids, blame, self._anew)

        form = begin() if self.watches is None else Watched(self.watches, begin)
        if thought is None:
            return form
        if self.watches is not None:  # a thought is as free as what comes after it, and may be all that comes
            return AfterThought(form, thought, self.watches.free)
        return AfterThought(form, thought, everything_but(self.tokenizer.vocab_size, self.end_ids))

    def starts(self, text: bytes) -> bool:
        """Whether some text of the form begins with this one."""
        tokens = self.tokenizer.tokenize_bytes(text)
        with panics_as_errors():
            return self.prototype.deep_copy().validate_tokens(tokens) == len(tokens)

    def _anew(self) -> LLMatcher | None:
        """For an answer that cannot go on with what the copies share. It is made within a step, so it must be quick."""
        self.worn.set()
        if self.seconds > ANEW_SECONDS:
            return None
        return LLMatcher(self.tokenizer, _source(self.spec), log_level=0, limits=LIMITS)


def compile_spec(spec: Spec, tokenizer: LLTokenizer, end_ids: Sequence[int]) -> Grammar:
    """The grammar of a form; raises RequestError that names the field, what is wrong and the remedy, and FormTooComplex
    where a limit is met.

    The first mask is made here as well: what it needs is kept in the copies, and a form that is too complex for one
    token, or allows nothing, is known before it is in a step.
    """
    began, source = time.thread_time(), _source(spec)
    try:
        with panics_as_errors():
            matcher = LLMatcher(tokenizer, source, log_level=0, limits=LIMITS)
            possible = matcher.is_error() or any(matcher.compute_bitmask())
    except FormLost as error:
        raise _refusal(spec, str(error)) from error
    if (met := limit_met(matcher)) is not None:
        raise _blame(spec, spec.param).of(met)
    if matcher.is_error() and not matcher.get_error().startswith(DEAD_END):
        raise _refusal(spec, matcher.get_error())
    if matcher.is_error() or not possible:
        raise _refusal(spec, "no text satisfies it")
    return Grammar(matcher, tuple(end_ids), spec, tokenizer, time.thread_time() - began)


def _blame(spec: Spec, param: str) -> Blame:
    return Blame(param, SIMPLER[spec.kind], "an answer" if spec.kind is not Kind.PARTS else "a call")


def _source(spec: Spec) -> str:
    """The form in the grammar engine's own notation."""
    try:
        return _CONVERTERS[spec.kind](spec.text)
    except Exception as error:  # the converter of GBNF gives up in many ways
        raise _refusal(spec, str(error)) from error


def _refusal(spec: Spec, reason: str) -> RequestError:
    message = f"{spec.param}: this form cannot be enforced: {one_line(reason)}; {REMEDIES[spec.kind]}"
    return RequestError(message, param=spec.param)


def _of_schema(text: str) -> str:
    return LLMatcher.grammar_from_json_schema(text, overrides=JSON_STYLE)


def _of_parts(text: str) -> str:
    rules, schemas = json.loads(text)
    parts = (f"{name}: %json {json.dumps(schema | {'x-guidance': JSON_STYLE})}" for name, schema in schemas.items())
    return LLMatcher.grammar_from_lark("\n".join([rules, *parts]))


def _of_expression(text: str) -> str:
    r"""With `\d` and `\w` in ASCII alone, as in the patterns of JSON schemas: a date has no Thai digits."""
    return LLMatcher.grammar_from_regex(regex_to_lark(text, "dw"))


def _of_choices(text: str) -> str:
    """As an expression in which only letters and digits stand for themselves as they are: nothing has a meaning."""
    return LLMatcher.grammar_from_regex("|".join(map(_literal, json.loads(text))))


def _literal(text: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)


_CONVERTERS: dict[Kind, Callable[[str], str]] = {
    Kind.JSON_OBJECT: lambda _: _of_schema('{"type":"object"}'),
    Kind.JSON_SCHEMA: _of_schema,
    Kind.REGEX: _of_expression,
    Kind.CHOICE: _of_choices,
    Kind.GRAMMAR: lambda text: LLMatcher.grammar_from_lark(any_to_lark(text)),
    Kind.PARTS: _of_parts,
}
