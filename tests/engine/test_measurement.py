"""What this machine can do, measured and kept; and what a real engine on it says it reached."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import httpx
import pytest
import torch

from octavo_engine import cli, machine_cache
from octavo_engine.devices import DEVICES
from octavo_engine.diagnosis.scrape import Scrape
from octavo_engine.doctor.command import doctor
from octavo_engine.model.spec import read_spec
from octavo_engine.model.tensors.costs import weight_bytes
from octavo_engine.roofline import Machine
from octavo_engine.runtime import measurement
from patience import PATIENCE_SECONDS
from serving_process import ServingProcess, serving_process

CPU = torch.device("cpu")
POOL_BYTES = 200_000_000


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    # The kernels stay where they are compiled: only the figures are looked for elsewhere.
    monkeypatch.setattr(machine_cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(measurement.os, "getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_a_processor_is_measured_in_plausible_figures(dtype):
    machine = measurement.measure("here", CPU, dtype)
    assert machine.name == "here"
    assert 1e8 < machine.bandwidth < 1e13
    assert 1e8 < machine.flops < 1e16


def test_without_compiled_kernels_torch_measures(monkeypatch):
    monkeypatch.setattr(measurement.library, "load", lambda: None)
    machine = measurement.measure("here", CPU, torch.bfloat16)
    assert 1e8 < machine.bandwidth < 1e13
    assert 1e7 < machine.flops < 1e16


def test_it_is_measured_once_for_each_type_and_number_of_threads(fresh_cache, monkeypatch):
    asked: list[str] = []

    def measure(name: str, device: torch.device, dtype: torch.dtype) -> Machine:
        asked.append(name)
        return Machine(name=name, bandwidth=1e9 * len(asked), flops=1e12 / len(asked))

    monkeypatch.setattr(measurement, "measure", measure)
    first = measurement.machine_of(CPU, torch.bfloat16)
    assert measurement.machine_of(CPU, torch.bfloat16) == first
    assert len(asked) == 1
    measurement.machine_of(CPU, torch.float32)
    assert len(asked) == 2
    anew = measurement.machine_of(CPU, torch.bfloat16, anew=True)
    assert (anew.bandwidth, anew.flops) == (3e9, 1e12)  # the better of both
    assert f"{torch.get_num_threads()} threads" in first.name


def test_figures_of_a_busy_machine_are_not_kept(fresh_cache, monkeypatch):
    monkeypatch.setattr(measurement, "measure", lambda *args: Machine(name="slow", bandwidth=1.0, flops=1.0))
    monkeypatch.setattr(measurement.os, "getloadavg", lambda: (1e6, 0.0, 0.0))
    assert measurement.machine_of(CPU, torch.bfloat16).name == "slow"
    assert machine_cache.load() == {}
    measurement.machine_of(CPU, torch.bfloat16, anew=True)  # asked for, and only ever better
    assert len(machine_cache.load()) == 1


def test_a_known_accelerator_is_not_measured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    h200 = next(device for device in DEVICES if device.name == "H200")
    assert measurement.machine_of(torch.device("cuda"), torch.bfloat16) == h200.machine(2)


@pytest.mark.parametrize(
    ("text", "name"),
    [("processor: 0\nmodel name\t: Some CPU @ 2 GHz\nflags: x\n", "Some CPU @ 2 GHz"), ("Processor: ARM\n", "cpu")],
)
def test_a_processor_is_called_as_it_calls_itself(tmp_path, text, name):
    (tmp_path / "cpuinfo").write_text(text)
    assert measurement.processor(tmp_path / "cpuinfo") == name
    assert measurement.processor(tmp_path / "missing") == "cpu"


def test_a_plan_for_this_processor_counts_its_container(smollm2_gguf, fresh_cache, capsys):
    assert cli.main(["plan", str(smollm2_gguf), "--device=cpu", "--memory-bytes=4294967296", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["memory"]["weight_bytes"] == weight_bytes(
        read_spec(str(smollm2_gguf)),
        2,  # in few bits, as in the file
    )  # in few bits, as in the file
    assert plan["memory"]["weight_bytes"] < 100_000_000
    assert plan["memory"]["cache_bytes"] == 1024**3 // plan["memory"]["block_bytes"] * plan["memory"]["block_bytes"]
    assert plan["device"]["flops_per_second"] in {machine.flops for machine in machine_cache.load().values()}
    assert cli.main(["plan", str(smollm2_gguf), "--device=cpu", "--memory-bytes=900000000"]) == 2
    assert "does not fit: 0.9" in capsys.readouterr().out


def test_a_plan_says_when_others_use_the_machine(smollm2_gguf, fresh_cache, monkeypatch, capsys):
    monkeypatch.setattr(measurement.os, "getloadavg", lambda: (1e6, 0.0, 0.0))
    arguments = ["plan", str(smollm2_gguf), "--device=cpu", "--memory-bytes=4294967296"]
    assert cli.main(arguments) == 0
    assert "others use this machine now" in capsys.readouterr().out
    assert cli.main([*arguments, "--measure"]) == 0
    assert cli.main(arguments) == 0
    assert "others use" not in capsys.readouterr().out.rpartition("LlamaForCausalLM")[2]


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[ServingProcess]:
    flags = ("--served-model-name=m", f"--kv-cache-memory-bytes={POOL_BYTES}", "--max-num-seqs=2")
    with serving_process(smollm2_gguf, *flags) as process:
        body = {"model": "m", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
        httpx.post(f"{process.url}/v1/completions", json=body, timeout=PATIENCE_SECONDS).raise_for_status()
        yield process


def test_a_real_engine_says_what_its_steps_reached(server):
    scrape = Scrape.read(server.management("/metrics").text, 0.0)
    ratios = ((dict(labels), value) for labels, value in scrape.series["octavo_roofline_ratio"].items())
    shares = {(labels["phase"], labels["bound"]): value for labels, value in ratios}
    assert set(shares) == {
        (phase, bound) for phase in ("prefill", "decode", "mixed") for bound in ("memory", "compute")
    }
    assert shares["decode", "memory"] > shares["decode", "compute"] > 0
    assert shares["prefill", "compute"] > 0
    assert shares["mixed", "compute"] == 0
    phases = scrape.by("octavo_startup_seconds", "phase")
    assert phases["machine"] < sum(phases.values())


def test_its_pool_is_resident_before_it_serves(server):
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    resident = next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    assert resident > POOL_BYTES


def test_the_doctor_sees_that_nobody_asks_for_more(server):
    out = StringIO()
    assert doctor([f"--url={server.management_url}", "--seconds=0.3", "--json"], out) == 0
    assert json.loads(out.getvalue())["limiter"] == "load"
