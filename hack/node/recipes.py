"""A Dockerfile as the builder sees it: in parts that begin with FROM or COPY, and which of them are made anew.

Pure, and as careful as the builder: a part is as it was only when all before it are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise

# While a layer is made, its files are there in the container, packed twice on the way into the store, and in the store.
_TIMES_AT_ONCE = 4
_BEGIN = re.compile(r"^(?:FROM \S+(?: AS (?P<target>\S+))?$|COPY (?P<source>\S+) )", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """A few lines of a Dockerfile, but comments: of which stage (`target`, "" for one without a name) they are.

    `source` is what they copy from the checkout, "" for nothing.
    """

    target: str
    source: str
    text: str

    @property
    def is_empty(self) -> bool:
        """Whether they only begin a stage and add no file."""
        return not self.source and "\nRUN " not in self.text


def parts(dockerfile: str) -> list[Part]:
    """A Dockerfile in its parts."""
    lines = "".join(line for line in dockerfile.splitlines(keepends=True) if not line.startswith("#"))
    starts = [found.start() for found in _BEGIN.finditer(lines)]
    target, made = "", []
    for start, end in pairwise([0, *starts[1:], len(lines)]):
        found = _BEGIN.match(lines, start) or _BEGIN.search(lines, start)
        assert found is not None, "a Dockerfile begins with FROM, but for arguments"
        source = found["source"] or ""
        target = target if source else found["target"] or ""
        made.append(Part(target, source, lines[start:end]))
    return made


def targets(recipe: Sequence[Part], keys: Sequence[str], there: Collection[str]) -> list[str]:
    """The named stages that a build would make anew, in order.

    Each is to be built by itself: the builder keeps the container of each layer until the whole of a build has ended.
    """
    anew = (part for part, key in zip(recipe, keys, strict=True) if key not in there and not part.is_empty)
    return [name for name in dict.fromkeys(part.target for part in anew) if name]


def keys(recipe: Iterable[Part], content: Callable[[str], bytes]) -> list[str]:
    """What each part is told by: its text, what it copies (`content` of a source), and all before it."""
    digest = hashlib.sha256()
    found = []
    for part in recipe:
        digest.update(part.text.encode())
        digest.update(content(part.source) if part.source else b"")
        found.append(digest.hexdigest()[:16])
    return found


def height(sizes: Sequence[tuple[str, int]], there: Collection[str]) -> int:
    """The most bytes that a build takes beyond what there is, `sizes` being the parts' keys and bytes in order."""
    done = top = 0
    for _, size in dropwhile(lambda item: item[0] in there, sizes):
        top = max(top, done + _TIMES_AT_ONCE * size)
        done += size
    return top
