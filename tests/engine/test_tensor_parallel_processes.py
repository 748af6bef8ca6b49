"""Ranks as processes: the same tokens as one process, and an end with a reason when one of them is lost."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch

from engine_harness import GREEDY, Harness, NoMetrics
from local_ranks import load
from octavo_engine.assembly import Assembly, assemble
from octavo_engine.config import EngineConfig
from octavo_engine.errors import CheckpointInvalid, EngineDead
from octavo_engine.model.spec import read_spec
from octavo_engine.parallel import team as teams
from octavo_engine.parallel.assignment import Assignment
from octavo_engine.parallel.board import Board
from octavo_engine.parallel.leading import LeadingRunner
from octavo_engine.parallel.peers import TorchPeers
from octavo_engine.parallel.ranks import UNSEEN, Ranks, SharedProgress, meet
from octavo_engine.parallel.team import Team
from octavo_engine.request import Request, SamplingParams
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from patience import PATIENCE_SECONDS
from serving_process import PORTS, launch
from tiny_models import make_model, save_model

pytestmark = pytest.mark.engine
TEXTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived an old octopus who could count. " * 4,
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea, there lived an old octopus who could count. " * 4 + "One day",
    "Three primes are 2, 3 and",
]
BLOCK_BYTES = 16 * 2 * 30 * 3 * 64 * 4  # of SmolLM2 in float32, both ranks together


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


def run(assembly: Assembly, prompts: list[list[int]], params: SamplingParams = GREEDY) -> list[Request]:
    """Step until all are answered."""
    began = time.monotonic()
    made = [
        Request(id=f"{began} {number}", tokens=list(text), params=params, arrival=0.0)
        for number, text in enumerate(prompts)
    ]
    for request in made:
        assembly.engine.check(request)
        assembly.engine.add(request)
    while assembly.engine.has_work:
        assembly.engine.step()
    return made


@pytest.fixture(scope="module", autouse=True)
def ends_are_waited_for() -> Iterator[None]:
    """However long a rank takes to its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teams, "END_SECONDS", PATIENCE_SECONDS)
        yield


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf), None)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    return [list(tokenizer.encode(text, add_special_tokens=True)) for text in TEXTS]


@pytest.fixture(scope="module")
def wanted(smollm2_gguf: Path, prompts: list[list[int]]) -> list[list[int]]:
    harness = Harness(load(smollm2_gguf, torch.float32), blocks=64, caching=False)
    return [answer.tokens for answer in harness.together(prompts)]


@pytest.fixture(scope="class")
def shared(smollm2_gguf: Path, tokenizer: Tokenizer) -> Iterator[Assembly]:
    """Two ranks whose cache holds few of the prompts at once."""
    config = EngineConfig(
        model=str(smollm2_gguf),
        dtype="float32",
        tensor_parallel_size=2,
        threads=1,
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        kv_cache_memory_bytes=16 * BLOCK_BYTES,
    )
    told: list[tuple[int, int]] = []
    made = assemble(config, tokenizer, NoMetrics(), on_progress=lambda *read: told.append(read))
    assert told[-1][0] == told[-1][1], "all that all ranks read is reported"
    assert made.num_blocks == 16
    assert made.ranks is not None
    processes = [worker.process for worker in made.ranks.team._workers]
    yield made
    made.close()
    assert [process.returncode for process in processes] == [0], "told to end, they do"


class TestSmolLM2:
    """9 query heads and 3 key heads, of which one rank has one and the other two."""

    def test_two_processes_give_the_tokens_of_one(
        self, shared: Assembly, prompts: list[list[int]], wanted: list[list[int]]
    ) -> None:
        """In chunks of 64 and less; the cache is too small for all, and the long prompts begin alike."""
        found = run(shared, prompts)
        assert [request.output_ids for request in found] == wanted
        again = run(shared, prompts)
        assert [request.output_ids for request in again] == wanted
        assert sum(request.num_cached for request in again) > 0
        longer = run(shared, prompts, replace(GREEDY, max_tokens=48))
        assert sum(request.num_preemptions for request in longer) > 0
        assert [request.output_ids[:16] for request in longer] == wanted

    def test_steps_that_overlap_give_the_same(
        self, shared: Assembly, prompts: list[list[int]], wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As between CUDA devices: tokens that rank 0's host does not know yet are spread by the library."""
        monkeypatch.setattr(shared.engine, "_overlap", True)
        assert [request.output_ids for request in run(shared, prompts[:3])] == wanted[:3]

    def test_a_rank_that_is_late_is_named_and_may_still_come(
        self, shared: Assembly, prompts: list[list[int]], wanted: list[list[int]]
    ) -> None:
        assert shared.ranks is not None
        (worker,) = shared.ranks.team._workers
        assert shared.ranks.awaited() == ""
        worker.process.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(run, shared, prompts[:1])
            try:
                until(shared.ranks.awaited, "rank 0 waits")
                assert shared.ranks.awaited() == "; the others wait in an all-reduce for rank 1 of 2, which is late"
            finally:
                worker.process.send_signal(signal.SIGCONT)
            assert answer.result(PATIENCE_SECONDS)[0].output_ids == wanted[0]
        assert shared.ranks.awaited() == ""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return save_model(make_model("llama"), tmp_path)


def assignment(path: Path) -> Assignment:
    return Assignment(
        rank=0,
        config=EngineConfig(model=str(path), tensor_parallel_size=2),
        device="cpu",
        dtype="float32",
        cached="float32",
        backend="torch",
        threads=1,
        log_level=logging.INFO,
    )


def started(path: Path) -> Ranks:
    return Ranks.start(assignment(path), read_spec(str(path)))


@pytest.fixture
def in_vain() -> Iterator[Callable[[], TorchPeers]]:
    """A meeting at which one waits for the others until the test is over."""
    over = threading.Event()

    def wait() -> TorchPeers:
        over.wait()
        raise RuntimeError("nobody came")

    yield wait
    over.set()


def test_what_a_rank_cannot_load_is_rank_0s_error_too(tiny: Path) -> None:
    weights = tiny / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-8])
    ranks = started(tiny)
    try:
        with pytest.raises(CheckpointInvalid, match=r"model.safetensors is damaged"):
            ranks.team.wait_for("loaded")
    finally:
        ranks.close()


