"""Rows of logits from which the device and the sampler's definition draw with the same number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.kernels.triton.device import target_of
from octavo_engine.kernels.triton.sampling import choice_of, draw
from octavo_engine.request import SamplingParams
from octavo_engine.runtime import host_draw
from octavo_engine.runtime.sampler import _candidates, rescale

SMALL_SHARE = 1e-6  # what rounding may move the border between two tokens by
FILTER_SHARE = 3e-7  # and that of the nucleus
UNIFORMS = (0.0, 0.13, 0.77, 1.0 - 2.0**-53)


@dataclass(frozen=True)
class DrawCase:
    """One distribution, drawn from with several numbers; its rows lie among others."""

    vocab: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    spread: float = 3.0  # of the logits
    steps: float | None = None  # logits are whole multiples of it: many are equal

    def logits(self) -> Tensor:
        """float32 `[vocab]`; a few tokens are forbidden."""
        values = torch.randn(self.vocab, generator=torch.Generator().manual_seed(self.vocab)) * self.spread
        if self.steps is not None:
            values = (values / self.steps).round() * self.steps
        values[3::11] = -torch.inf
        return values

    def drawn(self, device: torch.device) -> list[int]:
        """The kernel's tokens, one for each of UNIFORMS."""
        rows = 2 * len(UNIFORMS)
        logits = torch.zeros(rows, self.vocab, device=device)
        logits[1::2] = self.logits().to(device)
        largest, tokens = logits.max(dim=-1)
        before = tokens.clone()
        choices = [self._choice(1 + 2 * number, uniform) for number, uniform in enumerate(UNIFORMS)]
        draw(target_of(device), logits, largest, choices, tokens)
        assert torch.equal(tokens[::2], before[::2]), "rows that are not drawn from are left alone"
        found: list[int] = tokens[1::2].tolist()
        return found

    def _choice(self, row: int, uniform: float):  # type: ignore[no-untyped-def]
        return choice_of(
            row,
            self.vocab,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            uniform=uniform,
        )

    def allowed(self) -> list[set[int]]:
        """The tokens that the definition has at each of UNIFORMS or within rounding; of equally likely ones, which it
        takes in any order, those that a processor draws."""
        scaled = rescale(self.logits()[None], torch.tensor([self.temperature]))[0]
        found = [set[int]() for _ in UNIFORMS]
        for top_p in {self.top_p, max(self.top_p - FILTER_SHARE, 1e-9), min(self.top_p + FILTER_SHARE, 1.0)}:
            weights, ids = _candidates(scaled, self._params(top_p))
            shares = weights.exp().double()
            shares /= shares.sum()
            ends = shares.cumsum(0)
            for tokens, uniform in zip(found, UNIFORMS, strict=True):
                near = (ends - shares <= uniform + SMALL_SHARE) & (ends >= uniform - SMALL_SHARE) & (shares > 0)
                places = near.nonzero().flatten()
                tokens |= set((places if ids is None else ids[places]).tolist())
        if self.steps is None:
            return found
        alike = (self._alike(scaled, tokens) for tokens in found)
        return [tokens & self._on_a_processor(uniform) for tokens, uniform in zip(alike, UNIFORMS, strict=True)]

    def _alike(self, scaled: Tensor, tokens: set[int]) -> set[int]:
        return {other for token in tokens for other in (scaled == scaled[token]).nonzero().flatten().tolist()}

    def _on_a_processor(self, uniform: float) -> set[int]:
        """What it draws at that number, or within rounding."""
        values, params = self.logits().numpy(), self._params(self.top_p)
        near = (min(max(uniform + shift, 0.0), UNIFORMS[-1]) for shift in (-SMALL_SHARE, 0.0, SMALL_SHARE))
        return {host_draw.draw(values, params, number) for number in near}

    def _params(self, top_p: float) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, top_k=self.top_k, top_p=top_p, min_p=self.min_p)

    def wrong(self, device: torch.device) -> list[tuple[int, list[int]]]:
        """Tokens that the definition would not have drawn, with those that it would."""
        return [
            (token, sorted(tokens))
            for token, tokens in zip(self.drawn(device), self.allowed(), strict=True)
            if token not in tokens
        ]


CASES = [
    DrawCase(1),
    DrawCase(7, temperature=0.5),
    DrawCase(2500),
    DrawCase(2500, temperature=1e-6),
    DrawCase(2500, min_p=0.05),
    DrawCase(2500, top_k=1),
    DrawCase(2500, top_k=40, temperature=2.5),
    DrawCase(2500, top_k=1500, spread=0.1),
    DrawCase(4500, top_p=0.95),
    DrawCase(4500, top_p=0.95, spread=0.1),  # a nucleus of thousands
    DrawCase(4500, top_p=1e-9),
    DrawCase(4500, top_p=0.999999),
    DrawCase(4500, top_k=50, top_p=0.9, min_p=0.02, temperature=0.7),
    DrawCase(4500, top_p=0.9, min_p=0.5),
    DrawCase(3000, top_k=100, top_p=0.9, steps=1.0),
    DrawCase(3000, top_p=0.8, min_p=0.3, steps=0.5),
    DrawCase(300, top_k=299, spread=60.0),  # most weights are too small for a float
]
