"""A tokenizer from a Hugging Face directory: tokenizer.json and the configs beside it. No remote code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers

from octavo_engine.errors import CheckpointInvalid, ModelNotFound, ModelUnsupported
from octavo_engine.model.fields import read_json
from octavo_engine.tokenizer.source import TokenizerSource


def read_huggingface_tokenizer(directory: Path) -> TokenizerSource:
    """Read the directory; raises ModelUnsupported without a tokenizer.json, CheckpointInvalid for a damaged file, and
    ModelNotFound for one that we may not read."""
    if not (directory / "tokenizer.json").is_file():
        raise ModelUnsupported("the checkpoint has no tokenizer.json; save it with a fast tokenizer of transformers")
    try:
        backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as error:  # the library raises plain Exception for everything
        raise CheckpointInvalid("tokenizer.json cannot be read") from error
    backend.no_padding()  # a training set-up left in the file must not change ids
    backend.no_truncation()
    beside = directory / "tokenizer_config.json"
    config = read_json(beside).values if beside.is_file() else {}
    eos_token = _content(config, "eos_token")
    return TokenizerSource(
        backend=backend,
        eos_ids=_eos_ids(directory, backend, eos_token),
        bos_token=_content(config, "bos_token"),
        eos_token=eos_token,
        chat_template=_chat_template(directory, config),
    )


def _content(config: dict[str, Any], key: str) -> str | None:
    """A special token is written as a string or as a record with `content`."""
    token = config.get(key)
    return _text(token.get("content") if isinstance(token, dict) else token, key)


def _text(value: Any, what: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise CheckpointInvalid(f"tokenizer_config.json: {what} is {str(value)[:80]}; it must be text")
    return value


def _eos_ids(directory: Path, backend: tokenizers.Tokenizer, eos_token: str | None) -> tuple[int, ...]:
    """Every id that ends a turn: the generation config's, else the model config's, and the tokenizer's own."""
    files = (directory / name for name in ("generation_config.json", "config.json"))
    listed = (read_json(file).token_ids("eos_token_id") for file in files if file.is_file())
    ids = next(filter(None, listed), ())
    own = backend.token_to_id(eos_token) if eos_token else None
    return tuple(dict.fromkeys([*ids, *([] if own is None else [own])]))


def _chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    """The file beside the tokenizer, else the config's; of several named templates the one called `default`."""
    beside = directory / "chat_template.jinja"
    if beside.is_file():
        try:
            return beside.read_text("utf-8")
        except UnicodeDecodeError:
            raise CheckpointInvalid(f"{beside.name} is no text in UTF-8") from None
        except OSError as error:
            raise ModelNotFound(f"{beside.name} cannot be read: {error.strerror}") from None
    template = config.get("chat_template")
    if isinstance(template, list):
        named = (item for item in template if isinstance(item, dict))
        template = next((item.get("template") for item in named if item.get("name") == "default"), None)
    return _text(template, "chat_template")
