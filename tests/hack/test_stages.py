"""The stages of `make test`: what begins when, that all of it ends, and what is told at the end."""

from __future__ import annotations

import itertools
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stages import cli, order, running, telling
from stages.order import State
from stages.plan import STAGES, Stage
from stages.running import Outcome, Run

EVERY = list(STAGES.values())


def shell(name: str, script: str, *after: str, gives_way: bool = False, undo: tuple[str, ...] = ()) -> Stage:
    return Stage(name, ("sh", "-c", script), after, gives_way=gives_way, tests=False, undo=undo)


def states(**known: State) -> dict[str, State]:
    return {stage.name: known.get(stage.name, State.WAITING) for stage in EVERY}


def names(stages: list[Stage]) -> list[str]:
    return [stage.name for stage in stages]


def test_what_is_short_comes_first_and_the_engines_run_beside_what_waits_for_pods() -> None:
    assert names(order.to_begin(EVERY, states())) == ["pure"]
    begun = states(pure=State.PASSED)
    assert names(order.to_begin(EVERY, begun)) == ["node", "engine"]
    begun = states(node=State.PASSED, pure=State.PASSED, engine=State.RUNNING)
    assert names(order.to_begin(EVERY, begun)) == ["cluster"]


@pytest.mark.parametrize("done", list(itertools.product([State.RUNNING, State.PASSED], repeat=2)))
def test_what_wants_the_processors_waits_for_both(done: tuple[State, State]) -> None:
    begun = states(node=State.PASSED, pure=State.PASSED, cluster=done[0], engine=done[1])
    assert names(order.to_begin(EVERY, begun)) == (["heavy"] if set(done) == {State.PASSED} else [])


def test_after_a_failure_nothing_begins() -> None:
    assert order.to_begin(EVERY, states(pure=State.FAILED, node=State.PASSED)) == []


def test_a_part_of_them_waits_for_nobody_who_does_not_run() -> None:
    assert order.to_begin([STAGES["engine"]], {"engine": State.WAITING}) == [STAGES["engine"]]
    assert not order.gives_way(STAGES["engine"], [STAGES["engine"]])
    assert order.gives_way(STAGES["engine"], EVERY)
    assert not order.gives_way(STAGES["cluster"], EVERY)


def test_every_test_is_in_a_stage() -> None:
    """Each folder is named by one, and what is marked in `tests/cluster` is somebody's, `soak` aside."""
    words = [word for stage in EVERY if stage.tests for word in stage.command]
    folders = [word for word in words if word.startswith("tests/") and words[words.index(word) - 1] != "--ignore"]
    tests = Path(__file__).parents[1]
    holding = {path.relative_to(tests).parts[0] for path in tests.rglob("test_*.py")}
    assert {word.split("/")[1] for word in folders} == holding
    marks = [word for word in words if "soak" in word]
    assert marks == ["not soak and not alone and not heavy", "heavy and not soak", "alone and not soak"]


def test_they_run_side_by_side_and_one_after_the_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two that each wait for what the other writes can only end together."""
    one, other = tmp_path / "one", tmp_path / "other"
    meet = "touch {0}; until [ -e {1} ]; do sleep 0.01; done; echo met"
    stages = [
        shell("one", meet.format(one, other)),
        shell("other", meet.format(other, one), gives_way=True),
        shell("last", f"nice; ls {tmp_path}; rm {one}", "one", "other"),
    ]
    run = Run(stages, tmp_path)
    assert run.go()
    assert not one.exists()
    said = capfd.readouterr().out.splitlines()
    assert {"one   | met", "other | met", "last  | other", "last  | begins"} <= set(said)


def test_one_that_gives_way_is_nicer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert Run([shell("busy", "nice"), shell("kind", "nice", gives_way=True)], tmp_path).go()
    niceness = dict(re.findall(r"(\w+) [|] (\d+)\n", capfd.readouterr().out))
    assert int(niceness["kind"]) == min(int(niceness["busy"]) + 5, 19)


def test_a_failure_lets_the_others_end_and_begins_nothing(tmp_path: Path) -> None:
    failed = tmp_path / "failed"
    stages = [
        shell("bad", f"touch {failed}; exit 3"),
        shell("good", f"until [ -e {failed} ]; do sleep 0.01; done"),
        shell("never", "true", "bad", "good"),
    ]
    run = Run(stages, tmp_path)
    assert not run.go()
    assert [outcome.state for outcome in run.outcomes()] == [State.FAILED, State.PASSED, State.WAITING]


def test_what_was_made_is_undone_even_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made"
    run = Run([shell("make", f"touch {made}; sleep 600", undo=("rm", str(made)))], tmp_path)

    def interrupted() -> Outcome:
        while not made.exists():
            time.sleep(0.01)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(run._ended, "get", interrupted)
    with pytest.raises(KeyboardInterrupt), running.undoing(run, there=False):
        run.go()
    assert run.outcomes()[0].state is State.FAILED, "it was ended before anything was taken from under it"
    assert not made.exists()


@pytest.mark.parametrize(("script", "looked_at"), [("true", False), ("false", True)])
def test_what_was_there_before_stays_and_is_looked_at_after_a_failure(
    tmp_path: Path, script: str, looked_at: bool
) -> None:
    made, seen = tmp_path / "made", tmp_path / "seen"
    made.touch()
    stage = shell("make", script, undo=("rm", str(made)))
    run = Run([replace(stage, look=("touch", str(seen)))], tmp_path)
    with running.undoing(run, there=True):
        assert run.go() is not looked_at
    assert made.exists()
    assert seen.exists() is looked_at


TESTS = """
import pytest, time
def test_passes(): pass
@pytest.mark.parametrize("n", [1, 2])
def test_skipped(n): pytest.skip("no device")
def test_fails(): assert 0
"""


def test_the_summary_says_where_time_went_what_was_skipped_and_what_failed(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    alone = ("-p", "no:cacheprovider", "-c", "/dev/null", f"--rootdir={tmp_path}", "-q")
    stage = Stage("some", (sys.executable, "-m", "pytest", *alone, str(tmp_path)))
    run = Run([stage], tmp_path)
    assert not run.go()
    (outcome,) = run.outcomes()
    assert outcome.processor_seconds > 0
    lines = telling.summary([outcome, Outcome(shell("later", "true"), State.WAITING)], 61.4).splitlines()
    assert lines[0].split() == ["stage", "seconds", "processor", "passed", "skipped", "failed"]
    assert lines[1].split()[0:2] + lines[1].split()[-3:] == ["some", "failed", "1", "2", "1"]
    assert lines[2].split() == ["later", "not", "begun", "0", "0", "0", "0", "0"]
    assert lines[3].split()[:3] == ["all", "failed", "61"]
    assert "skipped in some: 2 x no device" in lines
    assert "failed in some: test_some.test_fails" in lines


AGAIN = """
import pathlib
MARK = pathlib.Path(__file__).with_name("mark")
def test_passes(): MARK.with_name("ran").open("a").write("x")
def test_unsteady():
    first = not MARK.exists()
    MARK.touch()
    assert not first
