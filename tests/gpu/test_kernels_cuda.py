"""The kernels on a real CUDA device against the plain definition."""

from __future__ import annotations

import pytest
import torch

import triton_cases
from attention_cases import TOLERANCE, Case, decode_cases, mixed_cases
from octavo_engine.kernels.triton.device import target_of
from triton_cases import E4M3, UNITS, TritonCase, on_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]
CLOSE = on_device([*triton_cases.decode_cases(), *triton_cases.mixed_cases()], "cuda")
# A device's exponentials are rounded otherwise than the interpreter's, and with them now and then a weight.
DEVICE_UNITS = 2
# Sums of 32 bits come in another order on a device, and torch's own attention makes its products there of shorter ones.
DEVICE_TOLERANCE = TOLERANCE | {torch.float32: 1e-5}


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("case", [*decode_cases("cuda"), *mixed_cases("cuda")], ids=str)
def test_equals_the_plain_definition(case: Case, backend: str) -> None:
    assert case.difference(backend) <= DEVICE_TOLERANCE[case.dtype]  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CLOSE, ids=str)
def test_is_as_close_as_interpreted(case: TritonCase) -> None:
    """Caches of 8 bits, odd groups of heads, many pieces: what is interpreted elsewhere, in units of the last place."""
    if case.stored == E4M3 and not target_of(torch.device("cuda")).has_e4m3:
        pytest.skip("this device does not convert e4m3")
    assert case.units() <= DEVICE_UNITS * UNITS[case.dtype]
