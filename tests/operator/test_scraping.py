"""Scraping: a load, or a reason in words; never an exception, never more than the limits allow."""

import asyncio
import contextlib
import json
import zlib

import aiohttp
import pytest
from aiohttp import web

from octavo_operator.autoscaling import Load
from octavo_operator.checkpoint import Progress
from octavo_operator.observed import Pod
from octavo_operator.scraping import MAX_BYTES, Scraper, parse_load
from patience import PATIENCE_SECONDS

GOOD = {
    "model_name": "m",
    "state": "serving",
    "waiting": {"new": 1, "token_budget": 2, "kv_full": 3, "batch_full": 4},
    "running": 5,
    "max_num_seqs": 8,
    "arrivals_total": 20,
    "completions_total": 15,
    "oldest_wait_seconds": 1.5,
    "kv_cache_usage_ratio": 0.25,
    "startup_seconds": 2.0,
}


def test_a_load_is_read():
    assert parse_load(json.dumps(GOOD).encode(), "p") == Load(10, 7, 5, 8, 20, 15, 1.5, 0.25, 2.0)


def test_what_limits_an_engine_is_taken_in_its_words_and_bounded():
    said = {"limiter": "kv", "message": "93 % are held.\nGive more:  " + "x" * 900}
    load = parse_load(json.dumps(GOOD | {"limited_by": said}).encode(), "p")
    assert load.limiter == "kv"
    assert load.limited.startswith("93 % are held. Give more: xx")
    assert len(load.limited) == 600
    for nothing in (None, "kv", {"limiter": 3, "message": "m"}, {"limiter": "kv"}, []):
        assert parse_load(json.dumps(GOOD | {"limited_by": nothing}).encode(), "p").limiter == ""


def test_a_reason_of_a_newer_engine_counts_as_waiting():
    load = parse_load(json.dumps(GOOD | {"waiting": {"prefix_pending": 2}}).encode(), "p")
    assert (load.waiting, load.waiting_full) == (2, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 60_000,
        b"<html><body>Sign in to continue</body></html>",
        b'{"running": ' + b"9" * 5000 + b"}",
        json.dumps(GOOD).encode() * 2,
        *(
            json.dumps(GOOD | change).encode()
            for change in (
                {"running": -1},
                {"running": True},
                {"running": 1.5},
                {"running": "5"},
                {"running": 10**30},
                {"oldest_wait_seconds": float("nan")},
                {"kv_cache_usage_ratio": float("inf")},
                {"kv_cache_usage_ratio": -0.1},
                {"waiting": [1]},
                {"waiting": {"new": None}},
                {"waiting": {"new": -1}},
                {"waiting": {}, "running": float("inf")},
                {"arrivals_total": float("nan")},
                {"completions_total": -5},
                {"oldest_wait_seconds": float("-inf")},
                {"startup_seconds": "soon"},
                {"max_num_seqs": None},
            )
        ),
    ],
)
def test_anything_else_is_no_data(body):
    answer = parse_load(body, "assistant-1")
    assert isinstance(answer, str)
    assert "assistant-1" in answer


EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - of loopback, two are asked


@contextlib.asynccontextmanager
async def serving(handler, host="127.0.0.1"):
    """The port of a pod that answers `/load` and `/progress` with `handler`."""
    app = web.Application()
    for page in ("/load", "/progress"):
        app.router.add_get(page, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    try:
        yield site._server.sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


async def answer_of(handler, timeout=60.0):
    async with serving(handler) as port, aiohttp.ClientSession() as session:
        return (await Scraper(session, timeout, port).loads([Pod("p", ip="127.0.0.1", ready=True)]))["p"]


async def test_a_good_answer():
    async def handler(_):
        return web.json_response(GOOD)

    assert isinstance(await answer_of(handler), Load)


async def test_an_error_status():
    async def handler(_):
        return web.Response(status=503)

    assert "503" in await answer_of(handler)


async def test_a_redirect_is_not_followed():
    async def handler(_):
        raise web.HTTPFound("http://192.0.2.1/")

    assert "302" in await answer_of(handler)


async def test_a_slow_answer():
    async def handler(_):
        await asyncio.sleep(5)

    assert "no answer" in await answer_of(handler, timeout=0.05)


async def test_an_answer_that_drips_has_one_deadline_in_all():
    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:  # without an end: it is the deadline that ends it
            await response.write(b" ")
            await asyncio.sleep(0.02)

    assert "no answer" in await answer_of(handler, timeout=0.2)


@pytest.mark.parametrize("length", [MAX_BYTES + 1, 100 * 1024 * 1024])
async def test_a_huge_answer_is_left_unread(length):
    sent = 0

    async def handler(request):
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Length": str(length)})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(length // MAX_BYTES + 1):
                chunk = min(MAX_BYTES, length - sent)
                await response.write(b" " * chunk)
                sent += chunk
        return response

    assert "more than" in await answer_of(handler)
    assert sent < 16 * 1024 * 1024, "only what the kernel's buffers hold is sent in vain"


async def test_a_small_answer_that_unpacks_to_a_huge_one():
    async def handler(_):
        return web.Response(body=zlib.compress(b" " * (20 * MAX_BYTES)), headers={"Content-Encoding": "deflate"})

    assert "coding" in await answer_of(handler)


async def test_what_counts_is_the_content_and_not_its_announced_type():
    async def handler(_):
        return web.Response(body=json.dumps(GOOD).encode(), content_type="text/html")

    assert isinstance(await answer_of(handler), Load)


async def test_a_connection_that_breaks_off():
    async def handler(request):
        request.transport.abort()
        return web.Response()

    assert "no answer" in await answer_of(handler)


async def test_one_bad_pod_delays_and_spoils_no_other():
    """It does not say a word before the other is asked, and then breaks off."""
    other_is_asked = asyncio.Event()

    async def answer(request):
        if request.transport.get_extra_info("sockname")[0] == "127.0.0.2":
            await other_is_asked.wait()
            request.transport.abort()
        other_is_asked.set()
        return web.json_response(GOOD)

    pods = [Pod("bad", ip="127.0.0.2", ready=True), Pod("fine", ip="127.0.0.1", ready=True)]
    async with serving(answer, EVERY_ADDRESS) as port, aiohttp.ClientSession() as session:
        found = await Scraper(session, PATIENCE_SECONDS, port).loads(pods)
    assert isinstance(found["fine"], Load)
    assert "no answer" in found["bad"]


async def test_nobody_listens():
    async with aiohttp.ClientSession() as session:
        answers = await Scraper(session, PATIENCE_SECONDS, port=1).loads([Pod("p", ip="127.0.0.1", ready=True)])
    assert "no answer" in answers["p"]


async def test_the_progress_of_fetches_is_that_of_pods_that_tell():
    async def handler(_):
        return web.json_response({"phase": "downloading", "bytes_done": 1, "bytes_total": 4})

    silent = Pod("silent", ip="127.0.0.2", fetching=True)
    async with serving(handler) as port, aiohttp.ClientSession() as session:
        found = await Scraper(session, PATIENCE_SECONDS, port).progress(
            [Pod("p", ip="127.0.0.1", fetching=True), silent]
        )
    assert found == [Progress(1, 4)]
