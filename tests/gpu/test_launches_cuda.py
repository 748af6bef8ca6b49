"""The kernels beside attention on a real CUDA device against the plain ones, in units of the last place."""

from __future__ import annotations

import pytest
import torch

import drawn_cases
import launched_cases
from launched_cases import UNITS, ProductCase
from octavo_engine.kernels.triton.device import target_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]


CUDA = torch.device("cuda")
# Sizes of a real layer, which take too long to interpret.
LARGE = [
    ProductCase(rows, outputs, inputs, 128, bias=True, ordered=ordered)
    for rows in (1, 8, 64, 300)
    for outputs, inputs in ((4096, 4096), (1000, 14336))
    for ordered in (False, True)
]


def runs_here(case: launched_cases.Case) -> bool:
    """Devices before sm_89 do not convert e4m3."""
    stored = getattr(case, "stored", None)
    return stored != torch.float8_e4m3fn or target_of(CUDA).has_e4m3


@pytest.mark.parametrize("case", [*launched_cases.CASES, *LARGE], ids=str)
def test_equals_the_plain_definition(case: launched_cases.Case) -> None:
    if not runs_here(case):
        pytest.skip("this device does not convert e4m3")
    assert case.units(CUDA) <= UNITS


@pytest.mark.parametrize("case", [*drawn_cases.CASES, drawn_cases.DrawCase(128_256, top_p=0.95)], ids=str)
def test_draws_what_the_sampler_defines(case: drawn_cases.DrawCase) -> None:
    assert case.wrong(CUDA) == []
