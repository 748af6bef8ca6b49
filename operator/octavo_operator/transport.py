"""One HTTP request to the API server, with the official client's configuration, credentials and connections.

The client's own way of making a request (generated for forms, files and models) costs as much time as the request;
with a hundred services that is the time in which they all get their Deployment.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException
from yarl import URL

_JSON = "application/json"
_READ_BUFFER = 1 << 21


class Transport:
    """Requests of one client.

    Args:
        api: gives host, credentials (which it may renew) and TLS settings.
        session: closed by its owner.
    """

    def __init__(self, api: client.ApiClient, session: aiohttp.ClientSession) -> None:
        self.client = api
        self._session = session

    async def request(
        self,
        verb: str,
        path: str,
        *,
        body: Any = None,
        content_type: str | None = None,
        accept: str | None = None,
        **query: str | int | None,
    ) -> aiohttp.ClientResponse:
        """The answer, not yet read.

        Args:
            query: parameters by the API server's names; those that are None are left out.

        Raises:
            ApiException: a status of 300 or more; it holds the body.
        """
        configuration = self.client.configuration
        headers = {"Accept": accept or _JSON, "User-Agent": self.client.user_agent}
        if token := await configuration.get_api_key_with_prefix("BearerToken", "authorization"):
            headers["Authorization"] = token
        data = None
        if body is not None:
            headers["Content-Type"] = content_type or _JSON
            data = json.dumps(body).encode()
        given = urlencode({name: value for name, value in query.items() if value is not None})
        url = URL(configuration.host + path + (f"?{given}" if given else ""), encoded=True)
        options = {"proxy": configuration.proxy, "server_hostname": configuration.tls_server_name}
        response = await self._session.request(verb, url, headers=headers, data=data, allow_redirects=False, **options)
        if response.status >= 300:
            error = ApiException(status=response.status, reason=response.reason)
            error.body, error.headers = await response.read(), response.headers
            raise error
        return response


def session(api: client.ApiClient, trust_env: bool) -> aiohttp.ClientSession:
    """Connections with a client's TLS settings.

    Args:
        trust_env: look for a proxy in the environment, at every request.
    """
    connector = aiohttp.TCPConnector(ssl=api.rest_client.ssl_context, limit=0)
    return aiohttp.ClientSession(connector=connector, trust_env=trust_env, read_bufsize=_READ_BUFFER)
