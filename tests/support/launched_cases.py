"""Shapes on which Triton's kernels beside attention are held against the plain ones, interpreted or on a device.

The plain ones compute in float64, so what is measured is the kernel's own error: in units in the last place of the
stored type, beyond what float32 sums of such numbers may differ by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.kernels.attention import UNSCALED, CacheScales
from octavo_engine.kernels.pointwise import PLAIN, HeadNorms
from octavo_engine.kernels.quantized import Bits, QuantizedMatrix, packed
from octavo_engine.kernels.stored import EIGHT_BITS, as_stored
from octavo_engine.kernels.triton.device import target_of
from octavo_engine.kernels.triton.pointwise import Pointwise
from octavo_engine.kernels.triton.w4a16 import PackedGatedLinear, PackedLinear, QuantizedProducts

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
UNITS = 1.0
SUMS = 2.0**-21  # of the sum of the sizes of what is added: float32, in any order
CPU = torch.device("cpu")


def units_off(found: Tensor, exact: Tensor, sizes: Tensor | None = None) -> float:
    """The largest error in units of `found`'s last place; infinite for NaN. `sizes`: what float32 adds up."""
    exact = exact.double()
    sizes = exact.abs() if sizes is None else sizes.double()
    kind = torch.finfo(found.dtype)
    exponent = torch.frexp(exact.abs().clamp(min=kind.tiny)).exponent - 1
    unit = kind.eps * torch.exp2(exponent.double())
    error = ((found.double() - exact).abs() - SUMS * sizes) / unit
    return error.nan_to_num(torch.inf).max().item()


