"""How likely the model found a prompt's tokens, in vLLM's form: an object a token, by token id; null for the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from octavo_engine.prompt_reading import PromptLogprobs, ScoredToken
from octavo_engine.request import Request
from octavo_engine.server.schemas import ChatBody, CompletionBody
from octavo_engine.tokenizer import Tokenizer

Json = dict[str, Any]

NO_CHANCE = -9999.0  # what OpenAI tells of a token that cannot come: JSON has no infinity


def told(logprob: float) -> float:
    """A log-probability as JSON can have it."""
    return max(logprob, NO_CHANCE)


def scored_requests(requests: Sequence[Request], body: ChatBody | CompletionBody) -> list[Request]:
    """For each choice, the request that has its prompt's scores: in a stream its own, else its prompt's first copy."""
    if body.stream:
        return list(requests)
    return [requests[first] for first in range(0, len(requests), body.copies) for _ in range(body.kept)]


def scores_of(request: Request) -> Iterator[ScoredToken]:
    """What is known of its prompt's tokens, from the second on."""
    return iter(request.reading) if isinstance(request.reading, PromptLogprobs) else iter(())


def prompt_logprobs(request: Request, top: int, tokenizer: Tokenizer) -> list[Json | None]:
    """Of each token of its prompt, itself and the `top` likeliest."""
    following = request.tokens[1 : request.num_prompt]
    scored = zip(following, scores_of(request), strict=True)
    return [None, *(_entries(token_id, score, top, tokenizer) for token_id, score in scored)]


def scores_field(request: Request, top: int | None, tokenizer: Tokenizer) -> Json:
    """The field of an answer that has them, for a client that asked for it."""
    return {} if top is None else {"prompt_logprobs": prompt_logprobs(request, top, tokenizer)}


def _entries(token_id: int, score: ScoredToken, top: int, tokenizer: Tokenizer) -> Json:
    entries = {token_id: (score.logprob, score.rank)}
    for rank, (other, logprob) in enumerate(score.top[:top], 1):
        entries.setdefault(other, (logprob, rank))
    return {
        str(index): {
            "logprob": told(logprob),
            "rank": rank,
            "decoded_token": tokenizer.token_bytes(index).decode("utf-8", "replace"),
        }
        for index, (logprob, rank) in entries.items()
    }
