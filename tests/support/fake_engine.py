"""An engine of a few shell lines, as an image: it answers probes and `/load`, and fails where its arguments say so.

Small and instant, it stands in where a test is about the operator. `/load` is a file in the pod, which tests write;
`/metrics` is another, which they can take away.
Its `preflight` finds the same faults as its `serve`; the fetch of a source named hf://fake/held stays in the middle
until `end_fetch`, and file:///slow takes its time to be loaded.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cluster_tools import Kubectl
from node import archives, config, prerequisites, runtime
from node.archives import Descriptor
from octavo_operator import names

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"

IDLE = {
    "model_name": "fake",
    "state": "serving",
    "waiting": {"new": 0, "token_budget": 0, "kv_full": 0, "batch_full": 0, "prefix_pending": 0},
    "running": 0,
    "max_num_seqs": 4,
    "arrivals_total": 0,
    "completions_total": 0,
    "oldest_wait_seconds": 0.0,
    "kv_cache_usage_ratio": 0.0,
    "startup_seconds": 1.0,
}

METRICS = """# TYPE octavo_requests_running gauge
octavo_requests_running{model_name="fake"} 0
# TYPE octavo_requests_waiting gauge
octavo_requests_waiting{model_name="fake",reason="batch_full"} 0
# TYPE octavo_server_state gauge
octavo_server_state{model_name="fake",state="serving"} 1
"""
"""As much of an idle engine's page as alerts about replicas look at."""

COMMIT = "c0ffee" * 6 + "beef"
BYTES = 3_000_000
LOAD_SECONDS = 12
"""Of the slow model; all others take no time."""

_FOUND = {"revision": COMMIT, "bytes": BYTES, "files": 3}
_PROGRESS = {"phase": "fetching", "files_done": 1, "files_total": 3, "bytes_total": BYTES, "revision": COMMIT}

# An answer that goes on until `end_streams`.
_STREAM = r"""#!/bin/busybox sh
printf 'Content-Type: text/event-stream\r\n\r\n'
until [ -e /tmp/end-streams ]; do echo "data: token"; /bin/busybox sleep 0.5; done
echo "data: [DONE]"
"""

# As process 1, the shell must ask for the signals it wants to die of. Told to end, it takes no new connections and lets
# streams finish, as an engine does.
_SCRIPT = f"""#!/bin/busybox sh
streaming() {{ /bin/busybox pidof token-stream > /dev/null; }}
drain() {{ [ -z "$server" ] || kill "$server"; while streaming; do /bin/busybox sleep 0.2; done; exit 0; }}
trap drain TERM INT
all="$*"
end() {{ echo "$2" > /dev/termination-log; echo "$2"; exit $1; }}
# A page without an extension is of no type that Prometheus reads; one that stands for a folder is text.
metrics() {{
    /bin/busybox mkdir -p /tmp/www/metrics
    /bin/busybox cat > /tmp/www/metrics/index.txt
    echo I:index.txt > /tmp/httpd.conf
}}
page() {{ /bin/busybox mkdir -p /tmp/www; echo "$2" > /tmp/www/next; /bin/busybox mv /tmp/www/next "/tmp/www/$1"; }}
value() {{ rest="${{all#*$1=}}"; echo "${{rest%% *}}"; }}

case "$all" in
*--model=/missing*|*--source=hf://fake/missing*) end 2 "ModelNotFound: there is no such model";;
*--max-num-seqs=666*) end 2 "InvalidConfiguration: --max-num-seqs must not be 666";;
serve*--model=/crash*) echo "Traceback (most recent call last)"; exit 1;;
serve*--model=/leaks*)
    key="$(/bin/busybox cat /etc/octavo/keys/api-keys)"
    echo "GET https://user:$key@hub.example/m?X-Amz-Signature=$key: 401 for Authorization: Bearer $key"; exit 1;;
serve*--model=/memory*) exec /bin/busybox tail /dev/zero;;
serve*--model=/never*) /bin/busybox sleep 600 & wait;;
serve*--model=/slow*) loading={LOAD_SECONDS};;
esac
case "$all" in
preflight*) end 0 '{json.dumps(_FOUND)}';;
fetch*)
    page progress '{json.dumps(_PROGRESS | {"bytes_done": BYTES // 2})}'
    /bin/busybox httpd -p 8001 -h /tmp/www
    case "$all" in *hf://fake/held*) until [ -e /tmp/end-fetch ]; do /bin/busybox sleep 0.2; done;; esac
    where="$(value --destination)"
    /bin/busybox mkdir -p "$where" && echo x > "$where/weights" || end 2 "DiskFull: no room in $where"
    exit 0;;
*--model=/models/model*|*--model=/models/octavo/*)
    [ -e "$(value --model)/weights" ] || end 2 "ModelNotFound: $(value --model) holds no weights";;
esac
/bin/busybox mkdir -p /tmp/www/cgi-bin
/bin/busybox cat > /tmp/www/cgi-bin/token-stream <<'END'
{_STREAM}
END
/bin/busybox chmod +x /tmp/www/cgi-bin/token-stream
page livez ok
page load '{json.dumps(IDLE)}'
metrics <<'END'
{METRICS}END
/bin/busybox httpd -p 8000 -h /tmp/www
/bin/busybox httpd -c /tmp/httpd.conf -f -p 8001 -h /tmp/www &
server=$!
[ -z "$loading" ] || {{ /bin/busybox sleep "$loading" & wait $!; }}
page readyz ok
wait
"""


