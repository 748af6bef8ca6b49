"""Run in a child process with TRITON_INTERPRET=1: prints, as JSON, each case's difference from the plain definition."""

from __future__ import annotations

import json
import sys
from typing import Any

import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder

from attention_cases import decode_cases, mixed_cases


def widen_bfloat16_products() -> None:
    """The interpreter keeps bfloat16 as bits, and its `dot` multiplies those: hand it the same values in float32."""
    plain_dot = InterpreterBuilder.create_dot

    def create_dot(builder: Any, left: Any, right: Any, *rest: Any) -> Any:
        left, right = (
            builder.create_fp_ext(part, tl.float32) if part.dtype.scalar == tl.bfloat16 else part
            for part in (left, right)
        )
        return plain_dot(builder, left, right, *rest)

    InterpreterBuilder.create_dot = create_dot


if __name__ == "__main__":
    widen_bfloat16_products()
    cases = [*decode_cases(), *mixed_cases()[::5]]
    json.dump({str(case): case.difference("triton") for case in cases}, sys.stdout)
