"""The queue of requests that hold no blocks, and the two orders in which it is left that need no more than a rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from octavo_engine.request import Request
from octavo_engine.scheduling.request_heap import RequestHeap


class WaitingQueue(ABC):
    """Who waits, in which order, and what they bring. Every operation is O(log n), amortised.

    The scheduler tells it what happens to requests that have left, since an order may depend on that.
    """

    def __init__(self) -> None:
        self._by_arrival = RequestHeap()
        self.num_prompt_tokens = self.num_answer_tokens = 0  # what they bring, and the most that they may generate

    def __len__(self) -> int:
        return len(self._by_arrival)

    @property
    def num_pending(self) -> int:
        """How many wait for a prefix that a running request computes."""
        return 0

    @property
    def oldest(self) -> Request | None:
        """The first to have arrived."""
        return self._by_arrival.first()

    def add(self, request: Request) -> None:
        """A new arrival, or a preempted request that returns to the place that its rank gives it."""
        self._by_arrival.push((request.arrival, request.rank[1]), request)
        self.num_prompt_tokens += request.num_prompt
        self.num_answer_tokens += request.params.max_tokens

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        self._by_arrival.discard(request)
        self.num_prompt_tokens -= request.num_prompt
        self.num_answer_tokens -= request.params.max_tokens

    @abstractmethod
    def head(self, now: float) -> Request | None:
        """The next to be admitted; None when nobody may be. It stays in the queue until it is removed."""

    def started(self, request: Request) -> None:
        """A request leaves for running: it holds its cached prefix, and computes the rest."""
        self.remove(request)

    def published(self, keys: Sequence[int]) -> None:  # noqa: B027 (not every order depends on it)
        """The blocks with these keys have become findable."""

    def stopped(self, request: Request) -> None:  # noqa: B027 (the same)
        """A running request was preempted or has ended; what it has not published it will not publish soon."""


class RankedQueue(WaitingQueue):
    """Strictly by rank: the order of arrival, or that of priorities."""

    def __init__(self) -> None:
        super().__init__()
        self._by_rank = RequestHeap()

    def add(self, request: Request) -> None:
        """See WaitingQueue."""
        super().add(request)
        self._by_rank.push(request.rank, request)

    def remove(self, request: Request) -> None:
        """See WaitingQueue."""
        super().remove(request)
        self._by_rank.discard(request)

    def head(self, now: float) -> Request | None:  # noqa: ARG002 (ranks do not change with time)
        """See WaitingQueue."""
        return self._by_rank.first()
