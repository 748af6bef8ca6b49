"""How one model is split over ranks: the heads, the rows and the columns that each of them has. Pure; no torch.

Column by row, as Megatron-LM does it (https://arxiv.org/abs/1909.08053): of attention and MLP, a rank has some outputs
of the first product and the same inputs of the second, so that the ranks' results need only be added up, twice a layer.
The embedding and the projection to the vocabulary are split by rows. Where there are fewer key heads than ranks, some
are held by several. Heads need not divide evenly: a rank may have more of them than another, and it sets the pace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.model.tensors.parameters import Parameters, Part, parameters_of
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.values.quantization import Quantization

ALIGNED = (64, 32, 16, 8)  # widths in whole cache lines and vectors, best first
PAIR = 2  # the least: kernels read inputs of bfloat16 in pairs
ROWS, COLUMNS = 0, 1  # dimensions of a weight
ADDED_ONCE = (".output.bias", ".down.bias")  # of products whose parts are added up: rank 0 has them


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank has of a model. The ranges are within the whole."""

    rank: int
    size: int  # ranks
    whole: ModelSpec
    heads: range  # of queries
    kv_heads: range
    intermediate: range
    vocab: range

    @property
    def spec(self) -> ModelSpec:
        """The part as a model of its own: what it costs, and the shapes of its parameters."""
        return replace(
            self.whole,
            heads=len(self.heads),
            kv_heads=len(self.kv_heads),
            intermediate=len(self.intermediate),
            vocab=len(self.vocab),
            quantization=self._quantization,
        )

    @property
    def _quantization(self) -> Quantization | None:
        """As this rank keeps it: see `lazy_weights.piece_of` for what becomes of some inputs of scattered groups."""
        found = self.whole.quantization
        if found is None or self.size == 1:
            return found
        cut = (name for name, (dimension, _) in self._pieces().items() if dimension == COLUMNS)
        return replace(found, cut=tuple(cut))

    @property
    def parameters(self) -> Parameters:
        """What this rank reads of every tensor; a bias that is added once is rank 0's."""
        return {
            name: tuple(self._wanted(part) for part in parts)
            for name, parts in parameters_of(self.whole).items()
            if self.rank == 0 or not name.endswith(ADDED_ONCE)
        }

    def _wanted(self, part: Part) -> Part:
        """The part with this rank's piece of it."""
        dimension, piece = self._pieces().get(part.name.split(".")[-2], (len(part.shape), range(0)))
        if dimension >= len(part.shape):
            return part  # a norm, or the bias of what is split by columns
        whole = tuple(map(range, part.shape))
        return replace(part, piece=(*whole[:dimension], piece, *whole[dimension + 1 :]))

    def _pieces(self) -> dict[str, tuple[int, range]]:
        """Of each split module, the dimension of its weight that is split, and this rank's piece of it."""
        queries, keys = self._widths(self.heads), self._widths(self.kv_heads)
        return {
            "q_proj": (ROWS, queries),
            "k_proj": (ROWS, keys),
            "v_proj": (ROWS, keys),
            "o_proj": (COLUMNS, queries),
            "gate_proj": (ROWS, self.intermediate),
            "up_proj": (ROWS, self.intermediate),
            "down_proj": (COLUMNS, self.intermediate),
            "embed_tokens": (ROWS, self.vocab),
            "lm_head": (ROWS, self.vocab),
        }

    def _widths(self, heads: range) -> range:
        return range(heads.start * self.whole.head_dim, heads.stop * self.whole.head_dim)


def shards_of(spec: ModelSpec, size: int) -> tuple[Shard, ...]:
    """Those of all ranks; raises InvalidConfiguration, naming the sizes that work, where one would have nothing."""
    shards = tuple(_shards(spec, size))
    if not all(_useful(shard) for shard in shards):
        most = max(fewer for fewer in range(1, size) if all(map(_useful, _shards(spec, fewer))))
        raise InvalidConfiguration(
            f"--tensor-parallel-size is {size}, but this model ({spec.heads} query heads, {spec.kv_heads} key heads) is"
            f" shared by at most {most}; its work divides evenly among {_listed(even_sizes(spec))}"
        )
    return shards


def shard_of(spec: ModelSpec, rank: int, size: int) -> Shard:
    """That of one rank; raises InvalidConfiguration as `shards_of` does."""
    return shards_of(spec, size)[rank]


def heaviest(spec: ModelSpec, size: int) -> Shard:
    """The shard that the others wait for; raises InvalidConfiguration as `shards_of` does."""
    return max(shards_of(spec, size), key=lambda shard: (len(shard.heads), len(shard.intermediate)))


def even_sizes(spec: ModelSpec) -> tuple[int, ...]:
    """Sizes with which every rank has as much to do as any other, in attention and MLP."""
    return tuple(size for size in range(1, spec.heads + 1) if _even(spec, size))


def unevenness(spec: ModelSpec, size: int) -> str | None:
    """What is uneven with that size, in words for a log; None where all ranks have the same work."""
    if _even(spec, size):
        return None
    heads = [len(shard.heads) for shard in _shards(spec, size)]
    shares = f"from {min(heads)} to {max(heads)} of {spec.heads} query heads each"
    if min(heads) == max(heads):
        shares = "unequal widths of the MLP"
    return f"{size} ranks do not divide this model evenly ({shares}): {_listed(even_sizes(spec))} would"


def _even(spec: ModelSpec, size: int) -> bool:
    whole_keys = spec.kv_heads % size == 0 or size % spec.kv_heads == 0
    return spec.heads % size == 0 and whole_keys and spec.intermediate % (size * PAIR) == 0


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))


def _shards(spec: ModelSpec, size: int) -> Iterator[Shard]:
    for rank in range(size):
        heads, kv_heads = _heads(spec, rank, size)
        yield Shard(
            rank,
            size,
            spec,
            heads,
            kv_heads,
            share(spec.intermediate, size, rank, _unit(spec.intermediate, size)),
            share(spec.vocab, size, rank, _unit(spec.vocab, size)),
        )


def _useful(shard: Shard) -> bool:
    return all(map(len, (shard.heads, shard.kv_heads, shard.intermediate, shard.vocab)))


def _heads(spec: ModelSpec, rank: int, size: int) -> tuple[range, range]:
    """Query and key heads of a rank: whole groups, or a part of one group whose key head others have, too."""
    group = spec.heads // spec.kv_heads
    if size <= spec.kv_heads:
        keys = share(spec.kv_heads, size, rank)
        return range(keys.start * group, keys.stop * group), keys
    key = next(key for key in range(spec.kv_heads) if rank in share(size, spec.kv_heads, key))
    ranks = share(size, spec.kv_heads, key)
    queries = share(group, len(ranks), rank - ranks.start)
    return range(key * group + queries.start, key * group + queries.stop), range(key, key + 1)


def share(total: int, size: int, rank: int, unit: int = 1) -> range:
    """The numbers below `total` that are a rank's: whole units as far as they go, and one more for later ranks, since
    the first one has the server to run as well."""
    units = -(-total // unit)
    first, end = units * rank // size, units * (rank + 1) // size
    return range(min(total, first * unit), min(total, end * unit))


def _unit(total: int, size: int) -> int:
    """The widest that leaves equal shares; where there are none, wide ones as long as everybody gets some."""
    for unit in ALIGNED:
        if total % (unit * size) == 0:
            return unit
    return ALIGNED[0] if total >= ALIGNED[0] * size else PAIR
