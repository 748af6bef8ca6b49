"""A step thread that is killed, frozen or deadlocked: seen in time, explained, and the end of the process.

The server is the real one, in a process of its own with short limits; only its model fails on demand.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

import faulty_server
from octavo_engine import termination
from octavo_engine.pulse import Beat, Phase, place_of
from octavo_engine.runtime.identity import identity_of
from octavo_engine.server.watchdog import Limits, Watch
from patience import PATIENCE_SECONDS
from serving_process import PORTS, ServingProcess, launch

pytestmark = pytest.mark.engine

DECODE, PREFILL = 2.0, 8.0
"""Seconds: a step thread that others keep from the processor for longer would be taken for a lost one."""
LIMITS = tuple(
    f"--stuck-{phase}-seconds={limit}"
    for phase, limit in (("decode", DECODE), ("prefill", PREFILL), ("warm-up", PATIENCE_SECONDS))
)


class Faulty:
    """The server, what it leaves for the kubelet, and one client of it."""

    def __init__(self, gguf: Path, folder: Path) -> None:
        self.message, self.gate = folder / "termination-log", folder / "gate"
        self.message.touch()
        script = faulty_server.__file__
        folders = os.pathsep.join(str(Path(script).parents[2] / name) for name in ("engine", "tests/support"))
        flags = (*PORTS, "--served-model-name=scripted", "--max-num-seqs=2", *LIMITS)
        self.server: ServingProcess = launch(
            script,
            str(gguf),
            str(self.message),
            str(self.gate),
            *flags,
            environment=os.environ | {"PYTHONPATH": folders},
        )

    def serving(self) -> None:
        self.gate.touch()
        self.server.until(lambda: " serving " in self.server.output, "it serves")

    def ask(self, first_token: int, **extra: Any) -> list[str]:
        """The events of a stream that asks for a fault."""
        body = {"model": "scripted", "prompt": [first_token, 1], "stream": True, "max_tokens": 4} | extra
        with suppress(httpx.TransportError):
            reply = httpx.post(f"{self.server.url}/v1/completions", json=body, timeout=PATIENCE_SECONDS)
            return [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
        return []

    def live(self) -> int:
        """The status of /livez; 0 when there is nobody any more."""
        with suppress(httpx.TransportError):
            return self.server.management("/livez").status_code
        return 0


@pytest.fixture
def faulty(smollm2_gguf: Path, tmp_path: Path) -> Iterator[Faulty]:
    made = Faulty(smollm2_gguf, tmp_path)
    with made.server:
        yield made


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


def test_it_is_ready_after_a_real_token_and_alive_through_all_that_only_takes_time(faulty: Faulty) -> None:
    server = faulty.server
    server.until(lambda: "management on" in server.output, "the management port is open")
    server.until(lambda: server.management("/readyz").text == "warming", "it warms up")
    assert (server.management("/readyz").status_code, faulty.live()) == (503, 200)
    assert " serving " not in server.output
    assert "an errand" not in server.output
    faulty.serving()
    assert server.management("/readyz").status_code == 200
    server.until(lambda: "an errand, nobody waits: True" in server.output, "the step thread has done its errand")

    # A prompt that takes longer than a decode may, with a queue behind it; then a process that did not run at all.
    asked = [threading.Thread(target=faulty.ask, args=(faulty_server.SLOW_PREFILL,)) for _ in range(4)]
    for thread in asked:
        thread.start()
    while any(thread.is_alive() for thread in asked):
        assert faulty.live() == 200
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(2 * DECODE)
    server.process.send_signal(signal.SIGCONT)
    assert faulty.ask(1)[-1] == "[DONE]"
    assert faulty.live() == 200

    events: list[str] = []
    stuck = threading.Thread(target=lambda: events.extend(faulty.ask(faulty_server.FREEZE)))
    stuck.start()
    until(lambda: faulty.live() != 200, "liveness fails")
    stuck.join(PATIENCE_SECONDS)
    assert json.loads(events[-1])["error"]["code"] == "engine_stopped"
    assert_left(faulty, "in a decode step of 1 sequence of up to 3 tokens; ", "faulty_server.py")


def test_a_lock_that_is_never_given_back_is_noticed_without_taking_it(faulty: Faulty) -> None:
    faulty.serving()
    threading.Thread(target=faulty.ask, args=(faulty_server.DEADLOCK,), daemon=True).start()
    until(lambda: faulty.live() != 200, "liveness fails")
    assert_left(faulty, "between two steps", "async_engine.py")


def test_a_device_that_never_ends_a_step_is_named(faulty: Faulty) -> None:
    """As the words of the pod's last state, of /livez until the end, and of the log."""
    faulty.serving()
    told: list[str] = []

    def alive() -> bool:
        with suppress(httpx.TransportError):
            reply = faulty.server.management("/livez")
            told.append(reply.text)
            return reply.status_code == 200
        return False

    threading.Thread(target=faulty.ask, args=(faulty_server.HANG_DEVICE,), daemon=True).start()
    until(lambda: not alive(), "liveness fails")
    assert faulty.server.exit_code() == 1
    message = faulty.message.read_text().strip()
    assert re.fullmatch(
        r"EngineStuck: the device hangs: a decode step of 1 sequence of up to 3 tokens was launched, and has not ended"
        rf" for \d\.\d s; the limit is {DECODE:g} s; at Engine\._wait \(engine\.py:\d+\)"
        rf"; {re.escape(faulty_server.GPU)}",
        message,
    )
    assert message in faulty.server.output
    assert told[-1] == message.removeprefix("EngineStuck: ")


