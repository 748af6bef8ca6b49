"""What has arrived for one reader on an event loop: taken all at once, however many steps it comes from.

A queue would wake its reader once for each token, and the reader would write as often; a reader that is late takes what
several steps have left, in one go.
"""

from __future__ import annotations

import asyncio

from octavo_engine.errors import OctavoError
from octavo_engine.output import Delta

Item = Delta | OctavoError


class Mailbox:
    """Used on one loop, read by one task. `only_ends`: the reader sleeps until something has come to its end."""

    def __init__(self, *, only_ends: bool = False) -> None:
        self._items: list[tuple[int, Item]] = []
        self._only_ends = only_ends
        self._reader: asyncio.Future[None] | None = None

    def put(self, place: int, item: Item) -> None:
        """Leave something, and wake the reader if it waits for this."""
        self._items.append((place, item))
        reader = self._reader
        if reader is None or reader.done():
            return
        if not self._only_ends or isinstance(item, OctavoError) or item.finish_reason is not None:
            reader.set_result(None)

    async def take(self) -> list[tuple[int, Item]]:
        """Everything that has arrived, in order, with the number it came under; waits until there is something."""
        if not self._items:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        items, self._items = self._items, []
        return items
