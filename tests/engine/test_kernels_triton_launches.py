"""Triton's kernels beside attention without a GPU: interpreted, they equal the plain ones; compiled, they fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import drawn_cases
import launched_cases
from child_interpreter import interpret
from cubins import Recorded, compiled, recording
from launched_cases import BF16, FP16, UNITS, ProductCase
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.linear import plain_quantized
from octavo_engine.kernels.pointwise import HeadNorms
from octavo_engine.kernels.quantized import QuantizedLinear, QuantizedMatrix
from octavo_engine.kernels.triton.device import target_of
from octavo_engine.kernels.triton.pointwise import Pointwise
from octavo_engine.kernels.triton.sampling import choice_of, draw
from octavo_engine.kernels.triton.targets import A100, B200, H100, Target
from octavo_engine.kernels.triton.w4a16 import PackedLinear, Product, QuantizedProducts, shares_of
from octavo_engine.kernels.triton.w4a16_layout import WORDS, PackedMatrix, block_inputs
from quantized_checkpoints import Recipe, gptq, gptq_config, save_quantized
from scaled_checkpoints import save_scaled
from tiny_models import make_model, save_model

pytestmark = pytest.mark.engine

TARGETS = (A100, H100, B200)


@pytest.fixture(scope="module")
def interpreted() -> Any:
    return interpret("interpreted_launches.py", "cases")


@pytest.mark.parametrize("case", launched_cases.CASES, ids=str)
def test_interpreted_equals_the_plain_definition(case: launched_cases.Case, interpreted: dict[str, Any]) -> None:
    assert interpreted[str(case)] <= UNITS


@pytest.mark.parametrize("case", drawn_cases.CASES, ids=str)
def test_interpreted_draws_what_the_sampler_defines(case: drawn_cases.DrawCase, interpreted: dict[str, Any]) -> None:
    assert interpreted[str(case)] == []


def test_engines_answer_as_on_a_processor(tmp_path: Path) -> None:
    """With queries and keys that are normed, with weights of 4 bits, and with scaled keys and values of 8 bits."""
    normed = save_model(make_model("qwen3"), tmp_path / "normed")
    quantized = save_quantized(make_model("llama"), tmp_path / "quantized", Recipe(gptq_config(), gptq))
    scaled = save_scaled(make_model("llama"), tmp_path / "scaled")
    for answers in interpret("interpreted_launches.py", "engines", str(normed), str(quantized), str(scaled)):
        assert answers["triton"] == answers["plain"]
        assert len({tuple(answer) for answer in answers["plain"]}) == 3


def test_the_work_that_is_tuned_runs(tmp_path: Path) -> None:
    place = save_model(make_model("qwen3"), tmp_path)
    found = interpret("interpreted_launches.py", "tune", str(place))
    assert {name.split()[0] for name in found} == {
        *("decode16", "mixed16", "norm_row", "gate_row", "turn_heads", "list_candidates", "draw_candidate"),
    }
    assert all(runs == 1 and 4 < tries < 40 for runs, tries in found.values())


@dataclass(frozen=True)
class Build:
    """One launch of the engine's, with its numbers left out."""

    name: str  # of the kernel
    what: str
    launch: Callable[[Target], object]

    def recorded(self, target: Target) -> Recorded:
        with recording() as launches:
            self.launch(target)
        return next(launch for launch in launches if launch.name == self.name)


def norm(width: int, *, adds: bool) -> Callable[[Target], object]:
    def launch(target: Target) -> object:
        x, weight = torch.empty(4, width, dtype=BF16), torch.empty(width, dtype=BF16)
        kernels = Pointwise(target)
        return kernels.add_rms_norm(torch.empty_like(x), x, weight, 1e-5) if adds else kernels.rms_norm(x, weight, 1e-5)

    return launch


def heads(
    dim: int, dtype: torch.dtype, *, normed: bool, stored: torch.dtype | None = None
) -> Callable[[Target], object]:
    def launch(target: Target) -> object:
        cos = torch.empty(4, 1, dim, dtype=dtype)
        cache = torch.empty(2, 16, 8, dim, dtype=stored or dtype), torch.empty(2, 16, 8, dim, dtype=stored or dtype)
        norms = HeadNorms(torch.empty(dim, dtype=dtype), torch.empty(dim, dtype=dtype), 1e-6) if normed else None
        store = Pointwise(target).prepare_store(cos, cos, torch.zeros(4, dtype=torch.int64))
        return store(torch.empty(4, 48, dim, dtype=dtype), norms, cache)

    return launch


def product(case: ProductCase) -> Callable[[Target], object]:
    packed = PackedMatrix.of(case.matrix())
    assert packed is not None

    def launch(target: Target) -> object:
        bias = torch.empty(packed.outputs, dtype=case.dtype) if case.bias else None
        x = torch.empty(case.rows, case.inputs, dtype=case.dtype)
        residual = torch.empty(case.rows, case.outputs, dtype=case.dtype) if case.residual else None
        return Product(target, packed, bias, case.gated).times(x, residual=residual)

    return launch


def draws_of(vocab: int) -> Callable[[Target], object]:
    def launch(target: Target) -> object:
        logits = torch.empty(2, vocab)
        choice = choice_of(0, vocab, temperature=1.0, top_k=None, top_p=0.9, min_p=0.1, uniform=0.5)
        return draw(target, logits, torch.empty(2), [choice], torch.empty(2, dtype=torch.int64))

    return launch


