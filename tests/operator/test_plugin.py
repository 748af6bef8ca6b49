"""`kubectl octavo`: what it says of services in each state, its checks without a cluster, its way through kubectl."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from octavo_operator.plugin import chat, explanation, status_view, validation
from octavo_operator.plugin.main import main
from patience import PATIENCE_SECONDS

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml"))


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip


def service(spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "team", "generation": 3},
        "spec": {"model": {"source": "pvc://models/llama"}} | (spec or {}),
        "status": {"observedGeneration": 3, "desiredReplicas": 2, "modelName": "llama"} | status,
    }


SERVING = service(
    {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}},
    replicaSummary="2/2",
    url="http://chat.team.svc:8000",
    queue={"waiting": 5, "running": 7},
    scaling={
        "decisions": [
            {"time": "2026-01-01T00:00:00Z", "fromReplicas": 1, "toReplicas": 2, "reason": "QueueDepth",
             "message": "9 requests wait where 4 may"}
        ]
    },
    conditions=[
        condition("Ready", "True", "Serving", "2 of 2 replicas serve"),
        condition("ScalingLimited", "True", "MaxReplicas", "raise maxReplicas"),
    ],
)  # fmt: skip
STALLED = service(
    conditions=[
        condition("Ready", "False", "ModelNotFound", "there is no /models/llama"),
        condition("Stalled", "True", "ModelNotFound", "there is no /models/llama"),
    ]
)
CRASHED = {
    "metadata": {"name": "chat-1"},
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {"name": "engine", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
             "lastState": {"terminated": {"exitCode": 1, "message": "ModelNotFound: there is no /models/llama"}}}
        ],
    },
}  # fmt: skip


def drawn(renderable: Any) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def told(what: dict[str, Any], *pods: dict[str, Any]) -> str:
    return "\n".join(explanation.explain(what, pods))


def test_the_overview_has_a_line_for_each_service() -> None:
    text = drawn(status_view.overview([SERVING, STALLED], namespaces=True))
    assert "team" in text
    assert "2/2" in text
    assert "ModelNotFound: there is no /models/llama" in text


def test_the_detail_has_conditions_and_decisions() -> None:
    text = drawn(status_view.detail(SERVING))
    for word in ("5 waiting, 7 running", "http://chat.team.svc:8000", "1 -> 2", "9 requests wait where 4 may"):
        assert word in text


def test_a_service_nobody_looked_at_says_so() -> None:
    unseen = service() | {"status": {"observedGeneration": -1}}
    assert "no operator has looked at it yet" in drawn(status_view.detail(unseen))
    assert "No operator has looked" in told(unseen)


def test_why_this_many_replicas() -> None:
    text = told(SERVING)
    assert "Octavo scales on queue depth, between 1 and 4" in text
    assert "Held back: raise maxReplicas" in text
    assert "1 -> 2: 9 requests wait where 4 may" in text
    assert "spec.replicas" in told(service({"replicas": 2}, conditions=STALLED["status"]["conditions"]))
    external = service({"autoscaling": {"mode": "External"}, "replicas": 2}, conditions=SERVING["status"]["conditions"])
    assert "another autoscaler" in told(external)


def test_why_not_ready_names_the_pods_own_cause() -> None:
    text = told(STALLED, CRASHED)
    assert "Is it ready? No. ModelNotFound" in text
    assert "Waiting does not help" in text
    assert "chat-1: running, ModelNotFound" in text


def test_a_change_not_yet_seen_is_told() -> None:
    changed = SERVING | {"metadata": SERVING["metadata"] | {"generation": 4}}
    assert "has seen generation 3 of 4" in told(changed)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_valid(path: Path) -> None:
    resources = [item for item in yaml.safe_load_all(path.read_text()) if item and item["kind"] == "InferenceService"]
    assert [problem for resource in resources for problem in validation.problems(resource)] == []


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"engine": {"maxModelLen": 1}}, "spec.engine.maxModelLen: Input should be greater than or equal to 2"),
        ({"engine": {"speed": 9}}, "spec.engine.speed: Extra inputs are not permitted"),
        ({"engine": {"env": [{"name": "LD_PRELOAD"}]}}, "spec.engine.env[0].name: LD_*"),
        ({"engine": {"extraArgs": ["--port=1"]}}, "spec.engine.extraArgs: engine.extraArgs may not set"),
        ({"model": {"source": "pvc://claim/../secret"}}, "spec.model.source: model.source may not contain '..'"),
        ({"model": {"source": "ftp://host/model"}}, "spec.model.source: "),
        ({"replicas": 1, "autoscaling": {"maxReplicas": 2}}, "spec: replicas and autoscaling exclude each other"),
        ({"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}, "minReplicas must not exceed maxReplicas"),
        ({"resources": {"limits": {"nvidia.com/gpu": 17}}}, "among the accelerators of one node"),
        ({"template": {"labels": {"octavo.dev/service": "x"}}}, "are set by Octavo and Kubernetes"),
    ],
)
def test_validation_names_field_and_remedy(spec: dict[str, Any], words: str) -> None:
    found = validation.problems(service(spec))
    assert any(words in problem for problem in found), found


@pytest.mark.parametrize(
    "emptied",
    [
        {"template": {"volumes": None}},
        {"template": None},
        {"resources": {"limits": None}},
        {"monitoring": {"labels": None}},
    ],
    ids=str,
)
def test_what_server_side_apply_has_emptied_breaks_no_rule(emptied: dict[str, Any]) -> None:
    """It is null in what `kubectl get -o yaml` shows, and no rule is about it."""
    assert validation.problems(service({"model": {"source": "hf://org/name"}} | emptied)) == []


def test_validation_reads_the_head_too() -> None:
    assert validation.problems({"apiVersion": "octavo.dev/v1", "kind": "InferenceService"}) == [
        "apiVersion: 'octavo.dev/v1' is not served; write octavo.dev/v1alpha1",
        "metadata.name: is missing",
        "spec: is missing; it needs at least model.source",
    ]


def test_validate_fails_for_a_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(yaml.safe_dump(service({"engine": {"maxModelLen": 1}})))
    assert main(["validate", str(bad)]) == 1
    assert "InferenceService chat: spec.engine.maxModelLen" in capsys.readouterr().out
    (tmp_path / "other.yaml").write_text("kind: ConfigMap")
    assert main(["validate", str(tmp_path / "other.yaml")]) == 1
    assert "holds no InferenceService" in capsys.readouterr().err


def rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], *options: str) -> dict[str, Any]:
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(service(spec)))
    assert main(["render", str(path), *options]) == 0
    made = list(yaml.safe_load_all(capsys.readouterr().out))
    return {
        child["kind"] if child["kind"] != "Job" else child["metadata"]["name"].split("-")[1]: child for child in made
    }


def test_render_shows_what_the_operator_would_apply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = rendered(tmp_path, capsys, {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}, "--engine-image", "mine:1")
    assert {"Deployment", "Service", "NetworkPolicy", "ServiceAccount", "PodDisruptionBudget"} <= made.keys()
    assert "PodMonitor" not in made
    deployment = made["Deployment"]
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "mine:1"
    assert "ownerReferences" not in deployment["metadata"]


def test_render_shows_the_jobs_of_a_fetched_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"model": {"source": "hf://org/name"}, "cache": {"persistentVolumeClaim": "models"}}
    assert {"preflight", "load", "PodMonitor", "PrometheusRule"} <= rendered(
        tmp_path, capsys, spec, "--monitoring"
    ).keys()


def test_render_refuses_what_the_api_server_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(service({"engine": {"maxModelLen": 1}})))
    assert main(["render", str(path)]) == 1
    assert "spec.engine.maxModelLen" in capsys.readouterr().err


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that answers with a prepared file and writes down how it was called."""
    answer = tmp_path / "answer.json"
    script = tmp_path / "bin" / "kubectl"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ -s {answer} ] && exec cat {answer}\n'
                      'echo "Error from server (NotFound): it is not there" >&2\nexit 1\n')  # fmt: skip
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    return tmp_path


