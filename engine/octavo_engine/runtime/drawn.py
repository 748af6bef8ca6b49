"""What a step has drawn: tokens that a device has at once, and that the host knows when they have come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from octavo_engine.errors import FormTooComplex
from octavo_engine.prompt_reading import PromptReading
from octavo_engine.request import Request, Sampled, TokenLogprob
from octavo_engine.runtime.transfers import Readback, to_device

NO_TOKEN = Sampled(-1, error="the model's logits leave no token to choose (not a number, or all forbidden)")

Faults = Mapping[int, str | FormTooComplex]
NO_FAULTS: Faults = {}

RowLogprobs = tuple[int, TokenLogprob, tuple[TokenLogprob, ...]]


@dataclass(frozen=True, slots=True)
class Asked:
    """The model's own log-probabilities, for the rows that want as many of the likeliest."""

    rows: list[int]
    values: Tensor  # float32 [rows, vocab]
    top: Tensor  # float32 [rows, wanted], from the likeliest on
    top_ids: Tensor  # int64, the same

    def wanted(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The log-probability of each row's token, of all rows' `tokens`, and the likeliest with their ids."""
        (rows,) = to_device([np.array(self.rows)], tokens.device)
        return self.values.gather(1, tokens.index_select(0, rows)[:, None]), self.top, self.top_ids


class Draw:
    """The tokens of a step. `tokens`, int64 `[rows]`, is where the logits were: the next step can be computed from it.

    tokens, healthy: of each row its token, and whether that means something; asked: see `raw_logprobs`; faults: why
    rows have no token.
    """

    def __init__(
        self, tokens: Tensor, healthy: Tensor, asked: Sequence[Asked] = (), faults: Faults = NO_FAULTS
    ) -> None:
        self.tokens = tokens
        self._asked = [part.rows for part in asked]
        self._faults = faults
        self._coming = Readback([tokens, healthy, *(part for one in asked for part in one.wanted(tokens))])

    def wait(self) -> list[Sampled]:
        """One outcome a row, known when the device is done with it."""
        outcomes = self._outcomes()
        for row, why in self._faults.items():
            outcomes[row] = Sampled(-1, error=why)
        return outcomes

    def readings(self) -> Sequence[PromptReading]:
        """Nothing was read beside them."""
        return ()

    def _outcomes(self) -> list[Sampled]:
        chosen, well, *parts = self._coming.wait()
        tokens, healthy = chosen.tolist(), well.tolist()
        if self._asked:
            outcomes = list(map(Sampled, tokens))
            for row, own, top in self._logprobs(tokens, parts):
                outcomes[row] = Sampled(tokens[row], own, top)
            return [outcome if good else NO_TOKEN for outcome, good in zip(outcomes, healthy, strict=True)]
        return list(map(Sampled, tokens)) if all(healthy) else list(map(_checked, tokens, healthy))

    def _logprobs(self, tokens: Sequence[int], parts: Sequence[Tensor]) -> Iterator[RowLogprobs]:
        """Of each row that asked: its own log-probability and the likeliest."""
        triples = zip(self._asked, parts[::3], parts[1::3], parts[2::3], strict=True)
        for rows, own, top, top_ids in triples:
            columns = zip(rows, own[:, 0].tolist(), top_ids.tolist(), top.tolist(), strict=True)
            for row, value, ids, values in columns:
                yield row, TokenLogprob(tokens[row], value), tuple(map(TokenLogprob, ids, values))


def raw_logprobs(logits: Tensor, requests: Sequence[Request]) -> list[Asked]:
    """The model's own log-probabilities, before anything is applied, for the rows that ask for them.

    Those that want as many are looked at together: how many a row gets, and in which order, is its own affair.
    """
    by_wanted: dict[int, list[int]] = {}
    for row, request in enumerate(requests):
        if request.params.logprobs is not None:
            by_wanted.setdefault(request.params.logprobs, []).append(row)
    return [_asked(logits, rows, wanted) for wanted, rows in by_wanted.items()]


def _asked(logits: Tensor, rows: list[int], wanted: int) -> Asked:
    (places,) = to_device([np.array(rows)], logits.device)
    values = logits.index_select(0, places).log_softmax(-1)
    top = values.topk(wanted)
    return Asked(rows, values, top.values, top.indices)


def _checked(token: int, healthy: bool) -> Sampled:
    return Sampled(token) if healthy else NO_TOKEN
