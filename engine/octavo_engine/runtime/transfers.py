"""Numbers to a device and back, without the host waiting for what the device is computing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNMENT = 16  # bytes: any number's, and what a device loads at once

Array = npt.NDArray[np.generic]


def to_device(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """The arrays as tensors there. For a host these are the arrays' own memory; elsewhere all go in one copy.

    The copy starts from page-locked memory, which alone can be read while the host goes on. torch keeps that memory
    until the copy is done, and then for the next.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    packed = torch.empty(places(arrays)[-1], dtype=torch.uint8, pin_memory=True)
    pack(arrays, packed)
    return unpacked(arrays, packed.to(device, non_blocking=True))


def places(arrays: Sequence[Array]) -> list[int]:
    """Bytes from the start at which each array lies in one piece of memory, and the size of that."""
    return list(accumulate((-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays), initial=0))


def pack(arrays: Sequence[Array], packed: Tensor) -> None:
    """Write the arrays into `packed`, uint8 on a host, each at its place."""
    memory = packed.numpy()
    for array, place in zip(arrays, places(arrays), strict=False):
        memory[place : place + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def unpacked(arrays: Sequence[Array], packed: Tensor) -> list[Tensor]:
    """Tensors over `packed` that have the arrays' numbers, types and shapes."""
    return [
        packed[place : place + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for array, place in zip(arrays, places(arrays), strict=False)
    ]


class Readback:
    """Tensors on their way to the host: what was computed when it was made, whatever the device is given after it."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._tensors = [_begun(tensor) for tensor in tensors]
        if tensors[0].device.type == "cuda":
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def wait(self) -> list[Tensor]:
        """The tensors on the host, in the same order."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensors


def _begun(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
