"""What each client means by the figures that it reports, as functions of its records of requests. Pure; seconds.

One name has several meanings: vLLM's inter-token latency is each gap between two chunks, guidellm's the average of an
answer; guidellm's time per output token has the first one in it, vLLM's has not; and guidellm's median is the first
value with half of the sum of shares up to it. So two reports are not compared as they stand. A definition is
first proven on its own client: of that client's records it must give what the client's report says. Then it is applied
to the records of `octavo bench`, and the two numbers are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from statistics import median
from typing import Any

from .answers import Answer

Json = Mapping[str, Any]
HALF = 0.5
SAME = 0.002  # reports are rounded


class NotTheDefinition(Exception):
    """A client reports something else than its records give by the definition that is written here."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One figure of a client, under the client's own name for it."""

    name: str
    of: Callable[[Sequence[Answer]], float]
    reported: Callable[[Json], float]  # out of the client's own document


Median = Callable[[Iterable[float]], float]


def _first(middle: Median, answers: Sequence[Answer]) -> float:
    return middle(answer.first_token for answer in answers)


def _per_token(middle: Median, answers: Sequence[Answer]) -> float:
    return middle(answer.per_token for answer in answers)


def _gap(middle: Median, answers: Sequence[Answer]) -> float:
    return middle(gap for answer in answers for gap in answer.gaps)


def _per_token_with_the_first(middle: Median, answers: Sequence[Answer]) -> float:
    return middle(answer.whole / answer.tokens for answer in answers)


def _median_by_shares(values: Iterable[float]) -> float:
    """The lower of two in the middle; the upper one where rounding keeps the shares up to the lower below a half."""
    ordered = sorted(values)
    shares = accumulate(1 / len(ordered) for _ in ordered)
    return next(value for value, share in zip(ordered, shares, strict=True) if share >= HALF)


def _of_summary(name: str) -> Callable[[Json], float]:
    return lambda document: float(document["summary"][name]["p50"])


def _of_result(name: str) -> Callable[[Json], float]:
    return lambda document: 1e-3 * float(document[f"median_{name}_ms"])


def _of_metrics(name: str) -> Callable[[Json], float]:
    return lambda document: 1e-3 * float(document["benchmarks"][0]["metrics"][f"{name}_ms"]["successful"]["median"])


OCTAVO = (
    Definition("time to first token", partial(_first, median), _of_summary("ttft")),
    Definition("time per output token", partial(_per_token, median), _of_summary("tpot")),
    Definition("inter-token latency", partial(_gap, median), _of_summary("itl")),
)
VLLM = (
    Definition("TTFT", partial(_first, median), _of_result("ttft")),
    Definition("TPOT", partial(_per_token, median), _of_result("tpot")),
    Definition("ITL", partial(_gap, median), _of_result("itl")),
)
GUIDELLM = (
    Definition("time to first token", partial(_first, _median_by_shares), _of_metrics("time_to_first_token")),
    Definition(
        "time per output token",
        partial(_per_token_with_the_first, _median_by_shares),
        _of_metrics("time_per_output_token"),
    ),
    Definition("inter token latency", partial(_per_token, _median_by_shares), _of_metrics("inter_token_latency")),
)


def prove(definitions: Sequence[Definition], answers: Sequence[Answer], document: Json) -> None:
    """Raises NotTheDefinition where a client's records and its report, both of all its requests, differ."""
    for each in definitions:
        ours, theirs = each.of(answers), each.reported(document)
        if abs(ours / theirs - 1) > SAME:
            raise NotTheDefinition(f"{each.name}: the report says {theirs:.6f} s, its own records give {ours:.6f} s")
