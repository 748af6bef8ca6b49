"""Which files of a source make up the model: its weights, its configs, its tokenizer, and nothing that could run. Pure.

The choice of weights is the one that the engine makes when it reads a directory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from octavo_engine.errors import CheckpointInvalid, InvalidConfiguration, ModelNotFound, ModelUnsupported
from octavo_engine.model.huggingface.checkpoint_files import INDEX, SINGLE, check_index
from octavo_engine.model.huggingface.pooling_config import FILE as POOLING

CONFIGS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    POOLING,
)
NESTED = frozenset({POOLING})
"""All else lies directly in the model's directory; only these have a folder there, at a source as here."""
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def choose(names: Collection[str], read_index: Callable[[], bytes], where: str, named: str | None) -> list[str]:
    """The names to fetch; `named` is the one .gguf that was asked for, `read_index` gives the shards' index.

    Raises ModelNotFound, ModelUnsupported or CheckpointInvalid, saying what is there instead.
    """
    chosen = _choose(names, read_index, where, named)
    for name in chosen:
        check_name(name)
    return chosen


def _choose(names: Collection[str], read_index: Callable[[], bytes], where: str, named: str | None) -> list[str]:
    if named is not None:
        if named not in names:
            raise ModelNotFound(f"{where}: there is no such file")
        return [_whole(named)]
    configs = [name for name in CONFIGS if name in names]
    if INDEX in names:
        shards = shards_of(read_index())
        missing = [shard for shard in shards if shard not in names]
        if not missing:
            return [*configs, INDEX, *shards]
        if SINGLE not in names:
            raise CheckpointInvalid(f"{missing[0]} is named by {INDEX}, but the source does not hold it")
    safetensors = sorted(name for name in names if name.endswith(".safetensors"))
    if safetensors:
        return [*configs, _single(safetensors)]
    return [_only_gguf(names, where)]


def shards_of(index: bytes) -> list[str]:
    """The files that an index names, each once; raises CheckpointInvalid for what is no index."""
    try:
        weight_map = dict(json.loads(index)["weight_map"].items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointInvalid(f"{INDEX} has no weight_map") from None
    check_index(weight_map)
    return sorted(set(weight_map.values()))


def _single(safetensors: list[str]) -> str:
    if SINGLE in safetensors:
        return SINGLE
    if len(safetensors) != 1:
        raise CheckpointInvalid(f"{len(safetensors)} .safetensors files, but neither {SINGLE} nor {INDEX}")
    return safetensors[0]


def _only_gguf(names: Collection[str], where: str) -> str:
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    if len(ggufs) == 1:
        return _whole(ggufs[0])
    if ggufs:
        raise InvalidConfiguration(f"{where} holds {len(ggufs)} .gguf files; add one of them: {', '.join(ggufs[:16])}")
    pickles = sorted(name for name in names if name.endswith(PICKLES))
    if pickles:
        raise ModelUnsupported(
            f"{where} holds weights only as pickles ({pickles[0]}), which can run code when they are read;"
            " supported are safetensors and GGUF"
        )
    raise ModelNotFound(f"{where} holds neither .safetensors nor .gguf files")


def _whole(gguf: str) -> str:
    if re.search(r"-\d{5}-of-\d{5}\.gguf$", gguf):
        raise ModelUnsupported(f"{gguf} is a part of a split model; merge its parts into one file")
    return gguf


def local_name(path: str) -> str:
    """What a file is called here that lies at `path` below the model's directory at a source."""
    return path if path in NESTED else path.rpartition("/")[2]


def check_name(name: str) -> None:
    """Raise CheckpointInvalid unless `name` is a plain file name, which stays in the directory it is written to, or one
    of NESTED."""
    if name in NESTED:
        return
    if not name or name.startswith(".") or len(name.encode()) > 200 or not name.isprintable() or set(name) & set("/\\"):
        raise CheckpointInvalid(f"the source names a file {name[:80]!r}, which is no plain file name")
