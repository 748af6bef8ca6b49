"""Forms in the sampler and in the engine: masked rows, their neighbours, minimum lengths, preemption, faults."""

from __future__ import annotations

import json
import math
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_harness import NoMetrics
from no_text import NoText
from octavo_engine.batch import Batch, Known
from octavo_engine.engine import Engine
from octavo_engine.errors import FormTooComplex
from octavo_engine.request import Constraint, FinishReason, Request, SamplingParams
from octavo_engine.runtime.drawn import Draw
from octavo_engine.runtime.sampler import Sampler
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.scheduler import Scheduler
from octavo_engine.structured import Forms, spec
from small_vocabulary import END, OTHER_END, VOCABULARY, WEIGHTS

pytestmark = pytest.mark.engine

FORMS = Forms(VOCABULARY, [END, OTHER_END])
WIDTH = VOCABULARY.vocab_size + 37  # a model has more logits than its tokenizer has tokens
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "n": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["name", "n"],
    "additionalProperties": False,
}
FAULT, LIMIT = RuntimeError("broken"), FormTooComplex("p: too complex", param="p")
_ids = count()


def ids(text: str) -> list[int]:
    return VOCABULARY.encode(text, add_special_tokens=False)


class Fixed:
    """A constraint that allows the same each time, or fails."""

    def __init__(self, *tokens: int, fault: Exception | None = None) -> None:
        self.tokens, self.fault = tokens, fault

    def allowed(self, tokens: list[int], first: int) -> bytes:
        if self.fault is not None:
            raise self.fault
        bits = bytearray(-(-WIDTH // 8))
        for token in self.tokens:
            bits[token // 8] |= 1 << token % 8
        return bytes(bits)

    def forced(self, tokens: list[int], first: int) -> list[int]:
        return []

    def branch(self) -> Fixed:
        return self


def request(constraint: Constraint | None = None, output: list[int] | None = None, **params: Any) -> Request:
    params = {"temperature": 0.0, "max_tokens": 100} | params
    made = Request(id=f"r{next(_ids)}", tokens=[5], params=SamplingParams(**params), arrival=0.0, constraint=constraint)
    made.tokens += output or []
    return made


def sampler() -> Sampler:
    return Sampler(eos_ids=[END, OTHER_END])


def logits(rows: int, seed: int = 1, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_only_what_is_allowed_is_chosen_and_only_where_it_is_asked_for(temperature: float) -> None:
    values = logits(4)
    plain = [request(temperature=temperature, seed=7) for _ in range(4)]
    free = sampler().sample(values.clone(), plain).wait()
    mixed = [
        plain[0],
        request(Fixed(9, 11), temperature=temperature),
        plain[2],
        request(Fixed(77), temperature=temperature),
    ]
    for _ in range(5):
        drawn = sampler().sample(values.clone(), mixed).wait()
        assert [drawn[0], drawn[2]] == [free[0], free[2]]
        assert drawn[1].token_id in (9, 11)
        assert drawn[3].token_id == 77


def test_of_the_allowed_ones_the_likeliest_is_taken() -> None:
    values = logits(1)
    chosen = sampler().sample(values.clone(), [request(Fixed(*range(40, 90)))]).wait()[0].token_id
    assert chosen == 40 + int(values[0, 40:90].argmax())


@pytest.mark.parametrize("width", [8, 9, 15, 16, 17, WIDTH, WIDTH + 1, WIDTH + 64])
def test_a_model_of_any_width(width: int) -> None:
    for token in {0, 3, width - 1} - {width - 1 if width > WIDTH else -1}:
        drawn = sampler().sample(logits(1, width=width), [request(Fixed(token))]).wait()[0]
        assert (drawn.token_id, drawn.error) == (token, None)


def test_bias_and_penalties_choose_among_the_allowed() -> None:
    values = torch.zeros(1, WIDTH)
    values[0, 9] = 1.0
    for params in ({"logit_bias": ((11, 5.0), (12, 50.0))}, {"presence_penalty": 2.0}):
        chosen = sampler().sample(values.clone(), [request(Fixed(9, 11), output=[9], **params)]).wait()[0]
        assert chosen.token_id == 11


def test_logprobs_are_the_models_own() -> None:
    values = logits(1)
    drawn = sampler().sample(values.clone(), [request(Fixed(9), logprobs=2)]).wait()[0]
    expected = values[0].log_softmax(-1)
    assert drawn.logprob is not None
    assert math.isclose(drawn.logprob.logprob, float(expected[9]), abs_tol=1e-5)
    assert drawn.top_logprobs[0].token_id == int(expected.argmax())


def test_a_minimum_length_holds_until_the_form_is_complete() -> None:
    values = torch.zeros(1, WIDTH)
    values[0, END] = 9.0
    both, ended = Fixed(END, OTHER_END, 20), Fixed(END, OTHER_END)
    assert sampler().sample(values.clone(), [request(both, min_tokens=3)]).wait()[0].token_id == 20
    assert sampler().sample(values.clone(), [request(ended, min_tokens=3)]).wait()[0].token_id == END
    assert sampler().sample(values.clone(), [request(both, [7, 7, 7], min_tokens=3)]).wait()[0].token_id == END


@pytest.mark.parametrize("constraint", [Fixed(), Fixed(fault=FAULT), Fixed(fault=LIMIT)])
def test_a_form_that_fails_fails_alone_and_says_why(constraint: Constraint) -> None:
    values, neighbour = logits(2), request()
    failed, other = sampler().sample(values.clone(), [request(constraint), neighbour]).wait()
    assert failed.error in (str(FAULT), LIMIT, "the answer's form leaves no token that the model has")
    assert other == sampler().sample(values[1:].clone(), [neighbour]).wait()[0]


RECORDS = {"type": "array", "minItems": 99, "items": {"enum": ["the fox", "yes", 10]}}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_rows_after_guesses_are_drawn_as_if_these_were_known(temperature: float) -> None:
    grammar = FORMS.compile(spec.json_schema(RECORDS, "p"))
    params = {"temperature": temperature, "seed": 4, "repetition_penalty": 1.3, "frequency_penalty": 0.5}
    answer, values = ids('["yes",10,"the fox"'), logits(9)
    for said in range(len(answer)):
        held = request(grammar.start(), answer[:said], **params)
        guesses = [tuple(answer[said : said + ahead]) for ahead in range(min(8, len(answer) - said) + 1)]
        neighbour = request(temperature=temperature, seed=9)
        rows = values[: len(guesses)].clone()
        *drawn, beside = (
            sampler().sample(torch.cat([rows, values[:1]]), [*[held] * len(guesses), neighbour], [*guesses, ()]).wait()
        )
        for row, guessed in enumerate(guesses):
            alone = request(grammar.start(), [*answer[:said], *guessed], **params)
            assert drawn[row] == sampler().sample(values[row : row + 1].clone(), [alone]).wait()[0]
        assert beside == sampler().sample(values[:1].clone(), [neighbour]).wait()[0]
        assert held.constraint is not None
        assert held.constraint.allowed(held.tokens, 1) == grammar.start().allowed(held.tokens, 1), "it learned a guess"


def test_rows_after_a_guess_that_the_form_does_not_allow_have_no_token(caplog: pytest.LogCaptureFixture) -> None:
    held = request(FORMS.compile(spec.json_schema(RECORDS, "p")).start(), ids('["yes'))
    guesses = [(), tuple(ids('"')), tuple(ids('"}')), tuple(ids('"},'))]
    first, second, *others = sampler().sample(logits(4), [held] * 4, guesses).wait()
    assert first.error is None
    assert second.error is None
    assert all(other.error for other in others)
    assert not caplog.records, "a wrong guess is nobody's fault"


# -- in the engine -----------------------------------------------------------------------------------------------------


class RandomModel:
    """Logits that depend on a request's seed and the length of its answer alone, and like what ends something."""

    def __init__(self) -> None:
        self._sampler = sampler()
        self._taste = torch.tensor([*WEIGHTS, *[1000] * (WIDTH - len(WEIGHTS))]).log()

    def launch(self, batch: Batch) -> Draw | Known:
        requests = [piece.request for piece in batch.sampling]
        if not requests:
            return Known([])
        return self._sampler.sample(torch.stack([self._row(item) for item in requests]), requests)

    def _row(self, item: Request) -> torch.Tensor:
        chance = torch.Generator().manual_seed((item.params.seed or 0) * 100_003 + item.num_output)
        return self._taste + torch.randn(WIDTH, generator=chance)


class Served:
    """An engine over the random model."""

    def __init__(self, blocks: int = 400, *, overlap: bool = False) -> None:
        self.cache = KVCache(blocks, 4)
        self.engine = Engine(
            scheduler=Scheduler(self.cache, max_num_batched_tokens=32, max_num_seqs=8),
            runner=RandomModel(),
            metrics=NoMetrics(),
            detokenizer=lambda _: NoText(),
            eos_ids=frozenset({END, OTHER_END}),
            max_model_len=1000,
            overlap=overlap,
        )

    def add(self, prompt: int, seed: int, form: spec.Spec | Constraint | None, **params: Any) -> Request:
        constraint = FORMS.compile(form).start() if isinstance(form, spec.Spec) else form
        asked = SamplingParams(**({"temperature": 1.0, "seed": seed, "max_tokens": 40} | params))
        made = Request(id=f"e{next(_ids)}", tokens=[9] * prompt, params=asked, arrival=0.0, constraint=constraint)
        self.engine.check(made)
        self.engine.add(made)
        return made

    def finish(self, requests: list[Request]) -> list[tuple[list[int], FinishReason | None]]:
        for _ in range(20_000):
            if not self.engine.has_work:
                break
            self.engine.step()
        assert not self.engine.has_work
        return [(item.output_ids, item.finish_reason) for item in requests]


SCHEMA = spec.json_schema(FORM, "p")
SHAPES = [SCHEMA, spec.json_object("p"), spec.regex("(ab|c)*[0-9]{1,20}", "p"), spec.choice(["yes", "no"], "p"), None]
ASKED = st.tuples(st.integers(1, 9), st.integers(0, 2**20), st.sampled_from(SHAPES), st.integers(0, 12))


@settings(max_examples=25, deadline=None)
@given(st.lists(ASKED, min_size=1, max_size=7), st.integers(13, 30), st.booleans())
def test_any_preemption_gives_the_same_tokens(asked: list[Any], blocks: int, overlap: bool) -> None:
    crowded, alone = Served(blocks, overlap=overlap), []
    for prompt, seed, form, _ in asked:
        served = Served()
        alone += served.finish([served.add(prompt, seed, form)])
    requests = []
    for prompt, seed, form, steps in asked:
        requests.append(crowded.add(prompt, seed, form))
        for _ in range(steps):
            crowded.engine.step()
    assert crowded.finish(requests) == alone
    assert crowded.cache.num_used == 0


def test_requests_with_a_form_are_preempted_and_end_as_their_form_says() -> None:
    crowded = Served(20)
    requests = [crowded.add(4, seed, SCHEMA, max_tokens=70) for seed in range(8)]
    whole = [tokens for tokens, reason in crowded.finish(requests) if reason is FinishReason.STOP]
    assert sum(item.num_preemptions for item in requests) > 0
    assert len(whole) > 3
    for tokens in whole:
        assert tokens[-1] in (END, OTHER_END)
        assert {"name", "n"} <= set(json.loads(VOCABULARY.text(tokens)))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_complete_form_ends_before_the_minimum_length(overlap: bool) -> None:
    served = Served(overlap=overlap)
    ((tokens, reason),) = served.finish([served.add(3, 1, spec.choice(["yes"], "p"), min_tokens=40)])
    assert reason is FinishReason.STOP
    assert VOCABULARY.text(tokens) == "yes"


@pytest.mark.parametrize(
    ("fault", "end"), [(FAULT, FinishReason.ERROR), (LIMIT, FinishReason.FORM_TOO_COMPLEX)], ids=["fault", "limit"]
)
def test_a_request_whose_form_fails_ends_with_an_error_and_the_others_go_on(
    fault: Exception, end: FinishReason, caplog: pytest.LogCaptureFixture
) -> None:
    served, lone = Served(), Served()
    broken, other = served.add(3, 1, Fixed(fault=fault)), served.add(3, 2, SCHEMA)
    (_, reason), kept = served.finish([broken, other])
    assert reason is end
    assert broken.refusal is (fault if fault is LIMIT else None)
    assert (broken.id in caplog.text) == (fault is FAULT), "what a client can mend is nothing for the log"
    assert kept == lone.finish([lone.add(3, 2, SCHEMA)])[0]


def test_choices_of_one_grammar_are_each_their_own() -> None:
    served, made = Served(), FORMS.compile(SCHEMA)
    requests = [served.add(3, seed, made.start(), max_tokens=200) for seed in range(6)]
    texts = [VOCABULARY.text(tokens) for tokens, reason in served.finish(requests) if reason is FinishReason.STOP]
    assert len(set(texts)) == len(texts) > 2
    for text in texts:
        json.loads(text)
