"""CUDA graphs by torch. What it does is told in https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo_engine.runtime.graph_capture import NotRecorded
from octavo_engine.runtime.graphs import Recording

# The first compiles kernels, makes libraries' handles and workspaces, and connects ranks: nothing recorded may do that.
WARM_UPS = 2


class CudaRecorder:
    """Records on a stream of its own, into a pool of memory that all its recordings share.

    They may share it because they are replayed one after another, and because none reads what another one left.

    What ranks exchange by NCCL is recorded with the rest, where all of them record it, and is replayed where all do
    (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/cudagraph.html).
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], Tensor], /) -> Recording:
        """See Recorder. Waits for the device; what its allocator holds in reserve goes back to the driver first."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    compute()
            result = self._captured(graph, compute)
        finally:
            torch.cuda.set_stream(current)  # a recording that fails may leave its own as the current one
        current.wait_stream(self._stream)
        return Recording(result, graph.replay)

    def _captured(self, graph: torch.cuda.CUDAGraph, compute: Callable[[], Tensor]) -> Tensor:
        """What a replay of `graph` writes. Of this thread alone: what others ask the driver for meanwhile, as the one
        that watches over NCCL does, does not spoil it."""
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                return compute()
        except Exception as error:
            raise NotRecorded.because(error) from error
