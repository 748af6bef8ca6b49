"""How a step's contexts are cut into pieces that programs compute side by side. Plain numbers; no tensor, no device.

A device is busy when it has a few programs for each of its processors. A batch of decodes has one for each sequence and
key head, which is too few for small batches; so contexts are cut, and a second kernel merges the pieces. Both have a
price: a piece leaves float32 sums behind that are read again, and a long piece is what a step ends up waiting for.
"""

from __future__ import annotations

from dataclasses import dataclass

PROGRAMS_A_PROCESSOR = 4  # that are wanted: two or three run at a time, and the next should be ready
LONGEST_PIECE = 2048  # tokens of a decode's piece, so that no step waits for one long context
MOST_PROGRAMS = 16 * 1024  # of one step: bounds what pieces leave behind, to 64 MiB for 8 heads of 128 that share a key
SUMS_SHARE = 0.065  # of the bytes of keys and values: what pieces may write and read beside them
SUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Pieces:
    """A context of `n` seen tokens is cut at multiples of `tokens`, counted from the first that is seen."""

    count: int  # of the longest context
    tokens: int  # of each but the last: a whole number of tiles

    def of(self, context: int) -> int:
        """Pieces of a context of that many tokens."""
        return -(-context // self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCut:
    """How a batch of decodes is cut, whatever its lengths."""

    units: int  # programs if nothing is cut: sequences x key heads
    processors: int  # of the device
    group: int  # heads that share a key
    cached_bytes: int  # of one number in the cache
    tile: int  # tokens

    def pieces(self, context: int) -> Pieces:
        """Where sequences see up to `context` tokens each."""
        return _cut(context, self._affordable(context), self.tile)

    def most(self, context: int) -> int:
        """The most pieces of any batch that sees up to so many tokens: what a recorded step must have programs for."""
        return max(1, int(self._affordable(context)))

    def _affordable(self, context: int) -> float:
        """Pieces that keep the device busy, and cost little; never fewer for a longer context."""
        wanted = max(-(-PROGRAMS_A_PROCESSOR * self.processors // self.units), -(-context // LONGEST_PIECE))
        return min(wanted, context // shortest_piece(self.group, self.cached_bytes), MOST_PROGRAMS // self.units)


def cut_chunks(*, context: int, units: int, processors: int, least: int, tile: int) -> Pieces:
    """Pieces of a step with chunks of prompts: enough to fill the device, which a few new tokens behind a long cached
    prefix do not. units: tiles of queries x key heads; least: tokens worth a piece.
    """
    wanted = PROGRAMS_A_PROCESSOR * processors // (2 * units)  # these programs are larger, and fewer run at a time
    return _cut(context, min(wanted, context // least), tile)


def shortest_piece(group: int, cached_bytes: int) -> float:
    """Tokens of which keys and values outweigh what a piece leaves behind.

    For each dimension of a head a piece writes `group` sums, which are read again, and reads the key and the value of
    each token.
    """
    return 2 * SUM_BYTES * group / (SUMS_SHARE * 2 * cached_bytes)


def most_left_behind(group: int, head_dim: int) -> int:
    """Bytes that the pieces of one layer's decodes leave for the merge, at most."""
    return MOST_PROGRAMS * group * (head_dim + 1) * SUM_BYTES


def _cut(context: int, count: float, tile: int) -> Pieces:
    """At most `count` pieces, at least one, as equal as tiles allow."""
    tokens = -(-context // max(1, int(count)))
    whole = max(1, -(-tokens // tile)) * tile
    return Pieces(max(1, -(-context // whole)), whole)
