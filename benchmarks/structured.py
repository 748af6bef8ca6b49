"""What a given form costs, and what it saves where a step guesses: time per token of constrained answers against free
ones, in turns.

    PYTHONPATH=engine:benchmarks:benchmarks/cpu .venv/bin/python benchmarks/structured.py [--rounds 5]
    PYTHONPATH=engine:benchmarks:benchmarks/cpu .venv/bin/python benchmarks/structured.py --memory

SmolLM2-135M in bfloat16, stepped without HTTP, greedily, at one stream and at eight. Figures are medians of the rounds:
milliseconds from token to token after the first, and the microseconds of these in which the form's grammar takes
a token in and tells which may follow; at last, the milliseconds where a step also guesses. `--memory`
says what compiled forms take, which is what they are kept by.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import torch
from checkpoint import packaged_gguf, smollm2
from stepped import stepped

from octavo_engine.assembly import Assembly
from octavo_engine.request import Constraint, Request, SamplingParams
from octavo_engine.structured import Forms, Grammar, Spec, spec
from octavo_engine.tokenizer import load_tokenizer

PROMPT, ANSWER = 64, 160  # tokens
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "languages": {"type": "array", "items": {"enum": ["de", "en", "fr", "ja"]}, "maxItems": 3},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    "required": ["name", "age", "languages", "address"],
    "additionalProperties": False,
}
# None of them can be complete within the answer, so that as many tokens are chosen as in a free one.
SHAPES = {
    "records of a schema": spec.json_schema({"type": "array", "items": PERSON, "minItems": 500}, "schema"),
    "a list of strings": spec.json_schema({"type": "array", "items": {"type": "string"}, "minItems": 5000}, "schema"),
    "an expression": spec.regex("([A-Z][a-z ,]{0,200}[.!?] ){400,}", "regex"),
}
_ids = count()


class Clocked:
    """A constraint that counts the seconds it takes."""

    def __init__(self, inner: Constraint) -> None:
        self._inner = inner
        self.seconds, self.calls = 0.0, 0

    def allowed(self, tokens: Sequence[int], first: int) -> bytes:
        began = time.perf_counter()
        found = self._inner.allowed(tokens, first)
        self.seconds += time.perf_counter() - began
        self.calls += 1
        return found

    def forced(self, tokens: Sequence[int], first: int) -> Sequence[int]:
        """See Constraint."""
        return self._inner.forced(tokens, first)

    def branch(self) -> Constraint:
        """See Constraint."""
        return self._inner.branch()


@dataclass(frozen=True)
class Turn:
    """One batch of answers."""

    token: float  # milliseconds from one token of a stream to its next
    mask: float  # microseconds for one token of one stream


def turn(assembly: Assembly, streams: int, seed: int, grammar: Grammar | None) -> Turn:
    """Let all streams answer together; the clock runs once each has its first token."""
    chance, engine = random.Random(seed), assembly.engine
    clocks = [None if grammar is None else Clocked(grammar.start()) for _ in range(streams)]
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER, min_tokens=ANSWER, ignore_eos=grammar is None)
    requests = [
        Request(
            id=f"b{next(_ids)}",
            tokens=[chance.randrange(1000, 40_000) for _ in range(PROMPT)],
            params=params,
            arrival=0.0,
            constraint=clock,
        )
        for clock in clocks
    ]
    for request in requests:
        engine.add(request)
    while min(request.num_output for request in requests) < 1:
        engine.step()
    began, had = time.perf_counter(), sum(request.num_output for request in requests)
    while engine.has_work:
        engine.step()
    told = sum(request.num_output for request in requests) - had
    assert told == streams * ANSWER - had, "an answer ended early"
    seconds = time.perf_counter() - began
    masks = [clock.seconds / clock.calls for clock in clocks if clock is not None]
    return Turn(1e3 * seconds * streams / told, 1e6 * median(masks) if masks else 0.0)


def compare(threads: int, rounds: int) -> None:
    plain, guessing = (stepped(smollm2(), threads, 128 << 20, guesses) for guesses in (0, 15))
    tokenizer = load_tokenizer(str(packaged_gguf()))
    forms = Forms(tokenizer, tokenizer.eos_ids)
    print("| form | streams | free, ms | constrained, ms | its grammar, us | with drafts, ms |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, shape in SHAPES.items():
        grammar = forms.compile(shape)
        for streams in (1, 8):
            sides = ((plain, None), (plain, grammar), (guessing, grammar))
            turns = [[turn(engine, streams, seed, form) for engine, form in sides] for seed in range(rounds)]
            free, held, drafted = (median(of[side].token for of in turns) for side in range(3))
            mask = median(of[1].mask for of in turns)
            print(f"| {name} | {streams} | {free:.2f} | {held:.2f} | {mask:.0f} | {drafted:.2f} |", flush=True)


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def weigh(numbers: int = 400) -> None:
    """Compile as many different forms of each size, keep them all to the end, and divide."""
    tokenizer = load_tokenizer(str(packaged_gguf()))
    forms = Forms(tokenizer, tokenizer.eos_ids)
    forms.compile(spec.json_object("warm"))
    kept = []
    for fields in (1, 10, 50):
        shapes = [many_fields(fields, number) for number in range(numbers)]
        before = resident()
        kept += [forms.compile(shape) for shape in shapes]
        each = (resident() - before) / numbers
        size = median(len(shape.text) for shape in shapes)
        print(
            f"{fields:3} fields, {size:.0f} characters: {each / 1024:.0f} KiB each, {each / size:.0f} bytes a character"
        )


def many_fields(fields: int, number: int) -> Spec:
    names = [f"field_{number}_{field}" for field in range(fields)]
    kinds = [{"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "array", "items": {"type": "number"}}]
    properties = {name: kinds[place % 3] for place, name in enumerate(names)}
    return spec.json_schema({"type": "object", "properties": properties, "required": names}, "schema")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="weigh compiled forms instead")
    settings = parser.parse_args()
    torch.manual_seed(0)
    if settings.memory:
        weigh()
    else:
        compare(settings.threads, settings.rounds)


if __name__ == "__main__":
    main()
