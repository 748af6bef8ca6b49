"""Steps over a paged cache, laid out by hand: what the runner does in the engine, for tests of kernels and model
alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo_engine.kernels.attention import StepLayout
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.spec import ModelSpec


@dataclass
class Pages:
    """Block tables of some sequences, scattered over a pool whose other blocks are poisoned."""

    tables: list[list[int]]
    block_size: int
    num_blocks: int

    @classmethod
    def scattered(cls, lengths: Sequence[int], block_size: int, seed: int = 0) -> Pages:
        """Tables with room for `lengths` tokens each, in random order, one block between them unused."""
        counts = [-(-length // block_size) for length in lengths]
        blocks = list(range(sum(counts) + 1))
        random.Random(seed).shuffle(blocks)
        return cls([[blocks.pop() for _ in range(count)] for count in counts], block_size, sum(counts) + 1)

    def cache(
        self, kv_heads: int, head_dim: int, dtype: torch.dtype, device: str = "cpu"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, all NaN: a kernel that reads what nobody wrote is found out."""
        shape = (self.num_blocks, self.block_size, kv_heads, head_dim)
        return torch.full(shape, torch.nan, dtype=dtype, device=device), torch.full(
            shape, torch.nan, dtype=dtype, device=device
        )

    def layout(self, work: Sequence[tuple[int, int, int]], device: str = "cpu") -> StepLayout:
        """A step that computes `(sequence, start, count)` for each entry; decodes must come first."""
        positions = [position for _, start, count in work for position in range(start, start + count)]
        owners = [sequence for sequence, _, count in work for _ in range(count)]
        slots = [self._slot(owner, position) for owner, position in zip(owners, positions, strict=True)]
        width = max(len(self.tables[sequence]) for sequence, _, _ in work)
        tables = [self.tables[sequence] + [0] * (width - len(self.tables[sequence])) for sequence, _, _ in work]
        starts = torch.tensor([0, *(count for _, _, count in work)]).cumsum(0)
        counts = [count for _, _, count in work]
        num_decodes = next((index for index, count in enumerate(counts) if count > 1), len(counts))
        lengths = [start + count for _, start, count in work]
        return StepLayout(
            positions=torch.tensor(positions, device=device),
            slots=torch.tensor(slots, device=device),
            query_start=starts.to(device, torch.int32),
            context_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
            block_tables=torch.tensor(tables, dtype=torch.int32, device=device),
            max_query=max(counts),
            max_context=max(lengths),
            num_decodes=num_decodes,
        )

    def _slot(self, sequence: int, position: int) -> int:
        return self.tables[sequence][position // self.block_size] * self.block_size + position % self.block_size


def model_caches(
    spec: ModelSpec, pages: Pages, dtype: torch.dtype, device: str = "cpu"
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A poisoned cache for each layer."""
    return [pages.cache(spec.kv_heads, spec.head_dim, dtype, device) for _ in range(spec.layers)]


def prefill_logits(decoder: Decoder, tokens: torch.Tensor, chunks: Sequence[int], block_size: int = 16) -> torch.Tensor:
    """Logits of every token of one sequence, computed in chunks of the given sizes."""
    pages = Pages.scattered([len(tokens)], block_size)
    caches = model_caches(decoder.spec, pages, decoder.final_norm.dtype)
    start, found = 0, []
    for count in chunks:
        layout = pages.layout([(0, start, count)])
        found.append(decoder.logits(decoder.forward(tokens[start : start + count], layout, caches)))
        start += count
    return torch.cat(found)
