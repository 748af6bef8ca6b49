"""How much a head may hold, and in how many pieces a body may come.

Each piece of a chunked body costs as much to read as a large one: a body in crumbs would keep the event loop for
seconds.
"""

from __future__ import annotations

import h11

MAX_HEAD_BYTES = 32 * 1024
FEW_PIECES = 1024  # nobody counts these
LEAST_BYTES = 128  # of a piece beyond them, on average: 4 MiB then take less than a second of processor time


class FrugalConnection(h11.Connection):
    """h11's, which refuses a body of too many pieces as it refuses what is not HTTP."""

    _pieces = 0
    _bytes = 0

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
