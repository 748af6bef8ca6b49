"""What goes into a decision and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

STEP_SECONDS = 15.0  # at most a doubling, or STEP_REPLICAS more, within this time
STEP_REPLICAS = 4
DECREASE_SECONDS = 60.0  # at most one replica less within this time
DEFAULT_CAPACITY = 256.0  # before any replica has said what it can run


class Reason(Enum):
    """Why the count is what it is; label of metrics and word in status."""

    STEADY = "Steady"
    CONCURRENCY = "Concurrency"
    QUEUE_GROWTH = "QueueGrowth"
    THROUGHPUT = "Throughput"
    LOW_LOAD = "LowLoad"
    BELOW_MINIMUM = "BelowMinimum"
    ABOVE_MAXIMUM = "AboveMaximum"
    NO_DATA = "NoData"


class Limit(Enum):
    """What kept the count below what the load asks for; reason of the condition ScalingLimited."""

    MAX_REPLICAS = "MaxReplicas"
    UNSCHEDULABLE = "PodsUnschedulable"
    FAILING = "PodsFailing"
    STEP = "StepLimit"


@dataclass(frozen=True)
class Limits:
    """What the user asked for, and the operator's window.

    Attributes:
        queue_depth: waiting requests a replica may hold.
        objective_seconds: a waiting request should start within this.
        window_seconds: a decrease follows the highest count wanted in this time.
    """

    minimum: int
    maximum: int
    queue_depth: int = 4
    objective_seconds: float = 30.0
    window_seconds: float = 300.0


@dataclass(frozen=True)
class Load:
    """One replica's answer on `/load`."""

    waiting: int = 0
    waiting_full: int = 0  # of those, held back by a full batch or a full KV cache
    running: int = 0
    max_num_seqs: int = 1
    arrivals_total: int = 0
    completions_total: int = 0
    oldest_wait_seconds: float = 0.0
    kv_usage: float = 0.0
    startup_seconds: float | None = None
    limiter: str = ""  # what keeps it from doing more, in a word of the engine's; empty where nothing does
    limited: str = ""  # the same in a sentence


@dataclass(frozen=True)
class Replica:
    """One pod that is not terminating. `load` is None where there is no data.

    Attributes:
        stuck: why it will not be ready by waiting alone, if so.
    """

    name: str
    ready: bool
    stuck: Limit | None = None
    load: Load | None = None


@dataclass(frozen=True)
class Fleet:
    """All of a service's replicas at one moment; `rolling` while a new revision is rolled out."""

    replicas: tuple[Replica, ...]
    rolling: bool = False

    @property
    def stuck(self) -> Limit | None:
        """Why a replica does not start, if one does not: adding another would not help."""
        return next((replica.stuck for replica in self.replicas if replica.stuck), None)

    @property
    def loads(self) -> dict[str, Load]:
        """What ready replicas say, by name."""
        return {replica.name: replica.load for replica in self.replicas if replica.ready and replica.load}

    @property
    def least_busy(self) -> str | None:
        """The ready replica with the fewest requests, which loses the least by going."""
        busy = {name: load.running + load.waiting for name, load in self.loads.items()}
        return min(sorted(busy), key=lambda name: busy[name], default=None)


@dataclass(frozen=True)
class Inputs:
    """The figures a decision rests on, for status and metrics.

    Attributes:
        capacity: requests a replica runs when it is full.
        throughput: completions per second of a full replica: measured, or estimated from how long requests run.
        arrivals_per_second: smoothed over seconds; while requests queue, the highest since the queue began.
        completions_per_second: smoothed over a minute.
        mean_running: requests running, smoothed over a minute.
    """

    waiting: int = 0
    running: int = 0
    ready: int = 0
    starting: int = 0
    without_data: int = 0
    capacity: float = 0.0
    throughput: float | None = None
    arrivals_per_second: float = 0.0
    completions_per_second: float = 0.0
    mean_running: float = 0.0
    load_seconds: float = 60.0
    oldest_wait_seconds: float = 0.0

    @property
    def replicas(self) -> int:
        """Capacity that is there or on its way."""
        return self.ready + self.starting

    @property
    def visible(self) -> int:
        """Replicas that the sums cover, and those on their way to help them. Silent ones carry a share of their own."""
        return self.replicas - self.without_data


@dataclass(frozen=True)
class Decision:
    """How many replicas from now on, why, and what held it back."""

    replicas: int
    previous: int
    reason: Reason
    message: str
    inputs: Inputs
    wanted: int
    limited: Limit | None = None
    victim: str | None = None

    @property
    def changed(self) -> bool:
        """Whether the count moves."""
        return self.replicas != self.previous
