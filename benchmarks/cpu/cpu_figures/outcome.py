"""All that one run of the benchmark has found: as text for people, as JSON, as the values that goals look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import measurement

from octavo_engine.roofline import ModelCost

from . import direct, goals, table
from .goals import Goal, Measured
from .limits import Limits
from .results import Figures, Start
from .servers import NO_DRAFTS, OCTAVO, POOL_BYTES, VLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures are medians over rounds, by server and load."""

    machine: Mapping[str, Any]
    rounds: int
    limits: Limits
    cost: ModelCost
    figures: Mapping[str, Mapping[str, Figures]]
    long_step: float | None  # seconds; None when it was left out
    starts: Mapping[str, Start]  # of those whose start was measured
    generate: Mapping[int, measurement.Figures]  # by streams; empty when it was left out

    def goals(self) -> list[Goal]:
        """What was reached."""
        return goals.rows(
            Measured(
                octavo=self.figures[OCTAVO],
                no_drafts=self.figures[NO_DRAFTS],
                peer=self.figures[VLLM],
                limits=self.limits,
                cost=self.cost,
                octavo_start=self.starts[OCTAVO],
                peer_start=self.starts[VLLM],
                pool_bytes=POOL_BYTES,
                long_step=self.long_step,
            )
        )

    def text(self) -> str:
        """In Markdown."""
        parts = [self._machine_words(), table.goals(self.goals()), table.figures(self.figures)]
        if self.generate:
            parts += ["transformers `generate`, one static batch of the whole load, called directly:"]
            parts += [direct.table(self.generate)]
        return "\n\n".join(parts)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rounds": self.rounds,
            "machine": dict(self.machine) | {"limits": asdict(self.limits)},
            "goals": [asdict(goal) | {"verdict": goal.verdict} for goal in self.goals()],
            "long_step": self.long_step,
            "starts": {name: asdict(start) for name, start in self.starts.items()},
            "figures": {
                name: {load: asdict(found) for load, found in by_load.items()} for name, by_load in self.figures.items()
            },
            "generate": {streams: asdict(found) for streams, found in self.generate.items()},
        }

    def _machine_words(self) -> str:
        machine, limits = self.machine, self.limits
        sizes = (f"{name} {(s.loaded_bytes or s.ready_bytes) / 1e9:.2f} GB" for name, s in self.starts.items())
        return (
            f"{machine['cpu']}, {machine['threads']} threads; memory is read at {limits.read_bytes / 1e9:.1f} GB/s,"
            f" bfloat16 matrices are multiplied at {limits.matmul_flops / 1e9:.0f} GFLOP/s"
            f" ({limits.register_flops / 1e9:.0f} within registers). {machine['peer']} and transformers in"
            f" {machine['peer_dtype']}, in which torch is the faster here, beside Octavo in bfloat16 with torch"
            f" {machine['torch']}; load average before: {machine['load_average_before']}; rounds: {self.rounds}."
            f" Resident after the loads, with a KV pool of {POOL_BYTES / 1e9:.2f} GB: {', '.join(sizes)}."
        )
