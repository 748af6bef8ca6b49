"""The forms that were asked for last, bounded in number and in what they take of the memory."""

from __future__ import annotations

import threading
from collections import OrderedDict

from octavo_engine.structured.grammar import Grammar
from octavo_engine.structured.spec import Spec

MAX_BYTES = 64 << 20
# Measured of what compiled forms take (benchmarks/structured.py --memory): a little for the smallest, and more the
# longer they are.
BYTES_EACH, BYTES_PER_CHARACTER = 112 << 10, 128


class Kept:
    """Grammars by their forms, the latest asked for. Safe from any thread."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self.bytes = 0  # about what they take
        self._grammars: OrderedDict[Spec, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._grammars)

    def find(self, spec: Spec) -> Grammar | None:
        """The grammar of a form that was put here, unless others have taken its place or it is worn."""
        with self._lock:
            if (grammar := self._grammars.get(spec)) is None:
                return None
            if grammar.worn.is_set():
                del self._grammars[spec]
                self.bytes -= _size(spec)
                return None
            self._grammars.move_to_end(spec)
            return grammar

    def put(self, spec: Spec, grammar: Grammar) -> None:
        """Keep it, in the place of those that were asked for least lately."""
        with self._lock:
            if spec not in self._grammars:
                self.bytes += _size(spec)
            self._grammars[spec] = grammar
            self._grammars.move_to_end(spec)
            while self.bytes > self._max_bytes and self._grammars:
                oldest, _ = self._grammars.popitem(last=False)
                self.bytes -= _size(oldest)


def _size(spec: Spec) -> int:
    """About what its grammar takes, in bytes."""
    return BYTES_EACH + BYTES_PER_CHARACTER * len(spec.text)
