"""Scraping: a load, or a reason in words; never an exception, never more than the limits allow."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from octavo_operator.autoscaling import Load
from octavo_operator.observed import Pod
from octavo_operator.scraping import MAX_BYTES, Scraper, parse_load

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
            )
        ),
    ],
)
def test_anything_else_is_no_data(body):
    answer = parse_load(body, "assistant-1")
    assert isinstance(answer, str)
    assert "assistant-1" in answer


async def answer_of(handler, timeout=0.5):
    app = web.Application()
    app.router.add_get("/load", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        async with aiohttp.ClientSession() as session:
            pod = Pod("p", ip="127.0.0.1", ready=True)
            return (await Scraper(session, timeout, port).loads([pod]))["p"]
    finally:
        await runner.cleanup()


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


async def test_a_huge_answer():
    async def handler(_):
        return web.Response(body=b" " * (MAX_BYTES * 20))

    assert "more than" in await answer_of(handler)


async def test_nobody_listens():
    async with aiohttp.ClientSession() as session:
        answers = await Scraper(session, 0.2, port=1).loads([Pod("p", ip="127.0.0.1", ready=True)])
    assert "no answer" in answers["p"]
