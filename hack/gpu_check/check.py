"""The order of things: tests, tokens, then the speed of one contender after the other, within the time there is."""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from gpu_check import kernel_tests, octavo, peer
from gpu_check.loads import Load, Plan
from gpu_check.results import EAGER, OCTAVO, TRANSFORMERS, Missed, Report, Timing, Tokens
from octavo_engine.model.huggingface.config import spec_from_config
from octavo_engine.model.spec import ModelSpec
from octavo_engine.model.tensors.costs import cost_of
from octavo_engine.runtime.measurement import machine_of

TESTS_SHARE = 0.5  # of the time, at most
DTYPE = torch.bfloat16


class Clock:
    """The time that is left."""

    def __init__(self, seconds: float) -> None:
        self._began, self._seconds = time.monotonic(), seconds

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._began

    @property
    def over(self) -> bool:
        """True when nothing more should be begun."""
        return self.spent > self._seconds


def check(plan: Plan, device: torch.device, seconds: float) -> Report:
    """Everything, about within `seconds`."""
    clock = Clock(seconds)
    say("tests/gpu")
    tests = kernel_tests.run(plan.tests, plan.workers, seconds * TESTS_SHARE)
    say("greedy tokens")
    tokens = compare_tokens(plan, device)
    spec = spec_of(plan, DTYPE)
    machine = machine_of(device, DTYPE)
    return Report(
        machine=machine,
        facts=facts_of(device),
        sizes=plan.sizes,
        cost=cost_of(spec, DTYPE.itemsize),
        tests=tests,
        tokens=tokens,
        speed=[*speed_of_peer(plan, device, clock), *speed_of_octavo(plan, spec, device, clock)],
        seconds=clock.spent,
    )


def compare_tokens(plan: Plan, device: torch.device) -> Tokens:
    """One random model in float32, read by both, token by token."""
    load = plan.exact_load
    model = peer.random_model(plan.exact_sizes, torch.float32, device)
    theirs = peer.answers(model, load)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        ours = octavo.Running(octavo.loaded_decoder(Path(folder), device), load).answers()
    pairs = [pair for rows in zip(ours, theirs, strict=True) for pair in zip(*rows, strict=True)]
    return Tokens(len(pairs), sum(one == other for one, other in pairs))


def spec_of(plan: Plan, dtype: torch.dtype) -> ModelSpec:
    """The timed model as the engine reads it from a config."""
    with tempfile.TemporaryDirectory() as folder:
        peer.write_config(plan.sizes, dtype, Path(folder))
        return spec_from_config(Path(folder))


def speed_of_peer(plan: Plan, device: torch.device, clock: Clock) -> Iterator[Timing | Missed]:
    """transformers with each load; its weights are gone when this ends."""
    yield from timed(TRANSFORMERS, plan, device, clock, peer.Timed(peer.random_model(plan.sizes, DTYPE, device)))
    give_back(device)


def speed_of_octavo(plan: Plan, spec: ModelSpec, device: torch.device, clock: Clock) -> Iterator[Timing | Missed]:
    """Octavo with each load; and on CUDA once more with each kernel launched by the host."""
    decoder = octavo.random_decoder(spec, DTYPE, device)
    for contender in (OCTAVO, EAGER) if device.type == "cuda" else (OCTAVO,):
        yield from timed(contender, plan, device, clock, octavo.Timed(decoder, contender))
    give_back(device)


def timed(
    contender: str, plan: Plan, device: torch.device, clock: Clock, run: Callable[[Load], Timing]
) -> Iterator[Timing | Missed]:
    """Each load, after a small one of the same batch. What does not fit into memory or time is said."""
    for load in plan.loads:
        say(f"{contender}, {load.batch} at once")
        if clock.over:
            yield Missed(contender, load, "no time left")
            continue
        give_back(device)  # the cache of the load before
        try:
            run(plan.warm(load))
            yield run(load)
        except torch.OutOfMemoryError:
            yield Missed(contender, load, "out of memory")


def give_back(device: torch.device) -> None:
    """Freed memory is the device's again."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def facts_of(device: torch.device) -> dict[str, Any]:
    """What the figures depend on."""
    versions = {name: version(name) for name in ("torch", "triton", "transformers", "octavo")}
    if device.type != "cuda":
        return {"device": "cpu", **versions}
    found = torch.cuda.get_device_properties(device)
    capability = f"{found.major}.{found.minor}"
    return {"device": found.name, "memory_bytes": found.total_memory, "capability": capability, **versions}


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)
