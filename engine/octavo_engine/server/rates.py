"""How much may be taken in a time: a token bucket of which reservations are taken, and what they left given back. Pure.

The leaky bucket as a meter (Turner, 1986), with one rule more: what is given back restores at most what the bucket
would hold had it never been reserved. So what is used in any window, counted where it was admitted, is at most the
bucket's size and what flowed in meanwhile, however long a reservation was held.
"""

from __future__ import annotations

import math

SLACK = 1e-6  # rounding of a float is no reason to send anybody away


class Reservation:
    """What was taken for something that has not ended: `amount`, of which `left` can still come back."""

    __slots__ = ("amount", "left")

    def __init__(self, amount: float) -> None:
        self.amount = self.left = amount


class Bucket:
    """Holds `per_minute` at most, and gets as much in a minute. Times are in seconds on any clock that never goes back.

    What is larger than the bucket is let in when it is full, and paid for afterwards: refused for ever, it would be
    asked for again and again.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self.size = float(per_minute)
        self._level = self.size
        self._at = now
        # In the order in which they were taken. Their `left` and the level are never more than the size together.
        self._held: dict[Reservation, None] = {}
        self._left = 0.0

    def wait(self, amount: float, now: float) -> float:
        """In how many seconds `amount` can be taken if nothing else is; 0: now."""
        self._flow(now)
        missing = min(amount, self.size) - self._level
        return 0.0 if missing <= SLACK else missing * 60 / self.size

    def take(self, amount: float, now: float) -> Reservation:
        """Take `amount`, for which there is no wait."""
        assert not self.wait(amount, now), "it has to wait"
        reservation = Reservation(amount)
        self._level -= amount
        self._held[reservation] = None
        self._left += amount
        return reservation

    def settle(self, reservation: Reservation, used: float, now: float) -> None:
        """What was reserved has ended, having used so much of it; the rest comes back."""
        self._flow(now)
        if reservation not in self._held:
            return  # nothing of it is left: since it was taken, the bucket would have been full without it, too
        del self._held[reservation]
        self._left -= reservation.left
        self._level += min(max(0.0, reservation.amount - used), reservation.left)

    def remaining(self, now: float) -> int:
        """What could be taken now, whole."""
        self._flow(now)
        return max(0, math.floor(self._level + SLACK))

    def full_in(self, now: float) -> float:
        """In how many seconds it is full, if nothing more is taken and nothing comes back."""
        self._flow(now)
        return max(0.0, (self.size - self._level) * 60 / self.size)

    def _flow(self, now: float) -> None:
        """Let in what has come since; where that would have overflowed without the oldest reservations, it is theirs
        that is lost."""
        self._level = min(self.size, self._level + self.size * max(0.0, now - self._at) / 60)
        self._at = max(now, self._at)
        over = self._level + self._left - self.size
        while over > 0 and self._held:
            oldest = next(iter(self._held))
            lost = min(over, oldest.left)
            oldest.left -= lost
            self._left -= lost
            over -= lost
            if oldest.left <= SLACK:
                del self._held[oldest]
                self._left -= oldest.left


def duration(seconds: float) -> str:
    """As OpenAI writes it in its headers: `120ms`, `1.5s`, `6m0s`."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(math.ceil(milliseconds / 1000), 60)
    return f"{minutes}m{rest}s"
