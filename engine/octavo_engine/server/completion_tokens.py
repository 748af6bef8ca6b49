"""What a completion tells of its tokens, in OpenAI's older form: four lists that begin with an echoed prompt's.

Offsets are in characters of the choice's text. A token that begins within a character has that character's offset, and
one that the text does not show takes no room in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_engine.request import Request, Sampled
from octavo_engine.server.prompt_logprobs import scores_of, told
from octavo_engine.tokenizer import Detokenizer, Tokenizer

Json = dict[str, Any]
Likeliest = Iterable[tuple[int, float]]  # ids and log-probabilities


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt that a choice begins with."""

    text: str
    request: Request  # which has the prompt's scores, once it has generated a token or ended


class CompletionTokens:
    """The tokens of one choice, in order. `top`: of a prompt's tokens, how many of the likeliest are told."""

    def __init__(self, tokenizer: Tokenizer, *, top: int, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._text = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._length = 0  # characters so far

    def echo(self, prompt: Echo) -> Json:
        """The prompt's; before its first token there is nothing to tell it from."""
        ids = prompt.request.tokens[: prompt.request.num_prompt]
        scores = list(scores_of(prompt.request))
        self._length = len(prompt.text)
        return {
            "tokens": [self._spell(token) for token in ids],
            "token_logprobs": [None, *(told(score.logprob) for score in scores)],
            "top_logprobs": [
                None,
                *(
                    self._likeliest((*score.top[: self._top], (token, score.logprob)))
                    for token, score in zip(ids[1:], scores, strict=True)
                ),
            ],
            "text_offset": offsets_in(prompt.text, ids, self._tokenizer),
        }

    def answer(self, tokens: Sequence[Sampled]) -> Json:
        """Those of the next piece of the answer."""
        return {
            "tokens": [self._spell(token.token_id) for token in tokens],
            "token_logprobs": [token.logprob and told(token.logprob.logprob) for token in tokens],
            "top_logprobs": [
                self._likeliest((*token.top_logprobs, *(() if token.logprob is None else (token.logprob,))))
                for token in tokens
            ],
            "text_offset": [self._begin(token.token_id) for token in tokens],
        }

    def _begin(self, token_id: int) -> int:
        """Where the next token begins."""
        begin = self._length
        self._length += len(self._text.push(token_id))
        return begin

    def _likeliest(self, entries: Likeliest) -> dict[str, float]:
        """By their text, the likeliest first, and the token itself among them. Of several with one text the likeliest
        is told: a byte that is no character has that of others."""
        found: dict[str, float] = {}
        for token_id, logprob in entries:
            found.setdefault(self._spell(token_id), told(logprob))
        return found

    def _spell(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def joined(first: Json, second: Json) -> Json:
    """Two pieces of the four lists as one."""
    return {name: items + second[name] for name, items in first.items()}


def offsets_in(text: str, ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Where each of a prompt's tokens begins in its text, which may lack a BOS and the space that some tokenizers put
    before the first word."""
    shown, at, offsets = Detokenizer(tokenizer, skip_special_tokens=False), 0, []
    for token_id in ids:
        offsets.append(at)
        piece = shown.push(token_id)
        if not text.startswith(piece, at):
            piece = "" if token_id in tokenizer.special_ids else piece if at else piece.removeprefix(" ")
        at = min(len(text), at + len(piece))
    return offsets
