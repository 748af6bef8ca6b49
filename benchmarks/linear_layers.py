"""The matrix products of one step of SmolLM2-135M, for 1 to 1,024 rows: ours, oneDNN's and torch's in one process.

    .venv/bin/python benchmarks/linear_layers.py [--threads 2] [--dtype bfloat16] [--rows 1 8 32] [--repeat 9]

The sets take turns, and each figure is the least of its repetitions. Beside the milliseconds stand the shares of what
this machine can do at best (kernels/cpu/rates.py): of the speed at which it reads memory, in turns with them, for few
rows, and of the rate of products in registers, for many. Up to 128 rows are decodes, each with its logits; more are a
prompt, with one row of logits. OCTAVO_CPU_KERNELS chooses the instructions of ours, ONEDNN_MAX_CPU_ISA of oneDNN's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.kernels import linear as plain
from octavo_engine.kernels import onednn_linear
from octavo_engine.kernels.cpu import library, rates
from octavo_engine.kernels.cpu import linear as compiled
from octavo_engine.kernels.linear import GatedProjection, LinearKernels, Projection

LAYERS, HIDDEN, HEADS_WIDTH, QKV, INTERMEDIATE, VOCAB = 30, 576, 576, 960, 1536, 49152
DECODE_ROWS = 128
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Model:
    """The products of a step, of one set of kernels."""

    name: str
    layers: list[tuple[Projection, Projection, GatedProjection, Projection]]
    head: Projection
    dtype: torch.dtype

    @classmethod
    def of(cls, kernels: LinearKernels, dtype: torch.dtype) -> Model:
        """With weights of its own for each layer: no cache holds them all."""

        def weight(outputs: int, inputs: int) -> Tensor:
            return torch.randn(outputs, inputs).div(inputs**0.5).to(dtype)

        def layer() -> tuple[Projection, Projection, GatedProjection, Projection]:
            return (
                kernels.projection(weight(QKV, HIDDEN), None),
                kernels.projection(weight(HIDDEN, HEADS_WIDTH), None),
                kernels.gated(weight(2 * INTERMEDIATE, HIDDEN), None),
                kernels.projection(weight(HIDDEN, INTERMEDIATE), None),
            )

        return cls(
            kernels.name, [layer() for _ in range(LAYERS)], kernels.projection(weight(VOCAB, HIDDEN), None), dtype
        )

    def step(self, rows: int) -> Callable[[], None]:
        """One step of so many rows; its outputs are as wide as the next product's inputs."""
        x, attended = (torch.randn(rows, width).to(self.dtype) for width in (HIDDEN, HEADS_WIDTH))

        def run() -> None:
            hidden = x.clone()
            for qkv, output, gate_up, down in self.layers:
                qkv(x)
                hidden = output.add_to(hidden, attended)
                hidden = down.add_to(hidden, gate_up(x))
            self.head.wide(x[: logit_rows(rows)])

        return run


def logit_rows(rows: int) -> int:
    """Every decode has logits, of a prompt its last token."""
    return rows if rows <= DECODE_ROWS else 1


def layer_weights() -> int:
    """Numbers in the weights of all layers."""
    return LAYERS * (HIDDEN * QKV + HEADS_WIDTH * HIDDEN + 3 * HIDDEN * INTERMEDIATE)


def operations(rows: int) -> int:
    """Of one step, a product and its sum being two."""
    return 2 * (layer_weights() * rows + HIDDEN * VOCAB * logit_rows(rows))


def weight_bytes(dtype: torch.dtype) -> int:
    """What every step reads at least once."""
    return (layer_weights() + HIDDEN * VOCAB) * dtype.itemsize


def sets(dtype: torch.dtype) -> Iterator[LinearKernels]:
    """Those that run here, ours first."""
    if library.load() is None:
        sys.exit("the CPU kernels do not run here: see the line above")
    yield compiled.KERNELS
    if dtype == torch.bfloat16 and onednn_linear.available():
        yield onednn_linear.KERNELS
    yield plain.PLAIN


def least_seconds(runs: list[Callable[[], None]], repeat: int) -> list[float]:
    """Of each, the least of `repeat` times after one more; they take turns."""
    least = [float("inf")] * len(runs)
    for turn in range(repeat + 1):
        for place, run in enumerate(runs):
            began = time.perf_counter()
            run()
            if turn:
                least[place] = min(least[place], time.perf_counter() - began)
    return least


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    dtype = DTYPES[options.dtype]
    torch.set_num_threads(options.threads)
    models = [Model.of(kernels, dtype) for kernels in sets(dtype)]
    read, products = rates.reader(options.threads), rates.product_rate(dtype, options.threads)
    print(f"{options.threads} threads, products in registers: {products / 1e9:.0f} GFLOP/s")
    print("rows", *(f"{model.name:>9}" for model in models), "  (ms)  memory, GB/s   ours: of memory  of products")
    for rows in options.rows:
        *seconds, reading = least_seconds([*(model.step(rows) for model in models), read], options.repeat)
        times = " ".join(f"{1000 * value:9.2f}" for value in seconds)
        rate = rates.READ_BYTES / reading
        memory, compute = weight_bytes(dtype) / seconds[0] / rate, operations(rows) / seconds[0] / products
        print(f"{rows:4} {times} {rate / 1e9:20.1f} {memory:17.2f} {compute:12.2f}", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
