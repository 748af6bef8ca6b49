"""`octavo tune` where there is nothing to tune, and what it says."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from cubins import recording
from octavo_engine import cli
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.triton import measured
from octavo_engine.kernels.triton.targets import H100, TABLE
from octavo_engine.tune import command
from octavo_engine.tune.candidates import candidates
from octavo_engine.tune.cases import Bench
from octavo_engine.tune.settings import TuneConfig
from octavo_engine.tune.stopwatch import FIRST, Stopwatch
from tiny_models import make_model, save_model

pytestmark = pytest.mark.engine


NAME = "NVIDIA H100 80GB HBM3"


def with_stopwatch(monkeypatch: pytest.MonkeyPatch, timer: Callable[[Any], float]) -> None:
    """A GPU on which no kernel runs, and `timer` says how long each launch would have taken."""
    plain_bench = command.bench_of

    def bench_of(config: TuneConfig, _device: torch.device, _timer: Any) -> Bench:
        return replace(plain_bench(config, torch.device("cpu"), lambda _call: 1.0), timer=timer)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: NAME)
    monkeypatch.setattr(command, "bench_of", bench_of)
    monkeypatch.setattr(command, "Stopwatch", lambda _device, _milliseconds: timer)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "/no/model"]) == cli.CANNOT_WORK
    assert "there is no CUDA device here" in capsys.readouterr().err


def test_numbers_of_32_bits_are_not_tuned(tmp_path: Path) -> None:
    place = save_model(make_model("llama"), tmp_path)
    with pytest.raises(InvalidConfiguration, match="add --dtype bfloat16"):
        command.bench_of(TuneConfig(model=str(place)), torch.device("cpu"), lambda _call: 1.0)
    bench = command.bench_of(
        TuneConfig(model=str(place), dtype="bfloat16", tensor_parallel_size=2), torch.device("cpu"), lambda _call: 1.0
    )
    assert (bench.spec.heads, bench.spec.kv_heads, bench.target) == (3, 1, H100), "one rank's shapes"


@pytest.mark.parametrize(("window", "measured_for"), [(7, {7, 40}), (40, {40})])
def test_each_window_that_layers_have_is_measured(window: int, measured_for: set[int], tmp_path: Path) -> None:
    """A hybrid's layers: the launch that stays is the fastest for both kinds together. Where the window holds the whole
    context, both are one."""
    place = save_model(make_model("qwen2_window", sliding_window=window), tmp_path)
    config = TuneConfig(model=str(place), dtype="bfloat16", context=40)
    bench = command.bench_of(config, torch.device("cpu"), lambda _call: 1.0)
    with recording() as launches:
        bench._decodes()(bench.target)()
        bench._chunk()(bench.target)()
    for name in ("decode", "mixed"):
        found = [launch for launch in launches if launch.name == name]
        assert {launch.arguments[launch.kernel.arg_names.index("window")] for launch in found} == measured_for


def test_what_is_found_is_said_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stopwatch that always finds the second launch twice as fast, and no kernel that runs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = save_model(make_model("qwen2"), tmp_path / "model")
    tries: dict[int, int] = {}

    def timer(_call: Any) -> float:
        tries[0] = tries.get(0, 0) + 1
        return 1e-5 if tries[0] == 2 else math.inf if tries[0] == 3 else 2e-5

    with_stopwatch(monkeypatch, timer)
    out = io.StringIO()
    assert command.tune(TuneConfig(model=str(place), dtype="bfloat16", context=40), out) == 0
    lines = out.getvalue().splitlines()
    assert lines[0].startswith(f"{NAME}: ")
    assert "decode16 16: 10.0 us, 2.00x the usual launch" in lines[1]
    assert str(measured.place()) in lines[-1]
    rows = measured.find(measured.Circumstances.of(NAME))
    assert len(rows) == len(lines) - 2 >= 7


def test_what_was_found_before_an_interruption_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of the second kernel."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = save_model(make_model("qwen2"), tmp_path / "model")
    tries = count()

    def timer(_call: Any) -> float:
        if next(tries) > len(candidates("decode16", 16, TABLE[0].launch)) + 1:
            raise KeyboardInterrupt
        return 1e-5

    with_stopwatch(monkeypatch, timer)
    with pytest.raises(KeyboardInterrupt):
        command.tune(TuneConfig(model=str(place), dtype="bfloat16", context=40), io.StringIO())
    assert [row.kernel for row in measured.find(measured.Circumstances.of(NAME))] == ["decode16"]


def test_where_nothing_can_be_kept_it_says_so_before_all_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    place, out = save_model(make_model("qwen2"), tmp_path / "model"), io.StringIO()
    with_stopwatch(monkeypatch, lambda _call: 1e-5)
    with pytest.raises(InvalidConfiguration, match="what was measured cannot be kept: "):
        command.tune(TuneConfig(model=str(place), dtype="bfloat16", context=40), out)
    assert len(out.getvalue().splitlines()) == 2, "the device, and the first kernel"


class Event:
    """Time as a fake device counts it, in milliseconds."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = Event.now

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def test_the_stopwatch_takes_the_middle_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    watch = Stopwatch(torch.device("cpu"), milliseconds=50, written_bytes=8)
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        Event.now += 1000.0 if len(calls) % 5 == 1 else 2.0  # the first one compiles

    assert watch(work) == pytest.approx(0.002)
    assert len(calls) == FIRST + 25

    def too_large() -> None:
        raise OutOfResources(300_000, 232_448, "shared memory")

    assert watch(too_large) == math.inf
