"""The pod security standard "restricted" as code, for manifests that no API server has seen.

The profiles are Kubernetes' own (v1.34); a cluster test holds this module against the API server's verdict, pod by pod.
On top of them `hardened` has what the standard leaves to each project.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Object = dict[str, Any]

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected"),
    "secret",
}
SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
    *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
    *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
}
SELINUX_TYPES = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def containers(spec: Object) -> list[Object]:
    """All containers of a pod spec, of every kind."""
    return [*spec.get("initContainers", ()), *spec["containers"], *spec.get("ephemeralContainers", ())]


def violations(pod: Object) -> list[str]:
    """What keeps a pod (or a pod template: `metadata` and `spec`) out of a restricted namespace; empty: nothing."""
    spec = pod["spec"]
    found = [*_pod(spec), *_annotations(pod)]
    for container in containers(spec):
        found += [
            f"{container['name']}: {problem}" for problem in _container(container, spec.get("securityContext", {}))
        ]
    return found


def hardened(pod: Object) -> list[str]:
    """What we ask of our own pods beyond the standard; empty: nothing is missing."""
    found = []
    for container in containers(pod["spec"]):
        if not container.get("securityContext", {}).get("readOnlyRootFilesystem"):
            found.append(f"{container['name']}: the root file system can be written to")
        if "memory" not in container.get("resources", {}).get("limits", {}):
            found.append(f"{container['name']}: memory has no limit")
        found += [
            f"{container['name']}: no {probe}"
            for probe in PROBES
            if probe not in container and container in pod["spec"]["containers"]
        ]
    found += [
        f"volume {item['name']}: an emptyDir without sizeLimit"
        for item in pod["spec"].get("volumes", ())
        if "emptyDir" in item and "sizeLimit" not in item["emptyDir"]
    ]
    return found


def _pod(spec: Object) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes", ()):
        kinds = set(volume) - {"name"}
        if kinds - VOLUMES:
            yield f"volume {volume['name']} of kind {kinds}"
    context = spec.get("securityContext", {})
    yield from _shared(context)
    yield from (f"sysctl {item['name']}" for item in context.get("sysctls", ()) if item["name"] not in SYSCTLS)


def _annotations(pod: Object) -> Iterator[str]:
    """The older way to name an AppArmor profile, which still counts."""
    for key, value in pod.get("metadata", {}).get("annotations", {}).items():
        fine = value == "runtime/default" or value.startswith("localhost/")
        if key.startswith("container.apparmor.security.beta.kubernetes.io/") and not fine:
            yield f"AppArmor {value}"


def _shared(context: Object) -> Iterator[str]:
    """What a pod's and a container's security context have in common."""
    if context.get("runAsUser") == 0:
        yield "runAsUser 0"
    if context.get("runAsNonRoot") is False:
        yield "runAsNonRoot false"
    if context.get("seccompProfile", {}).get("type", "RuntimeDefault") not in ("RuntimeDefault", "Localhost"):
        yield "seccomp is switched off"
    if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in ("RuntimeDefault", "Localhost"):
        yield "AppArmor is switched off"
    options = context.get("seLinuxOptions", {})
    if options.get("type") not in SELINUX_TYPES or options.get("user") or options.get("role"):
        yield "SELinux options"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield "hostProcess"


def _container(container: Object, pod: Object) -> Iterator[str]:
    context = container.get("securityContext", {})
    yield from _shared(context)
    if context.get("privileged"):
        yield "privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if not context.get("runAsNonRoot", pod.get("runAsNonRoot")):
        yield "runAsNonRoot is not true"
    if "seccompProfile" not in context and "seccompProfile" not in pod:
        yield "no seccomp profile"
    if context.get("procMount", "Default") != "Default":
        yield "procMount"
    yield from _capabilities(context.get("capabilities", {}))
    yield from _hosts(container)


def _capabilities(capabilities: Object) -> Iterator[str]:
    if "ALL" not in capabilities.get("drop", ()):
        yield "not all capabilities are dropped"
    for added in capabilities.get("add", ()):
        if added != "NET_BIND_SERVICE":
            yield f"capability {added}"


def _hosts(container: Object) -> Iterator[str]:
    for port in container.get("ports", ()):
        if port.get("hostPort"):
            yield f"hostPort {port['hostPort']}"
    hooks = [container.get(name, {}) for name in PROBES]
    hooks += [hook for hook in container.get("lifecycle", {}).values() if isinstance(hook, dict)]
    for hook in hooks:
        if any(hook.get(kind, {}).get("host") for kind in ("httpGet", "tcpSocket")):
            yield "a probe or hook with a host"


Change = Callable[[Object, Object], object]
"""Changes a pod's spec and its first container in place."""

BREAKS: dict[str, Change] = {
    "host network": lambda pod, _: pod.update(hostNetwork=True),
    "host processes": lambda pod, _: pod.update(hostPID=True),
    "host path": lambda pod, _: pod["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    "network volume": lambda pod, _: pod["volumes"].append({"name": "n", "nfs": {"server": "s", "path": "/"}}),
    "sysctl": lambda pod, _: pod["securityContext"].update(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
    "root user": lambda pod, _: pod["securityContext"].update(runAsUser=0),
    "perhaps root": lambda pod, _: pod["securityContext"].pop("runAsNonRoot"),
    "root after all": lambda _, it: it["securityContext"].update(runAsNonRoot=False),
    "no seccomp": lambda pod, _: pod["securityContext"].pop("seccompProfile"),
    "unconfined": lambda _, it: it["securityContext"].update(seccompProfile={"type": "Unconfined"}),
    "no AppArmor": lambda _, it: it["securityContext"].update(appArmorProfile={"type": "Unconfined"}),
    "SELinux": lambda pod, _: pod["securityContext"].update(seLinuxOptions={"type": "spc_t"}),
    "privileged": lambda _, it: it["securityContext"].update(privileged=True, allowPrivilegeEscalation=True),
    "escalation": lambda _, it: it["securityContext"].pop("allowPrivilegeEscalation"),
    "all capabilities": lambda _, it: it["securityContext"].pop("capabilities"),
    "more capabilities": lambda _, it: it["securityContext"]["capabilities"].update(add=["CHOWN"]),
    "unmasked /proc": lambda pod, it: (pod.update(hostUsers=False), it["securityContext"].update(procMount="Unmasked")),
    "host port": lambda _, it: it["ports"][0].update(hostPort=8080),
    "probe of another host": lambda _, it: it["livenessProbe"]["httpGet"].update(host="example.com"),
    "init container": lambda pod, it: pod.update(initContainers=[{"name": "i", "image": it["image"]}]),
}
FINE: dict[str, Change] = {
    "nothing": lambda *_: None,
    "a low port": lambda _, it: it["securityContext"]["capabilities"].update(add=["NET_BIND_SERVICE"]),
    "non-root by container": lambda pod, it: it["securityContext"].update(
        runAsNonRoot=pod["securityContext"].pop("runAsNonRoot")
    ),
    "seccomp by container": lambda pod, it: it["securityContext"].update(
        seccompProfile=pod["securityContext"].pop("seccompProfile")
    ),
    "a safe sysctl": lambda pod, _: pod["securityContext"].update(
        sysctls=[{"name": "net.ipv4.tcp_keepalive_time", "value": "600"}]
    ),
    "a Secret": lambda pod, _: pod["volumes"].append({"name": "s", "secret": {"secretName": "s"}}),
}


def changed(pod: Object, change: Change) -> Object:
    """A copy of a pod with a change."""
    pod = copy.deepcopy(pod)
    change(pod["spec"], pod["spec"]["containers"][0])
    return pod
