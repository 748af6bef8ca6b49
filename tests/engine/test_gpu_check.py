"""What hack/gpu-check makes of what it measures: shares, a table, one JSON, a picture; and that all of it runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from gpu_check import kernel_tests, picture, text
from gpu_check.loads import FULL_PLAN, TINY_PLAN, Load, fitted
from gpu_check.results import OCTAVO, TRANSFORMERS, Missed, Report, Shares, Suite, Timing, Tokens, shares
from octavo_engine.engine import Engine, Output
from octavo_engine.errors import InsufficientMemory
from octavo_engine.roofline import Machine, ModelCost
from patience import PATIENCE_SECONDS

pytestmark = pytest.mark.engine
ROOT, CPU = Path(__file__).parents[2], torch.device("cpu")
GB, TERA = 10**9, 1e12
MACHINE = Machine(name="GPU", bandwidth=1000 * GB, flops=50 * TERA)
COST = ModelCost(
    step_bytes=9 * GB,
    head_bytes=1 * GB,
    row_bytes=0,
    token_flops=10 * GB,
    head_flops=0,
    layer_kv_bytes=1000,
    pair_flops=0,
    windows=((None, 10),),
)
ONE, MANY = Load(1, 100, 10), Load(50, 100, 10)


def report(*speed: Timing | Missed, failed: int = 0, equal: int = 8) -> Report:
    tests = Suite(20 - failed, failed, 2, 12.5, ("tests.gpu::broken",) * failed)
    facts = {"device": "GPU", "torch": "2"}
    sizes = {"num_hidden_layers": 10, "hidden_size": 64}
    return Report(MACHINE, facts, sizes, COST, tests, Tokens(8, equal), speed, 61.0)


OURS = Timing(OCTAVO, ONE, prefill_seconds=0.1, decode_seconds=0.2)
THEIRS = Timing(TRANSFORMERS, ONE, prefill_seconds=0.1, decode_seconds=0.5)


def test_a_step_at_the_limit_has_all_of_it() -> None:
    least = COST.decode([ONE.context])
    at_best = replace(OURS, decode_seconds=10 * least.bytes / MACHINE.bandwidth)
    assert shares(at_best, COST, MACHINE).bandwidth == pytest.approx(1)
    assert at_best.tokens_per_second == pytest.approx(report(at_best).best(ONE))


def test_shares_are_of_what_a_load_needs() -> None:
    found = shares(OURS, COST, MACHINE)  # a step of 20 ms; 10 GB and 105 tokens of K and V; 100 tokens in 0.1 s
    expected = Shares(bandwidth=(10 + 105e-5) / 0.02 / 1000, flops=10 / 0.02 / 5e4, prefill_flops=1000 / 0.1 / 5e4)
    for name in ("bandwidth", "flops", "prefill_flops"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-4)


def test_the_lead_is_a_ratio_of_tokens_a_second() -> None:
    full = report(THEIRS, OURS)
    assert full.lead(ONE) == pytest.approx(2.5)
    assert full.lead(MANY) is None
    assert report(OURS, Missed(TRANSFORMERS, ONE, "out of memory")).lead(ONE) is None


@pytest.mark.parametrize(
    ("changes", "right"), [({}, True), ({"failed": 1}, False), ({"equal": 7}, False), ({"equal": 0}, False)], ids=str
)
def test_right_is_what_computes_right(changes: dict[str, int], right: bool) -> None:
    assert report(OURS, **changes).right is right


def test_a_load_that_does_not_fit_is_no_fault_and_one_that_fails_is() -> None:
    assert report(OURS, Missed(OCTAVO, MANY, "out of memory")).right
    assert not report(OURS, Missed(OCTAVO, MANY, "RuntimeError: no", faulty=True)).right
    assert not replace(report(OURS), tokens=Tokens(0, 0, fault="RuntimeError: no")).right
    said = text.text(replace(report(OURS), tokens=Tokens(0, 0, fault="RuntimeError: no")))
    assert "greedy tokens in float32: RuntimeError: no" in said


def test_the_document_is_json_and_says_what_is_missing() -> None:
    found = json.loads(json.dumps(report(THEIRS, OURS, Missed(OCTAVO, MANY, "no time left")).document()))
    theirs, ours, missed = found["speed"]
    assert (ours["batch"], ours["over_transformers"], theirs["over_transformers"]) == (1, 2.5, None)
    assert ours["shares"]["bandwidth"] == pytest.approx(0.5, abs=0.01)
    assert missed == {"contender": OCTAVO, "batch": 50, "prompt": 100, "steps": 10, "missed": "no time left"}
    assert found["machine"]["bandwidth"] == MACHINE.bandwidth


def test_the_table_has_a_row_for_each() -> None:
    found = text.text(report(THEIRS, OURS, Missed(OCTAVO, MANY, "out of memory"), failed=1)).splitlines()
    assert "  tests.gpu::broken" in found
    assert "| 1 | octavo | 50 | 50% | 20.00 | 50% | 1% | 20% | 2.50x |" in found
    assert "| 50 | octavo | out of memory | | | | | | |" in found


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_picture_shows_what_there_is(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"found.{kind}"
    picture.draw(report(THEIRS, OURS, Missed(OCTAVO, MANY, "out of memory")), file)
    if kind == "png":
        assert file.read_bytes().startswith(b"\x89PNG")
        return
    ElementTree.parse(file)  # noqa: S314 (it is our own)
    assert all(word in file.read_text("utf-8") for word in ("octavo", "transformers", "memory, decoding", "at best"))


def test_a_smaller_device_gets_fewer_layers() -> None:
    layers = [fitted(FULL_PLAN, memory * GB).sizes["num_hidden_layers"] for memory in (141, 80, 48, 24, 4)]
    assert layers == [32, 32, 21, 10, 4]
    assert fitted(TINY_PLAN, GB).sizes["num_hidden_layers"] == 2


def test_each_prompt_is_another_one() -> None:
    prompts = Load(3, 20, 4).prompts(1000)
    assert [len(prompt) for prompt in prompts] == [20] * 3
    assert len({tuple(prompt) for prompt in prompts}) == 3
    assert prompts == Load(3, 20, 4).prompts(1000)


def test_what_pytest_says_is_counted() -> None:
    found = kernel_tests.counted(
        '<testsuites><testsuite><testcase classname="a" name="x" time="1.5"/>'
        '<testcase classname="a" name="y" time="1"><failure message="no"/></testcase>'
        '<testcase classname="a" name="z" time="0"><error message="no"/></testcase>'
        '<testcase classname="a" name="w" time="0"><skipped message="no"/></testcase></testsuite></testsuites>'
    )
    assert found == Suite(1, 2, 1, 2.5, ("a::y", "a::z"))


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "hack/gpu-check"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=os.environ
    )


def test_all_of_it_runs_on_a_processor(tmp_path: Path) -> None:
    document, drawn = tmp_path / "found.json", tmp_path / "found.svg"
    done = program("--device", "cpu", "--tiny", "--json", str(document), "--picture", str(drawn))
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(document.read_text("utf-8"))
    assert found["tokens"] == {"compared": 16, "equal": 16, "fault": ""}
    assert {(each["contender"], each["batch"]) for each in found["speed"]} == {
        (contender, load.batch) for contender in (OCTAVO, TRANSFORMERS) for load in TINY_PLAN.loads
    }
    assert all(each["tokens_per_second"] > 0 and each["shares"]["bandwidth"] > 0 for each in found["speed"])
    assert found["tests"]["failed"] == 0
    assert found["complete"]
    assert drawn.exists()


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    done = program()
    assert (done.returncode, done.stdout) == (0, "gpu-check: there is no CUDA device here, so nothing was checked\n")


class Told:
    """An engine, and a clock on which each step takes a second that tells tokens: until then they were computed."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.seconds = engine, 0.0

    def step(self) -> list[Output]:
        outputs = self.engine.step()
        self.seconds += bool(outputs)
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@pytest.mark.parametrize("load", TINY_PLAN.loads, ids=str)
def test_prompts_are_computed_until_their_tokens_are_told(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are launched ahead of the device: what is launched has taken no time yet."""
    from gpu_check import check, octavo

    spec = check.spec_of(TINY_PLAN, check.DTYPE)
    running = octavo.Running(octavo.random_decoder(spec, check.DTYPE, torch.device("cpu")), load)
    told = Told(running._engine)
    monkeypatch.setattr(running, "_engine", told)
    monkeypatch.setattr(octavo.time, "perf_counter", lambda: told.seconds)
    assert running.seconds() == (1.0, load.steps)


def fails_at(batch: int, error: Exception) -> Callable[[Load], Timing]:
    def run(load: Load) -> Timing:
        if load.batch == batch:
            raise error
        return replace(OURS, load=load)

    return run


@pytest.mark.parametrize(
    ("error", "reason", "faulty"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory", False),
        (InsufficientMemory("the device does not give 20 GiB"), "out of memory", False),
        (
            RuntimeError("CUDA error: an illegal memory access\nmore"),
            "RuntimeError: CUDA error: an illegal memory",
            True,
        ),
    ],
    ids=str,
)
def test_what_fails_is_said_and_the_others_are_measured(error: Exception, reason: str, faulty: bool) -> None:
    from gpu_check import check

    found = list(check.timed(OCTAVO, (ONE, MANY), CPU, check.Clock(60), lambda: fails_at(ONE.batch, error)))
    assert isinstance(found[0], Missed)
    assert found[0].reason.startswith(reason)
    assert (found[0].faulty, found[0].load) == (faulty, ONE)
    assert found[1] == replace(OURS, load=MANY)
    late = check.timed(OCTAVO, (ONE,), CPU, check.Clock(-1), lambda: fails_at(0, error))
    assert list(late) == [Missed(OCTAVO, ONE, "no time left")]


def test_tests_for_which_there_is_no_time_count_and_those_that_were_done_are_kept(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(
        "import time, pytest\n@pytest.mark.parametrize('number', range(30))\ndef test_slow(number): time.sleep(0.2)\n"
    )
    found = kernel_tests.run(str(tmp_path), 0, 2.0)
    assert 1 <= found.passed < 30
    assert found.failed == 1
    assert "all that were done in 2 s" in found.failures[-1]


def test_tests_that_hang_are_ended_with_all_that_they_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "pid"
    assert kernel_tests.finished(["bash", "-c", f"sleep 3600 & echo $! > {place}; wait"], 8.0) is None
    state = Path(f"/proc/{int(place.read_text())}/stat")  # of a process that nobody has buried yet, it is Z
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    monkeypatch.setattr(kernel_tests, "finished", lambda _command, _seconds: None)
    found = kernel_tests.run("tests/gpu", 0, 9.0)
    assert (found.passed, found.failed, found.failures) == (0, 1, ("tests/gpu hangs: ended after 9 s",))


def test_where_no_test_is_found_something_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").touch()
    found = kernel_tests.run(str(tmp_path), 0, 120.0)
    assert (found.passed, found.failed, found.skipped) == (0, 1, 0)
    assert "no tests ran" in " ".join(found.failures)
