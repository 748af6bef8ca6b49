"""From the outcomes of a measurement to its figures. Pure.

Rates are over the whole time, from the first request to the last token. Latencies are those of whole answers: what
failed is counted by kind instead, and is never good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo_engine.bench.outcome import Failure, Outcome
from octavo_engine.bench.quantiles import Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What a request must keep to be good, in seconds; None asks for nothing. `itl` is the request's own average."""

    ttft: float | None = None
    itl: float | None = None
    e2e: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return (self.ttft, self.itl, self.e2e) != (None, None, None)

    def kept_by(self, outcome: Outcome) -> bool:
        """Whether a request is good."""
        return outcome.whole and all(
            limit is None or value is None or value <= limit
            for limit, value in (
                (self.ttft, outcome.first_token),
                (self.itl, outcome.time_per_output_token),
                (self.e2e, outcome.end_to_end),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one measurement. Times in seconds, rates a second."""

    seconds: float
    sent: int
    whole: int
    interrupted: int
    failures: Mapping[Failure, int]
    examples: Mapping[Failure, str]  # what the server said, the first time
    requests_per_second: float
    output_tokens_per_second: float
    prompt_tokens_per_second: float
    ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    prompt_tokens: Spread | None
    output_tokens: Spread | None
    cached_share: float | None  # of prompt tokens, by the server's account
    exact_prompts: float | None  # the share of prompts that were as long as wanted
    late: Spread | None  # how long after it was due a request was sent
    good_per_second: float | None
    good_share: float | None

    @property
    def failed(self) -> int:
        """Requests without a whole answer, but those that were interrupted here."""
        return sum(self.failures.values())


def summarize(outcomes: Sequence[Outcome], seconds: float, objectives: Objectives) -> Summary:
    """The figures of outcomes in a measurement of so many seconds."""
    whole = [outcome for outcome in outcomes if outcome.whole]
    failed = [outcome for outcome in outcomes if outcome.failure not in (None, Failure.INTERRUPTED)]
    seconds = max(seconds, 1e-9)
    good = sum(map(objectives.kept_by, whole)) if objectives.any else None
    judged = len(whole) + len(failed)
    return Summary(
        seconds=seconds,
        sent=len(outcomes),
        whole=len(whole),
        interrupted=len(outcomes) - judged,
        failures=dict(Counter(outcome.failure for outcome in failed if outcome.failure)),
        examples={item.failure: item.detail for item in reversed(failed) if item.failure and item.detail},
        requests_per_second=len(whole) / seconds,
        output_tokens_per_second=sum(outcome.output_tokens for outcome in whole) / seconds,
        prompt_tokens_per_second=sum(outcome.prompt_tokens or 0 for outcome in whole) / seconds,
        ttft=Spread.of(item.first_token for item in whole if item.first_token is not None),
        itl=Spread.of(gap for item in whole for gap in item.gaps),
        tpot=Spread.of(each for item in whole if (each := item.time_per_output_token) is not None),
        e2e=Spread.of(item.end_to_end for item in whole if item.end_to_end is not None),
        prompt_tokens=Spread.of(item.prompt_tokens for item in whole if item.prompt_tokens is not None),
        output_tokens=Spread.of(item.output_tokens for item in whole),
        cached_share=_cached(whole),
        exact_prompts=_exact(whole),
        late=Spread.of(max(0.0, outcome.sent - outcome.due) for outcome in outcomes),
        good_per_second=None if good is None else good / seconds,
        good_share=None if good is None or not judged else good / judged,
    )


def _cached(whole: Sequence[Outcome]) -> float | None:
    told = [item for item in whole if item.cached_tokens is not None and item.prompt_tokens]
    prompts = sum(item.prompt_tokens or 0 for item in told)
    return sum(item.cached_tokens or 0 for item in told) / prompts if prompts else None


def _exact(whole: Sequence[Outcome]) -> float | None:
    told = [item for item in whole if item.wanted_prompt_tokens is not None and item.prompt_tokens is not None]
    return sum(item.wanted_prompt_tokens == item.prompt_tokens for item in told) / len(told) if told else None
