"""Which type a cache gets, and what it keeps of a number."""

from __future__ import annotations

import pytest
import torch

from known_models import SMOLLM2_135M
from octavo_engine.assembly import choose_platform
from octavo_engine.config import EngineConfig
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.stored import EIGHT_BITS, as_stored, cache_type, put
from octavo_engine.kernels.triton.targets import Target

pytestmark = pytest.mark.engine
AUTO, FP8 = EngineConfig(), EngineConfig(kv_cache_dtype="fp8")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("capability", "kind"),
    [
        *(((8, minor), torch.float8_e5m2) for minor in (0, 6)),
        *((capability, torch.float8_e4m3fn) for capability in ((8, 9), (9, 0), (10, 0))),
    ],
)
def test_devices_get_the_type_that_they_convert(
    capability: tuple[int, int], kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert cache_type(FP8, torch.bfloat16, CUDA, "triton") == kind
    assert cache_type(AUTO, torch.bfloat16, CUDA, "triton") == torch.bfloat16
    assert (kind == torch.float8_e4m3fn) == Target(10 * capability[0] + capability[1], 1).has_e4m3


def test_a_processor_refuses_at_the_start_and_says_why() -> None:
    with pytest.raises(InvalidConfiguration, match="processors have no 8-bit floats"):
        choose_platform(EngineConfig(kv_cache_dtype="fp8", device="cpu"), SMOLLM2_135M)


def test_kernels_that_do_not_read_it_refuse() -> None:
    with pytest.raises(InvalidConfiguration, match="--attention-backend torch does not read; use triton"):
        cache_type(FP8, torch.bfloat16, CUDA, "torch")


@pytest.mark.parametrize("kind", EIGHT_BITS)
def test_a_number_too_large_becomes_the_largest(kind: torch.dtype) -> None:
    largest = torch.finfo(kind).max
    kept = as_stored(torch.tensor([1e6, -1e6, largest, 0.5, float("nan")]), kind).float()
    assert kept[:4].tolist() == [largest, -largest, largest, 0.5]
    assert kept[4].isnan()


@pytest.mark.parametrize("kind", [*EIGHT_BITS, torch.bfloat16])
def test_what_is_put_is_where_its_slot_is(kind: torch.dtype) -> None:
    cache = torch.zeros(3, 4, 2, 8).to(kind)
    numbers = torch.randn(2, 2, 8)
    put(cache, torch.tensor([9, 2]), numbers)
    slots = cache.float().flatten(0, 1)
    assert torch.equal(slots[[9, 2]], numbers.to(kind).float())
    assert not slots[[0, 1, *range(3, 9), 10, 11]].any()
