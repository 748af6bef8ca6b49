"""What `make bench-cpu` makes of what it measures: goals, cells that are kept, a client's JSON, a document's marks."""

from __future__ import annotations

import itertools
import json
import subprocess
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import published
from cpu_figures import client, loads, long_step, peers, picture, table
from cpu_figures.goals import Goal, Measured, rows
from cpu_figures.limits import Limits
from cpu_figures.results import Figures, Kept, Start, middle
from cpu_figures.run import Contender, Plan, Run
from cpu_figures.servers import NO_DRAFTS, OCTAVO, VLLM, Recipe
from octavo_engine.roofline import ModelCost

GB = 10**9
FIGURES = Figures(
    tokens_per_second=100.0,
    ttft_mean=0.2,
    ttft_median=0.2,
    ttft_p99=0.4,
    itl_median=0.010,
    itl_p99=0.020,
    tpot_mean=0.010,
    ttfts=(0.4, 0.4, 0.4, 0.4, *[0.1] * 8),
    prompt_tokens=512,
)
FAST = replace(FIGURES, tokens_per_second=260.0, ttft_p99=0.1, itl_p99=0.013)
BARE = replace(FIGURES, tokens_per_second=130.0, ttft_p99=0.2)
COST = ModelCost(
    step_bytes=200_000_000,
    head_bytes=50_000_000,
    row_bytes=0,
    token_flops=200_000_000,
    head_flops=0,
    layer_kv_bytes=0,
    pair_flops=0,
    windows=((None, 30),),
)


def measured(**changes: Any) -> Measured:
    facts: dict[str, Any] = {
        "octavo": {},
        "no_drafts": {},
        "peer": {},
        "limits": Limits(read_bytes=30e9, matmul_flops=400e9, register_flops=800e9),
        "cost": COST,
        "octavo_start": Start(4.0, 5 * GB, 5 * GB),
        "peer_start": Start(100.0, 7 * GB, 8 * GB),
        "pool_bytes": 4 * GB,
    }
    return Measured(**facts | changes)


def goals(**changes: Any) -> dict[str, Goal]:
    return {goal.name: goal for goal in rows(measured(**changes))}


def test_speed_is_a_ratio_of_what_both_have_run() -> None:
    both = {"8 streams": FAST, "1 stream": FAST}
    found = goals(octavo=both, no_drafts=dict.fromkeys(both, BARE), peer={"8 streams": FIGURES})
    speed = found["tokens/s over the peer's, 8 streams"]
    assert (speed.value, speed.at_least, speed.aim, speed.verdict) == (2.6, 2.5, 4, "at least")
    assert speed.without_drafts == 1.3
    wait = found["P99 time to first token under the peer's, 8 streams"]
    assert (wait.value, wait.without_drafts, wait.verdict) == (0.25, 0.5, "aim")
    assert found["P99 inter-token latency under the peer's, 8 streams"].verdict == "at least"
    assert "tokens/s over the peer's, 1 stream" not in found


def test_shares_are_of_what_the_machine_can_do() -> None:
    prompt = replace(FIGURES, ttft_median=1.0, ttfts=(1.0,) * 4, prompt_tokens=4 * 1000)
    found = goals(octavo={"a prompt of 1,024": prompt}, no_drafts={"1 stream": FIGURES}, long_step=0.010)
    assert found["one stream's decode without drafts, of memory's speed"].value == pytest.approx(250e6 / 0.010 / 30e9)
    assert found["a prompt of 1,024, of the matrix products' speed"].value == pytest.approx(1000 * 200e6 / 400e9)
    assert found["a step of 32 streams at 1,024, without HTTP and drafts"].value == pytest.approx(10 * 30 / 48)


def test_no_draft_makes_a_kernel_look_faster_than_memory() -> None:
    sooner = replace(FIGURES, tpot_mean=0.001, itl_median=0.001)
    drafted = goals(octavo={"1 stream": sooner}, no_drafts={"1 stream": FIGURES})
    assert drafted == goals(no_drafts={"1 stream": FIGURES})


