"""The order of things: tests, tokens, then the speed of one contender after the other, within the time there is."""

from __future__ import annotations

import gc
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from gpu_check import kernel_tests, octavo, peer
from gpu_check.loads import Load, Plan
from gpu_check.results import EAGER, OCTAVO, TRANSFORMERS, Missed, Report, Timing, Tokens
from octavo_engine.errors import InsufficientMemory
from octavo_engine.model.huggingface.config import spec_from_config
from octavo_engine.model.spec import ModelSpec
from octavo_engine.model.tensors.costs import cost_of
from octavo_engine.runtime.measurement import machine_of

log = logging.getLogger(__name__)

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


def check(plan: Plan, device: torch.device, seconds: float, keep: Callable[[Report], None] = lambda _: None) -> Report:
    """Everything, about within `seconds`. `keep` is given what is known so far, after each part: on a device that was
    never tried the next one may be the last."""
    clock = Clock(seconds)
    spec = spec_of(plan, DTYPE)
    say("tests/gpu")
    tests = kernel_tests.run(plan.tests, plan.workers, seconds * TESTS_SHARE)
    say("greedy tokens")
    report = Report(
        machine=machine_of(device, DTYPE),
        facts=facts_of(device),
        sizes=plan.sizes,
        cost=cost_of(spec, DTYPE.itemsize),
        tests=tests,
        tokens=compare_tokens(plan, device),
        speed=(),
        seconds=clock.spent,
        complete=False,
    )
    keep(report)
    for each in speed(plan, spec, device, clock):
        report = replace(report, speed=(*report.speed, each), seconds=clock.spent)
        keep(report)
    return replace(report, complete=True)


def compare_tokens(plan: Plan, device: torch.device) -> Tokens:
    """One random model in float32, read by both, token by token."""
    try:
        return _tokens(plan.exact_load, plan, device)
    except Exception as error:
        log.exception("greedy tokens cannot be compared")
        return Tokens(0, 0, fault=in_a_line(error))


def _tokens(load: Load, plan: Plan, device: torch.device) -> Tokens:
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


def speed(plan: Plan, spec: ModelSpec, device: torch.device, clock: Clock) -> Iterator[Timing | Missed]:
    """transformers with each load, then, when its weights are gone, Octavo; and on CUDA Octavo once more with each
    kernel launched by the host."""
    yield from timed(
        TRANSFORMERS, plan.loads, device, clock, lambda: peer.Timed(peer.random_model(plan.sizes, DTYPE, device))
    )
    decoder = cache(lambda: octavo.random_decoder(spec, DTYPE, device))
    yield from timed(OCTAVO, plan.loads, device, clock, lambda: octavo.Timed(decoder(), OCTAVO))
    if device.type == "cuda":
        yield from timed(EAGER, plan.loads, device, clock, lambda: octavo.Timed(decoder(), EAGER))


def timed(
    contender: str,
    loads: Sequence[Load],
    device: torch.device,
    clock: Clock,
    make: Callable[[], Callable[[Load], Timing]],
) -> Iterator[Timing | Missed]:
    """Each load, with what `make` makes. What does not fit into memory or time is said, and so is what fails."""
    run: Callable[[Load], Timing] | None = None
    for load in loads:
        say(f"{contender}, {load.batch} at once")
        if clock.over:
            yield Missed(contender, load, "no time left")
            continue
        try:
            give_back(device)  # the cache of the load before
            run = run or make()
            outcome: Timing | Missed = second(run, load)
        except (torch.OutOfMemoryError, InsufficientMemory):
            outcome = Missed(contender, load, "out of memory")
        except Exception as error:
            log.exception("%s fails", contender)
            outcome = Missed(contender, load, in_a_line(error), faulty=True)
        yield outcome


def second(run: Callable[[Load], Timing], load: Load) -> Timing:
    """The second of two runs: in the first, kernels of exactly these shapes are compiled, libraries load theirs, and
    memory is given."""
    run(load)
    gc.collect()  # the first one's cache has room for the second's
    return run(load)


def give_back(device: torch.device) -> None:
    """Freed memory is the device's again."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def in_a_line(error: Exception) -> str:
    """What kind of error, and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


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