def test_a_rank_that_ends_before_it_has_met_the_others_is_not_waited_for(
    tiny: Path, in_vain: Callable[[], TorchPeers]
) -> None:
    """It has answered, and ends on its way to the meeting, at which rank 0 waits by now."""
    board = Board.create(2)
    team = Team.start([replace(assignment(tiny), rank=1, threads=-1)], board)
    try:
        with pytest.raises(EngineDead, match="rank 1 of 2 failed: RuntimeError"):
            meet(team, in_vain)
    finally:
        team.close()
        board.close()


def test_a_meeting_to_which_nobody_comes_has_an_end(in_vain: Callable[[], TorchPeers]) -> None:
    board = Board.create(2)
    team = Team([], board)
    try:
        with pytest.raises(EngineDead, match=r"the ranks did not find each other \(not within 0.1 s\)"):
            meet(team, in_vain, seconds=0.1)
    finally:
        team.close()
        board.close()


def test_a_rank_that_cannot_be_started_leaves_nothing_behind(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(EngineDead, match="rank 1 cannot be started: No such file"):
        started(tiny)
    assert list(scratch.iterdir()) == []


def test_a_rank_shows_where_it_is_and_one_that_fails_says_so_and_ends(
    tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ranks = started(tiny)
    heard: list[str] = []
    seen: list[str] = []

    def waits() -> bool:
        ranks.team.show_stacks()  # again and again: it may have something to do before it waits
        seen.append(capfd.readouterr().err)
        return "in receive" in "".join(seen)

    try:
        ranks.team.on_fault(heard.append)
        ranks.team.wait_for("loaded")
        ranks.allocate(8)
        until(waits, "its stack is in the log: it waits for us in a system call")
        assert "in _work" in "".join(seen)
        ranks.team.say(this="is no step")
        until(lambda: heard, "the fault is told")
        assert heard == ["rank 1 of 2 failed: AssertionError; the log has the cause"]
        with pytest.raises(EngineDead, match="rank 1 of 2 failed"):
            ranks.team.wait_for("ready")
        late: list[str] = []
        ranks.team.on_fault(late.append)
        assert late == heard, "who asks later is told as well"
    finally:
        ranks.close()


def test_a_rank_that_is_killed_while_steps_overlap_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "EXIT_SECONDS", PATIENCE_SECONDS)
    ranks = started(tiny)
    try:
        decoder = load(tiny, torch.float32, ranks.split)
        ranks.loaded(SharedProgress(lambda _done, _total: None, ranks.team))
        ranks.allocate(16)
        harness = Harness(decoder, blocks=16, tell=ranks.team.tell, spread=ranks.peers.spread, overlap=True)
        engine = harness.engine
        engine._runner = LeadingRunner(harness.runner, ranks.team)
        request = harness.submit([3, 4, 5], replace(GREEDY, max_tokens=200))
        while request.num_output < 5:
            engine.step()
        assert ranks.awaited() == ""
        assert replace(ranks, on_devices=True).awaited() == UNSEEN
        ranks.team._workers[0].process.kill()
        with pytest.raises(EngineDead, match=r"rank 1 of 2 was killed \(SIGKILL\)"):
            harness.finish([request])
    finally:
        ranks.close()


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(line) for line in found.split()]


def test_a_rank_that_is_killed_ends_the_server_with_a_reason(smollm2_gguf: Path, tmp_path: Path) -> None:
    message = tmp_path / "termination-log"
    message.touch()
    flags = ("--tensor-parallel-size=2", "--max-model-len=2048", "--max-num-seqs=2", "--served-model-name=m")
    code = (
        "import sys; from pathlib import Path; from octavo_engine import cli, termination;"
        f"from octavo_engine.parallel import team; team.EXIT_SECONDS = {PATIENCE_SECONDS};"
        f"termination.TERMINATION_LOG = Path({str(message)!r});"
        f"sys.exit(cli.main(['serve', {str(smollm2_gguf)!r}, *{(*PORTS, *flags)!r}]))"
    )
    with launch("-c", code) as server:
        server.until(lambda: " serving " in server.output, "it serves")
        assert "2 ranks do not divide this model evenly" in server.output
        (worker,) = children(server.process.pid)
        body = {"model": "m", "prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "stream": True}
        text: list[str] = []

        def read() -> None:
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE_SECONDS) as reply:
                text.extend(reply.iter_text())

        reader = threading.Thread(target=read)
        reader.start()
        until(lambda: len(text) > 3, "tokens come")
        os.kill(worker, signal.SIGKILL)
        assert server.exit_code() == 1
        reader.join(PATIENCE_SECONDS)
        assert "engine_stopped" in text[-1]
        assert message.read_text().startswith("EngineDead: ")
        assert "rank 1 of 2 was killed (SIGKILL)" in message.read_text()
        assert "EngineDead: rank 1 of 2 was killed (SIGKILL)" in server.output
        until(lambda: not Path(f"/proc/{worker}").exists(), "no process is left")
