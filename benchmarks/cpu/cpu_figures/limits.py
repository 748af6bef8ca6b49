"""What this machine can do at best, in a process of its own: how fast it reads memory and how fast it multiplies."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

READ_BYTES = 512 << 20
READ_SECONDS = 5.0
TRIALS = 7
# (rows, inputs, outputs): one large square, and the widest product of the measured model.
SHAPES = ((2048, 2048, 2048), (1024, 576, 3072), (1024, 1536, 576))
PEER_DTYPES = ("bfloat16", "float32")
DTYPE_SHAPES = (*((8, 576, 3072),) * 32, (256, 576, 3072))  # a prompt of 256 tokens, and 32 steps of 8 streams


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates a second, each the best of several trials."""

    read_bytes: float
    matmul_flops: float  # the faster of torch's (oneDNN) and our own products, over several shapes
    register_flops: float  # products of operands that never leave the registers: out of reach, and a scale


def torch_dtype(threads: int) -> str:
    """In which of `bfloat16` and `float32` torch multiplies the model's widest shapes faster: peers are asked in that.

    Where a processor has no products of bfloat16, torch makes them number by number, and a peer in it would only look
    slow.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        name: str = pool.apply(_torch_dtype, (threads,))
    return name


def _torch_dtype(threads: int) -> str:
    import torch  # noqa: PLC0415 (only in the child)

    torch.set_num_threads(threads)
    seconds = {
        name: sum(_torch_seconds(getattr(torch, name), *shape) for shape in DTYPE_SHAPES) for name in PEER_DTYPES
    }
    return min(seconds, key=seconds.__getitem__)


def best(*seen: Limits) -> Limits:
    """The highest rate of each kind: a virtual machine's memory is a third slower in some minutes than in others."""
    return Limits(*(max(rates) for rates in zip(*map(astuple, seen), strict=True)))


def measure(threads: int) -> dict[str, Any]:
    """`Limits` as a dictionary. Raises RuntimeError where the processor lacks our kernels."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1) as pool:
        limits: Limits = pool.apply(_measure, (threads,))
    return asdict(limits)


def _measure(threads: int) -> Limits:
    import torch  # noqa: PLC0415 (only in the child)

    from octavo_engine.kernels.cpu import rates  # noqa: PLC0415

    torch.set_num_threads(threads)
    return Limits(
        read_bytes=_highest(lambda: rates.read_rate(threads, READ_BYTES)),
        matmul_flops=max(max(_onednn(*shape), _ours(*shape)) for shape in SHAPES),
        register_flops=rates.product_rate(torch.bfloat16, threads),
    )


def _highest(rate: Callable[[], float]) -> float:
    """The best rate of some seconds: memory that nobody used comes to its full speed within the first of them."""
    ends, found = time.monotonic() + READ_SECONDS, [rate()]
    while time.monotonic() < ends:
        found.append(rate())
    return max(found)


def _onednn(rows: int, inputs: int, outputs: int) -> float:
    import torch  # noqa: PLC0415

    return 2 * rows * inputs * outputs / _torch_seconds(torch.bfloat16, rows, inputs, outputs)


def _torch_seconds(dtype: torch.dtype, rows: int, inputs: int, outputs: int) -> float:
    import torch  # noqa: PLC0415

    x, weight = torch.randn(rows, inputs, dtype=dtype), torch.randn(outputs, inputs, dtype=dtype)
    return _best(lambda: torch.nn.functional.linear(x, weight))


def _ours(rows: int, inputs: int, outputs: int) -> float:
    import torch  # noqa: PLC0415

    from octavo_engine.kernels.choice import choose_linear  # noqa: PLC0415

    x, weight = torch.randn(rows, inputs).bfloat16(), torch.randn(outputs, inputs).bfloat16()
    product = choose_linear(torch.bfloat16, torch.device("cpu")).projection(weight, None)
    return 2 * rows * inputs * outputs / _best(lambda: product(x))


def _best(run: Callable[[], object]) -> float:
    """Seconds of the fastest trial."""
    run()
    times = []
    for _ in range(TRIALS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)
