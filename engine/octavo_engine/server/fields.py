"""What all request bodies are made of: strictness, documented fields, fields that are refused by name, and how a wrong
field is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from octavo_engine.errors import RequestError

# What pydantic puts into the place of an error for the arms of a union: no client wrote that.
_TYPES = frozenset({"str", "int", "float"})
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning"})  # of a response's input


@dataclass(frozen=True, slots=True)
class Refused:
    """A documented field that is not supported: why, and the values that ask for nothing and so are let through."""

    why: str
    harmless: tuple[Any, ...] = (None,)

    def lets_through(self, value: Any) -> bool:
        """Whether a value asks for nothing. In Python false is 0, in JSON it is not."""
        return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in self.harmless)


class Body(BaseModel):
    """What all bodies share: no coercion, no unknown field, no number that is not finite."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True, protected_namespaces=()
    )
    unsupported: ClassVar[Mapping[str, Refused]] = {}


class Contradiction(ValueError):
    """A field that does not go with the others, which is known once all are: `param` is its name."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def asks(meaning: str, default: Any = None) -> Any:
    """A field that has an effect. `meaning` is its row in docs/API.md."""
    return Field(default, description=meaning)


def ignored(reason: str) -> Any:
    """A field that is taken and has no effect, by design."""
    return Field(None, description=reason, json_schema_extra={"ignored": True})


B = TypeVar("B", bound=Body)


def parse_body(schema: type[B], body: Mapping[str, Any]) -> B:
    """Check a body; raises RequestError naming the first wrong field."""
    known = schema.unsupported
    asked = [name for name, value in body.items() if name in known and not known[name].lets_through(value)]
    if asked:
        name = min(asked)
        message = f"{name} is not supported by this server: {known[name].why}"
        raise RequestError(message, param=name, code="unsupported_parameter")
    try:
        return schema.model_validate({name: value for name, value in body.items() if name not in known})
    except ValidationError as error:
        raise _request_error(error) from None


def _request_error(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_input=False)[0]
    param, message = _path(first["loc"]), first["msg"].removeprefix("Value error, ")
    if isinstance(cause := first.get("ctx", {}).get("error"), Contradiction):
        return RequestError(message, param=f"{param}.{cause.param}" if param else cause.param)
    if first["type"] == "extra_forbidden":
        return RequestError(f"{param[:128]} is not a known field", param=param, code="unknown_parameter")
    if first["type"].startswith("union_tag"):
        field, known = ("type", _ITEMS) if param.startswith("input") else ("role", _ROLES)
        param, message = f"{param}.{field}", "it must be one of " + ", ".join(sorted(known))
    return RequestError(f"{param[:128]}: {message}" if param else message, param=param or None)


def _path(location: tuple[int | str, ...]) -> str:
    """`('messages', 0, 'user', 'name')` as `messages[0].name`; arms of a union, which are no fields, are left out."""
    path, before = "", None
    for step in location:
        arm = step in _TYPES or (step in _ROLES | _ITEMS and isinstance(before, int))
        before = step
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and not arm:
            path += f".{step}" if path else step
        elif not path:
            path = step
    return path
