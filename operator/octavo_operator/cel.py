"""CEL validations of the resource: what a schema cannot say, each with a message that names the remedy.

The API server evaluates them at admission, so that no webhook and no certificate is needed. Lengths are bounded
wherever a rule walks something: the server refuses rules that could cost too much.
"""

from __future__ import annotations

from typing import Any

# Flags Octavo sets itself. A prefix of a flag is refused too, as parsers accept prefixes.
RESERVED_FLAGS = [
    *("--model", "--served-model-name", "--host", "--port", "--management-host", "--management-port"),
    *("--api-key", "--api-key-file", "--drain-seconds", "--max-model-len", "--max-num-seqs"),
    *("--max-num-batched-tokens", "--gpu-memory-utilization", "--kv-cache-memory-bytes", "--block-size", "--dtype"),
    *("--enable-prefix-caching", "--no-enable-prefix-caching", "--enable-chunked-prefill"),
    *("--no-enable-chunked-prefill", "--scheduling-policy", "--prefix-cache-scope", "--tensor-parallel-size"),
]
RESERVED_ENV = [
    *("HOME", "USER", "TMPDIR", "PATH", "XDG_CACHE_HOME", "HF_HOME"),
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH"),
]


def _rule(expression: str, message: str) -> dict[str, str]:
    return {"rule": expression, "message": message}


def _rules(*validations: dict[str, str]) -> dict[str, Any]:
    return {"x-kubernetes-validations": list(validations)}


