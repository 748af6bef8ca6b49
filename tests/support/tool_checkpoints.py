"""Makes tests/data/quantized: tiny checkpoints as GPTQModel itself writes them, and what it says that they mean.

    python tests/support/tool_checkpoints.py [FOLDER]

Run where `octavo[quantize]` is installed; the tests that read the result need none of it. A line of `means.json` is a
module's weight `[out, in]` as the tool dequantizes it, in the type of its scales: the SHA-256 of its bytes.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import string
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / "tests" / "data" / "quantized"
MEANS = "means.json"
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}
# name -> the arguments of `octavo quantize`
VARIANTS = {
    "gptq": ("--method", "gptq", "--group-size", "32"),
    "gptq-desc-act": ("--method", "gptq", "--group-size", "32", "--desc-act"),
    "gptq-8-bits": ("--method", "gptq", "--group-size", "64", "--bits", "8"),
    "gptq-whole-rows": ("--method", "gptq", "--group-size", "-1"),
    "awq": ("--method", "awq", "--group-size", "32"),
    "awq-whole-rows": ("--method", "awq", "--group-size", "-1"),
}


def main() -> None:
    sys.path.insert(0, str(CHECKOUT / "engine"))
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with tempfile.TemporaryDirectory() as folder:
        plain = save_plain(Path(folder) / "plain")
        text = Path(folder) / "text.txt"
        text.write_text("\n\n".join(sentences()))
        for name, arguments in VARIANTS.items():
            make(plain, Path(folder) / name, [*arguments, "--calibration", str(text)])
            keep(Path(folder) / name, target / name)


def make(plain: Path, out: Path, arguments: list[str]) -> None:
    from octavo_engine import cli

    code = cli.main(["quantize", str(plain), str(out), "--device", "cpu", *arguments])
    if code:
        raise SystemExit(code)


def keep(made: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(made / name, target / name)
    (target / MEANS).write_text(json.dumps(means(made), indent=1) + "\n")


def save_plain(folder: Path) -> Path:
    """A random Llama with a tokenizer of words, as `octavo quantize` takes it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    LlamaForCausalLM(LlamaConfig(**SIZES)).to(torch.bfloat16).save_pretrained(folder)
    save_tokenizer(folder, SIZES["vocab_size"])
    return folder


def save_tokenizer(folder: Path, size: int) -> None:
    """Small letters, a space and three special tokens; the rest of the vocabulary is never met."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = ["<unk>", "<s>", "</s>", "\u0120", *string.ascii_lowercase]  # U+0120 is a space, spelled byte by byte
    tokens += [f"<{number}>" for number in range(size - len(tokens))]
    words = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(words, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.add_special_tokens(tokens[:3])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64} | names
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def sentences(count: int = 48, letters: int = 60) -> Iterator[str]:
    chance = random.Random(0)
    for _ in range(count):
        yield "".join(chance.choices(string.ascii_lowercase + "   ", k=letters))


def means(checkpoint: Path) -> dict[str, str]:
    """Each quantized module's weight, as the tool dequantizes it."""
    import torch
    from gptqmodel import GPTQModel

    awq = json.loads((checkpoint / "config.json").read_text())["quantization_config"]["quant_method"] == "awq"
    backend, stored = ("awq_torch" if awq else "gptq_torch"), type_of_scales(checkpoint)
    model = GPTQModel.load(str(checkpoint), backend=backend, device="cpu", dtype=stored).model
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if hasattr(module, "qweight"):
            weight = dequantized(module, awq=awq)
            assert weight.dtype == module.scales.dtype == stored, "nothing was rounded on the way"
            found[name] = hashlib.sha256(weight.view(torch.uint8).numpy().tobytes()).hexdigest()
    return found


def type_of_scales(checkpoint: Path) -> Any:
    from safetensors.torch import load_file

    (found,) = {
        tensor.dtype for name, tensor in load_file(checkpoint / "model.safetensors").items() if "scales" in name
    }
    return found


def dequantized(module: Any, *, awq: bool) -> Any:
    """`[out, in]`, in the type of the scales."""
    if awq:
        from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

        parts = {"qweight": module.qweight, "qzeros": module.qzeros, "scales": module.scales}
        inputs = module.in_features
        group = module.group_size if module.group_size > 0 else inputs
        return dequantize_gemm(**parts, bits=module.bits, group_size=group).t().contiguous()
    return module.dequantize_weight().t().contiguous()


if __name__ == "__main__":
    main()
