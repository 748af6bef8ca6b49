"""The node's certificates, made once as a whole with openssl, and the kubeconfigs that carry them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from node import config
from node.config import Settings
from node.shell import Argument, run
from node.steps import step

_CLUSTER_CA = "ca"
_FRONT_PROXY_CA = "front-proxy-ca"
_DAYS = "3650"
_EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Identity:
    """Who a certificate speaks for: RBAC sees `group` and `name`; with `hosts` it also serves under those names."""

    file: str
    name: str
    group: str | None = None
    hosts: tuple[str, ...] = ()
    ca: str = _CLUSTER_CA

    @property
    def subject(self) -> str:
        """The subject in openssl's notation."""
        return f"/O={self.group}/CN={self.name}" if self.group else f"/CN={self.name}"


_API_HOSTS = (
    *(f"DNS:kubernetes{suffix}" for suffix in ("", ".default", ".default.svc", ".default.svc.cluster.local")),
    *(f"IP:{address}" for address in (config.NODE_IP, config.API_SERVICE_IP)),
)

# Those with a kubeconfig of the same name under which the component talks to the API server.
CLIENTS = (
    Identity("admin", "octavo-admin", group="system:masters"),
    Identity("controller-manager", "system:kube-controller-manager"),
    Identity("scheduler", "system:kube-scheduler"),
    Identity("proxy", "system:kube-proxy"),
    Identity("prometheus", "octavo-prometheus"),
    Identity("metrics-server", "octavo-metrics-server", hosts=("DNS:metrics-server.kube-system.svc",)),
    Identity("network-policies", "octavo-network-policies"),
    Identity(
        "kubelet",
        f"system:node:{config.NODE_NAME}",
        group="system:nodes",
        hosts=(f"DNS:{config.NODE_NAME}", f"IP:{config.NODE_IP}"),
    ),
)
_OTHERS = (
    Identity("apiserver", "kube-apiserver", hosts=_API_HOSTS),
    Identity("apiserver-kubelet-client", "kube-apiserver-kubelet-client"),
    Identity("front-proxy-client", "front-proxy-client", ca=_FRONT_PROXY_CA),
)


def ensure(settings: Settings) -> None:
    """Make the authorities unless they are there, and every certificate and kubeconfig that is missing."""
    if not settings.pki.exists():
        with _scratch(settings) as scratch:
            pki = Path(scratch, "pki")
            pki.mkdir(mode=0o700)
            _make_authorities(pki)
            # The folder appears whole: a certificate of another authority would be refused everywhere.
            pki.rename(settings.pki)
        shutil.rmtree(settings.kubeconfigs, ignore_errors=True)
    missing = [identity for identity in (*CLIENTS, *_OTHERS) if not (settings.pki / f"{identity.file}.crt").exists()]
    if missing:
        with step("make certificates"), _scratch(settings) as scratch:
            for identity in missing:
                _make(settings.pki, Path(scratch), identity)
    settings.kubeconfigs.mkdir(mode=0o700, exist_ok=True)
    for identity in CLIENTS:
        target = settings.kubeconfigs / f"{identity.file}.json"
        if not target.exists():
            partial = target.with_suffix(".partial")
            _write_private(partial, _kubeconfig(settings.pki, identity))
            partial.rename(target)


def authority(settings: Settings) -> str:
    """Digest of the cluster's authority: another one means that every daemon has to load its certificates anew."""
    return hashlib.sha256((settings.pki / f"{_CLUSTER_CA}.crt").read_bytes()).hexdigest()


def _make_authorities(pki: Path) -> None:
    for authority in (_CLUSTER_CA, _FRONT_PROXY_CA):
        extensions = ("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature")
        _request(pki, authority, f"/CN=octavo-node-{authority}", *extensions)
    key, curve = pki / "service-account.key", "ec_paramgen_curve:P-256"
    run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", curve, "-out", key])
    run(["openssl", "pkey", "-in", key, "-pubout", "-out", key.with_suffix(".pub")])


def _make(pki: Path, scratch: Path, identity: Identity) -> None:
    _request(scratch, identity.file, identity.subject, *_leaf_extensions(pki, identity))
    # The certificate last: where there is one, there is its key.
    for suffix in ("key", "crt"):
        name = f"{identity.file}.{suffix}"
        (scratch / name).rename(pki / name)


def _leaf_extensions(pki: Path, identity: Identity) -> list[Argument]:
    usage = "serverAuth,clientAuth" if identity.hosts else "clientAuth"
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        f"extendedKeyUsage={usage}",
    ]
    if identity.hosts:
        extensions.append(f"subjectAltName={','.join(identity.hosts)}")
    arguments: list[Argument] = ["-CA", pki / f"{identity.ca}.crt", "-CAkey", pki / f"{identity.ca}.key"]
    for extension in extensions:
        arguments += ["-addext", extension]
    return arguments


def _request(pki: Path, file: str, subject: str, *extra: Argument) -> None:
    output = ("-keyout", pki / f"{file}.key", "-out", pki / f"{file}.crt")
    run(["openssl", "req", "-x509", "-sha256", "-days", _DAYS, *_EC_KEY, "-subj", subject, *output, *extra])


def _kubeconfig(pki: Path, identity: Identity) -> str:
    def embedded(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    user = {
        "client-certificate-data": embedded(f"{identity.file}.crt"),
        "client-key-data": embedded(f"{identity.file}.key"),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "octavo",
        "clusters": [
            {"name": "octavo", "cluster": {"server": config.API_URL, "certificate-authority-data": embedded("ca.crt")}}
        ],
        "users": [{"name": identity.file, "user": user}],
        "contexts": [
            {"name": "octavo", "context": {"cluster": "octavo", "user": identity.file, "namespace": "default"}}
        ],
    }
    return json.dumps(document, indent=2)


def _write_private(path: Path, text: str) -> None:
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
        stream.write(text)


def _scratch(settings: Settings) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=settings.state, prefix=".partial-")
