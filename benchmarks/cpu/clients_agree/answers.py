"""What each client saw of each request, in one form, and the figures of it by one definition. Pure; seconds.

What all three tell is when a request was sent and when its first and last tokens came; the figures are made of that,
here. What each of them calls by which name is in `definitions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, Self

from octavo_engine.bench.quantiles import quantile

from .wire import Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request. Times are by the client's own clock."""

    sent: float
    first: float
    last: float
    prompt_tokens: int
    tokens: int
    gaps: tuple[float, ...] = ()  # between two arrivals; none where the client does not tell them

    @property
    def first_token(self) -> float:
        """From sending to the first token."""
        return self.first - self.sent

    @property
    def per_token(self) -> float:
        """For each token after the first, on average."""
        return (self.last - self.first) / max(1, self.tokens - 1)

    @property
    def whole(self) -> float:
        """From sending to the last token."""
        return self.last - self.sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Medians over the requests of a run."""

    first: float  # from sending to the first token
    per_token: float  # for each token after the first, on average
    whole: float  # from sending to the last token

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Self:
        """Of all of them."""
        return cls(
            first=median(answer.first_token for answer in answers),
            per_token=median(answer.per_token for answer in answers),
            whole=median(answer.whole for answer in answers),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one run by one client, or the median of several. `wire` is of the same requests as packets: from the first one
    of a request to the first and last with an event; None where nobody could watch."""

    requests: float
    connections: float | None  # of these, for how many a connection was opened; None where nobody could watch
    prompt_tokens: float  # of a request, on average
    tokens_per_second: float
    first_p99: float
    client: Times
    wire: Times | None


def figures(answers: Sequence[Answer], seen: Sequence[Exchange] | None) -> Figures:
    """Raises ValueError without answers, or where another number of requests was on the wire. All answers are equally
    long."""
    if not answers or (seen is not None and len(seen) != len(answers)):
        raise ValueError(f"{len(answers)} answers, {'nobody watched' if seen is None else len(seen)} on the wire")
    seconds = max(it.last for it in answers) - min(it.sent for it in answers)
    packets = on_the_wire(seen or (), answers[0].tokens)
    return Figures(
        requests=len(answers),
        connections=None if seen is None else sum(it.connected for it in seen),
        prompt_tokens=fmean(answer.prompt_tokens for answer in answers),
        tokens_per_second=sum(answer.tokens for answer in answers) / seconds,
        first_p99=quantile(sorted(answer.first_token for answer in answers), 0.99),
        client=Times.of(answers),
        wire=Times.of(packets) if packets else None,
    )


def on_the_wire(seen: Sequence[Exchange], tokens: int) -> list[Answer]:
    """Packets as if a client had told them, of answers of so many tokens."""
    return [
        Answer(sent=it.asked, first=it.first, last=it.last, prompt_tokens=0, tokens=tokens, gaps=it.gaps) for it in seen
    ]


def middle(runs: Sequence[Figures]) -> Figures:
    """The median of several, field by field."""
    wires = [run.wire for run in runs if run.wire is not None]
    opened = [run.connections for run in runs if run.connections is not None]
    return Figures(
        requests=median(run.requests for run in runs),
        connections=median(opened) if len(opened) == len(runs) else None,
        prompt_tokens=median(run.prompt_tokens for run in runs),
        tokens_per_second=median(run.tokens_per_second for run in runs),
        first_p99=median(run.first_p99 for run in runs),
        client=_middle([run.client for run in runs]),
        wire=_middle(wires) if len(wires) == len(runs) else None,
    )


def _middle(runs: Sequence[Times]) -> Times:
    rows = [asdict(run) for run in runs]
    return Times(**{name: median(row[name] for row in rows) for name in rows[0]})


def of_octavo(document: Mapping[str, Any]) -> list[Answer]:
    """Out of `octavo bench --json`."""
    return [
        Answer(
            sent=request["sent"],
            first=request["sent"] + request["first_token"],
            last=request["sent"] + request["last_token"],
            prompt_tokens=request["prompt_tokens"],
            tokens=request["output_tokens"],
            gaps=tuple(1e-6 * gap for gap in request["gaps_us"]),
        )
        for request in document["requests"]
        if request["failure"] is None
    ]


def of_vllm(result: Mapping[str, Any]) -> list[Answer]:
    """Out of `vllm bench serve --save-detailed`. A request that failed has no first token."""
    names = ("start_times", "ttfts", "latencies", "input_lens", "output_lens", "itls")
    return [
        Answer(sent=sent, first=sent + first, last=sent + whole, prompt_tokens=prompt, tokens=tokens, gaps=tuple(gaps))
        for sent, first, whole, prompt, tokens, gaps in zip(*(result[name] for name in names), strict=True)
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
