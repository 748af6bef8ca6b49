"""The rules that a schema cannot say, run by a CEL interpreter: what is refused with which remedy, and what is not.

The API server's own interpreter is asked in `tests/cluster/operator`.
"""

import pytest

from octavo_operator.plugin.validation import problems
from operator_samples import resource

DIGEST = "sha256:" + "a" * 64
PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "web"}}}


def model(source, **more):
    return {"model": {"source": source} | more}


def volume(**more):
    made = {"name": "v", "mountPath": "/data", "emptyDir": {}} | more
    return {"template": {"volumes": [{key: value for key, value in made.items() if value is not None}]}}


@pytest.mark.parametrize(
    "spec",
    [
        *(model(source) for source in ("pvc://claim/a/b.gguf", "file:///opt/model", "hf://org/name")),
        model("hf://org/name/quantized/model-q4_0.gguf", revision="refs/pr/1", endpoint="https://mirror.example/hub"),
        model("hf://org/name", tokenSecretRef={"name": "hub", "key": "token"}),
        model("s3://my-bucket/models/llama=8b/", endpoint="http://s3:9000", credentialsSecretRef={"name": "s"}),
        model("gs://my_bucket.example/llama", credentialsSecretRef={"name": "s"}),
        model("https://host.example:8443/a%20b/model.gguf", tokenSecretRef={"name": "s", "key": "k"}),
        *(model(f"oci://registry.example:5000/org/name{tag}") for tag in ("", ":v1", f"@{DIGEST}")),
        model("hf://org/name") | {"cache": {"persistentVolumeClaim": "models"}},
        {"allowFrom": [PEER, {"podSelector": {}}, {"ipBlock": {"cidr": "fd00::/8"}}]},
        volume(),
        volume(emptyDir=None, mountPath="/etc/ssl/certs", configMap={"name": "ca"}),
        {"rollout": "Surge"},
        *({"resources": {"limits": {"nvidia.com/gpu": count}}} for count in (0, "1", 8, "16")),
    ],
    ids=str,
)
def test_accepted(spec):
    assert problems(resource(**spec)) == []


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        *(({"resources": {"limits": {"nvidia.com/gpu": n}}}, "a whole number up to 16") for n in (17, "500m", "1k")),
        (model("ftp://host/model"), "model.source must be"),
        (model("hf://org"), "model.source must be"),
        (model("hf://org/name/model.bin"), "model.source must be"),
        (model("s3://BUCKET/prefix"), "model.source must be"),
        (model("https://host/model?X-Amz-Signature=1"), "without query"),
        (model("oci://registry/Name"), "model.source must be"),
        (model("https://user:password@host/model"), "may not carry a user or password"),
        (model("s3://bucket/a/../b"), "may not contain '..'"),
        (model("pvc://claim/../b"), "may not contain '..'"),
        (model("s3://bucket/prefix", revision="main"), "model.revision is for hf:// sources"),
        (model("hf://org/name", revision="a/../b"), "model.revision may not contain"),
        (model("s3://bucket/prefix", tokenSecretRef={"name": "s", "key": "k"}), "use model.credentialsSecretRef"),
        (model("pvc://claim/path", tokenSecretRef={"name": "s", "key": "k"}), "model.tokenSecretRef is for"),
        (model("hf://org/name", credentialsSecretRef={"name": "s"}), "use model.tokenSecretRef"),
        (model("https://host/model", endpoint="http://other"), "model.endpoint is for"),
        (model("hf://org/name", endpoint="http://user:password@mirror"), "put credentials into a Secret"),
        (model("hf://org/name", endpoint="mirror:80"), "model.endpoint must be"),
        ({"cache": {"persistentVolumeClaim": "models"}}, "remove spec.cache"),
        ({"allowFrom": [{}]}, "a peer in allowFrom is empty"),
        ({"allowFrom": [PEER | {"ipBlock": {"cidr": "10.0.0.0/8"}}]}, "make two peers of it"),
        *(
            (volume(mountPath=path), "use another path")
            for path in ("/models", "/models/x", "/tmp", "/etc", "/usr/lib", "/opt", "/dev/shm", "/var/run/secrets")  # noqa: S108
        ),
        *((volume(mountPath=path), "must be an absolute path") for path in ("data", "/data/", "/data/../x", "/a//b")),
        (volume(secret={"secretName": "s"}), "exactly one of"),
        ({"template": {"volumes": [{"name": "v", "mountPath": "/data"}]}}, "exactly one of"),
        (
            {"template": {"volumes": [{"name": name, "mountPath": "/data", "emptyDir": {}} for name in "ab"]}},
            "give each its own",
        ),
    ],
    ids=str,
)
def test_refused_with_a_remedy(spec, remedy):
    found = problems(resource(**spec))
    assert any(remedy in problem for problem in found), found
