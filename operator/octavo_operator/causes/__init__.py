"""Why a replica is not as it should be: raw objects of the cluster -> one word a person can act on. Pure.

Each message says first what to do and then what the cluster said; `final` parts what needs a person from what needs
time.
"""

from octavo_operator.causes.cause import Cause
from octavo_operator.causes.containers import ENGINE_REASONS, RUN_REASONS
from octavo_operator.causes.pods import ended_in_silence, pod_cause, unexplained
from octavo_operator.causes.scheduling import UNSCHEDULABLE
from octavo_operator.causes.workloads import STARTUP_TIMEOUT, job_cause, podless, workload_cause

__all__ = [
    "ENGINE_REASONS",
    "RUN_REASONS",
    "STARTUP_TIMEOUT",
    "UNSCHEDULABLE",
    "Cause",
    "ended_in_silence",
    "job_cause",
    "pod_cause",
    "podless",
    "unexplained",
    "workload_cause",
]
