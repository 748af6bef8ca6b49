"""All layers in one native call give the bits that the same kernels give one by one, hidden states and cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import library
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.compute.layers import LayersLoop, PlainLayers
from octavo_engine.model.loading import load_model
from paging import Pages, model_caches
from tiny_models import make_model, save_model

pytestmark = [pytest.mark.engine, pytest.mark.skipif(library.load() is None, reason="the CPU kernels do not run here")]
VARIANTS = ["llama", "llama_biases", "llama_one_kv_head", "mistral_window", "qwen2_window", "qwen3"]
LENGTHS = (70, 1, 33, 300)
# A first step fills the cache in chunks; the second has decodes, a chunk, and a new prompt beside them.
FIRST = [(0, 0, 69), (2, 0, 16), (3, 0, 299)]
SECOND = [(0, 69, 1), (3, 299, 1), (1, 0, 1), (2, 16, 17)]


def run(decoder: Decoder, dtype: torch.dtype, kept: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Both steps' hidden states, of the second those `kept`, and the caches they leave."""
    pages = Pages.scattered(LENGTHS, 16)
    caches = model_caches(decoder.spec, pages, dtype)
    texts = [torch.randint(decoder.spec.vocab, (n,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
    found = []
    for work in (FIRST, SECOND):
        tokens = torch.cat([texts[row][start : start + count] for row, start, count in work])
        found.append(decoder.forward(tokens, pages.layout(work), caches, kept if work is SECOND else None))
    return [*found, *(part for cache in caches for part in cache)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_call_and_many_give_the_same_bits(variant: str, dtype: torch.dtype, tmp_path: Path) -> None:
    path, device, kernels = save_model(make_model(variant), tmp_path), torch.device("cpu"), choose_attention("cpu")

    def load(loop: LayersLoop) -> Decoder:
        return load_model(str(path), dtype=dtype, device=device, kernels=kernels, loop=loop)

    one, many = load("auto"), load("python")
    assert not isinstance(one.layers, PlainLayers)
    assert isinstance(many.layers, PlainLayers)
    for found, wanted in zip(run(one, dtype), run(many, dtype), strict=True):
        torch.testing.assert_close(found, wanted, atol=0, rtol=0, equal_nan=True)


KEPT = ([], [0], [16], [0, 1, 2, 19], [2, 3, 18, 19], list(range(20)))


@pytest.mark.parametrize("loop", ["auto", "python"])
@pytest.mark.parametrize("variant", ["llama", "mistral_window", "qwen3"])
def test_rows_that_are_kept_are_the_same_bits_and_so_is_the_cache(
    variant: str, loop: LayersLoop, tmp_path: Path
) -> None:
    """And all rows' keys and values are stored, whichever are kept."""
    path, kernels = save_model(make_model(variant), tmp_path), choose_attention("cpu")
    decoder = load_model(str(path), dtype=torch.bfloat16, device=torch.device("cpu"), kernels=kernels, loop=loop)
    _, wanted, *cached = run(decoder, torch.bfloat16)
    for rows in KEPT:
        kept = torch.tensor(rows, dtype=torch.int64)
        _, found, *after = run(decoder, torch.bfloat16, kept)
        assert torch.equal(found, wanted[kept])
        for part, same in zip(after, cached, strict=True):
            torch.testing.assert_close(part, same, atol=0, rtol=0, equal_nan=True)


def test_other_attention_has_its_layers_called_one_by_one(tmp_path: Path) -> None:
    path = save_model(make_model("llama"), tmp_path)
    decoder = load_model(str(path), dtype=torch.float32, device=torch.device("cpu"), kernels=choose_attention("torch"))
    assert isinstance(decoder.layers, PlainLayers)
