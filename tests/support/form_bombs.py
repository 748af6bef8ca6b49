"""Forms that are made to do harm: to who reads them, to who follows them, or to nobody, though they look like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo_engine.structured import Spec, spec


def deep(levels: int, opening: str, closing: str) -> str:
    return opening * levels + "a" + closing * levels


def chain(links: int, link: Any) -> dict[str, Any]:
    """Definitions of which each refers to the next, and the last to the first."""
    names = [f"d{number}" for number in range(links)]
    definitions = {
        name: link(f"#/$defs/{following}") for name, following in zip(names, [*names[1:], "d0"], strict=True)
    }
    return {"$ref": "#/$defs/d0", "$defs": definitions}


BOMBS: dict[str, Callable[[], Spec]] = {
    "references in a circle": lambda: spec.json_schema(chain(1500, lambda name: {"$ref": name}), "p"),
    "objects in a circle": lambda: spec.json_schema(
        chain(500, lambda name: {"type": "object", "properties": {"a": {"$ref": name}}, "required": ["a"]}), "p"
    ),
    "all of a circle": lambda: spec.json_schema(
        chain(300, lambda name: {"allOf": [{"$ref": name}, {"type": "object"}]}), "p"
    ),
    "a definition that doubles": lambda: spec.json_schema(doubling(24), "p"),
    "a million choices": lambda: spec.json_schema({"enum": list(range(1_000_000))}, "p"),
    "as many choices as fit": lambda: spec.json_schema({"enum": [f"{number:x}" for number in range(9000)]}, "p"),
    "a billion times": lambda: spec.regex("(a|b){1,1000000000}", "p"),
    "a billion items": lambda: spec.json_schema({"type": "array", "minItems": 10**9}, "p"),
    "a long string at least": lambda: spec.json_schema({"type": "string", "minLength": 10**9}, "p"),
    "nested quantifiers": lambda: spec.regex("(((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}", "p"),
    "stars of stars": lambda: spec.regex(deep(2000, "(", ")*"), "p"),
    "a backtracker's horror": lambda: spec.regex("(a+)+(a|a)*(a?){99}a{99}b", "p"),
    "an unclosed class": lambda: spec.regex("[a-", "p"),
    "a pattern in a schema that is none": lambda: spec.json_schema({"type": "string", "pattern": "(("}, "p"),
    "deep brackets": lambda: spec.regex(deep(30_000, "(", ")"), "p"),
    "deep rules": lambda: spec.grammar("start: " + deep(30_000, "(", ")").replace("a", '"a"'), "p"),
    "deep rules in the other notation": lambda: spec.grammar(
        "root ::= " + deep(30_000, "(", ")").replace("a", '"a"'), "p"
    ),
    "rules that call themselves": lambda: spec.grammar("start: start start | start", "p"),
    "rules of each other": lambda: spec.grammar(
        "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(999)) + '\nr999: "a"', "p"
    ),
    "a number of many digits": lambda: spec.json_schema({"type": "number", "multipleOf": 1e-9, "maximum": 1e300}, "p"),
    "unions of unions": lambda: spec.json_schema(
        {"anyOf": [{"anyOf": [{"const": f"{one}{two}"} for one in range(40)]} for two in range(60)]}, "p"
    ),
}


def doubling(levels: int) -> dict[str, Any]:
    """Each definition has the next twice: as a tree it has 2 ** levels leaves."""
    definitions: dict[str, Any] = {f"d{levels}": {"type": "integer"}}
    for number in range(levels):
        both = {"$ref": f"#/$defs/d{number + 1}"}
        definitions[f"d{number}"] = {"type": "array", "prefixItems": [both, both], "minItems": 2, "maxItems": 2}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


# They can be read, but no answer gets far: each token needs more work than the one before.
NOWHERE = {
    "expressions in expressions": spec.regex("((([a-z]{1,99}){1,99}){1,99}){1,99}", "guided_regex"),
    "rules of twice as many": spec.grammar(
        "start: r0\n" + "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(999)) + '\nr999: "a"', "guided_grammar"
    ),
}
