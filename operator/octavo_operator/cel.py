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
    *("--no-enable-chunked-prefill", "--scheduling-policy", "--prefix-cache-scope"),
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


MODEL_SOURCE = _rules(
    _rule(
        r"self.matches('^pvc://[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9._/-]+$') "
        r"|| self.matches('^file:///[A-Za-z0-9._/-]+$')",
        "model.source must be pvc://CLAIM/PATH or file:///PATH with letters, digits and . _ - / in the path: "
        "put the checkpoint on a PersistentVolumeClaim or into the engine image",
    ),
    _rule(
        "!self.split('/').exists(part, part == '..')",
        "model.source may not contain '..': give the path from the root of the claim or image",
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

ONE_ACCELERATOR = _rules(
    _rule(
        "!('nvidia.com/gpu' in self) || string(self['nvidia.com/gpu']) in ['0', '1']",
        "a replica uses one accelerator: set limits['nvidia.com/gpu'] to 1 and raise replicas or maxReplicas instead",
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

SCALING = _rules(
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