def test_status_asks_kubectl_with_the_users_choice_of_cluster(
    kubectl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kubectl / "answer.json").write_text(json.dumps({"items": [SERVING]}))
    assert main(["--context", "far", "status", "-n", "team"]) == 0
    assert "2/2" in capsys.readouterr().out
    assert (kubectl / "calls").read_text().split() == [
        *("--namespace=team", "--context=far", "get", "inferenceservices.octavo.dev", "-o", "json")
    ]


def test_kubectls_own_words_are_the_error(kubectl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "chat"]) == 1
    assert capsys.readouterr().err == "kubectl octavo: Error from server (NotFound): it is not there\n"


def test_a_sentence_stays_one_line_where_no_terminal_bounds_it(
    kubectl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "9 requests wait for batch_full. " + "Raise --max-num-seqs from 4 to 8. " * 9
    queue = {"waiting": 9, "running": 4, "limiter": "queue", "message": sentence.strip()}
    status = SERVING["status"] | {"queue": queue}
    (kubectl / "answer.json").write_text(json.dumps(SERVING | {"status": status, "items": []}))
    assert main(["explain", "chat"]) == 0
    assert f"  Limited by queue: {sentence.strip()}" in capsys.readouterr().out.splitlines()


def test_doctor_asks_each_replica_that_serves(kubectl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def pod(name: str, ready: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}

    pods = {"items": [pod("chat-b", "True"), pod("chat-a", "True"), pod("chat-c", "False")]}
    (kubectl / "pods").write_text(json.dumps(pods))
    (kubectl / "service").write_text(json.dumps(SERVING))
    (kubectl / "bin" / "kubectl").write_text(f"""#!/bin/sh
echo "$@" >> {kubectl}/calls
case "$*" in
*" pods "*|*"get pods"*) cat {kubectl}/pods;;
*exec*chat-a*) echo "it is limited by kv";;
*exec*) echo "error: unable to upgrade connection" >&2; exit 1;;
*) cat {kubectl}/service;;
esac
""")
    assert main(["doctor", "chat", "--seconds", "2"]) == 0
    assert capsys.readouterr().out == "chat-a\nit is limited by kv\nchat-b\nerror: unable to upgrade connection\n"
    asked = [line for line in (kubectl / "calls").read_text().splitlines() if line.startswith("exec")]
    assert sorted(asked) == [
        f"exec --namespace team chat-{name} --container engine -- octavo doctor --seconds=2" for name in "ab"
    ]
    (kubectl / "pods").write_text(json.dumps({"items": []}))
    assert main(["doctor", "chat"]) == 1
    assert "no replica of chat is ready" in capsys.readouterr().err


def test_top_is_the_engines_own_program_told_whom_to_ask(
    kubectl: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (kubectl / "answer.json").write_text(json.dumps(SERVING))
    program = kubectl / "bin" / "octavo"
    program.write_text('#!/bin/sh\necho "$@" "$KUBECONFIG"\nexit 3\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("sys.argv", [str(kubectl / "bin" / "kubectl-octavo")])
    assert main(["top", "chat", "--once", "--context", "far", "--kubeconfig", "/k"]) == 3
    assert capfd.readouterr().out == "top --service=chat --namespace=team --context=far --interval=2 --once /k\n"


def test_top_without_its_program_says_so(
    kubectl: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (kubectl / "answer.json").write_text(json.dumps(SERVING))
    monkeypatch.setenv("PATH", f"{kubectl / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr("sys.argv", [str(kubectl / "bin" / "kubectl-octavo")])
    assert main(["top", "chat"]) == 1
    assert "octavo, which comes with this one, is not on PATH" in capsys.readouterr().err


class Streaming(BaseHTTPRequestHandler):
    """A chat endpoint that says what it was asked."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers.get("authorization") != "Bearer key":
            body = json.dumps({"error": {"message": "no such key"}}).encode()
            self.send_response(401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.end_headers()
        for text in ("You said ", asked["messages"][-1]["content"]):
            self.wfile.write(b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n")
        self.wfile.write(b'data: {"choices": [], "usage": {"completion_tokens": 5}}\n\ndata: [DONE]\n\n')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def base() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Streaming)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(PATIENCE_SECONDS)


def test_chat_streams_and_counts(base: str) -> None:
    figures = chat.Figures()
    body = {"model": "llama", "messages": [{"role": "user", "content": "hello"}]}
    assert list(chat.answer(base, body, "key", figures)) == ["You said ", "hello"]
    assert "5 tokens" in figures.words()


def test_chat_tells_the_services_own_error(base: str) -> None:
    with pytest.raises(chat.ChatError, match=r"no such key \(401\)"):
        list(chat.answer(base, {"messages": []}, "wrong", chat.Figures()))