def _words(words: list[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


# What a source may look like, by scheme. No query and no user part: both would carry credentials into a spec that
# many may read.
_SOURCES = {
    "pvc": "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9._/-]+",
    "file": "/[A-Za-z0-9._/-]+",
    "hf": "[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9._/-]+[.]gguf)?",
    "s3": "[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[A-Za-z0-9._/=+-]+",
    "gs": "[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]/[A-Za-z0-9._/=+-]+",
    "https": "[A-Za-z0-9.-]+(:[0-9]{1,5})?/[A-Za-z0-9._~%/=+-]+",
    "oci": "[A-Za-z0-9.-]+(:[0-9]{1,5})?/[a-z0-9._/-]+(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|@sha256:[0-9a-f]{64})?",
}

MODEL_SOURCE = _rules(
    _rule(
        f"self.matches('^({'|'.join(f'{scheme}://{rest}' for scheme, rest in _SOURCES.items())})$')",
        "model.source must be pvc://CLAIM/PATH, file:///PATH, hf://ORG/NAME[/FILE.gguf], s3://BUCKET/PREFIX, "
        "gs://BUCKET/PREFIX, https://HOST/PATH or oci://REGISTRY/REPOSITORY[:TAG|@sha256:DIGEST], without query: "
        "correct it",
    ),
    _rule(
        "!self.matches('^[a-z0-9]+://[^/]*@')",
        "model.source may not carry a user or password: put them into a Secret and name it in model.tokenSecretRef or "
        "model.credentialsSecretRef",
    ),
    _rule(
        "!self.split('/').exists(part, part == '..')",
        "model.source may not contain '..': give the path from the root of the claim, image or store",
    ),
)

ENDPOINT = _rules(
    _rule(
        "self.matches('^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$')",
        "model.endpoint must be http://HOST[:PORT][/PATH] or https://..., without user, password or query: "
        "put credentials into a Secret and name it in model.tokenSecretRef or model.credentialsSecretRef",
    )
)


def _only_for(field: str, schemes: list[str], remedy: str) -> dict[str, str]:
    """A field of `model` that has an effect with some schemes only."""
    allowed = " || ".join(f"self.source.startsWith('{scheme}://')" for scheme in schemes)
    names = " and ".join(f"{scheme}://" for scheme in schemes)
    return _rule(f"!has(self.{field}) || {allowed}", f"model.{field} is for {names} sources: {remedy}")


MODEL = _rules(
    _only_for("revision", ["hf"], "remove it, or name the version in model.source"),
    _only_for(
        "tokenSecretRef", ["hf", "https"], "remove it, or use model.credentialsSecretRef for a store or registry"
    ),
    _only_for("credentialsSecretRef", ["s3", "gs", "oci"], "remove it, or use model.tokenSecretRef for hub and https"),
    _only_for("endpoint", ["hf", "s3", "gs", "oci"], "remove it"),
    _rule(
        "!has(self.revision) || !self.revision.split('/').exists(part, part == '..')",
        "model.revision may not contain '..': name a branch, tag or commit",
    ),
)

# Where a volume of the user's may not lie: what Octavo mounts, and what makes the image work.
RESERVED_PATHS = [
    *("/models", "/tmp", "/cache", "/etc/octavo", "/opt/octavo"),  # noqa: S108 - a name, not a use
    *("/bin", "/dev", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/run"),
]

MOUNT_PATH = _rules(
    _rule(
        "self.matches('^(/[A-Za-z0-9._-]+)+$') && !self.split('/').exists(part, part == '.' || part == '..')",
        "mountPath must be an absolute path of letters, digits and . _ - without '..' and without a slash at its end: "
        "correct it",
    ),
    _rule(
        f"!{_words(RESERVED_PATHS)}.exists(p, self == p || self.startsWith(p + '/') || p.startsWith(self + '/'))",
        "mountPath may not cover or lie below /models, /tmp, /cache, /etc/octavo or a directory of the system: "
        "use another path, such as /data",
    ),
)

VOLUME = _rules(
    _rule(
        "[has(self.configMap), has(self.secret), has(self.persistentVolumeClaim), has(self.emptyDir)]"
        ".filter(x, x).size() == 1",
        "a volume is exactly one of configMap, secret, persistentVolumeClaim and emptyDir: keep one of them",
    )
)

VOLUMES = _rules(
    _rule(
        "self.all(v, self.exists_one(w, w.mountPath == v.mountPath))",
        "two volumes have the same mountPath: give each its own",
    )
)

PEER = _rules(
    _rule(
        "has(self.podSelector) || has(self.namespaceSelector) || has(self.ipBlock)",
        "a peer in allowFrom is empty, which says neither nobody nor everybody: add podSelector, namespaceSelector or "
        "ipBlock",
    ),
    _rule(
        "!has(self.ipBlock) || !(has(self.podSelector) || has(self.namespaceSelector))",
        "a peer in allowFrom is either an ipBlock or pods: make two peers of it",
    ),
)

ENV_NAME = _rules(
    _rule(
        "!self.startsWith('LD_') && !self.startsWith('PYTHON') && !self.startsWith('OCTAVO_') "
        f"&& !(self in {_words(RESERVED_ENV)})",
        "LD_*, PYTHON*, OCTAVO_*, PATH, HOME and the cache locations are set by Octavo: "
        "remove this entry from engine.env",
    )
)

EXTRA_ARGS = _rules(
    _rule(
        "self.all(a, a.matches('^--[a-z][a-z0-9-]*(=.*)?$'))",
        "write each entry of engine.extraArgs as --flag or --flag=value",
    ),
    _rule(
        f"self.all(a, !{_words(RESERVED_FLAGS)}.exists(f, f.startsWith(a.split('=')[0])))",
        "engine.extraArgs may not set host, ports, keys, model or a flag that has a field of its own: "
        "use the field under spec.engine, spec.model or spec.auth",
    ),
)

ACCELERATORS = _rules(
    _rule(
        "!('nvidia.com/gpu' in self) || string(self['nvidia.com/gpu']).matches('^([0-9]|1[0-6])$')",
        "a replica shares its model among the accelerators of one node: set limits['nvidia.com/gpu'] to a whole number "
        "up to 16, and raise replicas or maxReplicas for more",
    )
)

OWN_KEYS = _rules(
    _rule(
        "self.all(k, k.size() <= 316 && !k.startsWith('octavo.dev/') && !k.contains('.octavo.dev/') "
        "&& (!k.contains('kubernetes.io/') || k.startsWith('cluster-autoscaler.kubernetes.io/')))",
        "keys under octavo.dev/ and kubernetes.io/ are set by Octavo and Kubernetes: use a prefix of your own",
    )
)

_EXTERNAL = "(has(self.autoscaling.mode) && self.autoscaling.mode == 'External')"

SPEC = _rules(
    _rule(
        "!has(self.cache) || !(self.model.source.startsWith('pvc://') || self.model.source.startsWith('file://'))",
        "cache is for models that are fetched: remove spec.cache, a pvc:// or file:// source is read where it is",
    ),
    _rule(
        f"!has(self.replicas) || !has(self.autoscaling) || {_EXTERNAL}",
        "replicas and autoscaling exclude each other: remove spec.replicas and set autoscaling.minReplicas and "
        "maxReplicas, or set autoscaling.mode to External",
    ),
    _rule(
        f"!has(self.autoscaling) || !{_EXTERNAL} || has(self.replicas)",
        "autoscaling.mode External needs spec.replicas as the starting value: add it",
    ),
    _rule(
        f"!has(self.autoscaling) || !{_EXTERNAL} || !(has(self.autoscaling.minReplicas) "
        "|| has(self.autoscaling.maxReplicas) || has(self.autoscaling.targetQueueDepth) "
        "|| has(self.autoscaling.objectiveSeconds))",
        "autoscaling.mode External leaves bounds and targets to the external autoscaler: "
        "set them there and remove them here",
    ),
    _rule(
        f"!has(self.autoscaling) || {_EXTERNAL} || has(self.autoscaling.maxReplicas)",
        "autoscaling needs maxReplicas: add the most replicas you are ready to pay for",
    ),
    _rule(
        "!has(self.autoscaling) || !has(self.autoscaling.maxReplicas) || (has(self.autoscaling.minReplicas) "
        "? self.autoscaling.minReplicas : 1) <= self.autoscaling.maxReplicas",
        "autoscaling.minReplicas must not exceed maxReplicas: lower the one or raise the other",
    ),
)