def ensure_image(settings: config.Settings) -> str:
    """The image's reference; it is imported where it is missing or its script changed."""
    layer = _layer(prerequisites.unpacked(settings, "busybox"))
    digest = Descriptor.of(_LAYER, layer).digest
    reference = f"localhost/fake-engine:{digest.rpartition(':')[2][:12]}"
    if reference not in runtime.references(settings):
        runtime.ctr(settings, "images", "import", "-", stdin=_archive(reference, layer))
    return reference


def set_load(kubectl: Kubectl, namespace: str, pod: str, document: object) -> None:
    """What the pod says on `/load` from now on."""
    write = "/bin/busybox cat > /tmp/www/next && /bin/busybox mv /tmp/www/next /tmp/www/load"
    command = ["/bin/busybox", "sh", "-c", write]
    kubectl("exec", "-i", "-n", namespace, pod, "--", *command, stdin=json.dumps(document))


def hide_metrics(kubectl: Kubectl, namespace: str, pod: str, hidden: bool = True) -> None:
    """Takes the pod's `/metrics` away, or puts it back."""
    old, new = ("metrics", "hidden") if hidden else ("hidden", "metrics")
    move = f"cd /tmp/www && /bin/busybox mv {old} {new}"
    kubectl("exec", "-n", namespace, pod, "--", "/bin/busybox", "sh", "-c", move)


def end_streams(kubectl: Kubectl, namespace: str, pod: str) -> None:
    """Lets the pod's streams, which `/cgi-bin/token-stream` begins, come to their regular end."""
    kubectl("exec", "-n", namespace, pod, "--", "/bin/busybox", "sh", "-c", ": > /tmp/end-streams")


def end_fetches(kubectl: Kubectl, namespace: str, pods: Iterable[dict[str, Any]]) -> bool:
    """Lets the fetches that are held in these pods, replicas' or Jobs', come to their end; whether one was told so."""
    # One that has just ended is no longer there to be told, and a busy node may not let anybody in.
    touch = ["/bin/busybox", "sh", "-c", "/bin/busybox touch /tmp/end-fetch && echo told"]
    where = [(pod["metadata"]["name"], "-c", names.LOADER) for pod in pods if fetches(pod)]
    answers = [kubectl("exec", "-n", namespace, *loader, "--", *touch, check=False) for loader in where]
    return "told\n" in answers


def fetches(pod: dict[str, Any]) -> bool:
    """Whether a model is being fetched in a pod."""
    status = pod.get("status", {})
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return any(item["name"] == names.LOADER and "running" in item["state"] for item in containers)


def busy(waiting: int, running: int = 4) -> dict[str, object]:
    """A load with requests that wait for a place in the batch."""
    return IDLE | {"waiting": IDLE["waiting"] | {"batch_full": waiting}, "running": running}  # type: ignore[operator]


def _layer(busybox: Path) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for name, content in (("bin/busybox", busybox.read_bytes()), ("bin/octavo", _SCRIPT.encode())):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return output.getvalue()


def _archive(reference: str, layer: bytes) -> bytes:
    layers = [Descriptor.of(_LAYER, layer)]
    settings = {"User": "65532:65532", "WorkingDir": "/", "Env": ["PATH=/bin"]}
    rootfs = {"type": "layers", "diff_ids": [layers[0].digest]}
    image = json.dumps({"architecture": "amd64", "os": "linux", "config": settings, "rootfs": rootfs}).encode()
    described = {"config": Descriptor.of(_CONFIG, image).document(), "layers": [item.document() for item in layers]}
    manifest = json.dumps({"schemaVersion": 2, "mediaType": _MANIFEST} | described).encode()
    return archives.archive(reference, manifest, (layer, image))
