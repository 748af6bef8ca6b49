"""Combinations in which every pair of choices meets at least once: a few dozen instead of thousands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

Choice = dict[str, str]
Pair = frozenset[tuple[str, str]]


def pairs(choice: Choice) -> set[Pair]:
    """Every two decisions of one combination."""
    return {frozenset(pair) for pair in combinations(choice.items(), 2)}


def all_pairs(dimensions: Mapping[str, Sequence[str]]) -> set[Pair]:
    """Every two decisions that can be taken together."""
    return {
        frozenset({(first, one), (second, other)})
        for first, second in combinations(dimensions, 2)
        for one in dimensions[first]
        for other in dimensions[second]
    }


def cover(dimensions: Mapping[str, Sequence[str]]) -> list[Choice]:
    """Combinations that contain all pairs, the same on every run; the first takes each dimension's first choice.

    Greedy: each combination starts from a pair that is still missing and takes, dimension by dimension, what adds most.
    """
    first = {name: choices[0] for name, choices in dimensions.items()}
    found, missing = [first], all_pairs(dimensions) - pairs(first)
    while missing:
        choice: Choice = dict(min(missing, key=sorted))
        for name in dimensions:
            if name not in choice:
                choice[name] = max(dimensions[name], key=lambda it: len(pairs(choice | {name: it}) & missing))
        found.append({name: choice[name] for name in dimensions})
        missing -= pairs(choice)
    return found
