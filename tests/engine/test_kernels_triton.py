"""The Triton decode kernel without a GPU: interpreted, it equals the plain one; compiled, it fits its targets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attention_cases import TOLERANCE, Case, decode_cases, mixed_cases

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")]
triton = pytest.importorskip("triton")
SUPPORT = Path(__file__).parents[1] / "support"
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # bytes a program may have
TRITON_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@pytest.fixture(scope="module")
def interpreted() -> dict[str, float]:
    """Differences by case. In a child: the interpreter is chosen when the kernels are imported."""
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(SUPPORT / "interpreted_kernels.py")]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    found: dict[str, float] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("case", [*decode_cases(), *mixed_cases()[::5]], ids=str)
def test_interpreted_equals_the_plain_definition(case: Case, interpreted: dict[str, float]) -> None:
    assert interpreted[str(case)] <= TOLERANCE[case.dtype]


@pytest.mark.parametrize("target", SHARED_LIMIT)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", TRITON_TYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_compiles_without_spills(target: int, head_dim: int, dtype: torch.dtype, tmp_path: Path) -> None:
    compiled = compile_decode(target, head_dim, dtype)
    use = resource_use(compiled.asm["cubin"], tmp_path)
    assert compiled.metadata.shared <= SHARED_LIMIT[target]
    assert use["REG"] <= 255
    assert use["LOCAL"] == use["STACK"] == 0, f"registers spill: {use}"


def compile_decode(target: int, head_dim: int, dtype: torch.dtype) -> object:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from octavo_engine.kernels import triton_decode
    from octavo_engine.kernels.attention import AttentionShape

    shape = AttentionShape(block_size=16, kv_heads=8, head_dim=head_dim, dtype=dtype, scale=0.1)
    fixed = dict(triton_decode.constants(shape, group=4))
    stored = f"*{TRITON_TYPES[dtype]}"
    pointers = dict.fromkeys(("query", "key_cache", "value_cache"), stored)
    pointers |= {"block_tables": "*i32", "context_lens": "*i32", "partial": "*fp32", "sums": "*fp32"}
    numbers = ("window", "tokens_per_split", "table_stride", "splits", "query_stride_s", "query_stride_h")
    signature = pointers | {"scale_log2": "fp32"} | dict.fromkeys(numbers, "i32") | dict.fromkeys(fixed, "constexpr")
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(len(pointers))}
    source = ASTSource(triton_decode.decode_split, signature, constexprs=fixed, attrs=aligned)
    options = dict(triton_decode.launch_options(shape))
    return triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)


def resource_use(cubin: bytes, tmp_path: Path) -> dict[str, int]:
    """Registers a thread, and bytes of stack and local memory, which a spill would use."""
    from triton.backends import nvidia

    file = tmp_path / "kernel.cubin"
    file.write_bytes(cubin)
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    text = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, timeout=60, check=True).stdout
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
