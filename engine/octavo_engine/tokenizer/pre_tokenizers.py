"""How each kind of byte-level vocabulary cuts text before merging, by its name in GGUF (`tokenizer.ggml.pre`).

A wrong cut gives other token ids without any error, so a kind that is not listed is refused.
"""

from __future__ import annotations

from tokenizers import Regex, pre_tokenizers

from octavo_engine.errors import ModelUnsupported

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER_NUMBERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = _WORDS + r"|\p{N}{1,3}" + _AFTER_NUMBERS
_QWEN2 = _WORDS + r"|\p{N}" + _AFTER_NUMBERS

_BY_PATTERN = {
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
_GPT2 = ("default", "gpt-2", "gpt2")
_GPT2_WITH_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell")


def pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer of a GGUF `tokenizer.ggml.pre` kind; raises ModelUnsupported naming the kinds there are."""
    if kind in _BY_PATTERN:
        cut = pre_tokenizers.Split(Regex(_BY_PATTERN[kind]), behavior="isolated")
        return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind in _GPT2:
        return words
    if kind in _GPT2_WITH_SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    known = sorted((*_BY_PATTERN, *_GPT2, *_GPT2_WITH_SINGLE_DIGITS))
    raise ModelUnsupported(f"the GGUF pre-tokenizer {kind!r} is not supported; supported are {', '.join(known)}")


def ignores_merges(kind: str) -> bool:
    """True when a word that is a token is never cut, even where its merges would not lead to it (Llama 3)."""
    return _BY_PATTERN.get(kind) is _LLAMA3
