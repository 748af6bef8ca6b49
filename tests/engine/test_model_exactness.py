"""The decoder's logits equal transformers' own in float32, for every family and switch, whole and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo_engine.kernels.attention import Backend
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import library
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.loading import load_model, open_checkpoint
from paging import Pages, model_caches, prefill_logits
from tiny_models import VARIANTS, make_model, oracle_logits, save_model

pytestmark = pytest.mark.engine
TOLERANCE = 1e-4
LENGTH = 45
NO_CPU_KERNELS = pytest.mark.skipif(library.load() is None, reason="the CPU kernels do not run here")
FAST = ["torch", pytest.param("cpu", marks=NO_CPU_KERNELS)]


def load(path: Path, backend: Backend = "torch") -> Decoder:
    return load_model(str(path), dtype=torch.float32, device=torch.device("cpu"), kernels=choose_attention(backend))


@pytest.fixture(scope="module")
def smollm2_decoder(smollm2_gguf: Path) -> Decoder:
    return load(smollm2_gguf)


def random_tokens(vocab: int, count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("backend", ["reference", *FAST])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant: str, backend: Backend, tmp_path: Path) -> None:
    model = make_model(variant)
    decoder = load(save_model(model, tmp_path), backend)
    tokens = random_tokens(decoder.spec.vocab, LENGTH)
    found = prefill_logits(decoder, tokens, [LENGTH])
    torch.testing.assert_close(found, oracle_logits(model, tokens), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("chunks", [[1] * LENGTH, [16, 16, 13], [15, 1, 1, 17, 11], [44, 1]], ids=str)
@pytest.mark.parametrize("variant", ["llama", "mistral_window", "qwen2_window", "qwen3"])
@pytest.mark.parametrize("backend", FAST)
def test_chunks_give_the_logits_of_the_whole(
    backend: Backend, variant: str, chunks: Sequence[int], tmp_path: Path
) -> None:
    model = make_model(variant)
    decoder = load(save_model(model, tmp_path), backend)
    tokens = random_tokens(decoder.spec.vocab, LENGTH)
    found = prefill_logits(decoder, tokens, chunks)
    torch.testing.assert_close(found, oracle_logits(model, tokens), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("variant", ["llama", "mistral_window"])
@pytest.mark.parametrize("backend", FAST)
def test_a_mixed_step_gives_each_sequence_its_own_logits(backend: Backend, variant: str, tmp_path: Path) -> None:
    model = make_model(variant)
    decoder = load(save_model(model, tmp_path), backend)
    lengths = [33, 5, 17, 40]
    texts = [random_tokens(decoder.spec.vocab, length, seed) for seed, length in enumerate(lengths)]
    pages = Pages.scattered(lengths, 16)
    caches = model_caches(decoder.spec, pages, torch.float32)
    # Two sequences lack their last token, a third its second half; then two decodes and two chunks share a step.
    first = [(0, 0, 32), (1, 0, 4), (2, 0, 8)]
    decoder.forward(torch.cat([texts[i][a : a + n] for i, a, n in first]), pages.layout(first), caches)
    second = [(0, 32, 1), (1, 4, 1), (2, 8, 9), (3, 0, 40)]
    tokens = torch.cat([texts[i][a : a + n] for i, a, n in second])
    found = decoder.logits(decoder.forward(tokens, pages.layout(second), caches))
    wanted = torch.cat([oracle_logits(model, texts[i])[a : a + n] for i, a, n in second])
    torch.testing.assert_close(found, wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100, 300])
def test_the_real_model_from_gguf(length: int, smollm2_decoder: Decoder, smollm2_reference: Any) -> None:
    tokens = random_tokens(smollm2_decoder.spec.vocab, length)
    found = prefill_logits(smollm2_decoder, tokens, [length])
    torch.testing.assert_close(found, oracle_logits(smollm2_reference, tokens), atol=TOLERANCE, rtol=0)


def test_both_formats_hold_the_same_weights(smollm2_gguf: Path, smollm2_checkpoint: Path) -> None:
    (gguf_spec, gguf), (spec, safetensors) = (open_checkpoint(str(path)) for path in (smollm2_gguf, smollm2_checkpoint))
    assert replace(gguf_spec, dtype=spec.dtype, quantization=spec.quantization) == spec
    assert set(gguf.shapes) == set(safetensors.shapes)
    for name in safetensors.shapes:
        assert torch.equal(gguf.read(name, torch.float32), safetensors.read(name, torch.float32)), name
