"""Records what a real cluster says of pods in trouble, for the pure tests of `octavo_operator.causes`.

Run by hand after a new version of Kubernetes, with the node up:

    PYTHONPATH=hack:tests/support .venv/bin/python -m cause_recorder [NAME...]

Each case becomes `tests/operator/recorded/NAME.json`: the objects and the Events about them, without what changes from
run to run and says nothing (managedFields, addresses).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from node import archives, config, runtime
from patience import PATIENCE_SECONDS

Object = dict[str, Any]
FOLDER = config.CHECKOUT / "tests" / "operator" / "recorded"
BUSYBOX = config.TOOLBOX_IMAGE
_DEADLINE = 150.0
_PATIENCE = 60
_AT_ONCE = 4

GHOST = "ghost"
"""A node that is an object and nothing else: pods land on it and nobody runs them."""


def kubectl(*arguments: str, stdin: Object | None = None) -> str:
    command = [str(config.HACK / "kubectl"), *arguments]
    text = json.dumps(stdin) if stdin else None
    for _ in range(_PATIENCE):
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
        if done.returncode == 0:
            return done.stdout
        if "refused" not in done.stderr:
            break
        time.sleep(2)  # the API server is being restarted
    raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")


def pod(*command: str, image: str = BUSYBOX, container: Object | None = None, **spec: Any) -> Object:
    """A pod as the operator makes them, small."""
    engine: Object = {
        "name": "engine",
        "image": image,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if command:
        engine["command"] = list(command)
    whole = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    body = {
        "containers": [engine | (container or {})],
        "securityContext": whole,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": body | spec}


def shell(script: str, **more: Any) -> Object:
    return pod("/busybox", "sh", "-c", f'sleep() {{ /busybox sleep "$@"; }}; {script}', **more)


def mounted(volume: Object) -> Object:
    mount = {"volumeMounts": [{"name": "keys", "mountPath": "/keys"}]}
    return shell("sleep 600", container=mount, volumes=[{"name": "keys", **volume}])


def limited(resource: str, amount: str) -> Object:
    """Asks for more than there is; extended resources need the limit."""
    return shell("sleep 600", container={"resources": {"requests": {resource: amount}, "limits": {resource: amount}}})


def probed(kind: str, script: str) -> Object:
    probe = {"exec": {"command": ["/busybox", "false"]}, "periodSeconds": 1, "failureThreshold": 2}
    return shell(script, container={"readinessProbe": probe, kind: probe})


def deployment(template: Object) -> Object:
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": template["spec"]}
    spec = {"selector": {"matchLabels": labels}, "template": template, "progressDeadlineSeconds": 5}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}


def job(template: Object, **spec: Any) -> Object:
    body = {"spec": template["spec"] | {"restartPolicy": "Never"}}
    made = {"backoffLimit": 0, "template": body} | spec
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": made}


def waits(reason: str, where: str = "containerStatuses") -> Callable[[Object, list[Object]], bool]:
    """A container waits for this reason."""
    return lambda live, _: any(
        item.get("state", {}).get("waiting", {}).get("reason") == reason for item in live["status"].get(where, [])
    )


def ended(reason: str) -> Callable[[Object, list[Object]], bool]:
    return lambda live, _: any(
        item.get(key, {}).get("terminated", {}).get("reason") == reason
        for item in live["status"].get("containerStatuses", [])
        for key in ("state", "lastState")
    )


def condition(kind: str, status: str) -> Callable[[Object, list[Object]], bool]:
    return lambda live, _: any(
        (item["type"], item["status"]) == (kind, status) for item in live.get("status", {}).get("conditions", [])
    )


def event(words: str) -> Callable[[Object, list[Object]], bool]:
    return lambda _, events: any(words in f"{item['reason']} {item.get('message', '')}" for item in events)


def failed(live: Object, _: list[Object]) -> bool:
    return bool(live["status"].get("phase") == "Failed")


def restarted_after(words: str) -> Callable[[Object, list[Object]], bool]:
    """The kubelet said so, and the container runs or waits again."""
    told = event(words)
    return lambda live, events: told(live, events) and live["status"]["containerStatuses"][0]["restartCount"] > 0


LOADER = {
    "name": "loader",
    "image": BUSYBOX,
    "terminationMessagePolicy": "FallbackToLogsOnError",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
ON_GHOST = {"nodeName": GHOST, "tolerations": [{"operator": "Exists"}]}
NONE = "registry.invalid/none:1"
REFUSING = "localhost/octavo-test/other-processor:1"
ROOT = "localhost/octavo-test/root:1"
Case = tuple[Object, Callable[[Object, list[Object]], bool]]

CASES: dict[str, Case] = {
    "image-pull": (pod(image=NONE), waits("ErrImagePull")),
    "image-back-off": (pod(image=NONE), waits("ImagePullBackOff")),
    "image-never": (pod(image=NONE, container={"imagePullPolicy": "Never"}), waits("ErrImageNeverPull")),
    "image-name": (pod(image="registry.invalid/Upper:1"), waits("InvalidImageName")),
    "other-processor": (pod("/octavo", image=REFUSING), ended("Error")),
    "no-program": (pod("octavo", image=BUSYBOX), ended("StartError")),
    "root-image": (pod("/busybox", "sleep", "9", image=ROOT), waits("CreateContainerConfigError")),
    "crash-first": (shell("echo Traceback: it broke; exit 1"), ended("Error")),
    "crash-loop": (shell("echo Traceback: it broke; exit 1"), waits("CrashLoopBackOff")),
    "exit-zero-loop": (shell("echo done"), waits("CrashLoopBackOff")),
    "engine-words": (
        shell("echo 'ModelNotFound: /models/x does not exist' > /dev/termination-log; exit 2"),
        waits("CrashLoopBackOff"),
    ),
    "out-of-memory": (
        pod("/busybox", "tail", "/dev/zero", container={"resources": {"limits": {"memory": "16Mi"}}}),
        waits("CrashLoopBackOff"),
    ),
    "loader-words": (
        shell("sleep 600", initContainers=[LOADER | {"command": ["/busybox", "sh", "-c",
              "echo 'ModelAccessDenied: hf://org/name wants a token' > /dev/termination-log; exit 2"]}]),
        waits("CrashLoopBackOff", "initContainerStatuses"),
    ),
    "loader-runs": (
        shell("sleep 600", initContainers=[LOADER | {"command": ["/busybox", "sleep", "600"]}]),
        lambda live, _: "running" in live["status"].get("initContainerStatuses", [{}])[0].get("state", {}),
    ),
    "no-accelerator": (limited("nvidia.com/gpu", "1"), condition("PodScheduled", "False")),
    "no-cpu": (limited("cpu", "900"), condition("PodScheduled", "False")),
    "no-memory": (limited("memory", "900Gi"), condition("PodScheduled", "False")),
    "no-label": (shell("sleep 9", nodeSelector={"no": "where"}), condition("PodScheduled", "False")),
    "tainted": (
        shell("sleep 9", nodeSelector={"kubernetes.io/hostname": GHOST}), condition("PodScheduled", "False"),
    ),
    "no-claim": (mounted({"persistentVolumeClaim": {"claimName": "nowhere"}}), condition("PodScheduled", "False")),
    "claim-pending": (mounted({"persistentVolumeClaim": {"claimName": "pending"}}), condition("PodScheduled", "False")),
    "no-secret": (mounted({"secret": {"secretName": "nokeys"}}), event("FailedMount")),
    "no-key": (
        mounted({"secret": {"secretName": "keys", "items": [{"key": "absent", "path": "k"}]}}), event("FailedMount"),
    ),
    "no-configmap": (mounted({"configMap": {"name": "nowhere"}}), event("FailedMount")),
    "no-secret-in-env": (
        shell("sleep 9", container={"envFrom": [{"secretRef": {"name": "nokeys"}}]}),
        waits("CreateContainerConfigError"),
    ),
    "no-runtime": (shell("sleep 9", runtimeClassName="octavo-test-missing"), event("FailedCreatePodSandBox")),
    "too-slow-to-start": (
        probed("startupProbe", "trap 'exit 0' TERM; while :; do sleep 1; done"),
        restarted_after("failed startup probe"),
    ),
    "stopped-answering": (
        probed("livenessProbe", "trap 'exit 0' TERM; while :; do sleep 1; done"),
        restarted_after("failed liveness probe"),
    ),
    "not-answering": (probed("readinessProbe", "sleep 600"), event("Readiness probe failed")),
    "deadline": (shell("sleep 600", activeDeadlineSeconds=2), failed),
    "node-refuses": (shell("sleep 9", nodeName=config.NODE_NAME, nodeSelector={"no": "where"}), failed),
    "evicted": (shell("sleep 9", **ON_GHOST), failed),
    "node-silent": (
        shell("sleep 9", **ON_GHOST),
        lambda live, _: condition("ContainersReady", "True")(live, []) and condition("Ready", "False")(live, []),
    ),
    "quota": (deployment(shell("sleep 9")), condition("ReplicaFailure", "True")),
    "refused": (
        deployment(shell("sleep 9", hostNetwork=True)), condition("ReplicaFailure", "True"),
    ),
    "no-progress": (deployment(shell("sleep 9", nodeSelector={"no": "where"})), condition("Progressing", "False")),
    "job-failed": (
        job(shell("echo 'ModelNotFound: no such path' > /dev/termination-log; exit 2")),
        condition("Failed", "True"),
    ),
    "job-silent": (job(shell("exit 3")), condition("Failed", "True")),
    "job-deadline": (job(shell("sleep 600"), activeDeadlineSeconds=2), condition("Failed", "True")),
    "job-quota": (job(shell("sleep 9")), event("FailedCreate")),
}  # fmt: skip

PATCHES: dict[str, Object] = {
    # What a kubelet writes before it is silent, and what it writes when it evicts; nobody does on a ghost.
    "node-silent": {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "Initialized")],
        "containerStatuses": [
            {"name": "engine", "image": BUSYBOX, "imageID": "", "ready": True, "started": True, "restartCount": 0,
             "state": {"running": {"startedAt": "2030-01-01T00:00:00Z"}}}
        ],
    },
    "evicted": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. Container engine "
        "was using 3000Mi, request is 1Gi, has larger consumption of memory. ",
    },
}  # fmt: skip


def prepare(namespace: str) -> None:
    """What cases lean on: a claim nobody binds, a Secret without the key, a quota elsewhere, a ghost."""
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    make(namespace, "v1", "PersistentVolumeClaim", "pending", spec=claim)
    make(namespace, "v1", "Secret", "keys", stringData={"present": "x"})
    kubectl("apply", "-f", "-", stdin={"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": "octavo-test-missing"}, "handler": "missing"})  # fmt: skip
    raise_ghost()
    settings = config.Settings.from_environment()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "octavo"
        # An ELF header for 64-bit ARM: all that the kernel needs to see to refuse it.
        program.write_bytes(
            b"\x7fELF\x02\x01\x01" + bytes(9) + (2).to_bytes(2, "little") + (183).to_bytes(2, "little") + bytes(44)
        )
        program.chmod(0o755)
        runtime.ctr(settings, "images", "import", "-", stdin=archives.program_image(REFUSING, program, "65532:65532"))
        runtime.ctr(settings, "images", "import", "-", stdin=archives.program_image(ROOT, program, "0:0"))


def raise_ghost() -> None:
    """A node without a kubelet: it counts as ready until its silence is noticed."""
    taint = {"key": "octavo.dev/ghost", "value": "true", "effect": "NoSchedule"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": GHOST, "labels": {"kubernetes.io/hostname": GHOST}},
    }
    kubectl("apply", "-f", "-", stdin=node | {"spec": {"taints": [taint]}})
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "20"}
    beat = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": beat, "lastTransitionTime": beat}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
    kubectl("patch", "node", GHOST, "--subresource=status", "-p", json.dumps({"status": status}))


def make(namespace: str, version: str, kind: str, name: str, **more: Any) -> None:
    head = {"name": name, "namespace": namespace}
    kubectl("apply", "-f", "-", stdin={"apiVersion": version, "kind": kind, "metadata": head, **more})


def record(namespace: str, name: str) -> None:
    """Makes one case's object, waits until it is in its trouble, and writes what there is to see."""
    made, there = CASES[name]
    made = made | {"metadata": {"name": name, "namespace": namespace}}
    kubectl("create", "-f", "-", stdin=made)
    if name in PATCHES:
        raise_ghost()  # the control plane acts when a node falls silent, not on what is on a silent one
        patch = json.dumps({"status": PATCHES[name]})
        kubectl("patch", "pod", name, "-n", namespace, "--subresource=status", "-p", patch)
    end = time.monotonic() + _DEADLINE
    while True:
        live = json.loads(kubectl("get", made["kind"], name, "-n", namespace, "-o", "json"))
        events = about(namespace, live["metadata"]["uid"])
        if there(live, events):
            break
        if time.monotonic() > end:
            say(f"{name}: not in its trouble after {_DEADLINE:.0f} s: {json.dumps(live.get('status'))}")
            return
        time.sleep(0.4)
    document = {made["kind"].lower(): trimmed(live), "events": [trimmed(item) for item in events]}
    if made["kind"] == "Job":
        listed = json.loads(kubectl("get", "pods", "-n", namespace, "-l", f"job-name={name}", "-o", "json"))["items"]
        document["pods"] = [trimmed(item) for item in listed]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    say(f"{name}: recorded")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def about(namespace: str, uid: str) -> list[Object]:
    found = kubectl("get", "events", "-n", namespace, f"--field-selector=involvedObject.uid={uid}", "-o", "json")
    return list(json.loads(found)["items"])


