"""A CUDA device that is not there: tensors on it have types and shapes but no numbers (torch's FakeTensor), and
Triton's launches are noted and not made.

What is computed on it shows whether all tensors are on the device, and that the host asks nothing of it: reading a
number that a device has raises DataDependentOutputException.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from cubins import Recorded, recording
from octavo_engine.model import loading
from octavo_engine.model.huggingface.safetensors_source import SafetensorsSource
from octavo_engine.runtime import drawn, inputs, sampler
from octavo_engine.runtime.graphs import Recording

CUDA, NAME = torch.device("cuda", 0), "NVIDIA H200"


class SameThread:
    """An executor for what must see this thread's mode."""

    def __init__(self, _workers: int) -> None: ...

    def __enter__(self) -> SameThread:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, call: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(call, items)

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*arguments))
        return done


class Ones:
    """What comes back of tensors that have no numbers: ones, as if tokens and whether they mean something."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._rows = [len(tensor) for tensor in tensors]

    def wait(self) -> list[SimpleNamespace]:
        """Of each, what has its `tolist`."""
        return [SimpleNamespace(tolist=partial(list, [1] * rows)) for rows in self._rows]


class Once:
    """A recorder whose recording is what was computed."""

    def record(self, compute: Callable[[], Tensor], /) -> Recording:
        return Recording(compute(), lambda: None)


def read_by_shape(patch: pytest.MonkeyPatch) -> None:
    """Checkpoints are read by this thread, of which only types and shapes go to the device."""
    read = SafetensorsSource.read

    def shapes(source: SafetensorsSource, name: str, dtype: torch.dtype) -> Tensor:
        with unset_fake_temporarily():
            found = read(source, name, dtype)
        return torch.empty(found.shape, dtype=found.dtype)

    patch.setattr(SafetensorsSource, "read", shapes)
    patch.setattr(loading, "_readers", lambda: SameThread(1))


def sent(arrays: Sequence[np.ndarray[Any, Any]], device: torch.device) -> list[Tensor]:
    """As `to_device` would give them, which needs page-locked memory."""
    kinds = [torch.from_numpy(np.empty(0, array.dtype)).dtype for array in arrays]
    return [torch.empty(array.shape, dtype=kind, device=device) for array, kind in zip(arrays, kinds, strict=True)]


@contextmanager
def absent_device(*, major: int = 9, minor: int = 0, processors: int = 132) -> Iterator[list[Recorded]]:
    """While it is open there seems to be such a device; yields the launches."""
    told = {
        "get_device_properties": SimpleNamespace(
            name=NAME, uuid="0-1", major=major, minor=minor, multi_processor_count=processors
        ),
        "get_device_name": NAME,
        "get_device_capability": (major, minor),
        "mem_get_info": (140 * 10**9, 141 * 10**9),
        "memory_reserved": 10**9,
    }
    tensor = torch.tensor

    def pageable(data: object, *, pin_memory: bool = False, **how: Any) -> Tensor:
        return tensor(data, **how)

    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True), recording() as launches:
        for question, answer in told.items():
            patch.setattr(torch.cuda, question, lambda _device, answer=answer: answer)
        patch.setattr(torch, "tensor", pageable)
        patch.setattr(drawn, "Readback", Ones)
        patch.setattr(sampler.Sampler, "_uniform", lambda *_: 0.5)  # the host's own, but a tensor for a moment
        for module in (inputs, drawn, sampler):
            patch.setattr(module, "to_device", sent)
        yield launches
