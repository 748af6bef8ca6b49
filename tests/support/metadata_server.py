"""A cloud's metadata server as pods of the node would meet it: 169.254.169.254, beyond the node, answering HTTP.

It lives in a network namespace of its own behind the node's, so neither the host's nor a real one is touched.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node import config, prerequisites

ADDRESS = "169.254.169.254"

_OUTSIDE = "octavo-outside"
_NODE_LINK, _OUTER_LINK = "outside0", "eth0"


@contextmanager
def metadata_server(settings: config.Settings) -> Iterator[str]:
    """Its address, while the block runs; it answers on port 80. One at a time: the address is one machine's."""
    busybox = prerequisites.unpacked(settings, "busybox")
    _remove()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "index.html").write_text("credentials of the machine\n")
        try:
            _make()
            command = ["ip", "netns", "exec", _OUTSIDE, busybox, "httpd", "-f", "-p", "80", "-h", folder]
            with subprocess.Popen(command) as server:
                try:
                    yield ADDRESS
                finally:
                    server.terminate()
        finally:
            _remove()


def _make() -> None:
    node = config.NAMESPACE
    _ip("netns", "add", _OUTSIDE)
    _ip("-n", node, "link", "add", _NODE_LINK, "type", "veth", "peer", "name", _OUTER_LINK, "netns", _OUTSIDE)
    _ip("-n", node, "link", "set", _NODE_LINK, "up")
    _ip("-n", node, "route", "add", f"{ADDRESS}/32", "dev", _NODE_LINK)
    _ip("-n", _OUTSIDE, "address", "add", f"{ADDRESS}/32", "dev", _OUTER_LINK)
    for link in ("lo", _OUTER_LINK):
        _ip("-n", _OUTSIDE, "link", "set", link, "up")
    _ip("-n", _OUTSIDE, "route", "add", f"{config.NODE_IP}/32", "dev", _OUTER_LINK)
    _ip("-n", _OUTSIDE, "route", "add", str(config.NETWORK), "via", config.NODE_IP)


def _remove() -> None:
    # The link goes with either of its ends.
    subprocess.run(["ip", "netns", "delete", _OUTSIDE], capture_output=True, check=False)
    subprocess.run(["ip", "-n", config.NAMESPACE, "link", "delete", _NODE_LINK], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=10)
