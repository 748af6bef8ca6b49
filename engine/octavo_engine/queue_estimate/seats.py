"""When those who wait for a place get one: how many steps until enough of the others have gone. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.batch import SchedulerStats
from octavo_engine.request import WaitReason

HALVINGS = 30  # of the interval in which the answer lies


@dataclass(frozen=True, slots=True)
class Seats:
    """Places for requests, in `max_num_seqs` and in the cache, each as large as those who wait need.

    Attributes:
        waiting: requests that want one.
        free: those that can be taken at once.
        taken: those that requests hold which run now.
    """

    waiting: int
    free: float
    taken: float

    @classmethod
    def of(cls, stats: SchedulerStats, left: float, answer: float) -> Seats:
        """Those of a scheduler whose requests have `left` tokens to come each, and `answer` tokens if they still wait.

        Half of these lie in the cache, on average.
        """
        waiting = sum(stats.waiting.values())
        seats, free = float(stats.seats), max(0.0, float(stats.seats - stats.running))
        if waiting and stats.total_blocks:
            blocks = max(1.0, (stats.waiting_prompt_tokens / waiting + answer / 2) / stats.block_size)
            growing = stats.running * max(1.0, left / 2 / stats.block_size)
            available = max(0.0, stats.free_blocks + stats.cached_blocks - growing)
            seats = min(seats, max(1.0, stats.total_blocks / blocks))
            free = min(free, available / blocks, seats)
            if stats.blocked is WaitReason.KV_FULL:
                free = 0.0
        return cls(waiting, free, seats - free if stats.running else 0.0)

    @property
    def all(self) -> float:
        """Free or taken."""
        return self.free + self.taken

    def steps(self, left: float, answer: float) -> float:
        """Steps until the last of those who wait has a seat.

        `left`: steps that those who run have yet to go, on average; `answer`: that whoever takes a seat will keep it.
        """
        missing = self.waiting - self.free
        if missing <= 0:
            return 0.0
        left, answer = max(0.5, left), max(1.0, answer)
        low, high = 0.0, 2 * left + answer * (1 + missing / max(1.0, self.all))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self._gone(middle, 2 * left, answer) < missing:
                low = middle
            else:
                high = middle
        return high

    def _gone(self, steps: float, until: float, answer: float) -> float:
        """Seats that came free so far.

        Those who run leave one after the other, the last of them after `until` steps. Who follows them, or has taken a
        free seat, leaves half an answer later than at an even pace: many begin at the same time.
        """
        left = self.taken * min(1.0, steps / until)
        since = max(0.0, steps - answer / 2)
        within = min(since, until)
        held = self.free * since + self.taken * (within * within / (2 * until) + since - within)
        return left + held / answer
