"""The benchmark behind docs/WHY_PAGING.md: its three ways differ in what they take, not in what they answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from why_paging.serving import LONGEST, POOL_TOKENS, RESERVED_SLOTS, WAYS, Wish, serve, wishes
from why_paging.table import table

pytestmark = pytest.mark.engine


def test_three_ways_with_one_long_answer_among_short_ones(smollm2_gguf: Path) -> None:
    lengths = [24, *[2] * (RESERVED_SLOTS + 3)]
    load = [Wish(tuple(range(1000, 1020)), length) for length in lengths]
    static, continuous, paged = (serve(smollm2_gguf, way, load, threads=1) for way in WAYS)
    for watched in (static, continuous, paged):
        assert (watched.output_tokens, len(watched.waits)) == (sum(lengths), len(load))
        assert watched.way.name in table([watched])
    # The static batch keeps seven places empty behind the long answer; a free place is taken at once otherwise.
    assert len(static.moments) == 24 + 2
    assert len(continuous.moments) == len(paged.moments) == 24
    assert static.most_running <= RESERVED_SLOTS < paged.most_running
    assert all(moment.reserved <= POOL_TOKENS for moment in static.moments + continuous.moments)
    assert paged.waste < 0.5
    assert continuous.waste > 0.95


def test_a_load_is_the_same_each_time_and_fits() -> None:
    load = wishes(96)
    assert load == wishes(96)
    assert max(len(wish.prompt) + wish.output_tokens for wish in load) <= LONGEST
    assert max(wish.output_tokens for wish in load) > 10 * min(wish.output_tokens for wish in load)
