"""Numbers in sentences for people: `1 request waits`, `1,200 requests wait`."""

from __future__ import annotations


def counted(number: float, one: str, many: str | None = None) -> str:
    """The number, rounded, and the words that follow one of it, or any other number of it: by default with an `s`.

    What is said, and not what was counted, decides: 1.3 on average is told as 1.
    """
    told = f"{number:,.0f}"
    return f"{told} {one if told == '1' else many or f'{one}s'}"
