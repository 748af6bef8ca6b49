"""From logits to tokens. What a request gets depends on its own logits, parameters and seed, never on its neighbours.

There is no state per request: penalties are counted from the tokens, and the random number of a seeded request is
derived from its seed and its position, so that preemption, batching and restarts cannot change it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from octavo_engine.request import Request, SamplingParams
from octavo_engine.runtime import device_draw
from octavo_engine.runtime.allowed import forbid
from octavo_engine.runtime.drawn import Draw, raw_logprobs
from octavo_engine.runtime.host_draw import draw
from octavo_engine.runtime.transfers import to_device

# Sorting a whole vocabulary costs milliseconds. The nucleus nearly always lies within this many likeliest tokens; where
# it does not, the row is sorted whole.
CANDIDATES = 1024
_MIX = (
    0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads neighbouring (seed, position) pairs over the generator's seeds
)
_MASK = (1 << 63) - 1


class Sampler:
    """Samples one token for each row of logits."""

    def __init__(self, *, eos_ids: Sequence[int]) -> None:
        self._eos_ids = tuple(eos_ids)
        # On the host even for a GPU's logits: one number a row, the same on every device.
        self._shared = torch.Generator()
        self._seeded = torch.Generator()
        self._shared.seed()

    def sample(
        self, logits: torch.Tensor, requests: Sequence[Request], guesses: Sequence[Sequence[int]] | None = None
    ) -> Draw:
        """One outcome a row. `logits` is float32 `[len(requests), vocab]` and is not kept; it may be changed.

        `guesses`: what each row takes for known after its request's tokens. Of the rows of one request, which stand
        together, the first takes nothing, and each other one guess more.
        """
        if all(request.plain for request in requests):
            return Draw(*likeliest(logits))
        guesses = guesses or [()] * len(requests)
        asked = raw_logprobs(logits, requests)
        for row, (request, guessed) in enumerate(zip(requests, guesses, strict=True)):
            self._adjust(logits[row], request, guessed)
        faults = forbid(logits, requests, guesses, self._barred)
        tokens, healthy = self._choose(logits, requests, list(map(len, guesses)))
        return Draw(tokens, healthy, asked, faults)

    def _choose(
        self, logits: torch.Tensor, requests: Sequence[Request], ahead: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each row's token, int64, and whether the row has one, bool."""
        if device_draw.serves(logits.device):
            return device_draw.choose(logits, requests, self._uniform)
        tokens, healthy = likeliest(logits)
        well = healthy.tolist()
        random = [row for row, request in enumerate(requests) if well[row] and not request.params.greedy]
        if random:
            tokens[random] = torch.tensor(self._draw(logits, requests, ahead, random), device=tokens.device)
        return tokens, healthy

    def _adjust(self, row: torch.Tensor, request: Request, guessed: Sequence[int]) -> None:
        """Apply bias, penalties and the minimum length, in place; nothing is touched for a plain request."""
        params = request.params
        if params.repetition_penalty != 1.0:
            (seen,) = to_device([np.array(sorted({*request.tokens, *guessed}))], row.device)
            values = row[seen]
            row[seen] = _repeated(values, params.repetition_penalty)
        if (params.presence_penalty or params.frequency_penalty) and (said := [*request.output_ids, *guessed]):
            used, counts = to_device(np.unique(np.array(said), return_counts=True), row.device)
            row[used] -= params.presence_penalty + params.frequency_penalty * counts
        if params.logit_bias:
            ids, biases = zip(*params.logit_bias, strict=True)
            places, added = to_device([np.array(ids), np.array(biases, np.float32)], row.device)
            row[places] += added
        if request.constraint is None and (barred := self._barred(request, len(guessed))):
            (places,) = to_device([np.array(barred, np.int64)], row.device)
            row.index_fill_(0, places, -math.inf)

    def _barred(self, request: Request, ahead: int) -> Sequence[int]:
        """What would end the answer, while it is shorter than its minimum."""
        params = request.params
        if request.num_output + ahead >= params.min_tokens:
            return ()
        return [*params.stop_token_ids, *(() if params.ignore_eos else self._eos_ids)]

    def _draw(
        self, logits: torch.Tensor, requests: Sequence[Request], ahead: Sequence[int], rows: Sequence[int]
    ) -> list[int]:
        """Random tokens for those `rows`, by inverting the cumulative distribution at one uniform number a row.

        One number instead of noise for each token: drawing 49,152 exponentials a row took longer than the row's logits.
        torch's operations define correct; they serve where neither of the fast ways does.
        """
        uniform = [self._uniform(requests[row], ahead[row]) for row in rows]
        if logits.device.type == "cpu":
            values = logits.numpy()
            return [draw(values[row], requests[row].params, number) for row, number in zip(rows, uniform, strict=True)]
        chosen = [requests[row] for row in rows]
        temperatures = torch.tensor([request.params.temperature for request in chosen], device=logits.device)
        scaled = rescale(logits[rows], temperatures)
        return [
            _invert(*_candidates(row, request.params), number)
            for row, request, number in zip(scaled, chosen, uniform, strict=True)
        ]

    def _uniform(self, request: Request, ahead: int = 0) -> float:
        """A number in [0, 1): of the request's seed and position if it has a seed."""
        if request.params.seed is None:
            return float(torch.rand((), generator=self._shared, dtype=torch.float64))
        self._seeded.manual_seed(((request.params.seed + 1) * _MIX + request.num_tokens + ahead) & _MASK)
        return float(torch.rand((), generator=self._seeded, dtype=torch.float64))