def test_a_warm_prefix_is_held_against_the_cold_ones() -> None:
    found = goals(octavo={"a shared prefix of 1,000": FIGURES})
    assert found["first token, warm prefix under cold"].value == pytest.approx(0.25)
    assert found["first token, warm prefix under cold"].verdict == "short"


def test_memory_beside_a_pool_that_is_not_there_yet_is_no_figure() -> None:
    name = "memory beside the KV pool, under the peer's"
    assert goals()[name].value == 0.25
    assert name not in goals(octavo_start=Start(4.0, 3 * GB, 5 * GB))


@pytest.mark.parametrize(
    ("value", "less", "verdict"),
    [(3, False, "aim"), (2, False, "at least"), (1.9, False, "short"), (2, True, "at least"), (2.1, True, "short")],
)
def test_verdicts(value: float, less: bool, verdict: str) -> None:
    aim = 1 if less else 3
    assert Goal("x", value, 2, aim, less=less).verdict == verdict
    assert table.MARKS[verdict] in table.goals([Goal("x", value, 2, aim, less=less)])


def test_a_goal_stands_beside_what_is_reached_without_drafts() -> None:
    rows = table.goals([Goal("x", 3, 2, 4, without_drafts=1.5), Goal("y", 32, 60, 30, unit=" ms", less=True)])
    assert "| x | 3.00x | 1.50x | 2.00x | 4.00x | reached |  |" in rows
    assert "| y | 32 ms |  | 60 ms | 30 ms | reached |  |" in rows


def test_a_load_of_one_token_has_no_later_ones() -> None:
    by_load = dict.fromkeys((loads.CHATS.name, loads.PROMPT.name), FIGURES)
    head, _, *rows = table.figures({"octavo": by_load}).splitlines()
    assert {row.count("|") for row in rows} == {head.count("|")}
    assert "| 8 streams of chats | octavo | 100 | 200 | 400 | 10.0 | 10.0 | 20 |" in rows
    assert "| a prompt of 1,024 | octavo | 100 | 200 | 400 |  |  |  |" in rows


def test_a_picture_shows_every_server_under_every_load(tmp_path: Path) -> None:
    by_load = {load.name: FIGURES for load in loads.QUICK}
    picture.draw(dict.fromkeys((OCTAVO, NO_DRAFTS, VLLM), by_load), tmp_path / "figures.svg")
    drawn = (tmp_path / "figures.svg").read_text()
    assert all(words in drawn for words in (OCTAVO, NO_DRAFTS, VLLM, "chats"))


def test_a_cell_is_measured_once_and_anew_when_what_it_depends_on_changes(tmp_path: Path) -> None:
    kept, calls = Kept(tmp_path / "cells"), []

    def measure() -> dict[str, Any]:
        calls.append(1)
        return {"value": len(calls)}

    assert [kept.get_or({"engine": "a"}, measure)["value"] for _ in range(2)] == [1, 1]
    assert Kept(tmp_path / "cells").get_or({"engine": "a"}, measure)["value"] == 1, "another process goes on"
    assert kept.get_or({"engine": "b"}, measure)["value"] == 2


def test_the_middle_of_rounds() -> None:
    runs = [replace(FIGURES, tokens_per_second=speed) for speed in (10.0, 30.0, 20.0)]
    assert middle(runs) == replace(FIGURES, tokens_per_second=20.0)


def test_a_short_answer_is_an_error_and_never_fast() -> None:
    load = loads.Load("x", streams=1, prompts=2, prompt_tokens=8, output_tokens=4)
    result = {"completed": 2, "total_output_tokens": 7, "errors": ["", "it broke"]}
    with pytest.raises(client.ClientFailed, match="2 of 2 answers with 7 of 8 tokens; it broke"):
        client.read(result, load)


def test_no_two_loads_begin_alike() -> None:
    seeds = {load.seed(number) for load in loads.FULL for number in range(2)}
    assert len(seeds) == 2 * len(loads.FULL)


