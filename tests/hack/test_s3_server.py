"""The S3 server that tests of model sources rely on: it lists, serves ranges, and refuses other keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

import s3_server


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[s3_server.Endpoint]:
    with s3_server.serve(tmp_path) as served:
        (tmp_path / "models" / "tiny").mkdir(parents=True)
        (tmp_path / "models" / "tiny" / "config.json").write_bytes(b"0123456789")
        yield served


def store(endpoint: s3_server.Endpoint, secret: str | None = None) -> S3Store:
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


def test_a_folder_is_a_bucket_that_lists_and_serves_ranges(endpoint: s3_server.Endpoint, tmp_path: Path) -> None:
    bucket = store(endpoint)
    (listed,) = obstore.list(bucket, "tiny").collect()
    assert (listed["path"], listed["size"]) == ("tiny/config.json", 10)
    assert bytes(obstore.get_range(bucket, "tiny/config.json", start=2, end=5)) == b"234"
    obstore.put(bucket, "tiny/model.safetensors", b"weights")
    assert (tmp_path / "models" / "tiny" / "model.safetensors").read_bytes() == b"weights"


def test_other_keys_are_refused(endpoint: s3_server.Endpoint) -> None:
    with pytest.raises(BaseError):
        obstore.get(store(endpoint, secret="wrong"), "tiny/config.json")
