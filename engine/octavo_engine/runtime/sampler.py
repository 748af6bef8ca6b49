"""From logits to tokens. What a request gets depends on its own logits, parameters and seed, never on its neighbours.

There is no state per request: penalties are counted from the tokens, and the random number of a seeded request is
derived from its seed and its position, so that preemption, batching and restarts cannot change it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from octavo_engine.request import Request, Sampled, SamplingParams, TokenLogprob
from octavo_engine.runtime import device_draw
from octavo_engine.runtime.host_draw import draw

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

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[Sampled]:
        """One outcome a row. `logits` is float32 `[len(requests), vocab]` and is not kept; it may be changed."""
        if all(request.params.plain for request in requests):
            chosen, healthy = likeliest(logits)
            return list(map(Sampled, chosen)) if all(healthy) else list(map(_checked, chosen, healthy))
        logprobs = _raw_logprobs(logits, requests)
        for row, request in enumerate(requests):
            self._adjust(logits[row], request)
        chosen, healthy = self._choose(logits, requests)
        return [
            _outcome(token, logprobs.get(row), requests[row].params) if healthy[row] else _NO_TOKEN
            for row, token in enumerate(chosen)
        ]

    def _choose(self, logits: torch.Tensor, requests: Sequence[Request]) -> tuple[list[int], list[bool]]:
        """Each row's token, and whether the row has one."""
        if device_draw.serves(logits.device):
            return device_draw.choose(logits, requests, self._uniform)
        chosen, healthy = likeliest(logits)
        random = [row for row, request in enumerate(requests) if healthy[row] and not request.params.greedy]
        if random:
            drawn = self._draw(logits, requests, random)
            for row, token in zip(random, drawn, strict=True):
                chosen[row] = token
        return chosen, healthy

    def _adjust(self, row: torch.Tensor, request: Request) -> None:
        """Apply bias, penalties and the minimum length, in place; nothing is touched for a plain request."""
        params = request.params
        if params.repetition_penalty != 1.0:
            seen = torch.tensor(sorted(set(request.tokens)), device=row.device)
            values = row[seen]
            penalty = params.repetition_penalty
            row[seen] = torch.where(values > 0, values / penalty, values * penalty)
        if (params.presence_penalty or params.frequency_penalty) and request.num_output:
            output = torch.tensor(request.output_ids, device=row.device)
            used, counts = torch.unique(output, return_counts=True)
            row[used] -= params.presence_penalty + params.frequency_penalty * counts
        if params.logit_bias:
            ids, biases = zip(*params.logit_bias, strict=True)
            row[list(ids)] += torch.tensor(biases, device=row.device)
        if request.num_output < params.min_tokens:
            row[[*params.stop_token_ids, *(() if params.ignore_eos else self._eos_ids)]] = -math.inf

    def _draw(self, logits: torch.Tensor, requests: Sequence[Request], rows: Sequence[int]) -> list[int]:
        """Random tokens for those `rows`, by inverting the cumulative distribution at one uniform number a row.

        One number instead of noise for each token: drawing 49,152 exponentials a row took longer than the row's logits.
        torch's operations define correct; they serve where neither of the fast ways does.
        """
        if logits.device.type == "cpu":
            values = logits.numpy()
            return [draw(values[row], requests[row].params, self._uniform(requests[row])) for row in rows]
        chosen = [requests[row] for row in rows]
        temperatures = torch.tensor([request.params.temperature for request in chosen], device=logits.device)
        scaled = rescale(logits[rows], temperatures)
        return [_invert(*_candidates(row, r.params), self._uniform(r)) for row, r in zip(scaled, chosen, strict=True)]

    def _uniform(self, request: Request) -> float:
        """A number in [0, 1): of the request's seed and position if it has a seed."""
        if request.params.seed is None:
            return float(torch.rand((), generator=self._shared, dtype=torch.float64))
        self._seeded.manual_seed(((request.params.seed + 1) * _MIX + request.num_tokens) & _MASK)
        return float(torch.rand((), generator=self._seeded, dtype=torch.float64))


def likeliest(logits: torch.Tensor) -> tuple[list[int], list[bool]]:
    """The likeliest token of each row of `[n, vocab]`, the first of equal ones, and whether its logit is a number."""
    if logits.device.type == "cpu":  # numpy's search compares whole vectors: a seventh of torch's time
        values = logits.numpy()
        tokens = values.argmax(-1)
        return tokens.tolist(), np.isfinite(values[np.arange(len(tokens)), tokens]).tolist()
    best, where = logits.max(dim=-1)
    return device_draw.read(where, best)


def _checked(token: int, healthy: bool) -> Sampled:
    return Sampled(token) if healthy else _NO_TOKEN


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


_NO_TOKEN = Sampled(-1, error="the model's logits leave no token to choose (not a number, or all forbidden)")

_RowLogprobs = tuple[torch.Tensor, tuple[TokenLogprob, ...]]


def _raw_logprobs(logits: torch.Tensor, requests: Sequence[Request]) -> dict[int, _RowLogprobs]:
    """The model's own log-probabilities, before anything is applied, for the rows that ask for them."""
    asked: dict[int, _RowLogprobs] = {}
    for row, request in enumerate(requests):
        wanted = request.params.logprobs
        if wanted is None:
            continue
        values = logits[row].log_softmax(-1)
        top = values.topk(wanted)
        pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        asked[row] = values, tuple(TokenLogprob(token, value) for token, value in pairs)
    return asked


def _outcome(token: int, logprobs: _RowLogprobs | None, params: SamplingParams) -> Sampled:
    if logprobs is None or params.logprobs is None:
        return Sampled(token)
    values, top = logprobs
    return Sampled(token, TokenLogprob(token, float(values[token])), top)
