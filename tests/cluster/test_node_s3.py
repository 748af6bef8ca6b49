"""The S3 server that tests of model sources rely on: over a folder of the host, and in a pod."""

from __future__ import annotations

from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

import s3_server
from cluster_tools import Kubectl
from node import config


def bucket(endpoint: s3_server.Endpoint, secret: str | None = None) -> S3Store:
    return S3Store(
        "models",
        endpoint=endpoint.url,
        access_key_id=endpoint.access_key,
        secret_access_key=secret or endpoint.secret_key,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def test_a_folder_is_a_bucket_that_lists_and_serves_ranges(tmp_path: Path) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_bytes(b"0123456789")
    with s3_server.serve(tmp_path) as endpoint:
        store = bucket(endpoint)
        (listed,) = obstore.list(store, "tiny").collect()
        assert (listed["path"], listed["size"]) == ("tiny/config.json", 10)
        assert bytes(obstore.get_range(store, "tiny/config.json", start=2, end=5)) == b"234"
        obstore.put(store, "tiny/model.safetensors", b"weights")
        with pytest.raises(BaseError):
            obstore.get(bucket(endpoint, secret="wrong"), "tiny/config.json")
    assert (tmp_path / "models" / "tiny" / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.skipif(
    config.Settings.from_environment().kubeconfig is not None, reason="about the embedded node, not a foreign cluster"
)
def test_a_pod_serves_what_the_host_puts_there(kubectl: Kubectl, cluster: config.Settings, namespace: str) -> None:
    store = bucket(s3_server.deploy(kubectl, cluster, namespace, buckets=("models",)))
    obstore.put(store, "tiny/config.json", b"{}")
    assert bytes(obstore.get(store, "tiny/config.json").bytes()) == b"{}"