WIDE = {"outputs": 4096, "inputs": 512, "group": 128}
BUILDS = [
    Build("norm_row", "4096", norm(4096, adds=False)),
    Build("norm_row", "added-16384", norm(16384, adds=True)),
    Build("gate_row", "14336", lambda target: Pointwise(target).silu_multiply(torch.empty(4, 2 * 14336, dtype=BF16))),
    Build("turn_heads", "normed-128", heads(128, BF16, normed=True)),
    Build("turn_heads", "256-e5m2", heads(256, FP16, normed=False, stored=torch.float8_e5m2)),
    Build("quantized_product", "1-gated-split", product(ProductCase(1, 2048, 2048, 128, gated=True))),
    Build("quantized_product", "17-8bit", product(ProductCase(17, **WIDE, bits=8, bias=True))),
    Build("quantized_product", "64-residual", product(ProductCase(64, **WIDE, residual=True, dtype=FP16))),
    Build("quantized_product", "2048-gated", product(ProductCase(2048, **WIDE, gated=True))),
    Build("merge_splits", "gated", product(ProductCase(1, 2048, 2048, 128, gated=True, bias=True))),
    Build("list_candidates", "128256", draws_of(128_256)),
    Build("draw_candidate", "128256", draws_of(128_256)),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"sm_{target.capability}")
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: f"{build.name}-{build.what}")
def test_compiled_fits_its_target(build: Build, target: Target) -> None:
    cubin = compiled(build.recorded(target), target)
    assert cubin.problems(target) == []
    if build.name == "quantized_product":
        assert any(word in cubin.ptx for word in ("mma.sync", "wgmma", "tcgen05.mma")), "on tensor cores"
        assert "cp.async" in cubin.ptx, "weights come while others are multiplied"


@pytest.mark.soak
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("stored", [None, torch.float8_e5m2, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"sm_{target.capability}")
def test_heads_of_every_kind_fit_their_target(
    target: Target, dim: int, dtype: torch.dtype, stored: torch.dtype | None, normed: bool
) -> None:
    if stored == torch.float8_e4m3fn and not target.has_e4m3:
        return  # what is stored there is e5m2
    build = Build("turn_heads", "", heads(dim, dtype, normed=normed, stored=stored))
    assert compiled(build.recorded(target), target).problems(target) == []


@pytest.mark.parametrize(
    ("bits", "inputs", "group"), [(4, 256, 128), (4, 300, 300), (8, 130, 64), (4, 32, 32)], ids=str
)
def test_packed_words_hold_every_code_where_the_kernel_looks(bits: Any, inputs: int, group: int) -> None:
    matrix = ProductCase(1, 24, inputs, group, bits=bits).matrix()
    packed = PackedMatrix.of(matrix)
    assert packed is not None
    codes, span = matrix.unpacked(), block_inputs(bits)
    words = packed.words.long() & 0xFFFFFFFF
    for place in range(inputs):
        block, rest = divmod(place, span)
        found = words[block, :, rest % WORDS] >> (rest // WORDS * bits) & (2**bits - 1)
        assert torch.equal(found, codes[:, place].long())
    zeros = packed.zeros.repeat_interleave(group, dim=0)[:inputs].t()
    scales = packed.scales.double().repeat_interleave(group, dim=0)[:inputs].t()
    assert torch.equal(scales * (codes.double() - zeros), matrix.dequantized(torch.float64))
    assert packed.scales.dtype == FP16, "scales of 16 bits stay so"


def test_a_packed_weight_takes_what_its_bits_take() -> None:
    matrix = ProductCase(1, 256, 4096, 128).matrix()
    packed = PackedMatrix.of(matrix)
    assert packed is not None
    assert packed.nbytes == matrix.codes.nbytes + 4096 // 128 * 256 * (2 + 2)


def test_what_does_not_fit_the_kernel_is_computed_plainly_and_said(caplog: pytest.LogCaptureFixture) -> None:
    fitting = ProductCase(1, 8, 96, 48).matrix()
    shifted = ProductCase(1, 8, 96, 32).matrix()
    shifted = QuantizedMatrix(4, shifted.codes, shifted.scales, shifted.offsets + 0.001, 32)
    for matrix, reason in ((fitting, "groups of 48"), (shifted, "offsets are not whole multiples")):
        caplog.clear()
        projection = QuantizedProducts(H100).projection(matrix, None, BF16)
        assert isinstance(projection, QuantizedLinear)
        assert type(projection) is type(plain_quantized(matrix, None, BF16))
        assert reason in caplog.text
    assert isinstance(QuantizedProducts(H100).projection(ProductCase(1, 8, 96, 32).matrix(), None, BF16), PackedLinear)


@pytest.mark.parametrize("tiles", [1, 7, 64, 131, 264, 10_000])
@pytest.mark.parametrize("blocks", [1, 2, 3, 16, 57])
def test_shares_cover_all_inputs_and_none_is_empty(blocks: int, tiles: int) -> None:
    shares = shares_of(blocks, tiles, H100)
    assert (shares.splits - 1) * shares.blocks < blocks <= shares.splits * shares.blocks
    assert shares.splits * tiles <= max(tiles, 2 * H100.processors)


def test_errors_are_counted_in_units_of_the_last_place() -> None:
    exact = torch.tensor([1.0, 1.75, -3.0])
    for dtype in (BF16, FP16):
        found = (exact + torch.tensor([0, 2 * torch.finfo(dtype).eps, 0])).to(dtype)
        assert launched_cases.units_off(found, exact) == pytest.approx(2, abs=0.01)
    assert launched_cases.units_off(torch.tensor([torch.nan]), exact[:1]) == torch.inf


def test_a_device_older_than_every_launch_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="Tesla T4", major=7, minor=5, multi_processor_count=40)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: found)
    with pytest.raises(InvalidConfiguration, match=r"Tesla T4 has compute capability 7\.5, but the kernels need 8\.0"):
        target_of(torch.device("cuda", 7))
