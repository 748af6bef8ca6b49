"""Dequantization equals the gguf library's bit for bit; packed products equal plain ones up to bfloat16's rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from gguf_files import random_blocks
from octavo_engine.kernels import dequant, onednn_linear
from octavo_engine.kernels.choice import choose_linear
from octavo_engine.kernels.cpu import library
from octavo_engine.kernels.linear import PLAIN
from octavo_engine.model.gguf.source import SLICE_WEIGHTS, decode

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("name", dequant.BY_NAME)
def test_dequantization_equals_the_library(name: str) -> None:
    blocks = random_blocks(name, 300)
    wanted = torch.from_numpy(dequantize(blocks, GGMLQuantizationType[name]))
    assert torch.equal(dequant.BY_NAME[name].expanded(torch.from_numpy(blocks)), wanted)


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
def test_slices_make_a_whole(name: str) -> None:
    kind = GGMLQuantizationType[name]
    blocks = random_blocks(name, 2 * SLICE_WEIGHTS // GGML_QUANT_SIZES[kind][0] + 3)
    wanted = torch.from_numpy(dequantize(blocks, kind)).flatten()
    assert torch.equal(decode(torch.from_numpy(blocks).flatten(), kind, torch.float32), wanted)


@pytest.mark.parametrize("name", ["Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K"])
def test_rarer_types_go_through_the_library(name: str) -> None:
    kind = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[kind]
    source = np.random.default_rng(0)
    blocks = source.integers(0, 60, (SLICE_WEIGHTS // elements + 3, size), dtype=np.uint8)  # as float16 below 1
    wanted = torch.from_numpy(dequantize(blocks, kind)).flatten()
    assert wanted.unique().numel() > 1000
    assert torch.equal(decode(torch.from_numpy(blocks).flatten(), kind, torch.float32), wanted)


@pytest.mark.skipif(not onednn_linear.available(), reason="this CPU or this torch has no oneDNN bfloat16 products")
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33, 130])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_products_equal_plain_ones(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(96, 56).bfloat16() / 8, torch.randn(rows, 56).bfloat16()
    offset = torch.randn(96).bfloat16() if bias else None
    residual = torch.randn(rows, 96).bfloat16()
    plain, packed = (kernels.projection(weight, offset) for kernels in (PLAIN, onednn_linear.KERNELS))
    close = {"atol": 2e-2, "rtol": 1e-2}  # the plain path rounds before it adds or multiplies, the packed one after
    torch.testing.assert_close(packed(x), plain(x), **close)
    torch.testing.assert_close(packed.add_to(residual.clone(), x), plain.add_to(residual.clone(), x), **close)
    gated, packed_gated = (kernels.gated(weight, offset) for kernels in (PLAIN, onednn_linear.KERNELS))
    torch.testing.assert_close(packed_gated(x), gated(x), **close)


@pytest.mark.skipif(library.load() is None, reason="the CPU kernels do not run here")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_products_are_packed_where_the_kernels_run(dtype: torch.dtype) -> None:
    assert choose_linear(dtype, torch.device("cpu")).name == "cpu"


def test_float16_keeps_plain_products_and_says_what_is_faster(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_linear(torch.float16, torch.device("cpu")) is PLAIN
    assert "float16" in caplog.text
    assert "--dtype bfloat16" in caplog.text
