"""For how many sequences decodes are recorded as CUDA graphs, and which of these sizes serves a batch. Plain numbers.

A graph is of one size; a smaller batch is padded up to it. More sizes pad less, and take longer to record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from octavo_engine.errors import InvalidConfiguration

# Beyond that a device computes longer on a step than a host launches it, and a recorded one would save nothing.
LARGEST_BY_RULE = 512
POWERS_ALONE_UP_TO = 16  # rows of padding cost nothing there: a tile of a product has as many


def by_rule(most: int) -> tuple[int, ...]:
    """Sizes for batches of up to `most` sequences, ascending.

    Powers of two, from 16 on with one more half-way to each next: so at most a third of the rows are padding.
    """
    most = min(most, LARGEST_BY_RULE)
    sizes, power = [], 1
    while power < most:
        sizes.append(power)
        if power >= POWERS_ALONE_UP_TO:
            sizes.append(power * 3 // 2)
        power *= 2
    return (*(size for size in sizes if size < most), most)


def named(text: str, most: int) -> tuple[int, ...]:
    """The sizes that `--cuda-graph-sizes` names, ascending; raises InvalidConfiguration.

    most: sequences that can be decoded in one step.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise InvalidConfiguration(
            f"--cuda-graph-sizes is {text!r}; it must be whole numbers from 1 on, separated by commas"
        )
    sizes = sorted(set(map(int, words)))
    if sizes[-1] > most:
        raise InvalidConfiguration(
            f"--cuda-graph-sizes names {sizes[-1]}, but no step decodes more than {most} sequences; name smaller ones,"
            " or raise --max-num-seqs and --max-num-batched-tokens"
        )
    return tuple(sizes)


def fitting(sizes: Sequence[int], sequences: int) -> int | None:
    """The smallest of the ascending `sizes` that holds so many sequences; None where they are too many."""
    place = bisect_left(sizes, sequences)
    return None if place == len(sizes) else sizes[place]
