"""Why one container does not run: waiting states, exits, and what the program inside left as its last words."""

from __future__ import annotations

import re

from octavo_operator.causes.cause import Cause, Object, advice

ENGINE_REASONS = (
    *("InvalidConfiguration", "InsufficientMemory", "DiskFull"),
    *("ModelNotFound", "ModelAccessDenied", "ModelSourceUnreachable", "ModelChanged", "ModelCorrupt"),
    *("ModelUnsupported", "CheckpointInvalid"),
)
"""First word of the last message of a program of ours that cannot start. Log lines look alike: only these count."""

RUN_REASONS = ("EngineDead", "EngineStuck")
"""The same of an engine that served and could not go on."""

_PASSING = frozenset({"ModelSourceUnreachable"})
"""Of those, what may end by itself: the network comes back, the program tries again."""

_OWN_WORDS = re.compile(rf"^({'|'.join(ENGINE_REASONS + RUN_REASONS)}): (.{{1,800}})", re.MULTILINE)

_IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(: \w+: )?')
_IMAGE_ADVICE = (
    ("no match for platform", "it has no variant for the node's processor: build one, or select other nodes by "
     "template.nodeSelector kubernetes.io/arch"),
    ("unauthorized", "the registry wants credentials: name a Secret in template.imagePullSecrets"),
    ("denied", "the registry refuses: name a Secret with credentials in template.imagePullSecrets"),
    ("forbidden", "the registry refuses: name a Secret with credentials in template.imagePullSecrets"),
    ("couldn't parse image", "the name is not an image reference: correct engine.image"),
    ("not found", "the registry has no such image or tag: correct engine.image"),
    ("manifest unknown", "the registry has no such image or tag: correct engine.image"),
    ("no such host", "the node does not reach the registry: correct engine.image, or the node's network"),
    ("dial tcp", "the node does not reach the registry: correct engine.image, or the node's network"),
    ("i/o timeout", "the node does not reach the registry: correct engine.image, or the node's network"),
)  # fmt: skip
_OUT_OF_MEMORY = "raise resources.limits.memory, or lower what it holds (engine.kvCacheMemoryBytes, maxModelLen)"
_ARCHITECTURE = "the image is for another processor than the node's: choose another engine.image, or nodes by "
_ARCHITECTURE += "template.nodeSelector kubernetes.io/arch"


def container_cause(container: Object) -> Cause | None:
    """The cause of one entry of containerStatuses or initContainerStatuses; None while nothing is wrong with it."""
    state = container.get("state", {})
    waiting = state.get("waiting", {})
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _IMAGE_REASONS:
        return _image_cause(container.get("image", ""), reason, message)
    if reason == "CreateContainerConfigError":
        return _config_cause(message)
    if reason in ("CreateContainerError", "RunContainerError"):
        return _start_cause(message or reason)
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    if not ended:
        return None
    return exit_cause(container.get("name", "engine"), ended, container.get("restartCount", 0), reason)


def exit_cause(name: str, ended: Object, restarts: int, waiting: str = "") -> Cause | None:
    """Why a container's last run ended: its program's own words where it left any."""
    if ended.get("reason") == "OOMKilled":
        return Cause("ContainerOOMKilled", f"{name} used more memory than its limit: {_OUT_OF_MEMORY}", final=True)
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        return _start_cause(ended.get("message", ""))
    code = ended.get("exitCode")
    message = ended.get("message", "").strip()
    # One crash may be an accident that the restart cures; more are a loop.
    again = restarts > 1 or waiting == "CrashLoopBackOff"
    if code and (found := _OWN_WORDS.search(message)):
        final = again if found[1] in RUN_REASONS else found[1] not in _PASSING
        return Cause(found[1], found[2], final)
    if code and "exec format error" in message:
        return Cause("WrongArchitecture", f"{_ARCHITECTURE}: {message[-400:]}", final=True)
    if not code and waiting != "CrashLoopBackOff":
        return None
    tail = message[-400:] or "it left no message"
    words = f"{name} exits with {code}: see kubectl logs --previous: {tail}"
    return Cause("CrashLoop", words, final=again)


def killed(container: Object) -> bool:
    """Whether the last run ended as the kubelet ends one, with nothing to tell why."""
    ended = container.get("lastState", {}).get("terminated") or container.get("state", {}).get("terminated") or {}
    return ended.get("exitCode") in (0, 137, 143) and ended.get("reason") != "OOMKilled"


def _image_cause(image: str, reason: str, message: str) -> Cause:
    """The kubelet alternates between failing and backing off: both say the same, so that status does not flap."""
    words = _BACK_OFF.sub("", message) or reason
    found = advice(_IMAGE_ADVICE, words)
    if "no match for platform" in words:
        return Cause("WrongArchitecture", f"image {image}: {found[0]}: {words}", final=True)
    remedy = found[0] if found else "correct engine.image, or add template.imagePullSecrets"
    return Cause("ImagePullFailed", f"image {image}: {remedy}: {words}", final=True)


def _config_cause(message: str) -> Cause:
    if "runAsNonRoot" in message or "non-numeric user" in message:
        remedy = "the image runs as root, or names its user by word: give it a numeric USER other than 0"
        return Cause("ImageRunsAsRoot", f"{remedy}: {message}", final=True)
    return Cause("ConfigurationMissing", f"create what the pod refers to: {message}", final=True)


def _start_cause(message: str) -> Cause:
    if "exec format error" in message:
        return Cause("WrongArchitecture", f"{_ARCHITECTURE}: {message[-400:]}", final=True)
    if "executable file not found" in message or "no such file or directory" in message:
        remedy = "the image has no program `octavo`: engine.image must be an Octavo engine"
        return Cause("ContainerStartFailed", f"{remedy}: {message[-400:]}", final=True)
    return Cause("ContainerStartFailed", f"the node cannot start the container: {message[-400:]}", final=True)
