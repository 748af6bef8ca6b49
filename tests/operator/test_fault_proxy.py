"""The fault proxy does what its rules say: checked against a small API server with TLS of its own."""

import asyncio
import base64
import json
import ssl
import threading

import aiohttp
import pytest
from aiohttp import web

import fault_proxy
import fault_watch
from fault_proxy import FaultProxy
from fault_rules import Answer, Call, Delay, Garbage, HalfBody, OldAnswer, Reset, Rule, Silence, Stream, read_call
from patience import PATIENCE_SECONDS

SERVICES = "/apis/octavo.dev/v1alpha1/namespaces/team/inferenceservices"
ONE = f"{SERVICES}/assistant"
WATCH = f"{SERVICES}?watch=true"
BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/api/v1/namespaces/a/pods?labelSelector=x", ("list", "pods", "a", "")),
        ("GET", "/api/v1/pods?watch=1", ("watch", "pods", "", "")),
        ("PATCH", f"{ONE}/status?force=true", ("patch", "inferenceservices/status", "team", "assistant")),
        ("POST", "/apis/batch/v1/namespaces/a/jobs", ("create", "jobs", "a", "")),
        ("GET", "/apis/monitoring.coreos.com/v1", ("get", "", "", "")),
        ("DELETE", "/api/v1/namespaces/a/configmaps/b", ("delete", "configmaps", "a", "b")),
    ],
)
def test_calls_are_read_as_the_authorizer_does(method, target, expected):
    assert read_call(method, target) == Call(*expected, target)


@pytest.fixture
async def upstream(tmp_path):
    """An API server of four events, and the requests that it saw."""
    seen = []

    async def answer(request):
        seen.append(request)
        if request.query.get("watch"):
            return await _events(request)
        body = await request.text()
        return web.json_response({"count": len(seen), "token": request.headers.get("Authorization"), "body": body})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    folder = tmp_path / "upstream"
    folder.mkdir()
    key, certificate = fault_proxy.self_signed(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}", certificate, seen
    await runner.cleanup()


async def _events(request):
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for kind, number in (("ADDED", 1), ("MODIFIED", 2), ("BOOKMARK", 3), ("MODIFIED", 4)):
        line = {"type": kind, "object": {"metadata": {"resourceVersion": str(number)}}}
        await response.write(json.dumps(line).encode() + b"\n")
    await response.write_eof()
    return response


@pytest.fixture
async def proxy(upstream, tmp_path):
    authority = base64.b64encode(upstream[1].read_bytes()).decode()
    made = FaultProxy(upstream[0], authority, tmp_path).start()
    yield made
    await asyncio.to_thread(made.stop)


@pytest.fixture
async def client(proxy):
    trusting = ssl.create_default_context(cafile=str(proxy.certificate))
    connector = aiohttp.TCPConnector(ssl=trusting)
    async with aiohttp.ClientSession(proxy.url, connector=connector) as session:
        yield session


async def versions(client):
    """Resource versions and types of a watch's lines."""
    async with client.get(WATCH) as response:
        lines = (await response.text()).splitlines()
    return [(item["type"], item["object"]["metadata"].get("resourceVersion")) for item in map(json.loads, lines)]


async def test_without_rules_everything_passes_with_the_callers_token(proxy, client, upstream):
    async with client.patch(ONE, json={"a": 1}, headers={"Authorization": "Bearer secret"}) as response:
        document = await response.json()
    assert document["token"] == "Bearer secret"
    assert json.loads(document["body"]) == {"a": 1}
    assert await versions(client) == [("ADDED", "1"), ("MODIFIED", "2"), ("BOOKMARK", "3"), ("MODIFIED", "4")]
    assert [call.verb for call in proxy.calls()] == ["patch", "watch"]
    assert [call.name for call in proxy.writes()] == ["assistant"]


async def test_answers_of_its_own_hit_the_calls_that_are_meant(proxy, client, upstream):
    with proxy.failing(Rule(Answer(429, retry_after=7), verbs=["patch"], skip=1, times=1)) as (rule,):
        statuses = [(await client.patch(ONE)).status for _ in range(3)]
        assert (await client.get(ONE)).status == 200
    assert statuses == [200, 429, 200]
    assert rule.hits == 1
    assert len(upstream[2]) == 3, "the call that was refused must not reach the API server"
    (told,) = [record for record in proxy.records if record.injected]
    assert told.status == 429


async def test_a_refusal_looks_like_the_api_servers(proxy, client):
    with proxy.failing(Rule(Answer(403, retry_after=3))):
        async with client.get(ONE) as response:
            assert response.headers["Retry-After"] == "3"
            assert (await response.json())["reason"] == "Forbidden"


