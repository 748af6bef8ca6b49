"""The process: what the API server has becomes the node's table, again after each change."""

from __future__ import annotations

import argparse
import logging
import socketserver
import ssl
import subprocess
import threading
from pathlib import Path

from policies import rules, selectors
from policies.watch import Store

_RESOURCES = ("/api/v1/pods", "/api/v1/namespaces", "/apis/networking.k8s.io/v1/networkpolicies")
_NFT_TIMEOUT = 30.0
# One rollout changes a pod a dozen times in a second; one table says it all.
_SETTLE_SECONDS = 0.02
_log = logging.getLogger(__name__)


def main() -> None:
    """Run until the process is ended; the table stays, as a network plugin's does."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    context = ssl.create_default_context(cafile=options.authority)
    context.load_cert_chain(options.certificate, options.key)
    dirty = threading.Event()
    stores = [Store(options.server, context, path, dirty.set).start() for path in _RESOURCES]
    for store in stores:
        store.listed.wait()
    applied = ""
    while True:
        dirty.wait()
        threading.Event().wait(_SETTLE_SECONDS)
        dirty.clear()
        wanted = _table(stores, options.trusted)
        if wanted != applied:
            _apply(options.nft, wanted)
            _log.info("applied a table of %d lines", wanted.count("\n"))
        if not applied:
            _say_ready(options.ready)
        applied = wanted


def _table(stores: list[Store], trusted: str) -> str:
    pods, namespaces, policies = (store.snapshot() for store in stores)
    labels = {item["metadata"]["name"]: item["metadata"].get("labels") or {} for item in namespaces}
    return rules.table(rules.World(list(selectors.pods(pods)), labels), policies, [trusted])


def _apply(nft: str, table: str) -> None:
    done = subprocess.run(
        [nft, "-f", "-"], input=table, capture_output=True, text=True, timeout=_NFT_TIMEOUT, check=False
    )
    if done.returncode:
        # Enforcing something else than was asked for would make tests lie; the node shows the daemon as stopped.
        raise SystemExit(f"nft refused the table:\n{done.stderr}\n{table}")


def _say_ready(place: Path) -> None:
    """Accept connections: policies are enforced from here on."""
    place.unlink(missing_ok=True)
    server = socketserver.UnixStreamServer(str(place), socketserver.BaseRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="network-policies", description=__doc__)
    for name in ("server", "trusted", "nft"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("authority", "certificate", "key", "ready"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    return parser.parse_args()
