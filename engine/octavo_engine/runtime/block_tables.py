"""The block tables of the requests in a step, as one array that is kept from step to step.

A request gets a new block once in `block_size` tokens: what a step has to copy is that one number, not the request's
whole past. Rows belong to the requests of the latest batch; who was not in it begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo_engine.request import Request

FIRST_ROWS, FIRST_WIDTH = 8, 16


class BlockTables:
    """Rows of block numbers, padded with 0. `Request.blocks_copied` says how much of a row still holds."""

    def __init__(self) -> None:
        self._array = np.zeros((FIRST_ROWS, FIRST_WIDTH), np.int32)
        self._rows: dict[Request, int] = {}
        self._free = list(range(FIRST_ROWS))

    def gather(self, requests: Sequence[Request], width: int) -> npt.NDArray[np.int32]:
        """The tables of a batch's requests, `[requests, width]`. `width` is the most blocks that one of them has."""
        rows, known = [], self._rows
        for request in requests:
            row = known.get(request)
            if row is None:
                row = self._assign(request)
            if request.blocks_copied < len(request.blocks):
                self._copy(request, row)
            rows.append(row)
        if len(known) > len(rows):
            self._forget_all_but(requests)
        return self._array[rows, :width]

    def _assign(self, request: Request) -> int:
        if not self._free:
            height = len(self._array)
            self._array = np.pad(self._array, ((0, height), (0, 0)))
            self._free = list(range(height, 2 * height))
        self._rows[request] = row = self._free.pop()
        request.blocks_copied = 0
        return row

    def _copy(self, request: Request, row: int) -> None:
        """Bring a row up to date from the first block that has changed."""
        first, last = request.blocks_copied, len(request.blocks)
        if last > self._array.shape[1]:
            self._array = np.pad(self._array, ((0, 0), (0, max(last, 2 * self._array.shape[1]) - self._array.shape[1])))
        self._array[row, first:last] = request.blocks[first:last]
        self._array[row, last:] = 0
        request.blocks_copied = last

    def _forget_all_but(self, requests: Sequence[Request]) -> None:
        kept = {request: self._rows[request] for request in requests}
        self._free += set(self._rows.values()).difference(kept.values())
        self._rows = kept
