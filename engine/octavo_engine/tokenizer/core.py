"""The tokenizer: text to ids, ids to text, messages to ids. Knows no model, no request and no network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo_engine.errors import InvalidConfiguration, ModelNotFound, RequestError
from octavo_engine.tokenizer.chat_template import ChatTemplate, Message
from octavo_engine.tokenizer.control_tokens import ControlTokens
from octavo_engine.tokenizer.encoding import token_ids
from octavo_engine.tokenizer.from_gguf import read_gguf_tokenizer
from octavo_engine.tokenizer.from_huggingface import read_huggingface_tokenizer
from octavo_engine.tokenizer.source import TokenizerSource
from octavo_engine.tokenizer.spelling import spelling_of, strips_first_space, token_table


def load_tokenizer(path: str, chat_template: str | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint: a directory, a .gguf file, or a directory that holds exactly one .gguf.

    `chat_template` is a file that replaces the checkpoint's own template. Raises ModelNotFound, ModelUnsupported,
    CheckpointInvalid or InvalidConfiguration (for the template's file).
    """
    source = _read_source(Path(path))
    return Tokenizer(source, _read_template(chat_template) if chat_template else source.chat_template)


def _read_source(path: Path) -> TokenizerSource:
    if path.is_file():
        return read_gguf_tokenizer(path)
    if not path.is_dir():
        raise ModelNotFound(f"there is no checkpoint at {path}")
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1 and not (path / "tokenizer.json").is_file():
        return read_gguf_tokenizer(files[0])
    return read_huggingface_tokenizer(path)


def _read_template(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"--chat-template: {path} cannot be read as text") from error


class Tokenizer:
    """Immutable and safe to use from several threads."""

    def __init__(self, source: TokenizerSource, chat_template: str | None = None) -> None:
        """Raises ModelUnsupported for a vocabulary in an unknown spelling, CheckpointInvalid for bad Jinja."""
        self._backend = source.backend
        self._control = ControlTokens(source.backend)
        decoder = json.loads(source.backend.to_str()).get("decoder")
        added = source.backend.get_added_tokens_decoder()
        self.vocab_size: int = 1 + max(source.backend.get_vocab(with_added_tokens=True).values())
        tokens = (source.backend.id_to_token(index) for index in range(self.vocab_size))
        self._bytes = token_table(
            tokens, spelling_of(decoder), {index: token.content for index, token in added.items()}
        )
        self._texts = [_whole(spelled) for spelled in self._bytes]
        self.strips_first_space = strips_first_space(decoder)
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.eos_ids = source.eos_ids
        self._bos_id = source.backend.token_to_id(source.bos_token) if source.bos_token else None
        names = {"bos_token": source.bos_token, "eos_token": source.eos_token}
        self.chat_template = chat_template  # its Jinja source
        self._template = ChatTemplate(chat_template, names) if chat_template else None

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; control tokens in it are parsed, since whoever writes a raw prompt is its template.

        `add_special_tokens` puts what the model expects around it, usually a BOS unless the text begins with one.
        """
        ids = token_ids(self._backend, text, add_special_tokens=add_special_tokens)
        doubled = add_special_tokens and self._bos_id is not None and ids[:2] == [self._bos_id, self._bos_id]
        return ids[1:] if doubled else ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        kept = (index for index in ids if not (skip_special_tokens and index in self.special_ids))
        text = b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        return text[1:] if self.strips_first_space and text.startswith(" ") else text

    def render_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        *,
        continue_final: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation, laid out by the model's chat template. Control tokens in messages stay text.

        continue_final: end where the last message's text does, so that the model goes on with it. variables: for the
        template, of those that it takes. Raises RequestError when there is no template, it has no place for tools, or
        it refuses the messages.
        """
        if self._template is None:
            raise RequestError(
                "the model has no chat template; start the server with --chat-template", param="messages"
            )
        if tools and not self._template.takes_tools:
            raise RequestError(
                "tools: the model's chat template has no place for them; start the server with --chat-template",
                param="tools",
                code="unsupported_parameter",
            )
        try:
            guarded = [self._control.guard(message) for message in messages]
            given = {"tools": self._control.guard_all(tools), "variables": self._control.guard_all(variables or {})}
        except RecursionError:
            raise RequestError("the messages are nested too deeply", param="messages") from None
        if continue_final:
            return self._control.encode(self._template.render_open(guarded, **given))
        return self._control.encode(
            self._template.render(guarded, add_generation_prompt=add_generation_prompt, **given)
        )

    def template_takes(self, name: str) -> bool:
        """Whether the chat template reads a variable called so, which is not the conversation's own."""
        return self._template is not None and name in self._template.variables

    def token_bytes(self, index: int) -> bytes:
        """The bytes one token stands for; empty for ids between the vocabulary's end and the model's width."""
        return self._bytes[index] if 0 <= index < len(self._bytes) else b""

    def whole_text(self, index: int) -> str | None:
        """The text one token stands for; None when its bytes are not whole characters."""
        return self._texts[index] if 0 <= index < len(self._texts) else ""


def _whole(spelled: bytes) -> str | None:
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return None
