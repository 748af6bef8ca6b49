"""Models that are fetched: pinned, told of, kept in a cache; with the fake engine, and once with everything real."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import s3_server
from cluster_tools import Kubectl, create, wait_for
from fake_engine import BYTES, COMMIT, end_fetches
from node import config, images, model
from operator_process import OperatorProcess, Services
from patience import PATIENCE_SECONDS
from story import Story


@pytest.fixture
def cache(kubectl: Kubectl, cluster: config.Settings, services: Services) -> Iterator[str]:
    """A claim on an empty folder of the node."""
    yield from claim(kubectl, cluster, services.namespace)


def claim(kubectl: Kubectl, cluster: config.Settings, namespace: str) -> Iterator[str]:
    """A bound claim named `cache` in a namespace."""
    if cluster.kubeconfig is not None:
        pytest.skip("its volume is a folder of the embedded node")
    folder = cluster.state / "test-volumes" / namespace
    folder.mkdir(parents=True)
    size = {"storage": "1Gi"}
    node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [config.NODE_NAME]}
    create(kubectl, {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"cache-{namespace}"},
        "spec": {
            "capacity": size, "accessModes": ["ReadWriteMany"], "storageClassName": "", "local": {"path": str(folder)},
            "claimRef": {"namespace": namespace, "name": "cache"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
        },
    })  # fmt: skip
    create(kubectl, {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cache", "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "", "resources": {"requests": size}},
    })  # fmt: skip
    yield "cache"
    kubectl("delete", "pv", f"cache-{namespace}", "--wait=false")
    shutil.rmtree(folder)


def test_a_model_is_fetched_by_each_replica_then_once_for_all(kubectl: Kubectl, services: Services, cache: str) -> None:
    """What runs stays until the cache is filled; status tells what is fetched, and how far it is."""
    story = Story(services, "fetches", model={"source": "hf://fake/held"})

    def fetching(percent: int = 50) -> bool:
        shown = story.status().get("model", {})
        return shown.get("phase") == "Fetching" and shown.get("percent") == percent

    def told_to_end() -> bool:
        return end_fetches(kubectl, services.namespace, services.all_of("pods").values())

    wait_for(fetching, "the progress of the replica's fetch")
    wait_for(told_to_end, "the end of what holds it")
    first = story.serves()
    shown = story.status()["model"]
    assert (shown["phase"], shown["revision"], shown["bytes"]) == ("Ready", COMMIT, BYTES)

    story.change(cache={"persistentVolumeClaim": cache})
    story.reaches("Loading")
    assert story.pods() == first
    wait_for(fetching, "the progress of the loader's fetch")
    wait_for(told_to_end, "the end of what holds it")
    assert not story.serves() & first
    container = story.container()
    assert [arg for arg in container["args"] if arg.startswith("--model=/models/octavo/hf-")]
    assert {"name": "model", "mountPath": "/models", "readOnly": True} in container["volumeMounts"]
    wait_for(lambda: not story.jobs(), "the end of the loader's Job")


def test_a_real_model_comes_from_a_store_through_a_cache(
    kubectl: Kubectl,
    cluster: config.Settings,
    namespace: str,
    make_operator: Callable[..., OperatorProcess],
    tmp_path: Path,
) -> None:
    """The real engine, a real S3 server with keys, SmolLM2; first with a wrong key."""
    services, volume = Services(kubectl, namespace), claim(kubectl, cluster, namespace)
    engine = images.load(cluster, images.IMAGES["engine"])
    place = tmp_path / "models" / "smollm2"
    place.mkdir(parents=True)
    shutil.copy(model.ensure_file(cluster), place)
    make_operator(namespace).start(engine_image=engine)
    with s3_server.serve(tmp_path, host=config.HOST_IP) as store:
        secret(kubectl, namespace, store.environment | {"AWS_SECRET_ACCESS_KEY": "not-the-key"})
        story = Story(
            services,
            "stored",
            model={
                "source": "s3://models/smollm2",
                "endpoint": store.url,
                "credentialsSecretRef": {"name": "store"},
            },
            cache={"persistentVolumeClaim": next(volume)},
            engine={"maxNumSeqs": 2, "maxModelLen": 512, "kvCacheMemoryBytes": 64 << 20},
            resources={"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}},
        )
        words = story.stalls("ModelAccessDenied")
        assert "credentialsSecretRef" in words
        assert "not-the-key" not in json.dumps(services.get("osvc", "stored"))
        secret(kubectl, namespace, store.environment)
        kubectl("delete", "jobs", "--all", "-n", namespace)  # or wait until Kubernetes does
        story.serves()
        shown = story.status()["model"]
        assert shown["bytes"] == os.path.getsize(model.ensure_file(cluster))
        assert shown["revision"]
    # The store is gone; what was fetched is there.
    address = (services.get("service", "stored") or {})["spec"]["clusterIP"]
    assert ask(f"http://{address}:8000/v1/models")["data"][0]["id"] == "stored"
    next(volume, None)


def secret(kubectl: Kubectl, namespace: str, values: dict[str, str]) -> None:
    """The store's credentials."""
    head = {"name": "store", "namespace": namespace}
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": head, "stringData": values}
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(document))


def ask(url: str) -> dict[str, Any]:
    """The JSON at an address."""
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        document: dict[str, Any] = json.load(answer)
        return document


def test_the_log_has_no_error(operator: OperatorProcess) -> None:
    assert operator.unexpected_lines() == []
