"""JSON schemas made at random from all keywords that can be enforced, nested and referring to each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
NAMES = ["name", "age", "tags", "address", "größe", "a b", 'q"uote', "back\\slash", "x", "y"]
PATTERNS = ["^[a-z]{2,5}$", "^(red|green|blue)$", r"^\d{3}-\d{4}$", "^x+y*$"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email"]
VALUES: list[Any] = [1, -2.5, "text", "日本", True, False, None, [1, "a"], {"k": "v"}]


class SchemaMaker:
    """Makes one schema for each seed, the same one each time."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def make(self) -> Schema:
        """An object at the top, as the API asks for, and definitions that parts of it may refer to."""
        schema = self._object(3)
        schema["$defs"] = {"leaf": self._leaf(), "tree": self._tree()}
        return schema

    def _any(self, depth: int) -> Schema:
        if depth == 0:
            return self._leaf()
        makers: list[Callable[[int], Schema]] = [self._object, self._list, self._tuple, self._one_of_types]
        if self._chance.random() < 0.2:
            return {"$ref": self._chance.choice(["#/$defs/leaf", "#/$defs/tree"])}
        return self._leaf() if self._chance.random() < 0.45 else self._chance.choice(makers)(depth - 1)

    def _leaf(self) -> Schema:
        makers = [self._text, self._integer, self._number, self._constant, lambda: {"type": "boolean"}]
        return self._chance.choice(makers)()

    def _text(self) -> Schema:
        few = self._chance.randrange(4)
        return self._chance.choice(
            [
                {"type": "string"},
                {"type": "string", "minLength": few, "maxLength": few + self._chance.randrange(6)},
                {"type": "string", "pattern": self._chance.choice(PATTERNS)},
                {"type": "string", "format": self._chance.choice(FORMATS)},
                {"enum": self._chance.sample(NAMES, 3)},
            ]
        )

    def _integer(self) -> Schema:
        low = self._chance.randrange(-200, 200)
        return self._chance.choice(
            [
                {"type": "integer"},
                {"type": "integer", "minimum": low, "maximum": low + self._chance.randrange(300)},
                {"type": "integer", "exclusiveMinimum": low},
                {"type": "integer", "multipleOf": self._chance.choice([2, 5, 10]), "minimum": 0},
            ]
        )

    def _number(self) -> Schema:
        low = self._chance.randrange(-20, 20)
        return self._chance.choice(
            [{"type": "number"}, {"type": "number", "minimum": low, "exclusiveMaximum": low + 0.75}]
        )

    def _constant(self) -> Schema:
        if self._chance.random() < 0.5:
            return {"const": self._chance.choice(VALUES)}
        return {"enum": self._chance.sample(VALUES, 3)}

    def _object(self, depth: int) -> Schema:
        names = self._chance.sample(NAMES, self._chance.randrange(1, 5))
        return {
            "type": "object",
            "properties": {name: self._any(depth) for name in names},
            "required": [name for name in names if self._chance.random() < 0.7],
            "additionalProperties": self._chance.choice([False, False, True, {"type": "integer"}]),
        }

    def _list(self, depth: int) -> Schema:
        few = self._chance.randrange(3)
        schema: Schema = {"type": "array", "items": self._any(depth)}
        return schema | ({"minItems": few, "maxItems": few + 2} if self._chance.random() < 0.5 else {})

    def _tuple(self, depth: int) -> Schema:
        items = [self._any(depth), self._any(depth)]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": 2}

    def _one_of_types(self, depth: int) -> Schema:
        return {"anyOf": [self._any(depth), self._leaf(), {"type": "null"}]}

    def _tree(self) -> Schema:
        """A definition that refers to itself."""
        children = {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}
        return {
            "type": "object",
            "properties": {"value": self._leaf(), "children": children},
            "required": ["value"],
            "additionalProperties": False,
        }
