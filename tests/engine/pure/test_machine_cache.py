"""Figures of a machine between two starts: the better one stays, and no file can do harm."""

from __future__ import annotations

import json

import pytest

from octavo_engine import machine_cache
from octavo_engine.devices import DEVICES, by_driver_name
from octavo_engine.roofline import Machine

SLOW, FAST = Machine(name="m", bandwidth=10e9, flops=2e12), Machine(name="m", bandwidth=30e9, flops=1e12)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "octavo" / "machines.json"


def test_a_later_measurement_can_only_raise_a_figure():
    assert machine_cache.load() == {}
    assert machine_cache.keep("here", SLOW) == SLOW
    best = Machine(name="m", bandwidth=30e9, flops=2e12)
    assert machine_cache.keep("here", FAST) == best
    machine_cache.keep("elsewhere", SLOW)
    assert machine_cache.load() == {"here": best, "elsewhere": SLOW}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "3", '{"here": 3}', '{"here": {}}', '{"here": {"name": "m", "bandwidth": 0, "flops": 1}}'),
        '{"here": {"name": "m", "bandwidth": "fast", "flops": 1}}',
        '{"here": {"name": "m", "bandwidth": NaN, "flops": 1}}',
        '{"here": {"name": "m", "bandwidth": 1, "flops": Infinity}}',
    ],
)
def test_a_damaged_file_is_no_file(cache, text):
    cache.parent.mkdir()
    cache.write_text(text)
    assert machine_cache.load() == {}
    assert machine_cache.keep("here", SLOW) == SLOW
    assert json.loads(cache.read_text()) == {"here": {"name": "m", "bandwidth": 10e9, "flops": 2e12}}


def test_a_cache_that_cannot_be_written_costs_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert machine_cache.keep("here", SLOW) == SLOW
    assert machine_cache.load() == {}


def test_devices_are_found_by_the_name_that_cuda_gives_them():
    names = [name for device in DEVICES for name in device.driver_names]
    assert len(names) == len(set(names))
    assert [by_driver_name(name) for name in names] == list(DEVICES)
    assert by_driver_name("NVIDIA A10G") is None


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_a_devices_rates_are_in_the_order_of_its_widths(device):
    half, single = device.machine(2), device.machine(4)
    assert half.bandwidth == single.bandwidth == device.bandwidth
    assert single.flops < half.flops == device.bf16_flops
    assert device.fp8_flops is None or device.fp8_flops > device.bf16_flops
    assert 1e11 < device.bandwidth < 1e13
    assert 2e10 < device.memory_bytes < 3e11
