"""Text to token ids and back, with the `tokenizers` library alone: loading, chat templates, incremental decoding."""

from octavo_engine.tokenizer.core import Tokenizer, load_tokenizer
from octavo_engine.tokenizer.detokenizer import Detokenizer

__all__ = ["Detokenizer", "Tokenizer", "load_tokenizer"]
