"""Schemas to tables: every field of the generating routes, whether it works, and what it does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from octavo_engine.server.embeddings import EmbeddingBody
from octavo_engine.server.fields import Body, Refused
from octavo_engine.server.responses import ResponsesBody
from octavo_engine.server.schemas import MAX_TOKENS, ChatBody, CompletionBody

YES, IGNORED, REFUSED, UNKNOWN = "yes", "ignored", "400", ""

# Words for a type, and the name of its bound.
_MOST = {"string": ("text", "maxLength"), "array": ("list", "maxItems")}

Schema = Mapping[str, Any]
Route = tuple[str, type[Body]]  # the title of its column, and what its bodies are checked with


@dataclass(frozen=True)
class Table:
    """The fields of some routes, and the name under which they stand in the document."""

    name: str
    routes: tuple[Route, ...]

    @property
    def begin(self) -> str:
        """The mark above it."""
        return f"<!-- {self.name}: generated from the schemas by `make generate` -->"

    @property
    def end(self) -> str:
        """The mark below it."""
        return f"<!-- end of {self.name} -->"

    def lines(self) -> list[str]:
        """The table as text."""
        columns = ["field", *(title for title, _ in self.routes), "values", "meaning"]
        head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        return [*head, *map(str, rows([schema for _, schema in self.routes]))]


TABLES = (
    Table("fields", (("chat", ChatBody), ("completions", CompletionBody))),
    Table("fields of responses", (("responses", ResponsesBody),)),
    Table("fields of embeddings", (("embeddings", EmbeddingBody),)),
)


@dataclass(frozen=True)
class Row:
    """One field: what each route does with it, which values it takes, and what it means or why it does not work."""

    name: str
    statuses: tuple[str, ...]
    values: str
    meaning: str

    def __str__(self) -> str:
        return f"| `{self.name}` | {' | '.join(self.statuses)} | {self.values} | {self.meaning} |"


def rows(schemas: list[type[Body]]) -> list[Row]:
    """Those that work, then those that are ignored, then those that are refused; each in the schemas' order."""
    names = dict.fromkeys(name for schema in schemas for name in (*schema.model_fields, *schema.unsupported))
    made = [_row(name, schemas) for name in names]
    order = (YES, IGNORED, REFUSED)
    return sorted(made, key=lambda row: min(order.index(status) for status in row.statuses if status))


def _row(name: str, schemas: list[type[Body]]) -> Row:
    """A field that several routes have is described as the first one has it."""
    statuses = tuple(status_of(schema, name) for schema in schemas)
    working = [_field(schema, name) for schema in schemas if name in schema.model_fields]
    if working:
        values = " / ".join(dict.fromkeys(map(values_of, working)))
        return Row(name, statuses, values, working[0].get("description", ""))
    refused = next(schema.unsupported[name] for schema in schemas if name in schema.unsupported)
    return Row(name, statuses, _let_through(refused), refused.why)


def _field(schema: type[Body], name: str) -> Schema:
    found: Schema = _described(schema)["properties"][name]
    return found


@cache
def _described(schema: type[Body]) -> dict[str, Any]:
    return schema.model_json_schema(by_alias=False)


def status_of(schema: type[Body], name: str) -> str:
    """What a route does with a field."""
    if name in schema.unsupported:
        return REFUSED
    if name not in schema.model_fields:
        return UNKNOWN
    extra = schema.model_fields[name].json_schema_extra
    return IGNORED if isinstance(extra, dict) and extra.get("ignored") else YES


def _let_through(refused: Refused) -> str:
    return "only " + " or ".join(f"`{json.dumps(value)}`" for value in refused.harmless)


def values_of(field: Schema) -> str:
    """The values of a field, in words, with its default in brackets if that says something."""
    arms = [arm for arm in field.get("anyOf", [field]) if arm.get("type") != "null"]
    words = " or ".join(dict.fromkeys(filter(None, map(_words, arms))))
    default = field.get("default")
    told = default is not None and default != []
    return f"{words} ({json.dumps(default)})" if told else words


def _words(arm: Schema) -> str:
    if "enum" in arm:
        return ", ".join(f"`{value}`" for value in arm["enum"])
    kind = "object" if "$ref" in arm else arm.get("type", "")
    if kind in ("integer", "number"):
        return " and ".join(_bounds(arm)) or str(kind)
    if kind in _MOST:
        word, most = _MOST[kind]
        return f"{word}, up to {arm[most]}" if most in arm else word
    return "true or false" if kind == "boolean" else str(kind)


def _bounds(arm: Schema) -> Iterator[str]:
    least, over, most = arm.get("minimum"), arm.get("exclusiveMinimum"), arm.get("maximum")
    end = most is not None and most < MAX_TOKENS  # more than that is no bound that anybody meets
    if least is not None and end:
        yield f"{least:g} to {most:g}"
    elif over is not None and end:
        yield f"over {over:g}, up to {most:g}"
    elif least is not None and least > -MAX_TOKENS:
        yield f"at least {least:g}"


def with_tables(document: str) -> str:
    """The document with the tables of today between their marks. Raises ValueError without marks."""
    for table in TABLES:
        before, begin, rest = document.partition(table.begin)
        _, end, after = rest.partition(table.end)
        if not (begin and end):
            raise ValueError(f"the document lacks {table.begin} or {table.end}")
        document = "\n".join([before + begin, *table.lines(), end + after])
    return document
