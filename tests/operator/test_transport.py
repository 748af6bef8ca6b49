"""Requests as they go over the wire: path, query, credentials, body; and what comes back."""

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from octavo_operator import transport
from octavo_operator.transport import Transport


@pytest.fixture
async def server():
    """Answers with what it was asked, or with the status that the path names."""
    seen = []

    async def answer(request):
        seen.append((request, await request.text()))
        if request.path.startswith("/status/"):
            status = int(request.path.rpartition("/")[2])
            return web.json_response({"message": "no"}, status=status, headers={"Retry-After": "7", "Location": "/x"})
        return web.json_response({"ok": True})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    await runner.cleanup()


@pytest.fixture
async def made(server):
    configuration = client.Configuration(host=server[0], api_key={"BearerToken": "Bearer one"})
    async with client.ApiClient(configuration) as api, transport.session(api, trust_env=False) as session:
        yield Transport(api, session)


async def test_a_request_is_what_was_asked_for(server, made):
    kind, query = "application/apply-patch+yaml", {"labelSelector": "a=b,c", "limit": 5, "continue": None}
    response = await made.request("PATCH", "/api/v1/x", body={"a": "ü"}, content_type=kind, **query)
    assert await response.json() == {"ok": True}
    ((request, body),) = server[1]
    assert (request.method, request.path_qs) == ("PATCH", "/api/v1/x?labelSelector=a%3Db%2Cc&limit=5")
    assert request.headers["Authorization"] == "Bearer one"
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert body == '{"a": "\\u00fc"}'


async def test_a_read_has_no_body_and_asks_for_what_is_wanted(server, made):
    await made.request("GET", "/api/v1/x", accept="application/json;as=Other")
    ((request, body),) = server[1]
    assert request.headers["Accept"] == "application/json;as=Other"
    assert "Content-Type" not in request.headers
    assert body == ""


async def test_a_token_may_change(server, made):
    made.client.configuration.api_key = {"BearerToken": "Bearer two"}
    await made.request("GET", "/")
    assert server[1][0][0].headers["Authorization"] == "Bearer two"


@pytest.mark.parametrize("status", [302, 404, 429, 500])
async def test_a_status_that_is_no_success_is_raised_with_its_body(server, made, status):
    with pytest.raises(ApiException) as caught:
        await made.request("GET", f"/status/{status}")
    assert caught.value.status == status
    assert b"no" in caught.value.body
    assert caught.value.headers["Retry-After"] == "7"
    assert len(server[1]) == 1, "a redirect is not followed: it would take the token along"


async def test_no_answer_is_the_connections_own_error(made):
    made.client.configuration.host = "http://127.0.0.1:9"
    with pytest.raises(aiohttp.ClientConnectionError):
        await made.request("GET", "/")
