"""The kernels on a real CUDA device against the plain definition."""

from __future__ import annotations

import pytest
import torch

from attention_cases import TOLERANCE, Case, decode_cases, mixed_cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("case", [*decode_cases("cuda"), *mixed_cases("cuda")], ids=str)
def test_equals_the_plain_definition(case: Case, backend: str) -> None:
    assert case.difference(backend) <= TOLERANCE[case.dtype]  # type: ignore[arg-type]
