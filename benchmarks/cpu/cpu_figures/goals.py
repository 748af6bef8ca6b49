"""What Octavo has set itself, held against what was measured. Pure: figures in, rows out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from statistics import mean

from octavo_engine.roofline import ModelCost

from . import loads
from .limits import Limits
from .loads import Load
from .results import Figures, Start

TTFT_P99, ITL_P99 = attrgetter("ttft_p99"), attrgetter("itl_p99")
REFERENCE_READ_BYTES = 48e9  # a second, of the machine on which the goal of a step at long context was set


@dataclass(frozen=True, slots=True)
class Goal:
    """One row. `at_least` and `aim` are what `value` should reach, from above where `less` is better."""

    name: str
    value: float
    at_least: float
    aim: float
    unit: str = "x"
    less: bool = False
    note: str = ""
    without_drafts: float | None = None  # the same of the server that does not draft

    @property
    def verdict(self) -> str:
        """How far it got."""
        for word, bar in (("aim", self.aim), ("at least", self.at_least)):
            if self.value <= bar if self.less else self.value >= bar:
                return word
        return "short"


@dataclass(frozen=True, slots=True)
class Measured:
    """All that the goals look at. Figures are medians over rounds, by load; a load that was not run is missing."""

    octavo: Mapping[str, Figures]
    no_drafts: Mapping[str, Figures]
    peer: Mapping[str, Figures]
    limits: Limits
    cost: ModelCost
    octavo_start: Start
    peer_start: Start
    pool_bytes: int
    long_step: float | None = None  # seconds of one of 32 decodes at 1,024 tokens; None: not measured

    def all(self, load: Load) -> tuple[Figures, Figures, Figures] | None:
        """Octavo's figures, those without drafts and the peer's, where all have some."""
        ours, bare, theirs = (found.get(load.name) for found in (self.octavo, self.no_drafts, self.peer))
        return None if ours is None or bare is None or theirs is None else (ours, bare, theirs)


def rows(measured: Measured) -> list[Goal]:
    """Every goal that the measured loads allow."""
    return [*_against_peer(measured), *_against_machine(measured), *_cache_and_process(measured)]


def _against_peer(measured: Measured) -> Iterator[Goal]:
    for load, at_least, aim in zip(loads.DECODES, (2, 2.5, 2, 2), (2.7, 4, 3.5, 3), strict=True):
        if found := measured.all(load):
            ours, bare, theirs = (figures.tokens_per_second for figures in found)
            note = f"{ours:.0f} against {theirs:.0f} tokens/s"
            name = f"tokens/s over the peer's, {load.name}"
            yield Goal(name, ours / theirs, at_least, aim, note=note, without_drafts=bare / theirs)
    for load in (*loads.DECODES, loads.LONG):
        if found := measured.all(load):
            for what, p99 in (("time to first token", TTFT_P99), ("inter-token latency", ITL_P99)):
                ours, bare, theirs = map(p99, found)
                note = f"{ours * 1e3:.0f} against {theirs * 1e3:.0f} ms"
                name = f"P99 {what} under the peer's, {load.name}"
                yield Goal(name, ours / theirs, 0.7, 0.4, less=True, note=note, without_drafts=bare / theirs)


def _against_machine(measured: Measured) -> Iterator[Goal]:
    """Of kernels, so without drafts: a step that gives several tokens would look faster than memory."""
    limits, cost = measured.limits, measured.cost
    if (one := measured.no_drafts.get(loads.DECODES[0].name)) is not None:
        context = loads.DECODES[0].prompt_tokens + loads.DECODES[0].output_tokens // 2
        rate = cost.decode([context]).bytes / one.tpot_mean
        note = f"{rate / 1e9:.1f} of {limits.read_bytes / 1e9:.1f} GB/s"
        yield Goal(
            "one stream's decode without drafts, of memory's speed", rate / limits.read_bytes, 0.7, 0.9, note=note
        )
    if (prompt := measured.octavo.get(loads.PROMPT.name)) is not None:
        tokens = round(prompt.prompt_tokens / len(prompt.ttfts))
        rate = cost.step([(0, tokens)], samples=1).flops / prompt.ttft_median
        share, most = rate / limits.matmul_flops, limits.matmul_flops
        note = f"{rate / 1e9:.0f} of {most / 1e9:.0f} GFLOP/s; {rate / limits.register_flops:.2f} of what registers do"
        yield Goal("a prompt of 1,024, of the matrix products' speed", share, 0.6, 0.8, note=note)
    if measured.long_step is not None:
        here = measured.long_step * 1e3
        scaled = here * limits.read_bytes / REFERENCE_READ_BYTES
        note = f"{here:.0f} ms here at {limits.read_bytes / 1e9:.0f} GB/s, scaled to a memory of 48 GB/s"
        yield Goal(
            "a step of 32 streams at 1,024, without HTTP and drafts", scaled, 60, 30, unit=" ms", less=True, note=note
        )


def _cache_and_process(measured: Measured) -> Iterator[Goal]:
    if (prefix := measured.octavo.get(loads.PREFIX.name)) is not None:
        cold = mean(prefix.ttfts[: loads.PREFIX.streams])
        warm = mean(prefix.ttfts[loads.PREFIX.streams :])
        note = f"{warm * 1e3:.0f} against {cold * 1e3:.0f} ms"
        yield Goal("first token, warm prefix under cold", warm / cold, 0.2, 0.1, less=True, note=note)
    ours, theirs = measured.octavo_start, measured.peer_start
    note = f"{ours.ready_seconds:.1f} against {theirs.ready_seconds:.0f} s"
    yield Goal("ready, under the peer's", ours.ready_seconds / theirs.ready_seconds, 0.1, 0.04, less=True, note=note)
    mine, other = (start.beside_pool(measured.pool_bytes) for start in (ours, theirs))
    if mine is not None and other is not None:
        note = f"{mine / 1e6:.0f} against {other / 1e6:.0f} MB"
        yield Goal("memory beside the KV pool, under the peer's", mine / other, 0.5, 0.25, less=True, note=note)
