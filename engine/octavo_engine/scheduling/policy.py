"""The order of the waiting queue. First come, first served: the order of arrival, which preemption does not change."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from octavo_engine.request import Request


class WaitingQueue:
    """Requests that hold no blocks, the next to be admitted first, and the prompt tokens they bring."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()
        self.num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    @property
    def head(self) -> Request | None:
        """The next to be admitted."""
        return self._queue[0] if self._queue else None

    def append(self, request: Request) -> None:
        """A new arrival."""
        self._queue.append(request)
        self.num_prompt_tokens += request.num_prompt

    def push_back(self, request: Request) -> None:
        """A preempted request returns to the head: it arrived before all that never ran."""
        self._queue.appendleft(request)
        self.num_prompt_tokens += request.num_prompt

    def pop(self) -> Request:
        """Take the head."""
        request = self._queue.popleft()
        self.num_prompt_tokens -= request.num_prompt
        return request

    def remove(self, request: Request) -> None:
        """Take any request out, wherever it stands."""
        self._queue.remove(request)
        self.num_prompt_tokens -= request.num_prompt
