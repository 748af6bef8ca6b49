"""Lines that a thread of its own writes: who has one to write puts it into a bounded queue, and never waits.

When the thread cannot keep up, lines are left out and counted. Knows nothing of what the lines say.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TextIO, TypeVar

T = TypeVar("T")

LINES_WAITING = 8192
CLOSE_SECONDS = 2.0  # for what still waits when the process ends: a reader that does not read must not hold it up
_writing = threading.Lock()  # two kinds of lines may go to one output, and a line is whole


class Lines(Generic[T]):
    """Writes `line(item)` to `out` for each item that was `put`, in order, and in the place of those that found no room
    one line `line(left_out(how_many))`.

    waiting: the most items that wait for the thread. An output that takes nothing more ends the writing and nothing
    else.
    """

    def __init__(
        self, out: TextIO, line: Callable[[T], str], left_out: Callable[[int], T], *, waiting: int = LINES_WAITING
    ) -> None:
        self._out = out
        self._line = line
        self._left_out = left_out
        self._waiting: queue.Queue[T | None] = queue.Queue(waiting)  # None: nothing comes after it
        self._num_left_out = 0
        self._writer = threading.Thread(target=self._write_on, name="octavo-lines", daemon=True)
        self._writer.start()

    def put(self, item: T) -> None:
        """Have a line written, from any thread; takes a microsecond or two."""
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._num_left_out += 1

    def close(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Have what waits written, for at most so long; False if the writer is not done then. Nothing is put later."""
        if self._writer.is_alive():
            with suppress(queue.Full):
                self._waiting.put(None, timeout=seconds)
            self._writer.join(seconds)
        return not self._writer.is_alive()

    def _write_on(self) -> None:
        last = False
        while not last:
            items = [self._waiting.get(), *self._rest()]
            last = None in items
            told = [item for item in items if item is not None]
            left_out, self._num_left_out = self._num_left_out, 0
            if left_out:
                told.append(self._left_out(left_out))
            try:
                with _writing:
                    self._out.write("".join(map(self._line, told)))
                    self._out.flush()
            except (OSError, ValueError):  # nobody reads any more
                return

    def _rest(self) -> Iterator[T | None]:
        for _ in range(LINES_WAITING):
            try:
                yield self._waiting.get_nowait()
            except queue.Empty:
                return
