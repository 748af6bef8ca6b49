"""The daemons of every node as values. Starts nothing."""

from __future__ import annotations

from pathlib import Path

from node import addons, binaries, config, extras, mounts, prerequisites, programs
from node.component import Component, Document, command, text
from node.config import DNS_IP, NODE_IP, NODE_NAME, Settings

_ON_A_DEVICE = ("ext4", "xfs")  # an overlay, as in many containers, is none


def waves(settings: Settings) -> list[list[Component]]:
    """All daemons in starting order: a wave needs the one before it to be well."""
    return [
        [_etcd(settings), _containerd(settings)],
        [_apiserver(settings)],
        [
            _controller_manager(settings),
            _scheduler(settings),
            _kubelet(settings),
            _proxy(settings),
            _prometheus(settings),
        ],
        [extras.COMPONENTS[name](settings) for name in addons.enabled(settings)],
    ]


def _etcd(settings: Settings) -> Component:
    data = settings.state / "etcd"
    # On the namespace's loopback, where no pod comes; only /health and /metrics are served beyond it.
    flags = {
        "name": NODE_NAME,
        "data-dir": data,
        "listen-client-urls": "http://127.0.0.1:2379",
        "advertise-client-urls": "http://127.0.0.1:2379",
        "listen-peer-urls": "http://127.0.0.1:2380",
        "listen-metrics-urls": f"http://{NODE_IP}:2381",
        "auto-compaction-retention": "1",
        # What a power cut may take from a development cluster is not worth a disk flush for each write.
        "unsafe-no-fsync": "true",
    }
    return Component("etcd", command(prerequisites.unpacked(settings, "etcd"), flags), f"http://{NODE_IP}:2381/health")


def _containerd(settings: Settings) -> Component:
    file = settings.state / "containerd" / "config.toml"
    network = settings.state / "cni" / "10-octavo.conflist"
    content = (config.HACK / "node" / "manifests" / "containerd.toml").read_text()
    values = {
        # Images outlive the node: importing one of several gigabytes takes a minute.
        "@ROOT@": settings.cache / "containerd",
        "@STATE@": settings.state / "containerd" / "state",
        "@SOCKET@": settings.containerd_socket,
        "@PAUSE@": config.PAUSE_IMAGE,
        "@CNI@": network.parent,
        "@RUNC@": prerequisites.find("runc"),
        "@OPT@": settings.state / "containerd" / "opt",
    }
    for mark, value in values.items():
        content = content.replace(mark, str(value))
    return Component(
        "containerd",
        (str(prerequisites.unpacked(settings, "containerd")), "--config", str(file)),
        f"unix:{settings.containerd_socket}",
        files={file: content, network: text(_pod_network(settings))},
    )


def _pod_network(settings: Settings) -> Document:
    # Routed veth pairs, no bridge: all traffic passes the node's own routing, so Services need no bridge filter.
    addresses = {
        "type": "host-local",
        "dataDir": str(settings.state / "cni" / "addresses"),
        "ranges": [[{"subnet": str(config.POD_NETWORK)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"cniVersion": "0.4.0", "name": "octavo", "plugins": [{"type": "ptp", "ipam": addresses}]}


def _apiserver(settings: Settings) -> Component:
    pki, policy = settings.pki, settings.state / "apiserver" / "audit-policy.json"
    # Bodies are left out: Secrets would end up in the log.
    rules: Document = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }
    flags = {
        "advertise-address": NODE_IP,
        "allow-privileged": "true",
        "audit-log-maxbackup": "2",
        "audit-log-maxsize": "200",
        "audit-log-path": settings.logs / "audit.log",
        "audit-policy-file": policy,
        "authorization-mode": "Node,RBAC",
        "client-ca-file": pki / "ca.crt",
        "enable-admission-plugins": "NodeRestriction",
        "etcd-servers": "http://127.0.0.1:2379",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-client-certificate": pki / "apiserver-kubelet-client.crt",
        "kubelet-client-key": pki / "apiserver-kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",
        "profiling": "false",
        "proxy-client-cert-file": pki / "front-proxy-client.crt",
        "proxy-client-key-file": pki / "front-proxy-client.key",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-client-ca-file": pki / "front-proxy-ca.crt",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "secure-port": "6443",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": pki / "service-account.pub",
        "service-account-signing-key-file": pki / "service-account.key",
        "service-cluster-ip-range": config.SERVICE_NETWORK,
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
    }
    argv = command(_kubernetes(settings, "kube-apiserver"), flags)
    return Component(
        "kube-apiserver", argv, f"{config.API_URL}/readyz", files={policy: text(rules)}, folders=(settings.logs,)
    )


def _controller_manager(settings: Settings) -> Component:
    pki, kubeconfig = settings.pki, settings.kubeconfigs / "controller-manager.json"
    flags = {
        **_delegated(settings, "controller-manager"),
        "bind-address": NODE_IP,
        "cluster-signing-cert-file": pki / "ca.crt",
        "cluster-signing-key-file": pki / "ca.key",
        # A third of the default: autoscalers act within seconds, and one node has few.
        "horizontal-pod-autoscaler-sync-period": "5s",
        "kubeconfig": kubeconfig,
        "leader-elect": "false",
        "root-ca-file": pki / "ca.crt",
        "service-account-private-key-file": pki / "service-account.key",
        "use-service-account-credentials": "true",
    }
    argv = command(_kubernetes(settings, "kube-controller-manager"), flags)
    return Component("kube-controller-manager", argv, f"https://{NODE_IP}:10257/healthz")


def _scheduler(settings: Settings) -> Component:
    flags = {
        **_delegated(settings, "scheduler"),
        "bind-address": NODE_IP,
        "kubeconfig": settings.kubeconfigs / "scheduler.json",
        "leader-elect": "false",
    }
    argv = command(_kubernetes(settings, "kube-scheduler"), flags)
    return Component("kube-scheduler", argv, f"https://{NODE_IP}:10259/healthz")


def _kubelet(settings: Settings) -> Component:
    folder = settings.state / "kubelet"
    file, resolver = folder / "config.json", folder / "resolv.conf"
    document: Document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(settings.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{config.NAMESPACE}",
        "clusterDNS": [DNS_IP],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{settings.containerd_socket}",
        "enforceNodeAllocatable": [],
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": config.EVICTED_BELOW,
            "imagefs.available": config.EVICTED_BELOW,
        },
        "failSwapOn": False,
        "healthzBindAddress": NODE_IP,
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": measures_storage(settings.state),
        "podLogsDir": str(settings.logs / "pods"),
        "resolvConf": str(resolver),
        "tlsCertFile": str(settings.pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(settings.pki / "kubelet.key"),
        "volumePluginDir": str(folder / "plugins"),
    }
    flags = {
        "config": file,
        "hostname-override": NODE_NAME,
        "kubeconfig": settings.kubeconfigs / "kubelet.json",
        "node-ip": NODE_IP,
        "root-dir": folder / "root",
    }
    files = {file: text(document), resolver: f"nameserver {DNS_IP}\n"}
    return Component(
        "kubelet", command(_kubernetes(settings, "kubelet"), flags), f"http://{NODE_IP}:10248/healthz", files=files
    )


def measures_storage(folder: Path) -> bool:
    """Whether the kubelet can hold pods to their limits of storage: it ends where it finds no device for its folder."""
    return mounts.filesystem(folder, Path("/proc/self/mountinfo").read_text()) in _ON_A_DEVICE


def _proxy(settings: Settings) -> Component:
    file = settings.state / "kube-proxy" / "config.json"
    document: Document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(settings.kubeconfigs / "proxy.json")},
        "clusterCIDR": str(config.POD_NETWORK),
        # The connection tracker's limits belong to the host, not to one namespace.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": f"{NODE_IP}:10256",
        "hostnameOverride": NODE_NAME,
        "mode": "nftables",
    }
    argv = command(_kubernetes(settings, "kube-proxy"), {"config": file})
    return Component(
        "kube-proxy",
        argv,
        f"http://{NODE_IP}:10256/healthz",
        files={file: text(document)},
        # It trusts the rules that it finds; those of a killed predecessor can lack an endpoint for good.
        prepare=(*argv, "--cleanup"),
    )


