"""Checkpoints as GPTQModel 7.7 wrote them mean here what it says that they mean, to the last bit.

They are made by tests/support/tool_checkpoints.py; nothing of that library is needed here.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from octavo_engine.config import EngineConfig
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import library
from octavo_engine.model.loading import load_model, open_checkpoint
from octavo_engine.model.tensors.parameters import parameters_of
from octavo_engine.preflight.checkpoint import look_at_path
from octavo_engine.preflight.command import check
from paging import prefill_logits
from tiny_models import oracle_logits
from tool_checkpoints import FOLDER, MEANS, SIZES, VARIANTS, save_tokenizer

pytestmark = pytest.mark.engine
BACKEND = "torch" if library.load() is None else "cpu"  # what `auto` is here


@pytest.fixture(params=VARIANTS)
def checkpoint(request: pytest.FixtureRequest) -> Path:
    return FOLDER / request.param


def test_every_weight_is_what_the_tool_says(checkpoint: Path) -> None:
    spec, source = open_checkpoint(str(checkpoint))
    found: dict[str, str] = {}
    for part in (part for parts in parameters_of(spec).values() for part in parts):
        matrix = source.quantized(part)
        if matrix is not None:
            stored = source.read(f"{part.module}.scales", torch.float32).dtype
            weight = matrix.dequantized().to(stored)
            found[part.module] = hashlib.sha256(weight.view(torch.uint8).numpy().tobytes()).hexdigest()
    assert found == json.loads((checkpoint / MEANS).read_text())
    assert len(found) == 7 * SIZES["num_hidden_layers"]


def test_headers_alone_pass_a_preflight(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    save_tokenizer(tmp_path, SIZES["vocab_size"])
    found = look_at_path(str(tmp_path))
    check(found, EngineConfig(model=str(tmp_path)), memory_bytes=None)
    assert found.spec.quantization is not None
    assert found.spec.quantization.method == checkpoint.name.partition("-")[0]


def test_the_order_of_activations_is_one_that_matters() -> None:
    """Otherwise `desc_act` would be tested by nothing."""
    _, source = open_checkpoint(str(FOLDER / "gptq-desc-act"))
    groups = source.read("model.layers.0.self_attn.q_proj.g_idx", torch.float32)
    assert not torch.equal(groups, groups.sort().values)


@torch.no_grad()
def test_the_model_computes_what_these_weights_say(checkpoint: Path) -> None:
    tokens = torch.randint(SIZES["vocab_size"], (40,), generator=torch.Generator().manual_seed(1))
    decoder = load_model(
        str(checkpoint), dtype=torch.float32, device=torch.device("cpu"), kernels=choose_attention(BACKEND)
    )
    found = prefill_logits(decoder, tokens, [16, 1, 23])
    torch.testing.assert_close(found, oracle_logits(plain_twin(checkpoint), tokens), atol=1e-4, rtol=0)


def plain_twin(checkpoint: Path) -> Any:
    """transformers' own model with the dequantized weights, in float32."""
    spec, source = open_checkpoint(str(checkpoint))
    weights = {}
    for part in (part for parts in parameters_of(spec).values() for part in parts):
        matrix = source.quantized(part)
        weights[part.name] = source.read(part.name, torch.float32) if matrix is None else matrix.dequantized()
    config = transformers.AutoConfig.from_pretrained(checkpoint, attn_implementation="eager")
    del config.quantization_config
    model = transformers.LlamaForCausalLM(config).float().eval()
    missing, spare = model.load_state_dict(weights, strict=False)
    assert (missing, spare) == (["lm_head.weight"], []), "the head is the embedding"
    return model