def test_the_clients_words_become_seconds() -> None:
    load = loads.Load("x", streams=2, prompts=2, prompt_tokens=8, output_tokens=5)
    result: dict[str, Any] = dict.fromkeys(
        ("output_throughput", "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms"), 1.0
    )
    result |= {"median_itl_ms": 2.0, "p99_itl_ms": 1.0, "completed": 2, "total_output_tokens": 10}
    result |= {"total_input_tokens": 16, "ttfts": [0.1, 0.3]}
    found = client.read(result, load)
    assert (found.ttft_mean, found.itl_median, found.ttfts) == (0.001, 0.002, (0.1, 0.3))


def test_the_client_sends_nothing_that_would_warm_the_cache() -> None:
    words = client.flags(loads.PREFIX, port=1, tokenizer=Path("t"), seed=3, folder=Path("f"))
    pairs = dict(itertools.pairwise(words))
    assert pairs["--ready-check-timeout-sec"] == "0"
    assert (pairs["--random-prefix-len"], pairs["--random-input-len"], pairs["--seed"]) == ("1000", "64", "3")


def test_chats_are_the_same_for_all_and_in_no_cache() -> None:
    words = client.flags(loads.CHATS, port=1, tokenizer=Path("t"), seed=3, folder=Path("f"))
    pairs = dict(itertools.pairwise(words))
    assert (pairs["--dataset-path"], pairs["--sharegpt-output-len"]) == ("f/texts.json", "128")
    assert json.loads(pairs["--extra-body"]) == {"cache_salt": "3"}
    assert "--random-input-len" not in pairs
    assert loads.CHATS.path is not None
    prompts = {each["conversations"][0]["value"] for each in client.conversations(loads.CHATS.path)}
    assert len(prompts) == loads.CHATS.prompts
    assert all(prompt.endswith("<|im_end|>\n<|im_start|>assistant\n") for prompt in prompts)


def test_other_prompts_are_another_load() -> None:
    assert "hive" in loads.CHATS.key["words"]
    assert loads.CHATS.key["prompts"] == 16
    assert "words" not in loads.PROMPT.key


def test_an_environment_is_made_anew_when_any_package_in_it_changes() -> None:
    other = replace(peers.VLLM, overrides=("torch==9",))
    assert peers.VLLM.key != other.key


