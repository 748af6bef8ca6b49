"""The loads that policies are compared on. All have the same objective, bounds and target depth.

A replica of the plain profile ends about 1.7 requests a second of mean length when it is full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from . import loads
from .engine import Profile
from .loads import Lengths
from .service import World

MINIMUM, MAXIMUM = 1, 12
QUEUE_DEPTH = 4
OBJECTIVE = 30.0

KV_LIMITED = Profile(max_num_seqs=64, kv_tokens=9_000)
# Fitted to what /load said during the recording. The engine had 16 places then; replicas here have four, as in
# examples/smollm2.yaml.
RECORDED = Profile(max_num_seqs=16, kv_tokens=11_648, step_seconds=0.04, decode_seconds=0.005, prefill_rate=2000.0)
SMALL_CPU = replace(RECORDED, max_num_seqs=4)
RECORDING = Path(__file__).parent / "data" / "smollm2_chat.csv"
PROMPTS = Lengths(prompt=5000, output=60)


@dataclass(frozen=True)
class Scenario:
    """A load with a name; `world` makes it for a seed."""

    name: str
    title: str
    world: Callable[[int], World]


def _plain(
    rate: loads.Rate, seconds: float = 3600.0, lengths: Lengths | None = None, **world: object
) -> Callable[[int], World]:
    def make(seed: int) -> World:
        requests = loads.arrivals(rate, seconds, lengths or Lengths(), seed)
        return World(requests, horizon=seconds, **world)  # type: ignore[arg-type]

    return make


def _recorded(seed: int) -> World:
    """What users asked of SmolLM2, thrice, on replicas as slow and as small as the one it was recorded from."""
    del seed  # a recording is what it is
    requests = loads.repeated(loads.recorded(RECORDING), every=900.0, times=3)
    return World(requests, SMALL_CPU, load_seconds=15.0, horizon=2700.0)


SCENARIOS = (
    Scenario("step", "a step, 1 to 7 requests/s, for 35 minutes", _plain(loads.step(1, 7, 300, 2400))),
    Scenario("spike", "spikes of a minute, 1 to 7 requests/s", _plain(loads.spikes(1, 7, (600, 1800, 2100), 60))),
    Scenario("sawtooth", "climbs from 0.5 to 7 requests/s in five minutes", _plain(loads.sawtooth(0.5, 7, 300))),
    Scenario("diurnal", "a day in two hours, 0.5 to 8 requests/s", _plain(loads.day(0.5, 8, 7200), 7200.0)),
    Scenario(
        "long prompts",
        "prompts of 5,000 tokens: prefill is the limit",
        _plain(loads.step(0.4, 3.6, 300, 2400), lengths=PROMPTS),
    ),
    Scenario(
        "KV-limited",
        "64 places, but memory for about 20 requests",
        _plain(loads.step(0.6, 5, 300, 2400), lengths=Lengths(200, 500), profile=KV_LIMITED),
    ),
    Scenario(
        "slow loading",
        "a model that loads for 180 s",
        _plain(loads.step(1.5, 6, 300, 2700), load_seconds=180.0),
    ),
    Scenario(
        "half silent",
        "every other replica has no metrics for 20 minutes, under a growing load",
        _plain(
            loads.step(2.5, 6, 1200, 2400),
            start_replicas=3,
            silent=lambda rank, now: 900 <= now < 2100 and rank % 2 == 0,
        ),
    ),
    Scenario(
        "all silent",
        "no replica has metrics for 20 minutes, under a steady load",
        _plain(lambda _: 5.0, start_replicas=4, silent=lambda _, now: 900 <= now < 2100),
    ),
    Scenario("recorded", "users of SmolLM2 on CPU, recorded once and played thrice", _recorded),
    Scenario(
        "scarce nodes",
        "room for 3 replicas until 25 minutes, then for all",
        _plain(loads.step(1, 6.5, 300, 3000), places=lambda now: 3 if now < 1500 else MAXIMUM),
    ),
)
