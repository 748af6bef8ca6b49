"""What each client saw of each request, in one form, and the figures of it by one definition. Pure; seconds.

Clients differ in what they call by one name: guidellm's inter-token latency is an average of a request, vLLM's and
Octavo's are single gaps. What all three tell is when a request was sent and when its first and last tokens came; the
figures are made of that, here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from octavo_engine.bench.quantiles import Spread

MILLI = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request. Times are by the client's own clock."""

    sent: float
    first: float
    last: float
    prompt_tokens: int
    tokens: int

    @property
    def first_token(self) -> float:
        """From sending to the first token."""
        return self.first - self.sent

    @property
    def per_token(self) -> float:
        """For each token after the first, on average."""
        return (self.last - self.first) / max(1, self.tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one run by one client, or the median of several. `on_the_wire` are the same first tokens, but from the
    packet with the request to the packet with the first text; None where nobody could watch."""

    requests: float
    prompt_tokens: float  # of a request, on average
    tokens_per_second: float
    first_p50: float
    first_p99: float
    per_token_p50: float
    whole_p50: float
    on_the_wire: float | None

    @property
    def beyond_the_wire(self) -> float | None:
        """What the client adds to a first token: until its request is sent, and until it has seen what came."""
        return None if self.on_the_wire is None else self.first_p50 - self.on_the_wire


def figures(answers: Sequence[Answer], wire: Sequence[float] | None) -> Figures:
    """Raises ValueError without answers, or where another number of requests was on the wire."""
    first = Spread.of(answer.first_token for answer in answers)
    if first is None or (wire is not None and len(wire) != len(answers)):
        raise ValueError(f"{len(answers)} answers, {wire if wire is None else len(wire)} requests on the wire")
    seconds = max(answer.last for answer in answers) - min(answer.sent for answer in answers)
    return Figures(
        requests=len(answers),
        prompt_tokens=fmean(answer.prompt_tokens for answer in answers),
        tokens_per_second=sum(answer.tokens for answer in answers) / seconds,
        first_p50=first.p50,
        first_p99=first.p99,
        per_token_p50=median(answer.per_token for answer in answers),
        whole_p50=median(answer.last - answer.sent for answer in answers),
        on_the_wire=None if wire is None else median(wire),
    )


def middle(runs: Sequence[Figures]) -> Figures:
    """The median of several, field by field."""
    rows = [asdict(run) for run in runs]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    middles: dict[str, Any] = {name: None if None in column else median(column) for name, column in columns.items()}
    return Figures(**middles)


def of_octavo(document: Mapping[str, Any]) -> list[Answer]:
    """Out of `octavo bench --json`."""
    return [
        Answer(
            sent=request["sent"],
            first=request["sent"] + request["first_token"],
            last=request["sent"] + request["last_token"],
            prompt_tokens=request["prompt_tokens"],
            tokens=request["output_tokens"],
        )
        for request in document["requests"]
        if request["failure"] is None
    ]


def of_vllm(result: Mapping[str, Any]) -> list[Answer]:
    """Out of `vllm bench serve --save-detailed`. A request that failed has no first token."""
    names = ("start_times", "ttfts", "latencies", "input_lens", "output_lens")
    return [
        Answer(sent=sent, first=sent + first, last=sent + whole, prompt_tokens=prompt, tokens=tokens)
        for sent, first, whole, prompt, tokens in zip(*(result[name] for name in names), strict=True)
        if first
    ]


def of_guidellm(report: Mapping[str, Any]) -> list[Answer]:
    """Out of guidellm's JSON output, of its one benchmark."""
    (benchmark,) = report["benchmarks"]
    found = []
    for request in benchmark["requests"]["successful"]:
        times = request["info"]["timings"]
        found.append(
            Answer(
                sent=times["request_start"],
                first=times["first_token_iteration"],
                last=times["last_token_iteration"],
                prompt_tokens=request["prompt_tokens"],
                tokens=request["output_tokens"],
            )
        )
    return found
