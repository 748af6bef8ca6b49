"""Whether something answers: an HTTP(S) address with 200, or a Unix socket by accepting."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
import urllib.request

_TIMEOUT = 2.0

# A probe asks whether a daemon is up, not who it is: several of them serve a certificate they signed themselves.
_UNVERIFIED = ssl.create_default_context()
_UNVERIFIED.check_hostname = False
_UNVERIFIED.verify_mode = ssl.CERT_NONE

# Never through a proxy of the environment: all addresses are the node's own.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_UNVERIFIED))


def healthy(address: str) -> bool:
    """Probe `unix:/path` or a URL once, within two seconds."""
    if address.startswith("unix:"):
        return _accepts(address.removeprefix("unix:"))
    try:
        with _OPENER.open(address, timeout=_TIMEOUT) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_TIMEOUT)
        return client.connect_ex(path) == 0