"""
BROKEN = "def test_broken(): assert 0\n"


def again(folder: Path, content: str, *more: str) -> Stage:
    (folder / "test_some.py").write_text(content)
    alone = ("-c", "/dev/null", f"--rootdir={folder}", "-q", *more)
    return Stage("some", (sys.executable, "-m", "pytest", *alone, str(folder)))


def test_what_fails_only_beside_others_is_run_again_when_nothing_runs_and_told(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    meanwhile = shell("meanwhile", f"until [ -e {tmp_path}/mark ]; do sleep 0.01; done; sleep 1; touch {seen}")
    last = shell("last", f"[ -e {seen} ]", "some")
    run = Run([again(tmp_path, AGAIN, "-n", "1"), meanwhile, last], tmp_path)
    assert run.go()
    assert (tmp_path / "ran").read_text() == "x", "what had passed is not run again"
    lines = telling.summary(run.outcomes(), 1.0).splitlines()
    assert lines[1].split()[0:2] + lines[1].split()[-3:] == ["some", "passed", "2", "0", "0"]
    assert "unsteady in some: test_some.test_unsteady failed beside others and passed by itself: mend it" in lines


def test_what_is_broken_is_so_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = Run([again(tmp_path, AGAIN + BROKEN, "-p", "no:xdist"), shell("never", "true", "some")], tmp_path)
    assert not run.go()
    assert [outcome.state for outcome in run.outcomes()] == [State.FAILED, State.WAITING]
    lines = telling.summary(run.outcomes(), 1.0).splitlines()
    assert "failed in some: test_some.test_broken" in lines
    assert any(line.startswith("unsteady in some: test_some.test_unsteady") for line in lines)
    assert "some  | in doubt after" in capfd.readouterr().out


def test_only_a_few_failures_of_tests_that_all_ran_are_doubted_and_once() -> None:
    assert State.after(0, 0, again=False) is State.PASSED
    assert State.after(1, 3, again=False) is State.DOUBTED
    assert State.after(1, 3, again=True) is State.FAILED
    assert State.after(1, 4, again=False) is State.FAILED
    assert State.after(1, 0, again=False) is State.FAILED, "no test failed: something else did"
    for interrupted in (2, 3, 4, 5, -9):
        assert State.after(interrupted, 1, again=False) is State.FAILED
    assert State.after(0, 1, again=True) is State.FAILED, "it was not run again"


def test_nothing_begins_while_a_stage_is_in_doubt_and_it_waits_for_those_that_run() -> None:
    doubted = states(pure=State.PASSED, node=State.PASSED, cluster=State.DOUBTED, engine=State.RUNNING)
    assert order.to_begin(EVERY, doubted) == []
    assert names(order.to_begin(EVERY, doubted | {"engine": State.PASSED})) == ["cluster"]
    both = doubted | {"engine": State.DOUBTED}
    assert names(order.to_begin(EVERY, both)) == ["cluster"], "one after the other"


def test_an_unknown_stage_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pure", "unheard"]) == 2
    assert capsys.readouterr().err.startswith("no stage unheard; there are pure, node, cluster, ")


def test_an_interruption_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def go(_: Run) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "go", go)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert cli.main(["pure"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "pure      not begun" in capsys.readouterr().out
