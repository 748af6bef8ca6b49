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
from torch._subclasses.fake_tensor import FakeTensorMode

from cubins import Recorded, recording
from octavo_engine.runtime import drawn, inputs, sampler
from octavo_engine.runtime.graphs import Recording

CUDA = torch.device("cuda", 0)


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


def sent(arrays: Sequence[np.ndarray[Any, Any]], device: torch.device) -> list[Tensor]:
    """As `to_device` would give them, which needs page-locked memory."""
    kinds = [torch.from_numpy(np.empty(0, array.dtype)).dtype for array in arrays]
    return [torch.empty(array.shape, dtype=kind, device=device) for array, kind in zip(arrays, kinds, strict=True)]


@contextmanager
def absent_device(*, major: int = 9, minor: int = 0, processors: int = 132) -> Iterator[list[Recorded]]:
    """While it is open there seems to be such a device; yields the launches."""
    found = SimpleNamespace(name="none", major=major, minor=minor, multi_processor_count=processors)
    tensor = torch.tensor

    def pageable(data: object, *, pin_memory: bool = False, **how: Any) -> Tensor:
        return tensor(data, **how)

    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True), recording() as launches:
        patch.setattr(torch.cuda, "get_device_properties", lambda _device: found)
        patch.setattr(torch, "tensor", pageable)
        patch.setattr(drawn, "Readback", Ones)
        patch.setattr(sampler.Sampler, "_uniform", lambda *_: 0.5)  # the host's own, but a tensor for a moment
        for module in (inputs, drawn, sampler):
            patch.setattr(module, "to_device", sent)
        yield launches
