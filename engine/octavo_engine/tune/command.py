"""`octavo tune`: measures on this machine's GPU, says what it finds, and keeps it for later starts."""

from __future__ import annotations

from importlib.metadata import version
from typing import TextIO

import torch

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.triton import measured
from octavo_engine.kernels.triton.device import target_of
from octavo_engine.kernels.triton.targets import Row
from octavo_engine.model.spec import read_spec
from octavo_engine.model.tensors.sharding import heaviest
from octavo_engine.tune.cases import Bench, Timer
from octavo_engine.tune.search import search
from octavo_engine.tune.settings import TuneConfig
from octavo_engine.tune.stopwatch import Stopwatch

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def tune(config: TuneConfig, out: TextIO) -> int:
    """Measure; 0 when all is kept. Raises InvalidConfiguration without a GPU or a place for what is found, and what a
    checkpoint's headers raise."""
    check_device()
    device = torch.device("cuda")
    bench = bench_of(config, device, Stopwatch(device, config.milliseconds))
    circumstances = measured.Circumstances.of(torch.cuda.get_device_name(device))
    _say(out, f"{circumstances.device}: each launch is repeated for {config.milliseconds} ms")
    before = measured.find(circumstances)
    rows: list[Row] = []
    for found in search(bench.cases()):
        _say(out, str(found))
        rows.append(found.row)
        _keep(circumstances, measured.merged(before, rows))  # each at once: who ends this early has the first ones
    _say(out, f"{measured.place()}: used by each start on such a device, until the kernels or Triton change")
    return 0


def _keep(circumstances: measured.Circumstances, rows: tuple[Row, ...]) -> None:
    try:
        measured.keep(measured.Measurement(circumstances, version("octavo"), rows))
    except (OSError, RuntimeError) as error:
        raise InvalidConfiguration(f"what was measured cannot be kept: {error}") from error


def _say(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()


def check_device() -> None:
    """Raise InvalidConfiguration where there is nothing to measure."""
    if not torch.cuda.is_available():
        raise InvalidConfiguration(
            "octavo tune measures a GPU, and there is no CUDA device here: run it on the machine that is to serve"
        )


def bench_of(config: TuneConfig, device: torch.device, timer: Timer) -> Bench:
    """What is measured of the model that `config` names; raises InvalidConfiguration for one of 32-bit numbers."""
    spec = read_spec(config.model)
    name = spec.dtype if config.dtype == "auto" else config.dtype
    if name not in DTYPES:
        raise InvalidConfiguration(f"this model's numbers are {name}, which nobody tunes for: add --dtype bfloat16")
    return Bench(
        spec=heaviest(spec, config.tensor_parallel_size).spec,
        dtype=DTYPES[name],
        device=device,
        target=target_of(device),
        block_size=config.block_size,
        context=config.context,
        timer=timer,
    )