def test_a_document_keeps_what_stands_around_its_marks(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- x: begin -->\nold\n<!-- x: end -->\nafter\n")
    published.put(document, "x", "new")
    published.put(document, "x", "newer")
    assert document.read_text() == "before\n<!-- x: begin -->\n\nnewer\n\n<!-- x: end -->\nafter\n"
    with pytest.raises(ValueError, match="no marks"):
        published.put(document, "y", "new")


def test_what_drafts_cannot_change_is_not_measured_again() -> None:
    nobody = Recipe("octavo", ["false"], "http://127.0.0.1:1/", 1)
    assert all(map(Contender(nobody, "").is_asked, loads.FULL))
    decodes = list(filter(Contender(nobody, "", only_decodes=True).is_asked, loads.FULL))
    assert [load for load in loads.FULL if load not in decodes] == [loads.PROMPT]


class NoClient:
    """A load client that must not be needed."""

    def __enter__(self) -> None:
        raise AssertionError("everything is kept")

    def __exit__(self, *_: object) -> None: ...


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    nobody = Recipe("octavo", ["false"], "http://127.0.0.1:1/", 1)
    contender = Contender(nobody, "some sources")
    plan = Plan((contender,), (loads.DECODES[0],), rounds=2, threads=1, client=cast("client.LoadClient", NoClient()))
    kept = Kept(tmp_path)
    run = Run(plan, kept, say=lambda _: None)
    kept.keep(plan.start_key(contender), asdict(Start(1.0, 2, 3)))
    kept.keep(plan.load_key(contender, loads.DECODES[0], 0), asdict(FIGURES))
    with pytest.raises(AssertionError, match="everything is kept"):
        run.measure()  # one round is missing
    kept.keep(plan.load_key(contender, loads.DECODES[0], 1), asdict(replace(FIGURES, tokens_per_second=200.0)))
    run.measure()
    assert run.figures(contender)["1 stream"].tokens_per_second == 150.0
    assert run.start(contender) == Start(1.0, 2, 3)
    changed = replace(contender, identity="other sources")
    assert kept.find(plan.load_key(changed, loads.DECODES[0], 0)) is None


class FakeServer:
    """Runs nothing, and tells what became of it."""

    ready_seconds = 1.0

    def __init__(self, told: list[str], recipe: Recipe) -> None:
        self.port, self._told, self._name = recipe.port, told, recipe.name

    def __enter__(self) -> FakeServer:
        self._told.append(f"{self._name} starts")
        return self

    def __exit__(self, *_: object) -> None:
        self._told.append(f"{self._name} ends")

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def memory(self) -> int:
        self._told.append(f"{self._name} is weighed")
        return 2


class FakeClient:
    """Knows the answer."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None: ...

    def ask(self, load: loads.Load, *, port: int, seed: int) -> Figures:
        self._told.append(f"{port} is asked {load.name}")
        return FIGURES


def test_no_server_without_drafts_runs_while_another_is_weighed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("cpu_figures.run.Server", partial(FakeServer, told))
    monkeypatch.setattr("cpu_figures.run._ask_once", lambda _: None)
    drafts, none = (Contender(Recipe(name, [], "", port), "x") for name, port in ((OCTAVO, 1), (NO_DRAFTS, 2)))
    none = replace(none, only_decodes=True)
    fake = cast("client.LoadClient", FakeClient(told))
    plan = Plan((drafts, none), (loads.PROMPT, loads.CHATS), rounds=1, threads=1, client=fake)
    run = Run(plan, Kept(tmp_path), say=lambda _: None)
    run.measure()
    assert told == [
        "octavo starts",
        "octavo ends",  # its files are in memory now
        "octavo starts",
        "octavo is weighed",
        "octavo, no drafts starts",
        "octavo, no drafts is weighed",
        "1 is asked a prompt of 1,024",
        "1 is asked 8 streams of chats",
        "2 is asked 8 streams of chats",
        "octavo, no drafts ends",
        "octavo is weighed",
        "octavo ends",
    ]
    assert list(run.figures(none)) == [loads.CHATS.name]


@pytest.mark.parametrize(("minutes", "rounds"), [(1, 1), (11, 2), (60, 3)])
def test_no_round_after_the_first_is_begun_that_would_end_too_late(
    minutes: int, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    clock = itertools.count(0, 120)  # each look at it is two minutes later
    monkeypatch.setattr("cpu_figures.run.Server", partial(FakeServer, []))
    monkeypatch.setattr("cpu_figures.run._ask_once", lambda _: None)
    monkeypatch.setattr("cpu_figures.run.time.monotonic", lambda: float(next(clock)))
    fake = cast("client.LoadClient", FakeClient(told))
    contender = Contender(Recipe(OCTAVO, [], "", 1), "x")
    plan = Plan((contender,), (loads.CHATS,), rounds=3, threads=1, client=fake, seconds=60 * minutes)
    run = Run(plan, Kept(tmp_path), say=lambda _: None)
    run.measure()
    assert len(told) == run.rounds == rounds
    assert run.figures(contender) == {loads.CHATS.name: FIGURES}


def test_the_long_step_is_measured_once_for_each_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(len(command))
        return subprocess.CompletedProcess(command, 0, "a word before\n0.125\n")

    monkeypatch.setattr("cpu_figures.long_step.subprocess.run", run)
    kept, said = Kept(tmp_path), list[str]()
    for identity in ("one", "one", "another"):
        assert long_step.measure(Path("m"), 2, identity, kept, said.append) == 0.125
    assert len(asked) == len(said) == 2