def numbers(*shape: int, seed: int, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
    """About one in size, the same on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@dataclass(frozen=True)
class NormCase:
    """RMSNorm of some rows, which may lie apart, and may be added to a residual first."""

    rows: int
    width: int
    dtype: torch.dtype
    adds: bool = False
    apart: int = 0  # numbers between two rows

    def units(self, device: torch.device = CPU) -> float:
        x = 3 * numbers(self.rows, self.width + self.apart, seed=1, dtype=self.dtype, device=device)[:, : self.width]
        weight, residual = (
            numbers(*shape, seed=2, dtype=self.dtype, device=device)
            for shape in ((self.width,), (self.rows, self.width))
        )
        kernels = Pointwise(target_of(device))
        if not self.adds:
            exact = PLAIN.rms_norm(x.double(), weight.double(), 1e-5)
            return units_off(kernels.rms_norm(x, weight, 1e-5), exact)
        total = (residual.float() + x.float()).to(self.dtype)
        found = kernels.add_rms_norm(residual, x, weight, 1e-5)
        assert torch.equal(residual, total), "the residual stream is the rounded sum"
        return units_off(found, PLAIN.rms_norm(total.double(), weight.double(), 1e-5))


@dataclass(frozen=True)
class GateCase:
    """silu(gate) * up."""

    rows: int
    width: int
    dtype: torch.dtype

    def units(self, device: torch.device = CPU) -> float:
        both = 4 * numbers(self.rows, 2 * self.width, seed=1, dtype=self.dtype, device=device)
        gate, up = both.double().chunk(2, dim=-1)
        return units_off(Pointwise(target_of(device)).silu_multiply(both), torch.nn.functional.silu(gate) * up)


@dataclass(frozen=True)
class HeadsCase:
    """The heads of some tokens, stored at scattered slots of a poisoned cache."""

    tokens: int
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    normed: bool = False
    stored: torch.dtype | None = None  # of the cache, if another one
    scales: CacheScales = UNSCALED

    def units(self, device: torch.device = CPU) -> float:
        count, dim = self.query_heads + 2 * self.kv_heads, self.head_dim
        heads = numbers(self.tokens, count, dim, seed=1, dtype=self.dtype, device=device)
        cos, sin = (numbers(self.tokens, 1, dim, seed=seed, dtype=self.dtype, device=device) for seed in (2, 3))
        slots = torch.randperm(3 * 16, generator=torch.Generator().manual_seed(4))[: self.tokens].to(device)
        norms = None
        if self.normed:
            norms = HeadNorms(*(numbers(dim, seed=seed, dtype=self.dtype, device=device) for seed in (5, 6)), 1e-6)
        cache = self._cache(self.stored or self.dtype, device)
        queries = Pointwise(target_of(device)).prepare_store(cos, sin, slots)(heads, norms, cache, self.scales)

        wide = None if norms is None else HeadNorms(norms.query.double(), norms.key.double(), norms.eps)
        exact = self._cache(torch.float64, device)
        wanted = PLAIN.prepare_store(cos.double(), sin.double(), slots)(heads.double(), wide, exact)
        assert self._untouched(cache, slots), "slots of other tokens are left alone"
        sizes = self._sizes(heads, norms)
        keys, values = (
            place.float().flatten(0, 1)[slots].to(place.dtype) for place in cache
        )  # 8-bit ones have no index
        divided = self.scales if keys.dtype in EIGHT_BITS else UNSCALED
        exact_keys, exact_values = (
            place.flatten(0, 1)[slots] / scale for place, scale in zip(exact, divided, strict=True)
        )
        kept = as_stored(heads[:, -self.kv_heads :], values.dtype, self.scales.value)
        assert torch.equal(values.float(), kept.float()), "values are stored as they are, or divided and rounded once"
        return max(
            units_off(queries, wanted, sizes[:, : self.query_heads]),
            units_off(keys, exact_keys, sizes[:, self.query_heads : -self.kv_heads]),
            units_off(values, exact_values),
        )

    def _cache(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        keys, values = (torch.full((3, 16, self.kv_heads, self.head_dim), torch.nan, device=device) for _ in range(2))
        return keys.to(dtype), values.to(dtype)

    def _untouched(self, cache: tuple[Tensor, Tensor], slots: Tensor) -> bool:
        others = [slot for slot in range(3 * 16) if slot not in slots.tolist()]
        return all(bool(place.float().flatten(0, 1)[others].isnan().all()) for place in cache)

    def _sizes(self, heads: Tensor, norms: HeadNorms | None) -> Tensor:
        """What a rotation adds up may be much larger than what comes out: the whole head's largest stands for it."""
        largest = heads.double().abs().amax(-1, keepdim=True).expand(heads.shape)
        return 16 * (largest if norms is None else largest.clamp(min=8.0))


@dataclass(frozen=True)
class ProductCase:
    """A product with a random weight of few bits."""

    rows: int
    outputs: int
    inputs: int
    group: int
    bits: Bits = 4
    dtype: torch.dtype = BF16
    symmetric: bool = False
    ordered: bool = False
    gated: bool = False
    bias: bool = False
    residual: bool = False
    wide: bool = False

    def matrix(self) -> QuantizedMatrix:
        """Codes, 16-bit scales and zero points, all random."""
        source = torch.Generator().manual_seed(self.outputs + self.inputs)
        height, groups = self.outputs * (2 if self.gated else 1), -(-self.inputs // self.group)
        codes = torch.randint(2**self.bits, (height, self.inputs), generator=source).to(torch.uint8)
        scales = (0.01 + 0.02 * torch.rand(height, groups, generator=source)).to(FP16).float()
        zeros = torch.randint(2**self.bits + 1, (height, groups), generator=source).float()
        if self.symmetric:
            zeros.fill_(2 ** (self.bits - 1))
        order = torch.randperm(self.inputs, generator=source) if self.ordered else None
        return QuantizedMatrix(
            self.bits, packed(codes) if self.bits == 4 else codes, scales, -(scales * zeros), self.group, order
        )

    def units(self, device: torch.device = CPU) -> float:
        matrix = self.matrix().to(device)
        x = numbers(self.rows, self.inputs, seed=1, dtype=self.dtype, device=device)
        bias = numbers(matrix.shape[0], seed=2, dtype=self.dtype, device=device) if self.bias else None
        products = QuantizedProducts(target_of(device))
        weight = matrix.dequantized(torch.float64)
        exact = x.double() @ weight.t() + (0 if bias is None else bias.double())
        sizes = x.double().abs() @ weight.abs().t() + 1
        if self.gated:
            gated = products.gated(matrix, bias, self.dtype)
            assert isinstance(gated, PackedGatedLinear)
            gate, up = exact.chunk(2, dim=-1)
            gate_size, up_size = sizes.chunk(2, dim=-1)
            return units_off(gated(x), torch.nn.functional.silu(gate) * up, gate_size * up.abs() + up_size * gate.abs())
        projection = products.projection(matrix, bias, self.dtype)
        assert isinstance(projection, PackedLinear)
        if self.wide:
            return units_off(projection.wide(x), exact, sizes)
        if self.residual:
            residual = numbers(self.rows, self.outputs, seed=3, dtype=self.dtype, device=device)
            exact = exact + residual.double()
            found = projection.add_to(residual, x)
            assert found is residual
            return units_off(found, exact, sizes)
        return units_off(projection(x), exact, sizes)


Case = NormCase | GateCase | HeadsCase | ProductCase

NORMS: Sequence[Case] = [
    *(NormCase(3, width, dtype) for width, dtype in ((1, BF16), (64, FP16), (576, BF16), (1030, FP32), (4096, BF16))),
    NormCase(2, 576, BF16, apart=7),
    *(NormCase(rows, 576, dtype, adds=True) for rows, dtype in ((1, BF16), (5, FP16), (5, FP32))),
]
GATES: Sequence[Case] = [
    GateCase(1, 80, BF16),
    GateCase(3, 1500, FP16),
    GateCase(2, 1024, FP32),
    GateCase(4, 2500, BF16),
]
HEADS: Sequence[Case] = [
    *(HeadsCase(3, 9, 3, dim, BF16) for dim in (64, 80, 96, 128, 256)),
    HeadsCase(1, 1, 1, 64, FP16),
    HeadsCase(33, 6, 2, 16, FP32),
    HeadsCase(5, 8, 1, 128, BF16, normed=True),
    HeadsCase(2, 14, 2, 80, FP16, normed=True),
    HeadsCase(4, 6, 2, 96, FP32, normed=True),
    HeadsCase(3, 4, 2, 64, BF16, stored=torch.float8_e4m3fn),
    HeadsCase(3, 4, 2, 64, BF16, normed=True, stored=torch.float8_e5m2),
    HeadsCase(5, 4, 2, 64, BF16, stored=torch.float8_e4m3fn, scales=CacheScales(0.37, 2.9)),
    HeadsCase(5, 4, 2, 80, FP16, normed=True, stored=torch.float8_e5m2, scales=CacheScales(2.9, 0.37)),
    HeadsCase(3, 4, 2, 64, BF16, scales=CacheScales(0.37, 2.9)),  # which a cache of 16 bits does not heed
]
PRODUCTS: Sequence[Case] = [
    ProductCase(1, 96, 576, 64),
    ProductCase(3, 70, 256, 32, dtype=FP16, bias=True),
    ProductCase(16, 64, 384, 128, symmetric=True, residual=True),
    ProductCase(17, 130, 300, 128, ordered=True),  # a short last group, and a last block that is not full
    ProductCase(33, 40, 96, 96, bias=True, residual=True),  # one group for all
    ProductCase(2, 64, 2048, 128, ordered=True, bias=True),  # inputs divided among programs
    ProductCase(5, 33, 1100, 1100, dtype=FP16, residual=True),
    ProductCase(2, 48, 320, 64, gated=True, bias=True),
    ProductCase(4, 80, 1536, 128, gated=True, ordered=True),
    ProductCase(3, 72, 320, 128, bits=8, symmetric=True),
    ProductCase(18, 40, 640, 32, bits=8, dtype=FP16, bias=True),
    ProductCase(2, 40, 200, 200, bits=8, gated=True),
    ProductCase(3, 48, 768, 128, wide=True, bias=True),
    ProductCase(2, 48, 320, 64, dtype=FP32, residual=True),
    ProductCase(130, 20, 64, 32),  # more rows than a tile has
]
CASES = (*NORMS, *GATES, *HEADS, *PRODUCTS)
