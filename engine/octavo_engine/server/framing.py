"""How much a head may hold, where its lines end, and in how many pieces a body may come.

Each piece of a chunked body costs as much to read as a large one: a body in crumbs would keep the event loop for
seconds. And a line ends with CR LF and nothing else: where one server takes a bare LF for an end and the one before it
does not, they disagree on where a request ends, and somebody's next request is what the other took for this one's.
"""

from __future__ import annotations

import h11
from h11._receivebuffer import ReceiveBuffer

MAX_HEAD_BYTES = 32 * 1024
FEW_PIECES = 1024  # nobody counts these
LEAST_BYTES = 128  # of a piece beyond them, on average: 4 MiB then take less than a second of processor time

_END = b"\r\n"


class StrictBuffer(ReceiveBuffer):
    """h11's, whose lines end with CR LF only (RFC 9112, 2.2): it takes a bare LF for an end, too, and lets a bare CR
    stand in what follows a chunk's size. Nor are headers folded over lines (5.2), which not all servers unfold.

    Each byte is looked at once, however slowly a head comes, and none beyond its end: a body may hold anything.
    """

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """The lines of a head or of trailers without their ends; None: they are not all here.

        Raises RemoteProtocolError as soon as one has another end, and for one that is folded.
        """
        data, start = self._data, self._multiple_lines_search
        if data.startswith(_END):
            self._extract(len(_END))
            return []
        last = data.find(_END + _END, max(0, start - 3))
        stop = len(data) - data.endswith(b"\r") if last < 0 else last + 4
        if not _are_paired(data, start, stop):
            raise h11.RemoteProtocolError("a line of a head ends with neither CR nor LF alone")
        if last < 0:
            self._multiple_lines_search = stop  # never between a CR and its LF
            return None
        head = self._extract(stop)[:-4]
        if b"\n " in head or b"\n\t" in head:
            raise h11.RemoteProtocolError("a line of a head begins with a space: nobody folds headers any more")
        return head.split(_END)

    def maybe_extract_next_line(self) -> bytearray | None:
        """The line with a chunk's size and its end; None: it is not all here. Raises RemoteProtocolError."""
        last = self._data.find(b"\n", self._next_line_search)
        if last < 0:
            self._next_line_search = len(self._data)
            return None
        line = self._extract(last + 1)
        if not _are_paired(line, 0, len(line)):
            raise h11.RemoteProtocolError("the line of a chunk's size ends with neither CR nor LF alone")
        return line


def _are_paired(data: bytearray, start: int, stop: int) -> bool:
    """Whether each CR of a part is followed by LF, and each LF preceded by CR."""
    pairs = data.count(_END, start, stop)
    return data.count(b"\n", start, stop) == pairs == data.count(b"\r", start, stop)


class FrugalConnection(h11.Connection):
    """h11's, which refuses other line ends, and a body of too many pieces, as it refuses what is not HTTP."""

    _pieces = 0
    _bytes = 0

    def __init__(self, our_role: type[h11.CLIENT] | type[h11.SERVER], max_incomplete_event_size: int) -> None:
        super().__init__(our_role, max_incomplete_event_size)
        self._receive_buffer = StrictBuffer()

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event; raises RemoteProtocolError."""
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._count(event)
        elif isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
        return event

    def _count(self, data: h11.Data) -> None:
        self._pieces += data.chunk_start
        self._bytes += len(data.data)
        whole = self._pieces - 1  # the last one may not have come to its end
        if whole > FEW_PIECES and self._bytes < whole * LEAST_BYTES:
            raise h11.RemoteProtocolError("a body in too many pieces")
