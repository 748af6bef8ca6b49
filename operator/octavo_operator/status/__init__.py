"""What to write into `status`: conditions and figures from what was observed, planned and decided. Pure.

`Reconciling` and `Stalled` follow kstatus: present and True, or absent. They exclude each other: either waiting helps
or a person must act. Every reason is one word to act on; the message holds the cluster's own words.
"""

from octavo_operator.checkpoint import Progress
from octavo_operator.status.conditions import MODEL_REASONS
from octavo_operator.status.document import describe, unreadable
from octavo_operator.status.telemetry import (
    KEPT_DECISIONS,
    QueueFigures,
    Telemetry,
    decision_record,
)

__all__ = [
    "KEPT_DECISIONS",
    "MODEL_REASONS",
    "Progress",
    "QueueFigures",
    "Telemetry",
    "decision_record",
    "describe",
    "unreadable",
]