def _repeated(values: torch.Tensor, penalty: float) -> torch.Tensor:
    """Logits of tokens that were there before. One of nearly 0 makes a number as large as numbers get, and no fault."""
    most = torch.finfo(values.dtype).max
    changed = torch.where(values > 0, values / penalty, values * penalty).clamp(-most, most)
    return torch.where(values.isinf(), values, changed)  # what was none before stays one


def likeliest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token of each row of `[n, vocab]`, the first of equal ones, and whether its logit is a number."""
    if logits.device.type == "cpu":  # numpy's search compares whole vectors: a seventh of torch's time
        values = logits.numpy()
        tokens = values.argmax(-1)
        return torch.from_numpy(tokens), torch.from_numpy(np.isfinite(values[np.arange(len(tokens)), tokens]))
    best, tokens = logits.max(dim=-1)
    return tokens, best.isfinite()


def rescale(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """`[n, vocab]` over `[n]`. Subtracting the maximum first keeps tiny temperatures from overflowing."""
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperatures[:, None]


def _invert(weights: torch.Tensor, ids: torch.Tensor | None, uniform: float) -> int:
    """The token at which the cumulative share of `exp(weights)` passes `uniform`."""
    cumulative = weights.exp().cumsum(0, dtype=torch.float64)
    index = int(torch.searchsorted(cumulative, cumulative[-1] * uniform, right=True))
    return index if ids is None else int(ids[index])


def _candidates(scaled: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What may be drawn: log-weights and their token ids (None: the whole vocabulary, in order).

    Top-k first, then the nucleus of what it left, then min-p, which needs no sum.
    """
    size = scaled.shape[-1]
    top_k = min(params.top_k or size, size)
    ids: torch.Tensor | None = None
    if top_k < size or params.top_p < 1.0:
        scaled, ids = _nucleus(scaled, top_k, params.top_p)
    if params.min_p > 0.0:
        scaled = scaled.masked_fill(scaled < scaled.max() + math.log(params.min_p), -math.inf)
    return scaled, ids


def _nucleus(scaled: torch.Tensor, top_k: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest set of likeliest tokens, at most `top_k`, whose probability within the top k reaches `top_p`."""
    size = scaled.shape[-1]
    values, ids = scaled.topk(min(top_k, CANDIDATES, size))
    if top_p >= 1.0:
        return (values, ids) if len(ids) == top_k else scaled.topk(top_k)
    total = values.logsumexp(0) if len(ids) == top_k else _top_k_mass(scaled, top_k)
    mass = (values - total).exp().cumsum(0)
    if mass[-1] < top_p and len(ids) < top_k:
        values, ids = scaled.topk(top_k)
        mass = (values - total).exp().cumsum(0)
    keep = int((mass < top_p).sum()) + 1
    return values[:keep], ids[:keep]


def _top_k_mass(scaled: torch.Tensor, top_k: int) -> torch.Tensor:
    return scaled.logsumexp(0) if top_k == scaled.shape[-1] else scaled.topk(top_k).values.logsumexp(0)
