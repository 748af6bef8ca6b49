"""Tiny random checkpoints of every supported kind, made with transformers: its logits are the oracle.

Weights are random but not small, so that a wrong rotation, mask or bias shows in the first logits.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,  # what tests compute is longer
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
# name -> (transformers' model type, what differs from SIZES)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}),
    "llama_ungrouped": ("llama", {"num_key_value_heads": 6}),
    "llama_one_kv_head": ("llama", {"num_key_value_heads": 1}),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_wide_heads": ("llama", {"head_dim": 20}),
    "llama_linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama_llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama_yarn": ("llama", {"rope_parameters": YARN}),
    "llama_yarn_broken_ends": (
        "llama",
        {"rope_parameters": YARN | {"truncate": False, "beta_fast": 6.0, "beta_slow": 0.5, "attention_factor": 0.8}},
    ),
    "llama_dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral_wide_heads": ("mistral", {"sliding_window": None, "head_dim": 20}),
    "mistral_yarn_window": ("mistral", {"sliding_window": 9, "rope_parameters": YARN}),
    "mistral_window": ("mistral", {"sliding_window": 9}),
    "qwen2": ("qwen2", {}),
    "qwen2_window": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen2_named_layers": (
        "qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen2_tied_yarn": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3_biases_window": (
        "qwen3",
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 7,
            "max_window_layers": 2,
        },
    ),
    "qwen3_yarn": ("qwen3", {"head_dim": 16, "rope_parameters": YARN | {"mscale": 1.2, "mscale_all_dim": 0.6}}),
}


def make_model(variant: str, seed: int = 0, **changes: Any) -> Any:
    """A transformers model in float32, in evaluation mode, with plain (eager) attention."""
    kind, differences = VARIANTS[variant]
    config = transformers.AutoConfig.for_model(kind, **deepcopy(SIZES | differences | changes))  # it writes into them
    config._attn_implementation = "eager"  # the plainest of transformers' own
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # created as zeros and ones, which would hide mistakes
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def save_model(model: Any, directory: Path, *, max_shard_size: str = "1GB") -> Path:
    """Write it as safetensors; returns the directory."""
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    return directory


@torch.no_grad()
def oracle_logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """transformers' float32 logits `[tokens, vocab]` of one sequence."""
    logits: torch.Tensor = model(tokens[None], use_cache=False).logits[0].float()
    return logits
