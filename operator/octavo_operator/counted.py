"""Numbers in sentences for people: `1 replica`, `2 replicas`."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """The number and the words that follow one of it, or any other number of it: by default with an `s`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def serving(number: int, of: int) -> str:
    """How many replicas serve: `1 of 2 replicas serves`, `0 of 1 replica serves`."""
    return f"{number} of {counted(of, 'replica')} {'serves' if 1 in (number, of) else 'serve'}"
