"""Compiles Triton's kernels for real devices on a machine without one, and reads from the result what it would take.

The launches are those of the engine: its own code runs on CPU tensors while `recording` notes each launch instead of
making it, so that what is compiled has the types, alignments and constants that a device would get.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from octavo_engine.kernels.triton.targets import Target
from patience import PATIENCE_SECONDS

REGISTERS = 255  # that one thread can have
REGISTERS_OF_ALL = 64 * 1024  # that one program's threads can have together, as on every device since 2012
WARP = 32


@dataclass(frozen=True)
class Recorded:
    """A launch that was not made."""

    kernel: JITFunction[Any]
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]  # keyword arguments, of the kernel and of the launch

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)


@contextmanager
def recording() -> Iterator[list[Recorded]]:
    """While it is open, launches are noted and not made."""
    launches: list[Recorded] = []
    launch = JITFunction.run

    def note(kernel: JITFunction[Any], *args: Any, grid: tuple[int, ...], warmup: bool, **kwargs: Any) -> None:
        launches.append(Recorded(kernel, grid, args, kwargs))

    JITFunction.run = note
    try:
        yield launches
    finally:
        JITFunction.run = launch


@dataclass(frozen=True)
class Cubin:
    """What one compiled kernel takes of a device."""

    name: str
    registers: int  # of a thread
    local_bytes: int  # of a thread's stack in global memory: where registers spill to
    shared_bytes: int  # of a program, static and dynamic
    warps: int
    ptx: str

    def problems(self, target: Target) -> list[str]:
        """What would slow it down or keep it from running; empty when nothing would."""
        found = {
            f"{self.local_bytes} bytes of registers spill": self.local_bytes > 0,
            f"{self.registers} registers a thread, of {REGISTERS}": self.registers > REGISTERS,
            f"{self.registers} registers in each of {self.warps} warps": self._all_registers > REGISTERS_OF_ALL,
            f"{self.shared_bytes} bytes shared, of {target.shared_bytes}": self.shared_bytes > target.shared_bytes,
        }
        return [f"{self.name} on {target.capability}: {words}" for words, true in found.items() if true]

    @property
    def _all_registers(self) -> int:
        """They are given out to a warp eight a thread at a time."""
        return -(-self.registers // 8) * 8 * WARP * self.warps


def compiled(launch: Recorded, target: Target) -> Cubin:
    """The launch's kernel for `target`, as the engine would have compiled it there."""
    gpu = GPUTarget("cuda", target.capability, WARP)
    backend = make_backend(gpu)
    bind = create_function_from_signature(launch.kernel.signature, launch.kernel.params, backend)
    bound, kinds, rest = bind(*launch.arguments, **launch.options)
    options, signature, constants, attributes = launch.kernel._pack_args(backend, launch.options, bound, kinds, rest)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    kernel = triton.compile(source, target=gpu, options=options.__dict__)
    use = resource_use(kernel.asm["cubin"])
    return Cubin(
        name=launch.name,
        registers=use["REG"],
        local_bytes=max(use["LOCAL"], use["STACK"]),
        shared_bytes=use["SHARED"] + kernel.metadata.shared,
        warps=kernel.metadata.num_warps,
        ptx=kernel.asm["ptx"],
    )


def resource_use(cubin: bytes) -> dict[str, int]:
    """Registers a thread, and bytes of stack, local and static shared memory, as the maker's own tool reads them."""
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", text)}
