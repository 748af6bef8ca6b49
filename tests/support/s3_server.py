"""A real S3 server, rclone's: over a folder on loopback, or in a pod behind a Service.

Path-style addresses, signature version 4; each folder is a bucket.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster_tools import Kubectl, create
from free_ports import free_port
from node import binaries, config, programs, runtime, s3
from patience import PATIENCE_SECONDS

_PORT = 9000


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers, and the keys that it takes."""

    url: str
    access_key: str = s3.ACCESS_KEY
    secret_key: str = s3.SECRET_KEY

    @property
    def environment(self) -> dict[str, str]:
        """The usual variables of S3 clients, as a Secret of credentials holds them."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def serve(folder: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[Endpoint]:
    """Serve `folder` until the block ends; with `host` set to the node's HOST_IP, pods of the node reach it, too."""
    port = port or free_port(host)
    program = binaries.built(config.Settings.from_environment(), programs.S3)
    command = [str(program), *s3.arguments(folder, f"{host}:{port}")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            _await_port(process, host, port)
            yield Endpoint(f"http://{host}:{port}")
        finally:
            process.terminate()


def deploy(
    kubectl: Kubectl, settings: config.Settings, namespace: str, name: str = "s3", buckets: Sequence[str] = ("models",)
) -> Endpoint:
    """A pod with empty buckets and its Service; returns once it is ready. Host and pods reach it at the same URL."""
    runtime.ensure_program_image(settings, config.S3_IMAGE, binaries.built(settings, programs.S3))
    create(kubectl, _pod(namespace, name, buckets))
    create(kubectl, _service(namespace, name))
    kubectl("wait", "-n", namespace, f"pod/{name}", "--for=condition=Ready", "--timeout=240s")
    address = kubectl("get", "-n", namespace, f"service/{name}", "-o", "jsonpath={.spec.clusterIP}")
    return Endpoint(f"http://{address}:{_PORT}")


def _pod(namespace: str, name: str, buckets: Sequence[str]) -> dict[str, Any]:
    hardened = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    volume = {"name": "data", "mountPath": "/data"}
    maker = {
        "name": "buckets",
        "image": config.TOOLBOX_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["mkdir", "-p", "/data/scratch", *(f"/data/buckets/{bucket}" for bucket in buckets)],
        "volumeMounts": [volume],
        "securityContext": hardened,
    }
    server = {
        "name": "s3",
        "image": config.S3_IMAGE,
        "imagePullPolicy": "Never",
        "args": s3.arguments(Path("/data/buckets"), f":{_PORT}"),
        "env": [{"name": "TMPDIR", "value": "/data/scratch"}, {"name": "HOME", "value": "/data/scratch"}],
        "ports": [{"name": "s3", "containerPort": _PORT}],
        "readinessProbe": {"tcpSocket": {"port": _PORT}, "periodSeconds": 1},
        "volumeMounts": [volume],
        "securityContext": hardened,
    }
    identity = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec = {
        "automountServiceAccountToken": False,
        "initContainers": [maker],
        "containers": [server],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "securityContext": identity,
        "terminationGracePeriodSeconds": 0,
    }
    metadata = {"name": name, "namespace": namespace, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _service(namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": name}, "ports": [{"name": "s3", "port": _PORT}]},
    }


def _await_port(process: subprocess.Popen[bytes], host: str, port: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((host, port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            said = process.stdout.read().decode(errors="replace") if process.stdout else ""
            pytest.fail(f"the S3 server did not start:\n{said}")
        time.sleep(0.05)
