"""What is told of an answer's guesses, from the engine that takes them in: its timeline and the metrics agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from no_text import NoText
from octavo_engine.batch import Batch, Known
from octavo_engine.engine import Engine
from octavo_engine.explain.report import Style, request_report
from octavo_engine.history.documents import timeline_document
from octavo_engine.history.recent import History
from octavo_engine.metrics import Metrics
from octavo_engine.request import FinishReason, Request, Sampled, SamplingParams
from octavo_engine.scheduling.drafts import Drafter
from octavo_engine.server.reporting import Reporting
from scheduling_helpers import FreeOfCharge, scheduler

END = 10


class Guesses(Drafter):
    """Guesses what it is told of the one request, a draft a step."""

    def __init__(self, drafts: Sequence[tuple[int, ...]]) -> None:
        super().__init__(9, 1000)
        self._drafts = iter(drafts)

    def draft(self, requests: Sequence[Request], price: float, rows: int) -> list[tuple[int, ...]]:
        (_,) = requests
        return [next(self._drafts, ())]


class Counting:
    """An engine whose model counts on: after a token comes the next number, and a step takes a second."""

    def __init__(self, drafts: Sequence[tuple[int, ...]]) -> None:
        self.now, self.history, self.registry = 0.0, History(), CollectorRegistry()
        made = scheduler(64, drafter=Guesses(drafts))
        metrics = Metrics(self.registry, model_name="m", stats=made.stats, clock=lambda: self.now)
        reporting = Reporting(metrics, self.history)
        reporting.counting = True
        self.engine = Engine(
            scheduler=made,
            runner=self,
            metrics=reporting,
            detokenizer=lambda request: NoText(),
            eos_ids=frozenset({END}),
            max_model_len=1000,
            pacer=FreeOfCharge(),
            clock=lambda: self.now,
        )

    def launch(self, batch: Batch) -> Known:
        self.now += 1.0
        return Known([Sampled(token + 1) for piece in batch.sampling for token in piece.tokens[-piece.num_outcomes :]])

    def answer(self) -> Request:
        """The answer to 1, 2, 3."""
        params = SamplingParams(temperature=0.0, max_tokens=50)
        request = Request(id="a-0", tokens=[1, 2, 3], params=params, arrival=self.now)
        self.engine.add(request)
        while self.engine.has_work:
            self.engine.step()
        return request

    def counted(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"octavo_{name}_total", {"model_name": "m"})


@pytest.mark.parametrize(
    ("drafts", "drafted", "accepted"),
    [
        ([], 0, 0),
        ([(5, 6, 7)], 3, 3),
        ([(5, 6, 9), (9,), (9,)], 5, 3),
        ([(6, 7)], 2, 0),
        ([(5, 6, 7, 8, 9, END, 11)], 7, 5),  # what is guessed for the end gives no more, and nothing behind it counts
    ],
)
def test_guesses_that_came_true(drafts: Sequence[tuple[int, ...]], drafted: int, accepted: int) -> None:
    told = Counting(drafts)
    request = told.answer()
    assert request.finish_reason is FinishReason.STOP
    assert request.output_ids == list(range(4, END + 1))
    assert (request.num_drafted, request.num_accepted) == (drafted, accepted)
    assert told.counted("draft_tokens") == drafted
    assert told.counted("draft_tokens_accepted") == accepted
    (item,) = told.history.ended()
    assert (item.counts.drafted, item.counts.accepted) == (drafted, accepted)


def test_they_are_told_where_there_were_some() -> None:
    told = Counting([(5, 6, 9)])
    told.answer()
    (item,) = told.history.ended()
    document = timeline_document([item], wall_offset=0.0)
    assert document["tokens"] == {"prompt": 3, "cached": 0, "output": 7, "drafted": 3, "accepted": 2}
    assert "7 generated, the first at 1.000 s, 2 of 3 guesses came true\n" in request_report(document, Style())
    without = timeline_document([replace(item, counts=replace(item.counts, drafted=0, accepted=0))], wall_offset=0.0)
    assert without["tokens"] == {"prompt": 3, "cached": 0, "output": 7}
    assert "guess" not in request_report(without, Style())


@pytest.mark.parametrize(("guess", "words"), [(5, "its only guess came true"), (6, "its only guess did not come true")])
def test_one_guess_is_one(guess: int, words: str) -> None:
    told = Counting([(guess,)])
    told.answer()
    assert words in request_report(timeline_document(told.history.ended(), wall_offset=0.0), Style())


def test_steps_that_gave_several_tokens_are_one_pause() -> None:
    """The inter-token latency counts steps: seven tokens in five of them have four pauses."""
    told = Counting([(5, 6, 9)])
    told.answer()
    assert told.counted("generation_tokens") == 7
    assert told.now == 5
    assert told.registry.get_sample_value("octavo_inter_token_latency_seconds_count", {"model_name": "m"}) == 4