@pytest.mark.parametrize(("fault", "reached"), [(Reset(), 0), (Reset(done=True), 1), (HalfBody(), 1)])
async def test_connections_break(proxy, client, upstream, fault, reached):
    with proxy.failing(Rule(fault, verbs=["patch"])), pytest.raises(BROKEN):
        async with client.patch(ONE) as response:
            await response.read()
    assert len(upstream[2]) == reached
    assert (await client.patch(ONE)).status == 200


async def test_garbage_and_delay(proxy, client):
    with proxy.failing(Rule(Garbage(), times=1), Rule(Delay(0.2))):
        async with client.get(ONE) as response:
            assert (await response.read()).startswith(b"<html>")
        started = asyncio.get_running_loop().time()
        assert (await client.get(ONE)).status == 200
        assert asyncio.get_running_loop().time() - started >= 0.2


async def test_silence_lasts_until_the_rules_change_and_spares_leases(proxy, client):
    with proxy.failing(Rule(Silence())) as (rule,):
        asked = asyncio.ensure_future(client.patch(ONE))  # a get would be sent again by the client
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not rule.hits:
                await asyncio.sleep(0.01)
        lease = "/apis/coordination.k8s.io/v1/namespaces/team/leases/octavo"
        assert (await client.get(lease)).status == 200
        assert not asked.done()
    with pytest.raises(BROKEN):
        await asked


async def test_an_old_answer_is_the_first_one(proxy, client):
    async def count():
        async with client.get(ONE) as response:
            return (await response.json())["count"]

    assert [await count(), await count()] == [1, 2]
    with proxy.failing(Rule(OldAnswer())):
        assert await count() == 1
    assert await count() == 3


async def test_a_rule_may_be_about_one_name(proxy, client):
    with proxy.failing(Rule(Answer(500), about="assistant")):
        assert (await client.get(SERVICES + "/other")).status == 200
        assert (await client.get(ONE)).status == 500
        assert (await client.get("/api/v1/namespaces/team/pods?labelSelector=a%3Dassistant")).status == 500


async def test_old_answers_can_be_chosen(proxy, client):
    await client.get(ONE)
    proxy.remember()
    for _ in range(2):
        await client.get(ONE)
    with proxy.failing(Rule(OldAnswer())):
        async with client.get(ONE) as response:
            assert (await response.json())["count"] == 2


async def test_a_cut_comes_after_the_nth_write_and_lets_nothing_through(proxy, client, upstream):
    acted = threading.Event()
    proxy.cut(2, acted.set)
    assert (await client.patch(ONE)).status == 200
    assert (await client.get(ONE)).status == 200
    with pytest.raises(BROKEN):
        await client.patch(ONE)
    assert acted.is_set()
    assert len(upstream[2]) == 3, "the second write was done, though its answer was lost"
    for ask in (client.get, client.patch, client.get):
        with pytest.raises(BROKEN):
            await ask(ONE)
    assert len(upstream[2]) == 3
    proxy.mend()
    assert (await client.patch(ONE)).status == 200


async def lines_of(how):
    async def real():
        for kind, number in (("ADDED", "1"), ("MODIFIED", "2"), ("BOOKMARK", "3"), ("MODIFIED", "4")):
            yield json.dumps({"type": kind, "object": {"metadata": {"resourceVersion": number}}}).encode() + b"\n"

    return [line async for line in fault_watch.STREAMS[how](real())]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("deaf", ["3"]),
        ("ended", ["1"]),
        ("doubled", ["1", "1", "2", "2", "3", "3", "4", "4"]),
        ("reordered", ["2", "1", "4", "3"]),
        ("replayed", ["1", "2", "1", "3", "1", "2", "4", "1", "2", "3"]),
        ("unknown_type", ["1", "1", "2", "2", "3", "3", "4", "4"]),
    ],
)
async def test_streams_that_parse_but_lie(how, expected):
    lines = [json.loads(line) for line in await lines_of(how)]
    assert [item["object"]["metadata"]["resourceVersion"] for item in lines] == expected


async def test_streams_that_do_not_parse():
    assert await lines_of("frozen") == [b""]
    assert [json.loads(line)["object"]["code"] for how in ("gone", "failed") for line in await lines_of(how)] == [
        410,
        500,
    ]
    with pytest.raises(json.JSONDecodeError):
        json.loads((await lines_of("garbage"))[0])
    with pytest.raises(fault_watch.BrokenStream):
        await lines_of("half_line")


async def test_a_broken_stream_breaks_the_connection_and_a_clean_end_does_not(proxy, client):
    with proxy.failing(Rule(Stream("half_line"))), pytest.raises(BROKEN):
        await versions(client)
    with proxy.failing(Rule(Stream("ended"), times=1)):
        assert await versions(client) == [("ADDED", "1")]
        assert len(await versions(client)) == 4
