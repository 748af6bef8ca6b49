"""How a vocabulary spells bytes: the two alphabets in use, and the bytes that each token stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from octavo_engine.errors import ModelUnsupported

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"


class Spelling(StrEnum):
    """The alphabet in which a vocabulary writes its tokens."""

    BYTE_LEVEL = "byte_level"  # each byte is one printable character (GPT-2)
    SENTENCEPIECE = "sentencepiece"  # text with U+2581 for a space, and <0x0A> for bytes without a token


def byte_alphabet() -> dict[int, str]:
    """GPT-2's map of the 256 bytes to printable characters: printable Latin-1 to itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


def spelling_of(decoder: dict[str, Any] | None) -> Spelling:
    """The alphabet that a tokenizer.json's `decoder` reverses; raises ModelUnsupported for e.g. WordPiece."""
    parts = decoder.get("decoders", [decoder]) if decoder else []
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL
    if "Metaspace" in kinds or "ByteFallback" in kinds:
        return Spelling.SENTENCEPIECE
    raise ModelUnsupported(
        f"the tokenizer's decoder ({', '.join(kinds) or 'none'}) is neither byte-level nor SentencePiece"
    )


def strips_first_space(decoder: dict[str, Any] | None) -> bool:
    """True when the decoder drops the space that the encoder put before the text."""
    parts = decoder.get("decoders", [decoder]) if decoder else []
    return any(
        (part["type"] == "Strip" and part.get("start", 0) > 0)
        or (part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in parts
    )


def token_table(tokens: Iterable[str | None], spelling: Spelling, added: dict[int, str]) -> list[bytes]:
    """The bytes of every token id. `added` tokens are literal text; ids without a token (None) stand for nothing."""
    spell = _byte_level if spelling is Spelling.BYTE_LEVEL else _sentencepiece
    return [
        added[index].encode("utf-8", "replace") if index in added else spell(token) if token else b""
        for index, token in enumerate(tokens)
    ]


_BYTE_OF = {character: byte for byte, character in byte_alphabet().items()}


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:  # not in the alphabet, thus literal text
        return token.encode("utf-8", "replace")


def _sentencepiece(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(_SPACE, " ").encode("utf-8", "replace")
