"""A GGUF file's weights stay in few bits on a processor: the same numbers, in as much memory as is said."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from gguf_files import random_blocks, write_mixed
from octavo_engine.config import EngineConfig
from octavo_engine.kernels import dequant
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import library
from octavo_engine.kernels.cpu.packing import PackedGatedLinear, PackedLinear
from octavo_engine.kernels.cpu.quantized import Packed
from octavo_engine.kernels.side_by_side import products_in
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.compute.layers import LayersLoop, PlainLayers
from octavo_engine.model.loading import load_model
from octavo_engine.model.spec import read_spec
from octavo_engine.model.tensors.costs import cost_of, needs_of, weight_bytes
from octavo_engine.model.tensors.kept import as_kept, keeps_few_bits
from paging import Pages, model_caches, prefill_logits
from tiny_models import make_model, oracle_logits

pytestmark = pytest.mark.engine
COMPILED = pytest.mark.skipif(library.load() is None, reason="the CPU kernels do not run here")
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "initializer_range": 0.05,
}
# As the common mixtures have it: some tensors in more bits than others, in some layers. What is not named is float32.
FILES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "Q4_K_M": (
        {"tie_word_embeddings": False},
        {r"v_proj|lm_head": "Q6_K", r"0\.mlp\.down": "Q6_K", r"embed_tokens|_proj": "Q4_K"},
    ),
    "Q4_1, tied": ({"tie_word_embeddings": True}, {"embed_tokens": "Q8_0", "_proj": "Q4_1"}),
    "Q4_0 beside others": (
        {"tie_word_embeddings": False},
        {"k_proj": "F16", "v_proj": "Q8_0", "o_proj": "Q5_0", "1.mlp.up": "Q8_0", "_proj|lm_head": "Q4_0"},
    ),
}


def load(path: Path, dtype: torch.dtype = torch.float32, loop: LayersLoop = "auto") -> Decoder:
    backend = "torch" if library.load() is None else "cpu"
    return load_model(str(path), dtype=dtype, device=torch.device("cpu"), kernels=choose_attention(backend), loop=loop)


def products_of(decoder: Decoder) -> Iterable[object]:
    layers = [product for layer in decoder.layers.layers for product in layer.products]  # type: ignore[attr-defined]
    return [part for product in (*layers, decoder.head) for part in products_in(product)]


@pytest.mark.parametrize("name", FILES)
def test_logits_are_those_of_the_weights_that_the_file_means(name: str, tmp_path: Path) -> None:
    changes, kinds = FILES[name]
    model = make_model("llama", **SIZES, **changes)
    path = write_mixed(model, tmp_path / "m.gguf", kinds)
    tokens = torch.arange(1, 60)
    wanted = oracle_logits(model, tokens)
    found = prefill_logits(load(path), tokens, [20, 1, 38])
    torch.testing.assert_close(found, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)


@COMPILED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["Q4_K_M", "Q4_1, tied"])
def test_one_call_of_all_layers_and_many_give_the_same_bits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Also where query, key and value are in several types, side by side."""
    changes, kinds = FILES[name]
    path = write_mixed(make_model("llama", **SIZES, **changes), tmp_path / "m.gguf", kinds)
    one, many = load(path, dtype), load(path, dtype, "python")
    assert not isinstance(one.layers, PlainLayers)
    assert isinstance(many.layers, PlainLayers)
    for found, wanted in zip(run(one, dtype), run(many, dtype), strict=True):
        torch.testing.assert_close(found, wanted, atol=0, rtol=0, equal_nan=True)


def run(decoder: Decoder, dtype: torch.dtype) -> list[torch.Tensor]:
    """Hidden states of prompts, of decodes beside a chunk, and of one decode; and the caches that they leave."""
    pages = Pages.scattered((70, 9, 130), 16)
    caches = model_caches(decoder.spec, pages, dtype)
    found = []
    for work in ([(0, 0, 69), (2, 0, 100)], [(0, 69, 1), (2, 100, 29), (1, 0, 8)], [(2, 129, 1)]):
        places = [(row, at) for row, start, count in work for at in range(start, start + count)]
        tokens = torch.tensor([(7 * row + 3 * at) % 199 for row, at in places])
        found.append(decoder.forward(tokens, pages.layout(work), caches))
    return [*found, *(part for cache in caches for part in cache)]


@COMPILED
def test_memory_is_what_the_packed_weights_take(tmp_path: Path) -> None:
    """What is planned, reported and counted as read is what is there, but for the rows that fill up panels."""
    changes, kinds = FILES["Q4_1, tied"]
    path = write_mixed(make_model("llama", **SIZES, vocab_size=512, **changes), tmp_path / "m.gguf", kinds)
    decoder, spec = load(path, torch.bfloat16), read_spec(str(path))
    weights = [part.weight for part in products_of(decoder) if isinstance(part, PackedLinear | PackedGatedLinear)]
    panels = [weight.panels.nbytes for weight in weights if isinstance(weight, Packed)]
    assert len(panels) == len(weights) == 4 * spec.layers + 1
    norms = (2 * spec.layers + 1) * spec.hidden * 2
    assert decoder.parameter_bytes == sum(panels) + norms
    expanded = weight_bytes(as_kept(spec, few_bits=False), 2)
    assert 2.5 < expanded / decoder.parameter_bytes < 3.2
    config = EngineConfig(model=str(path))
    assert needs_of(spec, config, width=2).weights == decoder.parameter_bytes
    cost = cost_of(spec, 2)
    assert cost.step_bytes + cost.head_bytes < 1.02 * decoder.parameter_bytes


@pytest.mark.parametrize("device", ["cuda", "cpu with float16"])
def test_weights_are_expanded_where_no_kernel_multiplies_codes(device: str, tmp_path: Path) -> None:
    changes, kinds = FILES["Q4_1, tied"]
    path = write_mixed(make_model("llama", **SIZES, **changes), tmp_path / "m.gguf", kinds)
    on_host, dtype = device != "cuda", "float16" if "float16" in device else "bfloat16"
    spec = as_kept(read_spec(str(path)), few_bits=keeps_few_bits(dtype, on_host=on_host))
    assert spec.quantization is None
    if on_host:
        kernels = choose_attention("torch")
        decoder = load_model(str(path), dtype=torch.float16, device=torch.device("cpu"), kernels=kernels)
        assert decoder.spec.quantization is None
        assert decoder.parameter_bytes == weight_bytes(spec, 2)


@pytest.mark.parametrize("name", dequant.BY_NAME)
def test_blocks_that_stay_quantized_are_expanded_bit_for_bit(name: str) -> None:
    """Row for row, in every type, and by the compiled look-up as well."""
    kind = dequant.BY_NAME[name]
    blocks = torch.from_numpy(random_blocks(name, 6 * 40))
    wanted = kind.expanded(blocks).view(40, -1)
    matrix = kind.matrix(blocks, 40)
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(matrix.dequantized(dtype), wanted.to(dtype))
        if library.load() is not None:
            found = Packed.of(matrix, None, dtype, gated=False).rows(torch.arange(40).flip(0)).flip(0)
            assert torch.equal(found, wanted.to(dtype))
