"""How the process starts, fails to start, and ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import held_server
import late_server
import starts_in_turn
from free_ports import free_port
from octavo_engine import cli, termination
from patience import PATIENCE_SECONDS
from serving_process import DEADLINE_SECONDS, PORTS, ServingProcess, launch, serving_process, start

pytestmark = pytest.mark.engine

SMALL = ("--served-model-name=smollm2", "--kv-cache-memory-bytes=200000000", "--max-num-seqs=2")
SHORT = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 2}
ENDLESS = {"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 5000, "ignore_eos": True, "stream": True}
PATIENT = f"--drain-seconds={PATIENCE_SECONDS:g}"


class Reader:
    """A client that reads a stream in the background."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self.text = ""
        self._thread = threading.Thread(target=self._read, args=(url, body), daemon=True)
        self._thread.start()

    def _read(self, url: str, body: dict[str, Any]) -> None:
        with (
            suppress(httpx.RemoteProtocolError),  # a server that is killed ends in the middle
            httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=DEADLINE_SECONDS) as reply,
        ):
            for piece in reply.iter_text():
                self.text += piece

    def last_event(self) -> str:
        self._thread.join(DEADLINE_SECONDS)
        return [line for line in self.text.split("\n\n") if line][-1].removeprefix("data: ")


@pytest.fixture
def server(smollm2_gguf: Path, request: pytest.FixtureRequest) -> Iterator[ServingProcess]:
    with serving_process(smollm2_gguf, *SMALL, *getattr(request, "param", ())) as server:
        yield server


def test_running_streams_finish_and_new_work_is_sent_elsewhere(smollm2_gguf: Path, tmp_path: Path) -> None:
    """Its first step stands still until all has been looked at: else the stream might be over before."""
    hold, stuck = tmp_path / "hold", [f"--stuck-{kind}-seconds={PATIENCE_SECONDS:g}" for kind in ("decode", "prefill")]
    command = (held_server.__file__, str(hold), str(smollm2_gguf), *PORTS, *SMALL, PATIENT, *stuck)
    with launch(*command) as server:
        server.until(lambda: " serving " in server.output, "it serves")
        hold.touch()
        reader = Reader(server.url, ENDLESS | {"max_tokens": 20})
        server.until(lambda: server.load()["running"], "the stream has begun")
        server.process.send_signal(signal.SIGTERM)
        server.until(lambda: server.management("/readyz").status_code == 503, "not ready any more")
        assert server.management("/livez").status_code == 200
        assert server.load()["state"] == "draining"
        refused = ask(server, ENDLESS)
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        assert int(refused.headers["retry-after"]) >= 1
        hold.unlink()
        assert reader.last_event() == "[DONE]"
        assert server.exit_code() == 0


def ask(server: ServingProcess, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=DEADLINE_SECONDS)


@pytest.mark.parametrize("server", [("--drain-seconds=1",)], indirect=True)
def test_a_stream_longer_than_the_drain_is_told_so(server: ServingProcess) -> None:
    reader = Reader(server.url, ENDLESS)
    server.until(lambda: "data:" in reader.text, "the stream has begun")
    server.process.send_signal(signal.SIGTERM)
    assert json.loads(reader.last_event())["error"]["code"] == "interrupted"
    assert server.exit_code() == 0


def test_an_idle_server_ends_at_once_and_a_killed_one_leaves_nothing_in_the_way_of_the_next(smollm2_gguf: Path) -> None:
    ports = (f"--port={free_port()}", f"--management-port={free_port()}")
    with serving_process(smollm2_gguf, *SMALL, *ports) as first:
        first.process.kill()
        first.exit_code()
    patient = f"--drain-seconds={10 * PATIENCE_SECONDS:.0f}"
    with serving_process(smollm2_gguf, *SMALL, *ports, patient) as second:
        assert ask(second, SHORT).status_code == 200
        second.process.send_signal(signal.SIGTERM)
        assert second.exit_code() == 0  # long before: nothing was there to wait for
        assert "Traceback" not in second.output


def test_a_throttled_processor_with_a_full_queue_of_long_prompts_is_slow_and_alive(smollm2_gguf: Path) -> None:
    """A fifth of a processor, as a CPU limit gives it: run for 20 ms, stand still for 80."""
    flags = ("--max-waiting-requests=6",)  # with the patience that a watchdog has unless told otherwise
    body = {"model": "smollm2", "prompt": list(range(3000, 4500)), "max_tokens": 2}
    with serving_process(smollm2_gguf, *SMALL, *flags) as server, ThreadPoolExecutor(8) as clients:
        with throttled(server.process):
            replies = [clients.submit(ask, server, body) for _ in range(8)]
            server.until(lambda: sum(server.load()["waiting"].values()) > 3, "its queue is full")
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline:
                assert server.management("/livez").status_code == 200
        statuses = [reply.result(PATIENCE_SECONDS).status_code for reply in replies]
        assert 200 in statuses
        assert set(statuses) <= {200, 429}


