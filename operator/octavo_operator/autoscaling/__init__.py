"""How many replicas a service should have: a pure function of samples, limits and time.

Feed `decide` one `Fleet` every few seconds with the state it returned before. Nothing here reads a clock or a
network; `now` is monotonic seconds. The idea in one line: concurrency (running, plus as much waiting as is allowed)
over what a replica can hold; rates where a backlog shows that concurrency is not enough; up at once, down with
patience. docs/AUTOSCALING.md compares it with other policies.
"""

from octavo_operator.autoscaling.decision import decide
from octavo_operator.autoscaling.memory import GAP_SECONDS, State, Track, window_of
from octavo_operator.autoscaling.values import (
    DECREASE_SECONDS,
    STEP_REPLICAS,
    STEP_SECONDS,
    Decision,
    Fleet,
    Inputs,
    Limit,
    Limits,
    Load,
    Reason,
    Replica,
)

__all__ = [
    "DECREASE_SECONDS",
    "GAP_SECONDS",
    "STEP_REPLICAS",
    "STEP_SECONDS",
    "Decision",
    "Fleet",
    "Inputs",
    "Limit",
    "Limits",
    "Load",
    "Reason",
    "Replica",
    "State",
    "Track",
    "decide",
    "window_of",
]
