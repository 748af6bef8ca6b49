"""What several replicas say, as if one engine had said it: the sums, and the longest wait. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo_engine.diagnosis.scrape import Between, Labels, Scrape

Json = dict[str, Any]


def summed(scrapes: Sequence[Scrape]) -> Scrape:
    """All counters and buckets added up. Ratios make no sense in it: what limits is asked of each replica."""
    series: dict[str, dict[Labels, float]] = {}
    for scrape in scrapes:
        for name, values in scrape.series.items():
            kept = series.setdefault(name, {})
            for labels, value in values.items():
                kept[labels] = kept.get(labels, 0.0) + value
    return Scrape(scrapes[0].at, series)


def looks_of_all(before: Mapping[str, Scrape], after: Mapping[str, Scrape]) -> Between | None:
    """What happened in the replicas that were there at both looks; None where none was."""
    both = [pod for pod in after if pod in before]
    return Between(summed([before[pod] for pod in both]), summed([after[pod] for pod in both])) if both else None


def load_of_all(loads: Sequence[Json]) -> Json:
    """The replicas' `/load` as one: sums, the longest of waits, and the mean use of their caches."""
    reasons = dict.fromkeys(reason for load in loads for reason in load["waiting"])
    states = sorted({load["state"] for load in loads})
    return {
        "model_name": loads[0]["model_name"],
        "state": ", ".join(states),
        "waiting": {reason: sum(load["waiting"].get(reason, 0) for load in loads) for reason in reasons},
        "running": sum(load["running"] for load in loads),
        "max_num_seqs": sum(load["max_num_seqs"] for load in loads),
        "oldest_wait_seconds": max(load["oldest_wait_seconds"] for load in loads),
        "estimated_queue_seconds": max(load["estimated_queue_seconds"] for load in loads),
        "kv_cache_usage_ratio": sum(load["kv_cache_usage_ratio"] for load in loads) / len(loads),
    }
