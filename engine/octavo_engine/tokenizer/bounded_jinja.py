"""A Jinja sandbox that ends: each turn of a loop and each call costs something of a budget of time, and no operator
makes a value that fills the memory.

The library's own sandbox keeps a template from Python's internals, but not from running for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

LOOK_EVERY = 64  # turns between two looks at the clock, which costs as much as some turns do
MAX_LENGTH = 32 * 1024 * 1024  # characters or items of one value
MAX_BITS = 4096  # of one number
# Of our filters and of the variable with the budget. No template can name them: names have no spaces.
_WATCH, _MEASURE = " watch", " measure"


class TookTooLong(Exception):
    """The budget is spent."""


class Budget:
    """Processor time of this thread that one rendering may take; a busy machine does not shorten it."""

    NAME = " budget"

    def __init__(self, seconds: float, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._turns = 0

    def spend(self) -> None:
        """One more turn. Raises TookTooLong."""
        self._turns += 1
        if self._turns % LOOK_EVERY == 0 and self._clock() > self._end:
            raise TookTooLong


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Renders only templates that get a Budget as the variable `Budget.NAME`."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters[_WATCH] = _watch
        self.filters[_MEASURE] = _measure

    def from_string(self, source: str | nodes.Template, *args: Any, **options: Any) -> Template:
        """Compile a template whose loops and sums are watched."""
        tree = self.parse(source) if isinstance(source, str) else source
        watched = _Watches().visit(tree)
        watched.set_environment(self)
        return super().from_string(watched, *args, **options)

    def names_read(self, source: str) -> frozenset[str]:
        """Every name that a template reads, its own among them."""
        return frozenset(name.name for name in self.parse(source).find_all(nodes.Name) if name.ctx == "load")

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (the base's names)
        """Call something, at the cost of a turn: macros can call themselves."""
        __context[Budget.NAME].spend()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiply, unless the product would be too large to look at it first."""
        if _is_too_large(operator, left, right):
            raise SecurityError("the product is too large")
        return super().call_binop(context, operator, left, right)


class _Watches(NodeTransformer):
    """Puts our filters into a template: around what loops go over, and around sums."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (the base finds methods by the nodes' names)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _WATCH)
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _MEASURE)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _MEASURE)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Watched:
    """What a loop goes over. Has a length only if that has one, as Jinja's `loop.length` expects."""

    def __init__(self, items: Iterable[Any], budget: Budget) -> None:
        self._items = items
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.spend()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # a TypeError is what the caller expects then


@pass_context
def _watch(context: Context, items: Iterable[Any]) -> _Watched:
    return _Watched(items, context[Budget.NAME])


def _measure(value: Any) -> Any:
    """A sum can be twice as large as the largest before, and was made: the next one is not."""
    if hasattr(value, "__len__") and len(value) > MAX_LENGTH:
        raise SecurityError("a value is too large")
    return value


def _is_too_large(operator: str, left: Any, right: Any) -> bool:
    """Whether a product would be."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        return bits > MAX_BITS
    for items, times in ((left, right), (right, left)):
        if isinstance(times, int) and hasattr(items, "__len__"):
            return len(items) * times > MAX_LENGTH
    return False