def _prometheus(settings: Settings) -> Component:
    folder = settings.state / "prometheus"
    file = folder / "prometheus.json"
    meta = "__meta_kubernetes_pod"
    scrape = {
        "job_name": "octavo",
        "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(settings.kubeconfigs / "prometheus.json")}],
        "relabel_configs": [
            {"source_labels": [f"{meta}_labelpresent_octavo_dev_service"], "regex": "true", "action": "keep"},
            {"source_labels": [f"{meta}_phase"], "regex": "Running", "action": "keep"},
            # Discovery names a target for each port of a pod; with the address set they fall into one.
            {"source_labels": [f"{meta}_ip"], "regex": "(.+)", "target_label": "__address__", "replacement": "$1:8001"},
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
            {"source_labels": [f"{meta}_name"], "target_label": "pod"},
            {"source_labels": [f"{meta}_label_octavo_dev_service"], "target_label": "inferenceservice"},
        ],
    }
    operator = {
        "job_name": "octavo-operator",
        "honor_labels": True,  # its series carry the namespace of the service they speak of
        "kubernetes_sd_configs": scrape["kubernetes_sd_configs"],
        "relabel_configs": [
            {
                "source_labels": [f"{meta}_label_app_kubernetes_io_name"],
                "regex": "octavo-operator",
                "action": "keep",
            },
            {"source_labels": [f"{meta}_container_port_name"], "regex": "health", "action": "keep"},
            {"source_labels": [f"{meta}_name"], "target_label": "pod"},
        ],
    }
    document: Document = {
        "global": {"scrape_interval": "5s", "scrape_timeout": "4s", "evaluation_interval": "5s"},
        "rule_files": [str(folder / "rules" / "*.yaml")],
        "scrape_configs": [scrape, operator],
    }
    flags = {
        "config.file": file,
        "storage.tsdb.path": folder / "data",
        "storage.tsdb.retention.time": "2d",
        "web.enable-lifecycle": None,
        "web.listen-address": f"{NODE_IP}:9090",
    }
    argv = command(binaries.path(settings, programs.PROMETHEUS), flags)
    health = f"{config.PROMETHEUS_URL}/-/healthy"
    # What the Fleet board needs; whoever wants more rules puts them beside it and has them reloaded.
    rules = {folder / "rules" / "octavo.yaml": (config.CHECKOUT / "dashboards" / "rules.yaml").read_text()}
    return Component("prometheus", argv, health, files={file: text(document)} | rules)


def _kubernetes(settings: Settings, daemon: str) -> Path:
    return binaries.path(settings, programs.KUBERNETES, daemon)


def _delegated(settings: Settings, name: str) -> dict[str, object]:
    kubeconfig = settings.kubeconfigs / f"{name}.json"
    return {"authentication-kubeconfig": kubeconfig, "authorization-kubeconfig": kubeconfig}
