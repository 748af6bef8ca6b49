"""A tokenizer from a GGUF file's metadata: the vocabulary, merges and token types that llama.cpp's converter wrote.

Byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`) are read; ids equal those of the original tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from octavo_engine.errors import CheckpointInvalid, ModelUnsupported
from octavo_engine.model.gguf.file import GgufFile
from octavo_engine.tokenizer.pre_tokenizers import ignores_merges, pre_tokenizer
from octavo_engine.tokenizer.source import TokenizerSource

_CONTROL, _USER_DEFINED = 3, 4  # values of tokenizer.ggml.token_type
_ENDS = ("eos", "eot", "eom")


def read_gguf_tokenizer(path: Path) -> TokenizerSource:
    """Build the tokenizer; raises CheckpointInvalid for missing metadata, ModelUnsupported naming an unknown kind."""
    metadata = {key.removeprefix("tokenizer."): value for key, value in GgufFile.open(path).metadata.items()}
    try:
        return _source(metadata)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise CheckpointInvalid(f"{path.name}: the GGUF tokenizer metadata lacks or contradicts {error}") from error


def _source(metadata: dict[str, Any]) -> TokenizerSource:
    kind = metadata["ggml.model"]
    if kind not in _BUILDERS:
        raise ModelUnsupported(
            f"the GGUF tokenizer {kind!r} is not supported; supported are {', '.join(sorted(_BUILDERS))}"
        )
    backend = _BUILDERS[kind](metadata)
    tokens: list[str] = metadata["ggml.tokens"]
    backend.add_special_tokens([_added(tokens[i], special=True) for i in _typed(metadata, _CONTROL)])
    backend.add_tokens([_added(tokens[i], special=False) for i in _typed(metadata, _USER_DEFINED)])
    bos, ends = metadata.get("ggml.bos_token_id"), [metadata.get(f"ggml.{name}_token_id") for name in _ENDS]
    if bos is not None and metadata.get("ggml.add_bos_token", _adds_bos_by_default(metadata)):
        backend.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"], pair=None, special_tokens=[(tokens[bos], bos)]
        )
    return TokenizerSource(
        backend=backend,
        eos_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        bos_token=None if bos is None else tokens[bos],
        eos_token=None if ends[0] is None else tokens[ends[0]],
        chat_template=metadata.get("chat_template"),
    )


def _typed(metadata: dict[str, Any], wanted: int) -> list[int]:
    return [index for index, kind in enumerate(metadata.get("ggml.token_type", ())) if kind == wanted]


def _added(token: str, *, special: bool) -> AddedToken:
    return AddedToken(token, normalized=False, special=special)


def _adds_bos_by_default(metadata: dict[str, Any]) -> bool:
    """What llama.cpp does when a file does not say."""
    return metadata["ggml.model"] == "llama" or ignores_merges(metadata.get("ggml.pre", "default"))


def _byte_level(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    kind = metadata.get("ggml.pre", "default")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["ggml.merges"]]
    backend = tokenizers.Tokenizer(models.BPE(_vocabulary(metadata), merges, ignore_merges=ignores_merges(kind)))
    backend.pre_tokenizer = pre_tokenizer(kind)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    vocabulary = _vocabulary(metadata)
    merges = _merges_by_score(vocabulary, metadata["ggml.scores"])
    unknown = metadata["ggml.tokens"][metadata.get("ggml.unknown_token_id", 0)]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = metadata.get("ggml.add_space_prefix", True)
    rules = [normalizers.Prepend("\u2581")] if prefix else []
    backend.normalizer = normalizers.Sequence([*rules, normalizers.Replace(" ", "\u2581")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece}


def _vocabulary(metadata: dict[str, Any]) -> dict[str, int]:
    """Token to id. A token listed twice keeps its first id, as in llama.cpp."""
    vocabulary: dict[str, int] = {}
    for index, token in enumerate(metadata["ggml.tokens"]):
        vocabulary.setdefault(token, index)
    return vocabulary


def _merges_by_score(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece keeps a score for each token instead of merges: join first what gives the best-scored token."""
    pairs = [(scores[index], pair) for token, index in vocabulary.items() for pair in _halves(token, vocabulary)]
    return [pair for _, pair in sorted(pairs, key=lambda item: item[0], reverse=True)]


def _halves(token: str, vocabulary: dict[str, int]) -> Iterator[tuple[str, str]]:
    for cut in range(1, len(token)):
        left, right = token[:cut], token[cut:]
        if left in vocabulary and right in vocabulary:
            yield left, right
