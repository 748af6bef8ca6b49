"""What the engine's tests share: the real model, the sets of instructions, and their order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo_engine.kernels.cpu import targets
from patience import PATIENCE_SECONDS
from real_model import smollm2_checkpoint, smollm2_exact, smollm2_gguf, smollm2_reference
from running_order import put_first

__all__ = ["smollm2_checkpoint", "smollm2_exact", "smollm2_gguf", "smollm2_reference"]

# Threads that share a busy core and spin while they wait for each other take a hundred times as long. Read by torch's
# OpenMP when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

LONGEST_FIRST = (
    *("test_exactness.py", "test_server_process.py", "test_tensor_parallel_processes.py", "test_kernels_triton.py"),
    *("test_gpu_check.py", "test_doctor_loads.py", "test_server_faults.py", "test_kernels_triton_launches.py"),
    *("test_fetch_transfer.py", "test_tokenizer.py", "test_batch_invariance.py", "test_kernels_cpu_build.py"),
)
"""See `running_order`. All others take less."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    put_first(items, Path(__file__).parent, LONGEST_FIRST)


@pytest.fixture(scope="session", autouse=True)
def what_takes_only_time_is_waited_for() -> Iterator[None]:
    """A compiler, and an engine that is looked at: on a machine that others keep busy both are late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo_engine.kernels.cpu.build.COMPILE_SECONDS", 2 * PATIENCE_SECONDS)
        patch.setattr("octavo_engine.explain.fetching.SECONDS", PATIENCE_SECONDS)
        yield


@pytest.fixture(scope="module", params=[target.name for target in targets.runnable(targets.features())])
def cpu_target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each set of instructions that this processor has, in turn, as the one that the CPU kernels are compiled for."""
    from octavo_engine.kernels.cpu import library

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTAVO_CPU_KERNELS", request.param)
        library.load.cache_clear()
        assert library.load() is not None, "without them, nothing of this would be tested"
        yield request.param
    library.load.cache_clear()
