"""What a model reads while it is quantized: from a file's text to token ids. Pure but for reading the file.

The text decides which weights count: an input that it never moves may lose all it has. So it should look like what the
model will be asked, in content and in form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeVar

from octavo_engine.errors import InvalidConfiguration

T = TypeVar("T")
Encode = Callable[[str], Sequence[int]]

OWN = "samples.txt"  # written for this package
MAX_BYTES = 32 << 20  # some million tokens: a hundred times what is used
SHORTEST = 16  # tokens: the library drops what is shorter than 10, and little is learnt from it
FEW = 32_768  # tokens below which it is said that more are better


@dataclass(frozen=True, slots=True)
class Calibration:
    """The samples, as token ids."""

    samples: tuple[tuple[int, ...], ...]
    there: int  # samples there were, of which these were chosen

    @property
    def tokens(self) -> int:
        """Of all samples."""
        return sum(map(len, self.samples))

    def __str__(self) -> str:
        return f"{len(self.samples)} of {self.there} samples, {self.tokens:,} tokens"


def read_texts(file: str | None) -> list[str]:
    """The samples of a file, None: of our own; raises InvalidConfiguration naming the line that is wrong."""
    if file is None:
        return paragraphs(resources.files(__package__).joinpath(OWN).read_text("utf-8"))
    place = Path(file)
    try:
        if place.stat().st_size > MAX_BYTES:
            raise InvalidConfiguration(f"--calibration: {file} is larger than {MAX_BYTES >> 20} MiB; a part will do")
        text = place.read_text("utf-8")
    except OSError as error:
        raise InvalidConfiguration(f"--calibration: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfiguration(f"--calibration: {file} is no text in UTF-8") from None
    return list(json_lines(text)) if place.suffix == ".jsonl" else paragraphs(text)


def paragraphs(text: str) -> list[str]:
    """What stands between blank lines."""
    return [part for part in map(str.strip, re.split(r"\n[^\S\n]*\n", text.replace("\r\n", "\n"))) if part]


def json_lines(text: str) -> Iterator[str]:
    """The field `text` of each line's object; raises InvalidConfiguration naming the line."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidConfiguration(f"--calibration: line {number} is no JSON") from None
        found = sample.get("text") if isinstance(sample, dict) else None
        if not isinstance(found, str):
            raise InvalidConfiguration(f'--calibration: line {number} is no object with a string "text"')
        yield found


def calibration_of(texts: Sequence[str], encode: Encode, *, count: int, longest: int) -> Calibration:
    """At most `count` samples of at most `longest` tokens each; raises InvalidConfiguration where there is none."""
    encoded = [tuple(encode(text)[:longest]) for text in texts]
    usable = [sample for sample in encoded if len(sample) >= min(SHORTEST, longest)]
    if not usable:
        raise InvalidConfiguration(
            f"--calibration has no sample of {SHORTEST} tokens or more: give paragraphs, with blank lines between them"
        )
    return Calibration(tuple(spread(usable, count)), len(usable))


def spread(items: Sequence[T], count: int) -> list[T]:
    """`count` of them at equal distances, or all: a file's beginning may be about one thing alone."""
    if count >= len(items):
        return list(items)
    return [items[place * len(items) // count] for place in range(count)]
