"""Parts of a file of pinned requirements, by the names of packages."""

from __future__ import annotations

import re
from collections.abc import Mapping

_BEGIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]*)==", re.MULTILINE)
_HEAD = "# Part of {source}, a layer of the image by itself: written by `make generate`.\n"


def parts(source: str, text: str, layers: Mapping[str, str]) -> dict[str, str]:
    """The text of each part: from `text`, which is that of `source`, the requirements whose names its pattern matches.

    Each requirement goes to the first that has a pattern for it; those that none matches are in no part. Raises
    ValueError for a pattern that matches none.
    """
    chosen: dict[str, list[str]] = {layer: [] for layer in layers}
    for name, lines in _requirements(text).items():
        layer = next((layer for layer, pattern in layers.items() if re.fullmatch(pattern, name)), None)
        if layer is not None:
            chosen[layer].append(lines)
    for layer, found in chosen.items():
        if not found:
            raise ValueError(f"{source} has no requirement like {layers[layer]}")
    return {layer: _HEAD.format(source=source) + "".join(found) for layer, found in chosen.items()}


def _requirements(text: str) -> dict[str, str]:
    """The lines of each requirement with its hashes, by its name, without comments."""
    starts = list(_BEGIN.finditer(text))
    ends = [*(start.start() for start in starts[1:]), len(text)]
    return {
        start["name"]: "".join(line for line in _lines(text[start.start() : end]))
        for start, end in zip(starts, ends, strict=True)
    }


def _lines(requirement: str) -> list[str]:
    return [line for line in requirement.splitlines(keepends=True) if not line.lstrip().startswith("#")]
