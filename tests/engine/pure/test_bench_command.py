"""`octavo bench` from its arguments to its reports, against a server that a test tells what to say."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from pathlib import Path

import pytest

from octavo_engine import cli
from octavo_engine.bench import command
from octavo_engine.bench.command import bench
from octavo_engine.bench.driver import Bound
from octavo_engine.bench.settings import BenchSettings
from octavo_engine.bench.sweep import NotStarted, Sweep, serving
from octavo_engine.errors import InvalidConfiguration
from patience import PATIENCE_SECONDS
from told_server import HEAD, Json, OpenAI, Piece, reply, told_server

SMALL = ("--requests=12", "--concurrency=3", "--input-tokens=uniform:9-30", "--output-tokens=4", "--warmup=2")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command; its exit code, what it printed and what it complained of."""

    def run(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
        out = StringIO()
        code = bench(arguments, out, environment or {})
        return code, out.getvalue(), capsys.readouterr().err

    return run


def posted(server_asked: Sequence[tuple[str, Json]], path: str = "/v1/chat/completions") -> list[Json]:
    return [body for asked, body in server_asked if asked == path]


def test_a_closed_loop_is_measured_and_written_in_three_forms(run: Run, tmp_path: Path) -> None:
    files = [f"--{kind}={tmp_path / f'run.{kind}'}" for kind in ("json", "markdown", "html")]
    with told_server(OpenAI()) as server:
        code, text, _ = run("--url", server.url, *SMALL, *files, "--metrics-url", f"{server.url}/metrics")
    assert code == 0
    assert "12 of 12 requests were answered" in text
    assert "closed loop, 3 at once" in text
    assert "exactly as long" not in text  # all of them were
    assert len(posted(server.asked)) == 14  # two to warm up
    body = posted(server.asked)[0]
    assert body["model"] == "told"
    assert (body["stream"], body["ignore_eos"], body["max_tokens"]) == (True, True, 4)
    document = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert document["summary"]["exact_prompts"] == 1.0
    assert document["summary"]["itl"]["count"] == 12 * 3
    assert document["readings"][0]["waiting"] == 3.0
    assert (tmp_path / "run.markdown").read_text(encoding="utf-8") == text
    assert "<svg" in (tmp_path / "run.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("load", ["--rate=200", "--ramp=50:400:1"])
def test_an_open_loop_sends_when_requests_are_due(run: Run, tmp_path: Path, load: str) -> None:
    path = tmp_path / "a.json"
    with told_server(OpenAI()) as server:
        code, text, _ = run("--url", server.url, load, "--requests=20", "--output-tokens=2", f"--json={path}")
    assert code == 0, text
    requests = json.loads(path.read_text(encoding="utf-8"))["requests"]
    dues = sorted(request["due"] for request in requests)
    assert len(set(dues)) == 20
    assert all(request["sent"] >= request["due"] - 2e-6 for request in requests)  # told to the microsecond


def test_conversations_go_on_with_what_was_answered(run: Run) -> None:
    with told_server(OpenAI()) as server:
        code, text, _ = run(
            "--url", server.url, "--turns=3", "--requests=6", "--concurrency=1", "--warmup=0", "--output-tokens=2",
            "--shared-prefix-tokens=20", "--input-tokens=8",
        )  # fmt: skip
    assert code == 0, text
    lengths = [len(body["messages"]) for body in posted(server.asked)]
    assert lengths == [2, 4, 6, 2, 4, 6]
    longest = max(posted(server.asked), key=lambda body: len(body["messages"]))
    assert longest["messages"][2] == {"role": "assistant", "content": "w0 w1 "}
    assert len({body["messages"][0]["content"] for body in posted(server.asked)}) == 1


def test_a_trace_is_replayed_at_its_times(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,20,2\n1,30,3\n2,40,4\n", encoding="utf-8")
    with told_server(OpenAI()) as server:
        code, text, _ = run(
            "--url", server.url, "--trace", str(trace), "--replay", "--replay-speed=20", "--endpoint=completions",
            "--warmup=0", "--no-ignore-eos", '--extra-body={"top_k": 3}',
        )  # fmt: skip
    assert code == 0, text
    asked = posted(server.asked, "/v1/completions")
    seen = sorted((body["max_tokens"], OpenAI().count(body)) for body in asked)
    assert seen == [(2, 20), (3, 30), (4, 40)]
    assert all(body["top_k"] == 3 and "ignore_eos" not in body for body in asked)
    assert "3 of 3 requests" in text


def test_time_ends_a_measurement_too(run: Run) -> None:
    with told_server(OpenAI()) as server:
        code, text, _ = run("--url", server.url, "--seconds=0.3", "--output-tokens=1", "--concurrency=2")
    assert code == 0
    assert "seconds 0.3" in text


def test_objectives_are_milliseconds(run: Run) -> None:
    with told_server(OpenAI()) as server:
        _, met, _ = run("--url", server.url, *SMALL, "--slo-ttft=60000", "--slo-itl=60000", "--slo-e2e=60000")
        _, missed, _ = run("--url", server.url, *SMALL, "--slo-ttft=0.000001")
    assert "100.0 % of the requests kept the objectives" in met
    assert "0.0 % of the requests kept the objectives" in missed


def test_what_fails_is_told_by_kind_and_ends_with_one(run: Run) -> None:
    openai, asked = OpenAI(), iter(range(100))

    def told(path: str, body: Json) -> Sequence[Piece]:
        if not path.endswith("completions") or next(asked) % 3:
            return openai(path, body)
        return [reply(429, {"error": {"message": "the queue is full"}})]

    with told_server(told) as server:
        code, text, complaint = run("--url", server.url, *SMALL, "--warmup=0")
    assert code == 1
    assert "| queue full (429) |        4 | 429: the queue is full |" in text
    assert "8 of 12 requests were answered" in text
    assert "Traceback" not in complaint


def test_without_a_server_there_is_one_line(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, text, complaint = run("--url", url)
        assert (code, text) == (3, "")
        assert complaint.startswith(f"octavo bench: GET {url}/v1/models: connection refused: ")
        code, text, _ = run("--url", url, "--model=m", "--requests=2", "--warmup=0")  # a name is known: it is measured
    assert code == 1
    assert "| connection refused |        2 |" in text


def test_a_wrong_key_is_told_before_anything_is_sent(run: Run) -> None:
    with told_server(lambda path, body: [reply(401, {"error": {"message": "no such key"}})]) as server:
        code, _, complaint = run("--url", server.url, environment={"OCTAVO_API_KEY": "sesame,other"})
    assert code == 3
    assert "key refused (401, 403): 401: no such key" in complaint
    assert server.keys == ["Bearer sesame"]


def test_the_first_ctrl_c_ends_with_what_was_measured(run: Run) -> None:
    openai, never, asked = OpenAI(), threading.Event(), iter(range(100))

    def told(path: str, body: Json) -> Sequence[Piece]:
        if not path.endswith("completions"):
            return openai(path, body)
        if next(asked) < 5:
            return openai(path, body)
        os.kill(os.getpid(), signal.SIGINT)
        return [HEAD, never]

    with told_server(told) as server:
        code, text, _ = run("--url", server.url, "--concurrency=1", "--warmup=0", "--output-tokens=2")
        never.set()
    assert code == 130
    assert "5 of 6 requests were answered" in text
    assert "(stopped)" in text
    assert "Under way when it was stopped: 1 requests" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate=1", "--concurrency=2"), "--concurrency and --rate exclude each other"),
        (("--replay",), "--replay needs a --trace"),
        (("--rate=0",), "--rate is 0"),
        (("--input-tokens=x",), "--input-tokens is 'x'"),
        (("--output-tokens=uniform:3",), "--output-tokens is"),
        (("--extra-body={",), "--extra-body is no JSON"),
        (("--extra-body=[]",), "--extra-body must be a JSON object"),
        (("--url=ftp://x",), "--url is 'ftp://x'"),
        (("--metrics-url=ftp://x",), "--metrics-url is 'ftp://x'"),
        (("--trace=nowhere.csv",), "--trace: nowhere.csv cannot be read"),
        (("--json=/nowhere/at/all.json",), "--json: the folder of /nowhere/at/all.json is not there"),
        (("--turns=2", "--trace=x.csv"), "it goes with neither --turns"),
        (("--sweep=threads=1,2",), "goes with the arguments of octavo serve, after --"),
        (("--", "model"), "goes with the arguments of octavo serve, after --"),
        (("--sweep=threads=1", "--", "m"), "--sweep is 'threads=1'"),
        (("--sweep=threads=1,1", "--", "m"), "with different values"),
        (("--sweep=threads=1,x", "--", "m"), "--threads"),
        (("--sweep=threads=1,2", "--", "m", "--threads=3"), "--threads is set by the sweep"),
        (("--sweep=threads=1,2", "--", "m", "--port=1"), "--port is set by the sweep"),
        (("--compare", "a.json"), "--compare"),
        (("--compare", "no-a.json", "no-b.json"), "no-a.json cannot be read"),
        (("--nonsense",), "unrecognized arguments"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_sent(run: Run, arguments: tuple[str, ...], words: str) -> None:
    code, text, complaint = run(*arguments)
    assert (code, text) == (2, "")
    assert words in complaint
    assert complaint.startswith("octavo bench: ")


def test_a_trace_without_times_cannot_be_replayed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("ContextTokens\n3\n", encoding="utf-8")
    code, _, complaint = run(f"--trace={path}", "--replay")
    assert code == 2
    assert "--replay needs a time in each line" in complaint


def test_what_ends_a_measurement() -> None:
    def bound(*arguments: str) -> Bound:
        return BenchSettings.parse(arguments, {}).bound

    assert bound() == Bound(100, None)
    assert bound("--seconds=3") == Bound(None, 3.0)
    assert bound("--seconds=3", "--requests=7") == Bound(7, 3.0)


def test_a_report_tells_no_key() -> None:
    settings = BenchSettings.parse(("--api-key=sesame", "--requests=7"), {})
    assert settings.config.api_key == "sesame"
    assert settings.told() == {"requests": 7, "arrivals": "closed loop, 8 at once"}


def test_two_files_are_compared(run: Run, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    with told_server(OpenAI()) as server:
        for path, tokens in zip(paths, ("2", "8"), strict=True):
            run("--url", server.url, *SMALL, f"--json={path}", f"--output-tokens={tokens}")
    told = tmp_path / "told.json"
    code, text, _ = run(
        "--compare", *paths, f"--json={told}", f"--markdown={tmp_path / 'told.md'}", f"--html={tmp_path / 'told.html'}"
    )
    assert code == 0
    assert "- output_tokens: 2 → 8" in text
    assert "| end to end, P50 (ms) " in text
    assert json.loads(told.read_text(encoding="utf-8"))["changed"] == {"output_tokens": ["2", "8"]}
    assert (tmp_path / "told.md").read_text(encoding="utf-8") == text
    assert "<h1>a.json → b.json</h1>" in (tmp_path / "told.html").read_text(encoding="utf-8")


# -- sweeps ------------------------------------------------------------------------------------------------------------

SERVER = """
import signal, sys
sys.path.insert(0, {support!r})
from told_server import OpenAI, told_server
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # of all threads: else one of them may get it
with told_server(OpenAI()) as server:
    print("INFO x: management on " + server.url, flush=True)
    print("INFO x: serving told on " + server.url + " after 0.1 s", flush=True)
    signal.sigtimedwait([signal.SIGTERM], 600)
print("arguments", sys.argv[1:], flush=True)
"""


@pytest.fixture
def program() -> tuple[str, ...]:
    """What stands for `octavo serve`."""
    support = str(Path(__file__).parents[2] / "support")
    return (sys.executable, "-c", SERVER.format(support=support))


def test_a_sweep_measures_a_server_for_each_value(
    run: Run, program: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "serving", partial(serving, program=program))
    code, text, complaint = run(
        *SMALL, "--sweep=max-num-seqs=64,128", f"--json={tmp_path / 'run.json'}", "--", "model", "--threads=2"
    )
    assert code == 0, complaint
    assert "## --max-num-seqs 64" in text
    assert "| --max-num-seqs |" in text
    assert "octavo serve --max-num-seqs=128" in complaint
    for value in ("64", "128"):
        document = json.loads((tmp_path / f"run-{value}.json").read_text(encoding="utf-8"))
        assert document["serve"] == {"max-num-seqs": value}
        assert document["readings"]
    code, text, _ = run("--compare", str(tmp_path / "run-64.json"), str(tmp_path / "run-128.json"))
    assert code == 0
    assert "- max-num-seqs: 64 → 128" in text
    assert "more than one setting" not in text


def test_a_value_that_does_not_start_leaves_what_was_measured(
    run: Run, program: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = iter((program, (sys.executable, "-c", "raise SystemExit('too much')")))
    monkeypatch.setattr(command, "serving", lambda *known: serving(*known, program=next(starts)))
    code, text, complaint = run(*SMALL, "--sweep=max-num-seqs=64,128,256", "--", "model")
    assert code == 3
    assert "too much" in complaint
    assert "| 64 " in text
    assert "| 128 " not in text


def test_switches_are_swept_by_true_and_false() -> None:
    sweep = Sweep.parse("enable-prefix-caching=true,false", ["model"])
    assert [sweep.argument(value) for value in sweep.values] == [
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
    ]
    with pytest.raises(InvalidConfiguration):
        Sweep.parse("enable-prefix-caching=1,2", ["model"])


async def test_a_server_that_does_not_come_up_is_told_with_its_last_words() -> None:
    with pytest.raises(NotStarted, match=r"ended with 2; its last words:\nno such model"):
        async with serving(
            (), PATIENCE_SECONDS, asyncio.Event(), (sys.executable, "-c", "print('no such model'); raise SystemExit(2)")
        ):
            pass
    with pytest.raises(NotStarted, match=r"not ready after 0\.2 s"):
        async with serving((), 0.2, asyncio.Event(), (sys.executable, "-c", "import time; time.sleep(60)")):
            pass


async def test_a_server_is_stopped_whatever_happens(program: tuple[str, ...]) -> None:
    with pytest.raises(RuntimeError, match="in between"):
        async with serving((), PATIENCE_SECONDS, asyncio.Event(), program) as server:
            raise RuntimeError("in between")
    host, port = server.url.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5)


def test_the_command_line_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--nonsense"]) == 2
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    assert "--shared-prefix-tokens" in capsys.readouterr().out
