"""What is kept of each request of a load test: the one value between the client and everything that counts. Pure.

Times are seconds of one clock that never goes back; `sent` and `due` count from the beginning of the measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Failure(StrEnum):
    """Why a request has no whole answer: what a person would look into, not which exception was raised."""

    REFUSED = "connection refused"
    UNREACHABLE = "not reachable"
    UNAUTHORIZED = "key refused (401, 403)"
    OVERLOADED = "queue full (429)"
    REJECTED = "request refused (4xx)"
    SERVER_ERROR = "server error (5xx)"
    ERROR_EVENT = "error in the stream"
    CUT = "connection cut"
    TIMEOUT = "no whole answer in time"
    MALFORMED = "not a stream of the OpenAI form"
    EMPTY = "no token"
    CLIENT = "a limit of this machine"
    INTERRUPTED = "interrupted here"  # by Ctrl-C: not the server's fault, and counted apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request, whole or not."""

    due: float  # when it should have been sent; where nobody planned it, when it was
    sent: float
    turn: int  # of its conversation, from 0
    first_token: float | None = None  # seconds from sending to the first chunk with text
    last_token: float | None = None  # seconds from sending to the last one
    gaps: tuple[float, ...] = ()  # seconds between two chunks with text, in order
    wanted_prompt_tokens: int | None  # None: not known before, as of a later turn
    wanted_output_tokens: int
    prompt_tokens: int | None = None  # as the server counted them
    cached_tokens: int | None = None  # of these, found in its prefix cache
    output_tokens: int = 0  # as the server counted them; where it does not, chunks with text
    failure: Failure | None = None
    detail: str = ""  # one line: what the server said

    @property
    def end_to_end(self) -> float | None:
        """Seconds from sending to the last token."""
        return self.last_token

    @property
    def whole(self) -> bool:
        """Whether it has a whole answer."""
        return self.failure is None

    @property
    def ended(self) -> float:
        """When its last token came, from the beginning of the measurement."""
        return self.sent + (self.last_token or 0.0)

    @property
    def time_per_output_token(self) -> float | None:
        """Seconds for each token after the first, on average; None for one token alone."""
        if self.first_token is None or self.last_token is None or self.output_tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.output_tokens - 1)
