"""A random token from one row of logits on the host: the fast twin of the sampler's torch operations.

Sorting a vocabulary, or only summing it up number by number, takes longer than computing its logits. Here whole vectors
are compared and added, in blocks: a block's largest number says whether any of its tokens can be among the likeliest,
and a block's sum whether the drawn token is in it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from octavo_engine.request import SamplingParams

BLOCK = 64
SMALLEST = np.finfo(np.float32).tiny
FIRST_CANDIDATES = 64  # the nucleus is nearly always smaller; where it is not, 16 times as many are tried

Weights = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]


def draw(logits: Weights, params: SamplingParams, uniform: float) -> int:
    """The token of `logits` `[vocab]` at `uniform` in [0, 1) of the distribution that `params` leave.

    Top-k first, then the nucleus of what it left, then min-p, as in the sampler. The likeliest logit must be finite.
    """
    with np.errstate(over="ignore"):  # a tiny temperature leaves the likeliest alone: exp(-inf) is 0
        scaled = (logits - logits.max()) / max(np.float32(params.temperature), SMALLEST)
    weights = np.exp(scaled)
    if params.min_p > 0.0:
        improbable = scaled < np.float32(math.log(params.min_p))
    size = len(weights)
    top_k = min(params.top_k or size, size)
    if top_k == size and params.top_p >= 1.0:
        if params.min_p > 0.0:
            weights[improbable] = 0.0
        return _in_order(weights, uniform)
    ids = nucleus(weights, top_k, params.top_p)
    if params.min_p > 0.0:
        ids = ids[~improbable[ids]]
    edges = weights[ids].cumsum(dtype=np.float64)
    return int(ids[_place(edges, edges[-1] * uniform)])


def nucleus(weights: Weights, top_k: int, top_p: float) -> Ids:
    """The fewest tokens, the likeliest first, at most `top_k`, whose share of the top k's weight reaches `top_p`."""
    size = len(weights)
    if top_p >= 1.0 or top_k < size:
        ids = largest(weights, top_k)
        return ids if top_p >= 1.0 else _cut(weights, ids, top_p * weights[ids].sum(dtype=np.float64))
    wanted, count = top_p * _sum(weights), min(FIRST_CANDIDATES, size)
    while True:
        ids = largest(weights, count)
        if count == size or weights[ids].sum(dtype=np.float64) >= wanted:
            return _cut(weights, ids, wanted)
        count = min(16 * count, size)


def largest(weights: Weights, count: int) -> Ids:
    """The tokens with the `count` largest weights, largest first; of equal ones those with the lower numbers first."""
    blocks = _blocks(weights)
    # If `count` blocks have a token of at least some weight, the wanted ones have no less.
    values = blocks.max(axis=1) if count < len(blocks) else weights
    least = np.partition(values, len(values) - count)[len(values) - count]
    found = np.flatnonzero(weights >= least)
    return found[np.argsort(-weights[found], kind="stable")[:count]]  # other kinds: as a processor's instructions like


def _blocks(weights: Weights) -> Weights:
    """All whole blocks; the tokens after them are in none."""
    whole = len(weights) // BLOCK
    return weights[: whole * BLOCK].reshape(whole, BLOCK)


def _sum(weights: Weights) -> float:
    blocks = _blocks(weights)
    return float(blocks.sum(axis=1).sum(dtype=np.float64) + weights[blocks.size :].sum(dtype=np.float64))


def _cut(weights: Weights, ids: Ids, wanted: float) -> Ids:
    """The first of `ids` whose weights together reach `wanted`."""
    return ids[: int(np.count_nonzero(weights[ids].cumsum(dtype=np.float64) < wanted)) + 1]


def _in_order(weights: Weights, uniform: float) -> int:
    """The token at `uniform` of all, in the order of the vocabulary."""
    blocks = _blocks(weights)
    edges = np.append(blocks.sum(axis=1), weights[blocks.size :].sum()).cumsum(dtype=np.float64)
    target = edges[-1] * uniform
    block = _place(edges, target)
    within = weights[block * BLOCK : (block + 1) * BLOCK].cumsum(dtype=np.float64)
    return block * BLOCK + _place(within, target - (edges[block - 1] if block else 0.0))


def _place(edges: npt.NDArray[np.float64], target: float) -> int:
    """Where the rising `edges` pass `target`; rounding may put it beyond the last that rises, which is then the one."""
    return min(int(edges.searchsorted(target, side="right")), int(edges.searchsorted(edges[-1])))