def assert_left(faulty: Faulty, where: str, frame: str) -> None:
    """The process has ended itself, with its stacks in the log and words for the kubelet."""
    assert faulty.server.exit_code() == 1
    message = faulty.message.read_text()
    assert message.startswith("EngineStuck: the step thread has not moved for ")
    assert where in message
    output = faulty.server.output
    assert message.strip() in output
    assert "Current thread" in output
    assert frame in output.split("EngineStuck: ")[1]


def test_a_step_thread_that_dies_ends_the_process_at_once(faulty: Faulty) -> None:
    faulty.serving()
    assert json.loads(faulty.ask(faulty_server.DIE)[-1])["error"]["code"] == "engine_stopped"
    assert faulty.server.exit_code() == 1
    assert faulty.message.read_text() == "EngineDead: the step loop has ended: SystemExit\n"


def test_steps_that_fail_three_times_in_a_row_end_the_process_and_fewer_do_not(faulty: Faulty) -> None:
    faulty.serving()
    for _ in range(2):
        assert json.loads(faulty.ask(faulty_server.FAIL)[-1])["error"]["code"] == "internal_error"
    assert faulty.live() == 200
    assert faulty.ask(1)[-1] == "[DONE]"
    codes = [json.loads(faulty.ask(faulty_server.FAIL)[-1])["error"]["code"] for _ in range(3)]
    assert codes == ["internal_error", "internal_error", "engine_stopped"]
    assert faulty.server.exit_code() == 1
    word = "EngineDead: the step loop has ended: the engine's steps fail again and again\n"
    assert faulty.message.read_text() == word


def test_even_a_python_that_hangs_as_a_whole_ends_with_its_stacks(faulty: Faulty) -> None:
    faulty.serving()
    faulty.ask(faulty_server.HANG_PYTHON)
    assert faulty.server.exit_code() == 1
    assert "most recent call first" in faulty.server.output
    assert "faulty_server.py" in faulty.server.output


def test_a_signal_during_the_first_token_ends_it_at_once(faulty: Faulty) -> None:
    server = faulty.server
    server.until(lambda: "management on" in server.output, "the management port is open")
    server.until(lambda: server.management("/readyz").text == "warming", "it warms up")
    server.process.send_signal(signal.SIGTERM)
    assert server.exit_code() == 0
    assert faulty.message.read_text() == ""


LIMIT = Limits(decode=1, prefill=2, warm_up=3)


@pytest.mark.parametrize(
    ("beat", "words"),
    [
        (Beat(Phase.IDLE), "the step thread has not moved for 9.0 s between two steps; the limit is 1 s"),
        (Beat(Phase.WARM_UP, "a graph"), "has not moved for 9.0 s in a graph, the first of its kind; the limit is 3 s"),
        (Beat(Phase.DECODE, "a step", True), "the device hangs: a step was launched, and has not ended for 9.0 s; the"),
    ],
    ids=str,
)
def test_a_fault_says_in_which_work_and_whether_it_is_the_devices(beat: Beat, words: str) -> None:
    watch = Watch(LIMIT)
    watch.look(beat, 1.0)
    assert words in (watch.look(beat, 9.0) or "")


def test_a_place_is_the_innermost_of_our_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = threading.Event()
    waits = SimpleNamespace(exists=lambda: not gone.wait(PATIENCE_SECONDS))
    monkeypatch.setattr(termination, "TERMINATION_LOG", waits)
    assert place_of(None) == place_of(-1) == ""
    thread = threading.Thread(target=termination.leave_text, args=("a word",))
    thread.start()
    try:
        until(lambda: place_of(thread.ident), "the thread is in our code")
        assert re.fullmatch(r"leave_text \(termination\.py:\d+\)", place_of(thread.ident))
    finally:
        gone.set()
        thread.join()


def test_a_gpu_has_the_name_that_the_drivers_tools_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="NVIDIA H200", uuid="5c1e")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: found)
    assert identity_of(torch.device("cuda")) == "NVIDIA H200 (cuda:0, GPU-5c1e)"
    assert identity_of(torch.device("cuda", 3)) == "NVIDIA H200 (cuda:3, GPU-5c1e)"
    assert identity_of(torch.device("cpu")) == "cpu"


@pytest.mark.parametrize(
    ("phase", "limit"), [(Phase.IDLE, 30), (Phase.DECODE, 30), (Phase.PREFILL, 120), (Phase.WARM_UP, 600)]
)
def test_each_phase_has_its_limit(phase: Phase, limit: int) -> None:
    watch, beat = Watch(Limits(decode=30, prefill=120, warm_up=600)), Beat(phase)
    assert watch.look(beat, 1e6) is None, "a new beat is a sign of life, however late it is seen"
    assert [watch.look(beat, 1.0) for _ in range(limit)] == [None] * limit
    assert f"{limit + 1}.0 s" in (watch.look(beat, 1.0) or "")
    assert watch.look(Beat(phase), 1.0) is None