def trimmed(live: Object) -> Object:
    """Without what says nothing about a cause."""
    head = {
        key: value
        for key, value in live["metadata"].items()
        if key in ("name", "creationTimestamp", "deletionTimestamp")
    }
    head["uid"] = f"uid-of-{live['metadata']['name']}"
    kept = {key: value for key, value in live.items() if key not in ("metadata", "involvedObject", "source")}
    for key in ("hostIP", "hostIPs", "podIP", "podIPs"):
        kept.get("status", {}).pop(key, None)
    return kept | {"metadata": head}


def main(names: list[str]) -> int:
    namespace = f"record-{uuid.uuid4().hex[:6]}"
    for suffix, labels in (("", {}), ("-full", {}), ("-strict", {"pod-security.kubernetes.io/enforce": "restricted"})):
        head = {"name": namespace + suffix, "labels": labels}
        kubectl("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "Namespace", "metadata": head})
    try:
        prepare(namespace)
        make(f"{namespace}-full", "v1", "ResourceQuota", "none", spec={"hard": {"pods": "0"}})
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            where = {"refused": f"{namespace}-strict", "quota": f"{namespace}-full", "job-quota": f"{namespace}-full"}
            list(pool.map(lambda name: record(where.get(name, namespace), name), names or CASES))
    finally:
        for suffix in ("", "-full", "-strict"):
            kubectl("delete", "namespace", namespace + suffix, "--wait=false")
        kubectl("delete", "node", GHOST, "--ignore-not-found", "--wait=false")
        kubectl("delete", "runtimeclass", "octavo-test-missing", "--ignore-not-found")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
