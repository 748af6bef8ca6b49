"""The host's way to draw a token beside the torch operations that define it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.request import SamplingParams
from octavo_engine.runtime.host_draw import BLOCK, draw, largest, nucleus
from octavo_engine.runtime.sampler import _candidates, _invert, rescale

pytestmark = pytest.mark.engine

SIZES = st.sampled_from([1, 2, BLOCK - 1, BLOCK, 5 * BLOCK + 3, 5_000])
SMALL_SHARE = 1e-5  # what rounding may move the border between two tokens by


def logits_of(size: int, seed: int, spread: float) -> np.ndarray:
    """Numbers without ties; a few are forbidden."""
    values = np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)
    values[1::7] = -np.inf
    return values


def filtered(**params: float | None) -> SamplingParams:
    return SamplingParams(**params)  # type: ignore[arg-type]


PARAMS = st.builds(
    filtered,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([None, 1, 3, 40, 500]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
)


@settings(deadline=None, max_examples=300, derandomize=True)  # a border between two tokens is no fault
@given(SIZES, st.integers(0, 10**6), st.sampled_from([0.1, 2.0, 9.0]), PARAMS, st.floats(0, 1, exclude_max=True))
def test_the_same_number_gives_the_same_token(size, seed, spread, params, uniform):
    values = logits_of(size, seed, spread)
    scaled = rescale(torch.from_numpy(values)[None], torch.tensor([params.temperature]))[0]
    near = {
        _invert(*_candidates(scaled, params), min(max(uniform + shift, 0.0), 1.0 - 1e-9))
        for shift in (-SMALL_SHARE, 0.0, SMALL_SHARE)
    }
    assert draw(values, params, uniform) in near


@settings(deadline=None, max_examples=100)
@given(SIZES, st.integers(0, 10**6), st.data())
def test_the_largest_are_those_that_a_sort_finds(size, seed, data):
    weights = np.random.default_rng(seed).integers(0, 50, size).astype(np.float32)  # with many ties
    count = data.draw(st.integers(1, size))
    found = largest(weights, count)
    assert weights[found].tolist() == sorted(weights.tolist(), reverse=True)[:count]
    assert found.tolist() == np.lexsort((np.arange(size), -weights))[:count].tolist(), "of equal ones the first first"


@pytest.mark.parametrize("top_p", [0.999, 0.9, 0.3])
def test_a_flat_nucleus_takes_as_many_as_it_needs(top_p: float):
    weights = np.linspace(1.0, 0.9, 4_000, dtype=np.float32)
    found = nucleus(weights, len(weights), top_p)
    share = weights[found].sum(dtype=np.float64) / weights.sum(dtype=np.float64)
    without_last = weights[found[:-1]].sum(dtype=np.float64) / weights.sum(dtype=np.float64)
    assert without_last < top_p <= share + 1e-6


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-6])
@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_a_tiny_temperature_is_greedy(temperature: float, top_p: float):
    values = logits_of(1_000, 1, 3.0)
    params = filtered(temperature=temperature, top_p=top_p)
    assert {draw(values, params, uniform) for uniform in (0.0, 0.5, 1 - 2**-53)} == {int(values.argmax())}


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("size", [BLOCK, 3 * BLOCK + 5])
def test_the_ends_of_the_unit_interval_are_tokens_that_may_be_drawn(uniform: float, size: int):
    values = np.full(size, -np.inf, np.float32)
    values[[2, size - 3]] = 0.0
    assert draw(values, filtered(temperature=1.0), uniform) == (2 if uniform == 0.0 else size - 3)
