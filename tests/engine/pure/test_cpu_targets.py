"""Which instructions the CPU kernels use: the best that the processor has, or the ones that are asked for."""

from __future__ import annotations

import pytest

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.cpu import targets

ZEN4 = frozenset(["fpu", "fma", "avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"])
SKYLAKE_SERVER = ZEN4 - {"avx512_bf16"}
HASWELL = frozenset({"fpu", "fma", "avx2"})


@pytest.fixture(autouse=True)
def x86(monkeypatch):
    monkeypatch.setattr(targets.compilable, "__defaults__", ("x86_64",))


@pytest.mark.parametrize(
    ("processor", "names"),
    [
        (ZEN4, ["avx512_bf16", "avx512", "avx2", "plain"]),
        (SKYLAKE_SERVER, ["avx512", "avx2", "plain"]),
        (SKYLAKE_SERVER - {"avx512bw"}, ["avx2", "plain"]),
        (HASWELL, ["avx2", "plain"]),
        (HASWELL - {"fma"}, ["plain"]),
        (frozenset(), ["plain"]),
    ],
)
def test_the_best_that_runs_is_chosen(processor, names):
    assert [target.name for target in targets.runnable(processor)] == names
    assert targets.choose("auto", processor).name == names[0]
    assert all(targets.choose(name, processor).name == name for name in names)


def test_another_kind_of_machine_has_the_plain_ones(monkeypatch):
    monkeypatch.setattr(targets.compilable, "__defaults__", ("aarch64",))
    assert targets.choose("auto", ZEN4) is targets.PLAIN
    with pytest.raises(InvalidConfiguration, match="choose one of auto, plain, off"):
        targets.choose("avx2", ZEN4)


def test_they_can_be_off():
    assert targets.choose("off", ZEN4) is None


def test_what_cannot_run_is_refused_with_what_can():
    with pytest.raises(InvalidConfiguration, match=r"lacks avx512f, .*avx512_bf16; it can run avx2, plain$"):
        targets.choose("avx512_bf16", HASWELL)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InvalidConfiguration, match="'avx3'; choose one of auto, avx512_bf16, avx512, avx2, plain, off"):
        targets.choose("avx3", ZEN4)


def test_features_are_read_from_the_processor_itself(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx512f fma\n\nprocessor\t: 1\nflags\t\t: fpu avx512f fma\n")
    assert targets.features(cpuinfo) == {"fpu", "avx512f", "fma"}
    assert targets.features(tmp_path / "absent") == frozenset()


def test_the_compiler_is_told_what_the_processor_needs():
    assert targets.choose("auto", ZEN4).flags[-2:] == ("-mfma", "-mavx512bf16")