@contextmanager
def throttled(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """The process runs one fifth of the time while the block does."""
    over = threading.Event()

    def throttle() -> None:
        while not over.wait(0.02):
            process.send_signal(signal.SIGSTOP)
            over.wait(0.08)
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("server", [(PATIENT,)], indirect=True)
def test_a_second_signal_ends_it_at_once(server: ServingProcess) -> None:
    reader = Reader(server.url, ENDLESS)
    server.until(lambda: "data:" in reader.text, "the stream has begun")
    server.process.send_signal(signal.SIGTERM)
    server.until(lambda: "draining" in server.output, "it drains")
    server.process.send_signal(signal.SIGTERM)
    assert server.exit_code() == 1


def test_probes_answer_while_it_loads_and_a_signal_ends_it(smollm2_gguf: Path, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with launch(late_server.__file__, str(hold), str(smollm2_gguf), *PORTS, *SMALL) as server:
        server.until(lambda: re.search(r"management on http", server.output), "the management port is open")
        assert server.management("/readyz").text == "starting"
        assert server.management("/livez").status_code == 200
        hold.unlink()
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_code() == 0


REFUSED = (
    ("/nonexistent/model", (), "ModelNotFound"),
    ("{gguf}", ("--kv-cache-memory-bytes=1000",), "InsufficientMemory"),
    ("{gguf}", ("--kv-cache-memory-bytes=9000000000000", "--max-num-seqs=4096"), "InsufficientMemory"),
    ("{gguf}", ("--max-model-len=1000000",), "InvalidConfiguration"),
    ("{gguf}", ("--api-key-file=/nonexistent/keys",), "InvalidConfiguration"),
    ("{gguf}", ("--chat-template=/nonexistent/template",), "InvalidConfiguration"),
    ("{gguf}", ("--host=203.0.113.1",), "InvalidConfiguration"),
    ("{gguf}", ("--unheard-of",), "InvalidConfiguration"),
    ("{gguf}", ("--port={taken}",), "InvalidConfiguration: --port"),
)
"""Model and flags, and what the last line begins with."""


@pytest.fixture(scope="module")
def refused(smollm2_gguf: Path) -> list[dict[str, Any]]:
    """What became of each start, in one process."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        known = {"gguf": smollm2_gguf, "taken": taken.getsockname()[1]}
        starts = [[*PORTS, *(part.format_map(known) for part in (model, *flags))] for model, flags, _ in REFUSED]
        command = [sys.executable, starts_in_turn.__file__, json.dumps(starts)]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=PATIENCE_SECONDS, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(REFUSED)
    return answers


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_prevents_a_start_is_one_line(refused: list[dict[str, Any]], number: int) -> None:
    *_, reason = REFUSED[number]
    answer = refused[number]
    assert answer["code"] == 2
    assert answer["output"].splitlines()[-1].startswith(f"{reason}: ")
    assert "Traceback" not in answer["output"]


def test_a_taken_port_is_known_before_loading(refused: list[dict[str, Any]]) -> None:
    assert "weights" not in refused[-1]["output"]


def test_a_process_that_cannot_start_ends_with_its_reason(smollm2_gguf: Path) -> None:
    """After it has loaded, with a management port and threads of its own."""
    with start(smollm2_gguf, "--kv-cache-memory-bytes=1000") as server:
        assert server.exit_code() == 2
        assert server.output.splitlines()[-1].startswith("InsufficientMemory: ")


def test_the_reason_goes_to_the_termination_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(termination, "TERMINATION_LOG", log)
    assert cli.main(["serve"]) == 2
    assert (
        log.read_text()
        == capsys.readouterr().err
        == "InvalidConfiguration: name a model: octavo serve MODEL, or --model MODEL\n"
    )


def test_help_and_version_load_no_torch() -> None:
    code = "import sys; from octavo_engine.cli import main; main(['--version']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, env=dict(os.environ))
    assert (done.returncode, done.stdout[:7]) == (0, b"octavo ")
    assert cli.main(["--help"]) == 0
    assert cli.main(["unheard-of"]) == 2
