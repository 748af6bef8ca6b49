"""The fields that ask for an answer of a given form, OpenAI's and vLLM's, and how requests are held to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, model_validator

from octavo_engine.errors import RequestError
from octavo_engine.request import Request
from octavo_engine.server.fields import Body
from octavo_engine.server.tools.thinking import CLOSE, OPEN
from octavo_engine.structured import Forms, Spec, Thought, spec, thought_between
from octavo_engine.structured.vocabulary import Tokens

Schema = dict[str, Any] | str  # itself, or as text
Options = Annotated[list[str], Field(min_length=1, max_length=spec.MAX_CHOICES, fail_fast=True)]
FormName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
FormDescription = Annotated[str, Field(max_length=4096)]


class JsonSchemaFormat(Body):
    """A schema under a name. It is enforced whether `strict` or not."""

    name: FormName
    description: FormDescription | None = None
    form: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's way."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _whole(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to the type json_schema, and to no other")
        return self

    def specs(self, param: str) -> Iterator[Spec]:
        """What it asks for: nothing, or one form. Without a schema, any object will do."""
        if self.json_schema is not None and self.json_schema.form is not None:
            yield spec.json_schema(self.json_schema.form, f"{param}.json_schema.schema")
        elif self.type != "text":
            yield spec.json_object(param)


class StructuredOutputs(Body):
    """vLLM's way: one of these."""

    json_form: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Options | None = None
    grammar: str | None = None

    def specs(self, param: str) -> Iterator[Spec]:
        """What it asks for: as many forms as fields are there; raises RequestError where none is."""
        given = {"json": self.json_form, "regex": self.regex, "choice": self.choice, "grammar": self.grammar}
        if not self.json_object and all(value is None for value in given.values()):
            message = f"{param}: name the form as json, json_object, regex, choice or grammar"
            raise RequestError(message, param=param)
        if self.json_object:
            yield spec.json_object(f"{param}.json_object")
        yield from specs_of(given, f"{param}.")


class FormFields(Protocol):
    """The fields of a body, all optional. `guided_*` are vLLM's older names of those in `structured_outputs`."""

    response_format: ResponseFormat | None
    structured_outputs: StructuredOutputs | None
    guided_json: Schema | None
    guided_regex: str | None
    guided_choice: Options | None
    guided_grammar: str | None
    ignore_eos: bool


def spec_of(body: FormFields) -> Spec | None:
    """The form that a body asks for, if it does; raises RequestError for two, or one that contradicts the rest."""
    asked = list(_asked(body))
    if not asked:
        return None
    if len(asked) > 1:
        names = " and ".join(form.param for form in asked[:2])
        raise RequestError(f"{names}: an answer has one form; send one of them", param=asked[1].param)
    if body.ignore_eos:
        message = f"ignore_eos: an answer ends where its form is complete; leave out this or {asked[0].param}"
        raise RequestError(message, param="ignore_eos")
    return asked[0]


def check_calls(form: Spec | None, *, calls: bool) -> None:
    """Raise RequestError for a form beside tools that may be called: a call has a form of its own."""
    if form is not None and calls:
        message = f"{form.param}: an answer of a given form calls no tools; send tool_choice: none, or no form"
        raise RequestError(message, param=form.param)


def thought_before(form: Spec | None, tokenizer: Tokens, *, thinking: bool | None) -> Thought | None:
    """The thought that an answer may begin with, after which its form begins.

    thinking: whether the answer begins as a thought; None: the model does not think aloud. Raises RequestError where it
    does, and its end cannot be told.
    """
    if form is None or thinking is None:
        return None
    thought = thought_between(tokenizer, OPEN, CLOSE, begun=thinking)
    if thinking and thought is None:
        message = (
            f"{form.param}: the prompt ends in a thought, and the model has no token that ends it; tell the chat"
            " template not to think (chat_template_kwargs), or ask for no form"
        )
        raise RequestError(message, param=form.param)
    return thought


async def hold_to_form(
    form: Spec | None, requests: Sequence[Request], forms: Forms, thought: Thought | None = None
) -> None:
    """Give each request what keeps its answer to the form; raises what `Forms.grammar` does."""
    if form is None:
        return
    grammar = await forms.grammar(form)
    for request in requests:
        request.constraint = grammar.start(thought, param=form.param)


def _asked(body: FormFields) -> Iterator[Spec]:
    if body.response_format is not None:
        yield from body.response_format.specs("response_format")
    if body.structured_outputs is not None:
        yield from body.structured_outputs.specs("structured_outputs")
    older = {name: getattr(body, f"guided_{name}") for name in _MAKERS}
    yield from specs_of(older, "guided_")


def specs_of(given: Mapping[str, Any], prefix: str) -> Iterator[Spec]:
    """The forms of fields named json, regex, choice and grammar, whose names the client wrote with `prefix`."""
    for name, value in given.items():
        if value is not None:
            yield _MAKERS[name](value, prefix + name)


_MAKERS: dict[str, Callable[[Any, str], Spec]] = {
    "json": spec.json_schema,
    "regex": spec.regex,
    "choice": spec.choice,
    "grammar": spec.grammar,
}
