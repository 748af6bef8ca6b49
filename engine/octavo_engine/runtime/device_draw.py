"""Tokens for a batch of logits on a device: greedy and random rows alike, and the host waits for nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache

import torch

from octavo_engine.request import Request


def serves(device: torch.device) -> bool:
    """Whether this way is one for that device."""
    return device.type == "cuda" and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def choose(
    logits: torch.Tensor, requests: Sequence[Request], uniform_of: Callable[[Request], float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token of each row of `logits` `[rows, vocab]`, float32, and whether the row is healthy: int64 and bool.

    A row whose largest logit is no finite number is not, and its token means nothing. `uniform_of` gives the number in
    [0, 1) that decides what a request that is not greedy gets.
    """
    from octavo_engine.kernels.triton import device, sampling  # noqa: PLC0415 (Triton is not on every machine)

    largest, tokens = logits.max(dim=-1)
    choices = [
        sampling.choice_of(
            row,
            logits.shape[1],
            temperature=request.params.temperature,
            top_k=request.params.top_k,
            top_p=request.params.top_p,
            min_p=request.params.min_p,
            uniform=uniform_of(request),
        )
        for row, request in enumerate(requests)
        if not request.params.greedy
    ]
    if choices:
        sampling.draw(device.target_of(logits.device), logits, largest, choices, tokens)
    return tokens, largest.isfinite()
