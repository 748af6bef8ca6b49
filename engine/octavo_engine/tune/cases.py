"""What is measured for a model: each kernel with the shapes that it meets there, over random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from octavo_engine.kernels.attention import AttentionShape, StepLayout
from octavo_engine.kernels.quantized import QuantizedMatrix
from octavo_engine.kernels.triton.common import padded_dim
from octavo_engine.kernels.triton.decode import Decodes
from octavo_engine.kernels.triton.mixed import Mixed
from octavo_engine.kernels.triton.pointwise import Pointwise
from octavo_engine.kernels.triton.sampling import choice_of, draw
from octavo_engine.kernels.triton.targets import Launch, Row, Target, launch_on
from octavo_engine.kernels.triton.w4a16 import LEAST_ROWS, MOST_ROWS, Product
from octavo_engine.kernels.triton.w4a16_layout import PackedMatrix
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.values.quantization import Scheme
from octavo_engine.tune.candidates import candidates
from octavo_engine.tune.search import Case

BATCHES = (1, 8, 64)  # decodes at once
CHUNK = 1024  # tokens of a prompt
FEW = 8  # rows of the kernels that take a moment
PRODUCTS = {"qkv": "self_attn.q_proj", "output": "self_attn.o_proj", "gate_up": "mlp.up_proj", "down": "mlp.down_proj"}

Timer = Callable[[Callable[[], object]], float]
"""Seconds of one call; infinity if it cannot be launched."""

Work = Callable[[Target], Callable[[], object]]
"""What is to be repeated, launched as a target says."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and on what is measured."""

    spec: ModelSpec  # of one rank
    dtype: torch.dtype  # of 16 bits
    device: torch.device
    target: Target
    block_size: int
    context: int
    timer: Timer
    batches: tuple[int, ...] = BATCHES
    chunk: int = CHUNK

    def cases(self) -> Iterator[Case]:
        """All of them; their numbers are made when they are asked for, and let go with them."""
        spec = self.spec
        yield self._case("decode16", padded_dim(spec.head_dim), self._decodes())
        yield self._case("mixed16", padded_dim(spec.head_dim), self._chunk())
        yield self._case("norm_row", triton.next_power_of_2(spec.hidden), self._norms())
        yield self._case("gate_row", 1, self._gates())
        yield self._case("turn_heads", triton.next_power_of_2(spec.head_dim // 2), self._heads())
        yield from self._products()
        for kernel in ("list_candidates", "draw_candidate"):
            yield self._case(kernel, 1, self._draws())

    def _case(self, kernel: str, size: int, work: Work) -> Case:
        capability = self.target.capability

        def seconds(launch: Launch) -> float:
            tried = Row(kernel, capability, size, launch)
            return self.timer(work(replace(self.target, measured=(tried,))))

        usual = launch_on(replace(self.target, measured=()), kernel, size)
        return Case(kernel, size, capability, candidates(kernel, size, usual), seconds)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=self.dtype, device=self.device)

    def _step(self, sequences: int, before: int, new: int) -> tuple[StepLayout, Tensor, tuple[Tensor, Tensor]]:
        """A step of equal sequences in scattered blocks, with its queries and its cache."""
        size, device = self.block_size, self.device
        length = before + new
        blocks = -(-length // size)
        tables = torch.randperm(sequences * blocks, device=device).view(sequences, blocks)
        positions = torch.arange(before, length, device=device).repeat(sequences)
        owners = torch.arange(sequences, device=device).repeat_interleave(new)
        layout = StepLayout(
            positions=positions,
            slots=tables[owners, positions // size] * size + positions % size,
            query_start=torch.arange(0, sequences * new + 1, new, dtype=torch.int32, device=device),
            context_lens=torch.full((sequences,), length, dtype=torch.int32, device=device),
            block_tables=tables.int(),
            max_query=new,
            max_context=length,
            num_decodes=sequences if new == 1 else 0,
        )
        shape = (sequences * blocks, size, self.spec.kv_heads, self.spec.head_dim)
        query = self._random(sequences * new, self.spec.heads, self.spec.head_dim)
        return layout, query, (self._random(*shape), self._random(*shape))

    @property
    def attentions(self) -> tuple[AttentionShape, ...]:
        """Those of the layers: one for each window that is shorter than the context, and one for all that are not.

        One launch serves them all, so that what is measured is the time of each of them together.
        """
        spec, scale = self.spec, self.spec.head_dim**-0.5
        windows = [window if window is not None and window < self.context else None for window in spec.windows]
        return tuple(
            AttentionShape(self.block_size, spec.kv_heads, spec.head_dim, self.dtype, scale, window)
            for window in dict.fromkeys(windows)
        )

    def _decodes(self) -> Work:
        steps = [self._step(batch, self.context - 1, 1) for batch in self.batches]

        def work(target: Target) -> Callable[[], object]:
            calls = [
                (Decodes.of(layout, attention, target), query, *cache)
                for layout, query, cache in steps
                for attention in self.attentions
            ]

            def attend() -> None:
                for decodes, query, keys, values in calls:
                    decodes.attend(query, keys, values, torch.empty_like(query))

            return attend

        return work

    def _chunk(self) -> Work:
        layout, query, cache = self._step(1, 0, min(self.chunk, self.context))

        def work(target: Target) -> Callable[[], object]:
            parts = [Mixed.of(layout, attention, target, skipped=0) for attention in self.attentions]

            def attend() -> None:
                for mixed in parts:
                    mixed.attend(query, *cache, torch.empty_like(query))

            return attend

        return work

    def _norms(self) -> Work:
        weight = self._random(self.spec.hidden)
        xs = [self._random(rows, self.spec.hidden) for rows in (FEW, self.chunk)]

        def work(target: Target) -> Callable[[], object]:
            norm = Pointwise(target).add_rms_norm
            return lambda: [norm(torch.empty_like(x), x, weight, self.spec.eps) for x in xs]

        return work

    def _gates(self) -> Work:
        both = [self._random(rows, 2 * self.spec.intermediate) for rows in (FEW, self.chunk)]
        return lambda target: lambda: [Pointwise(target).silu_multiply(x) for x in both]

    def _heads(self) -> Work:
        spec, steps = self.spec, [self._step(FEW, self.context - 1, 1), self._step(1, 0, min(self.chunk, self.context))]
        count = spec.heads + 2 * spec.kv_heads
        inputs = [
            (self._random(len(query), count, spec.head_dim), self._random(len(query), 1, spec.head_dim), layout, cache)
            for layout, query, cache in steps
        ]

        def work(target: Target) -> Callable[[], object]:
            calls = [
                (Pointwise(target).prepare_store(angles, angles, layout.slots), heads, cache)
                for heads, angles, layout, cache in inputs
            ]
            return lambda: [store(heads, None, cache) for store, heads, cache in calls]

        return work

    def _products(self) -> Iterator[Case]:
        """Those of the products that the checkpoint has in few bits, which share their launches: all together."""
        products = [product for name in PRODUCTS if (product := self._product(name)) is not None]
        size = LEAST_ROWS
        while products and size <= MOST_ROWS:
            rows = (size,) if size < MOST_ROWS else (size, self.chunk)
            yield self._case("quantized16", size, self._times(products, rows))
            size *= 2

    def _times(self, products: list[Product], rows: tuple[int, ...]) -> Work:
        inputs = {product.matrix.inputs for product in products}
        xs = [{width: self._random(count, width) for width in inputs} for count in rows]

        def work(target: Target) -> Callable[[], object]:
            tried = [replace(product, target=target) for product in products]
            return lambda: [product.times(x[product.matrix.inputs]) for x in xs for product in tried]

        return work

    def _product(self, name: str) -> Product | None:
        spec = self.spec
        quantization = spec.quantization
        scheme = None if quantization is None else quantization.scheme_of(f"model.layers.0.{PRODUCTS[name]}")
        if scheme is None:
            return None
        outputs, inputs = {
            "qkv": (spec.query_size + 2 * spec.kv_size, spec.hidden),
            "output": (spec.hidden, spec.query_size),
            "gate_up": (2 * spec.intermediate, spec.hidden),
            "down": (spec.hidden, spec.intermediate),
        }[name]
        packed = PackedMatrix.of(self._matrix(scheme, outputs, inputs))
        return None if packed is None else Product(self.target, packed, None, gated=name == "gate_up")

    def _matrix(self, scheme: Scheme, outputs: int, inputs: int) -> QuantizedMatrix:
        bits = scheme.code_bits(inputs)
        shape, middle = (outputs, scheme.groups_of(inputs)), 2.0 ** (bits - 1)
        codes = torch.randint(0, 256, (outputs, inputs * bits // 8), dtype=torch.uint8, device=self.device)
        scales = torch.full(shape, 2.0**-10, device=self.device)
        return QuantizedMatrix(bits, codes, scales, -scales * middle, scheme.group_of(inputs))

    def _draws(self) -> Work:
        vocab = self.spec.vocab
        logits = torch.randn(FEW, vocab, device=self.device) * 3
        largest, tokens = logits.max(dim=-1)
        choices = [
            choice_of(row, vocab, temperature=1.0, top_k=None, top_p=0.95, min_p=0.0, uniform=(row + 0.5) / FEW)
            for row in range(FEW)
        ]
        return lambda target: lambda: draw(target, logits, largest, choices, tokens)
