"""What few bits cost in perplexity: SmolLM2-135M in several formats, read by the engine, beside the plain model.

    .venv/bin/python benchmarks/quantized_perplexity.py [--windows N] [--dtype float32] [--markdown FILE]

Weights are rounded to the nearest code, with no calibration: tools that calibrate do better, so this bounds from above
what a format costs. The text is the project's own documentation. The model itself comes out of a 4-bit file, and its
weights are spread as that file rounded them.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CHECKOUT / "tests" / "support"), str(CHECKOUT / "engine")]

from checkpoint import smollm2  # noqa: E402

from octavo_engine.kernels.choice import choose_attention  # noqa: E402
from octavo_engine.kernels.cpu import library  # noqa: E402
from octavo_engine.model.compute.decoder import Decoder  # noqa: E402
from octavo_engine.model.loading import DTYPES, load_model  # noqa: E402
from paging import prefill_logits  # noqa: E402
from quantized_checkpoints import (  # noqa: E402
    Recipe,
    awq_config,
    awq_gemm,
    compressed_config,
    gptq,
    gptq_config,
    gptq_v2,
    pack_quantized_symmetric,
    save_quantized,
)

WINDOW = 512  # tokens, each read without those before
RECIPES = {
    "AWQ, 4 bits, groups of 64": Recipe(awq_config(group_size=64), awq_gemm, group=64),
    "GPTQ, 4 bits, groups of 128, symmetric": Recipe(
        gptq_config(group_size=128, sym=True), gptq, group=128, symmetric=True
    ),
    "GPTQ, 8 bits, groups of 128": Recipe(gptq_config(bits=8, group_size=128), gptq, bits=8, group=128),
    "GPTQ, 3 bits, groups of 64": Recipe(
        gptq_config(bits=3, group_size=64, checkpoint_format="gptq_v2"), gptq_v2, bits=3, group=64
    ),
    "compressed-tensors, 4 bits, groups of 32": Recipe(
        compressed_config(group_size=32), pack_quantized_symmetric, group=32, symmetric=True
    ),
    "compressed-tensors, 8 bits, by channel": Recipe(
        compressed_config(num_bits=8, strategy="channel", group_size=None), pack_quantized_symmetric, bits=8, group=-1,
        symmetric=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """One model's."""

    name: str
    weight_bytes: int
    perplexity: float
    same_token: float  # how often its likeliest token is the plain model's


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=8, help=f"of {WINDOW} tokens")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16", help="of what is plain")
    parser.add_argument("--markdown", type=Path, help="write the table there, too")
    options = parser.parse_args()
    found: list[Figures] = []
    for figures in measured(options.windows, DTYPES[options.dtype]):
        print(figures, flush=True)
        found.append(figures)
    print(shown(found))
    if options.markdown:
        options.markdown.write_text(shown(found) + "\n")


def measured(count: int, dtype: torch.dtype) -> Iterator[Figures]:
    """The plain model first."""
    place = smollm2()
    windows = text_windows(AutoTokenizer.from_pretrained(place), count)
    plain = load(place, dtype)
    wanted = [prefill_logits(plain, window, [WINDOW]).argmax(dim=1) for window in windows]
    yield figures_of(f"{str(dtype).removeprefix('torch.')}, plain", plain, windows, wanted)
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    for name, recipe in RECIPES.items():
        with tempfile.TemporaryDirectory() as folder:
            decoder = load(save_quantized(copy.deepcopy(model), Path(folder), recipe), dtype)
            yield figures_of(name, decoder, windows, wanted)


def load(place: Path, dtype: torch.dtype) -> Decoder:
    backend = choose_attention("torch" if library.load() is None else "cpu")
    return load_model(str(place), dtype=dtype, device=torch.device("cpu"), kernels=backend)


def text_windows(tokenizer: Any, count: int) -> list[torch.Tensor]:
    """The first windows of the documentation."""
    text = "\n\n".join(page.read_text() for page in sorted((CHECKOUT / "docs").glob("*.md")))
    ids = torch.tensor(tokenizer(text[: count * WINDOW * 6]).input_ids)
    assert len(ids) >= count * WINDOW, "there is not that much text"
    return list(ids[: count * WINDOW].split(WINDOW))


def figures_of(name: str, decoder: Decoder, windows: list[torch.Tensor], wanted: list[torch.Tensor]) -> Figures:
    lost, same = 0.0, 0.0
    for window, likeliest in zip(windows, wanted, strict=True):
        logits = prefill_logits(decoder, window, [WINDOW])
        lost += float(torch.nn.functional.cross_entropy(logits[:-1], window[1:]))
        same += float((logits.argmax(dim=1) == likeliest).float().mean())
    return Figures(name, decoder.parameter_bytes, math.exp(lost / len(windows)), same / len(windows))


def shown(found: list[Figures]) -> str:
    plain = found[0]
    rows = [
        f"| {one.name} | {one.weight_bytes / 1e6:,.0f} MB | {one.perplexity:.2f}"
        f" | {100 * (one.perplexity / plain.perplexity - 1):+.1f} % | {100 * one.same_token:.1f} % |"
        for one in found
    ]
    head = "| weights | in memory | perplexity | more | same likeliest token |\n|---|---:|---:|---:|---:|"
    return "\n".join([head, *rows])


if __name__ == "__main__":
    main()
