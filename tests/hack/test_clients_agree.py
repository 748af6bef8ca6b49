"""What the comparison of load clients makes of what each of them tells, and of packets."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from clients_agree import definitions, table
from clients_agree.agreement import Told, agreements
from clients_agree.agreement import table as agreement_table
from clients_agree.answers import Answer, Times, figures, middle, of_guidellm, of_octavo, of_vllm, on_the_wire
from clients_agree.clients import ClientFailed, _all
from clients_agree.definitions import NotTheDefinition, prove
from clients_agree.loads import (
    IN_TURNS,
    PACED,
    REAL,
    REAL_TOGETHER,
    TOGETHER,
    guidellm_flags,
    held_to,
    octavo_flags,
    processors,
)
from clients_agree.together import NotTogether, at_once
from clients_agree.wire import Exchange, Packet, Watcher, exchanges, parsed, port_filter
from cpu_figures import client as vllm
from cpu_figures.loads import Load as VllmLoad
from octavo_engine.bench.settings import BenchSettings
from octavo_engine.bench.wire import AGENT

PORT = 8000
ANSWERS = [
    Answer(sent=10.0, first=10.25, last=11.25, prompt_tokens=8, tokens=5),
    Answer(sent=10.5, first=11.0, last=13.0, prompt_tokens=8, tokens=5),
]


def test_all_clients_words_become_the_same_answers() -> None:
    octavo = {"failure": None, "prompt_tokens": 8, "output_tokens": 5, "gaps_us": [250_000] * 4}
    document = {
        "requests": [
            octavo | {"sent": 10.0, "first_token": 0.25, "last_token": 1.25},
            octavo | {"sent": 10.5, "first_token": 0.5, "last_token": 2.5},
            octavo | {"sent": 10.6, "first_token": None, "last_token": None, "failure": "queue full (429)"},
        ]
    }
    detailed = {
        "start_times": [10.0, 10.5, 10.6],
        "ttfts": [0.25, 0.5, 0.0],
        "latencies": [1.25, 2.5, 0.0],
        "input_lens": [8, 8, 8],
        "output_lens": [5, 5, 0],
        "itls": [[0.25] * 4, [0.25] * 4, []],
    }
    times = (
        ("request_start", 10.0, 10.5),
        ("first_token_iteration", 10.25, 11.0),
        ("last_token_iteration", 11.25, 13.0),
    )
    report = {
        "benchmarks": [
            {
                "requests": {
                    "successful": [
                        {
                            "prompt_tokens": 8,
                            "output_tokens": 5,
                            "info": {"timings": {row[0]: row[1 + n] for row in times}},
                        }
                        for n in range(2)
                    ]
                }
            }
        ]
    }
    assert of_octavo(document) == of_vllm(detailed) == [replace(answer, gaps=(0.25,) * 4) for answer in ANSWERS]
    assert of_guidellm(report) == ANSWERS


def test_figures_are_of_one_definition() -> None:
    found = figures(ANSWERS, [Exchange(5.0, 5.2, 6.2), Exchange(5.5, 5.95, 7.75)])
    assert found.client == Times(first=0.375, per_token=0.375, whole=1.875)
    assert found.tokens_per_second == pytest.approx(10 / 3)
    assert found.wire is not None
    assert asdict(found.wire) == pytest.approx({"first": 0.325, "per_token": 0.35, "whole": 1.725})
    assert found.connections == 0


def test_other_requests_on_the_wire_than_the_client_tells_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 answers, 1 on the wire"):
        figures(ANSWERS, [Exchange(5.0, 5.2, 6.2)])
    with pytest.raises(ValueError, match="0 answers, nobody watched"):
        figures([], None)


def test_the_middle_of_rounds_knows_no_wire_where_one_of_them_does_not() -> None:
    rounds = [figures(ANSWERS, [Exchange(0.0, first, 2.0)] * 2) for first in (0.1, 0.2, 0.4)]
    found = middle(rounds)
    assert found.wire is not None
    assert found.wire.first == pytest.approx(0.2)
    assert middle([*rounds, figures(ANSWERS, None)]).wire is None


def test_a_client_agrees_that_tells_what_its_packets_say() -> None:
    ours = figures(ANSWERS, [Exchange(0.0, 0.37, 1.87)] * 2)
    late = replace(ours, client=replace(ours.client, first=0.37 * 1.07))
    found = {
        (each.client, each.figure): each for each in table.differences("a load", {"octavo bench": ours, "late": late})
    }
    assert len(found) == 6
    assert found["octavo bench", "first"].share == pytest.approx(0.375 / 0.37 - 1)
    assert found["octavo bench", "first"].agrees
    assert str(found["late", "first"]) == "a load, late, first: +7.00% of the wire: NOT WITHIN 5%"
    assert table.differences("a load", {"octavo bench": figures(ANSWERS, None)}) == []


def test_a_table_has_the_wires_times_in_brackets() -> None:
    clients = {"octavo bench": figures(ANSWERS, [Exchange(0.0, 0.37, 1.87)] * 2), "blind": figures(ANSWERS, None)}
    rows = table.table("a load", clients).splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert "| octavo bench | 8 | 0 for 2 | 3.3 | 375.0 [370.0] | 497.5 | 375.0 [375.0] | 1,875.0 [1,870.0] |" in rows
    assert "| blind | 8 |  | 3.3 | 375.0 | 497.5 | 375.0 | 1,875.0 |" in rows


# -- definitions -------------------------------------------------------------------------------------------------------

GAPS = [replace(ANSWERS[0], gaps=(0.1, 0.2, 0.3, 0.4)), replace(ANSWERS[1], gaps=(0.5, 0.5, 0.5, 0.5))]


def test_one_name_means_one_thing_to_each_client() -> None:
    of = {name: each.of(GAPS) for by in (definitions.VLLM, definitions.GUIDELLM) for each in by for name in [each.name]}
    assert of["TTFT"] == 0.375
    assert of["time to first token"] == 0.25, "the lower of two in the middle"
    assert of["ITL"] == 0.45, "the median of all gaps"
    assert of["TPOT"] == 0.375, "the median of the answers' averages"
    assert of["inter token latency"] == 0.25
    assert of["time per output token"] == 0.25, "the first token is one of five, in 1.25 seconds"


def test_a_median_by_shares_is_one_of_the_values() -> None:
    of = definitions.GUIDELLM[0].of
    told = [replace(ANSWERS[0], sent=0.0, first=float(number)) for number in range(1, 13)]
    assert of(told[:8]) == 4.0
    assert of(told[:7]) == 4.0
    assert of(told) == 7.0, "six twelfths are less than a half, as numbers of a machine add up"


def test_a_definition_is_held_against_the_report_of_its_own_client() -> None:
    vllm_says = {"median_ttft_ms": 375.0, "median_tpot_ms": 375.0, "median_itl_ms": 450.0}
    prove(definitions.VLLM, GAPS, vllm_says)
    with pytest.raises(NotTheDefinition, match=r"ITL: the report says 0\.375000 s, its own records give 0\.450000 s"):
        prove(definitions.VLLM, GAPS, vllm_says | {"median_itl_ms": 375.0})
    says = dict.fromkeys(("time_to_first_token", "time_per_output_token", "inter_token_latency"), 250.0)
    metrics = {f"{name}_ms": {"successful": {"median": value}} for name, value in says.items()}
    prove(definitions.GUIDELLM, GAPS, {"benchmarks": [{"metrics": metrics}]})
    seconds = {"ttft": {"p50": 0.375}, "tpot": {"p50": 0.375}, "itl": {"p50": 0.45}}
    prove(definitions.OCTAVO, GAPS, {"summary": seconds})


def test_two_clients_are_compared_by_one_definition_and_their_packets_say_who_is_right() -> None:
    late = [replace(answer, first=answer.first + 0.05) for answer in GAPS]
    packets = on_the_wire([Exchange(0.0, 0.375, 1.875, (0.45,))] * 2, 5)
    compared = agreements("a load", Told(GAPS, packets), Told(late, packets), "late", definitions.VLLM)
    found = {each.figure: each for each in compared}
    assert found["ITL"].agrees
    assert (found["TTFT"].theirs, found["TTFT"].ours) == pytest.approx((0.425, 0.375))
    assert not found["TTFT"].agrees
    assert found["TTFT"].wire == (0.375, 0.375), "the server answered both alike"
    (row,) = [line for line in agreement_table([*found.values()]).splitlines() if "TTFT" in line]
    assert row == "| a load | late: TTFT | 425.0 [375.0] | 375.0 [375.0] | +13.3 % [+0.0 %] | +13.3 %: more than 5 % |"
    (blind,) = agreements("a load", Told(GAPS, []), Told(late, []), "late", definitions.VLLM[:1])
    assert blind.wire is None
    assert blind.rest == blind.share


def test_what_the_packets_say_differently_is_the_servers_and_no_disagreement() -> None:
    slow, quick = ([replace(it, first=it.sent + first) for it in GAPS] for first in (0.5, 0.4))
    theirs, ours = Told(slow, on_the_wire([Exchange(0.0, 0.48, 1.0)], 5)), Told(quick, quick)
    (found,) = agreements("a load", ours, theirs, "other", definitions.VLLM[:1])
    assert found.share == pytest.approx(0.25)
    assert found.rest == pytest.approx(0.5 / 0.48 - 1)
    assert found.agrees


# -- together ----------------------------------------------------------------------------------------------------------


def told(*times: float) -> list[Answer]:
    return [replace(ANSWERS[0], sent=at) for at in times]


def seen(agent: str, *times: float) -> list[Exchange]:
    return [Exchange(at, at + 0.1, at + 0.2, agent=agent.encode()) for at in times]


LOAD = replace(REAL_TOGETHER, requests=2)  # after two that do not count
OTHERS = (0.5, 1.0, 1.5, 4.0)


def test_of_two_at_once_ours_counts_while_the_other_asks() -> None:
    times = (1.25, 2.0, 3.0, 4.0, 5.0)
    mine, theirs = at_once(LOAD, told(*times), told(*OTHERS), [*seen("other", *OTHERS), *seen(AGENT, *times)])
    assert [answer.sent for answer in mine.answers] == [2.0, 3.0, 4.0]
    assert [packet.sent for packet in mine.packets] == [2.0, 3.0, 4.0]
    assert [answer.sent for answer in theirs.answers] == [packet.sent for packet in theirs.packets] == [1.5, 4.0]


@pytest.mark.parametrize("times", [(), (2.0, 5.0), (1.0, 3.0)], ids=["nothing", "began later", "ended sooner"])
def test_who_does_not_ask_all_the_time_is_not_compared(times: tuple[float, ...]) -> None:
    with pytest.raises(NotTogether, match="did not ask all the time"):
        at_once(LOAD, told(*times), told(*OTHERS), [*seen(AGENT, *times), *seen("other", *OTHERS)])


def test_two_that_never_asked_at_once_are_not_compared() -> None:
    with pytest.raises(NotTogether, match="asked nothing while"):
        at_once(LOAD, told(1.0, 5.0), told(*OTHERS), [*seen(AGENT, 1.0, 5.0), *seen("other", *OTHERS)])


def test_a_client_that_tells_of_other_requests_than_its_own_is_not_compared() -> None:
    wire = [*seen(AGENT, 1.0, 5.0), *seen("other", *OTHERS)]
    with pytest.raises(NotTogether, match="tells of 3 answers, 2 of its requests"):
        at_once(LOAD, told(1.0, 2.0, 5.0), told(*OTHERS), wire)


def test_server_and_clients_have_a_processor_each() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        with pytest.raises(OSError, match="here is one"):
            processors()
        return
    before, (server, clients) = os.sched_getaffinity(0), processors()
    assert server != clients
    with held_to(server):
        assert os.sched_getaffinity(0) == {server}
    assert os.sched_getaffinity(0) == before


def test_short_answers_and_missing_ones_are_errors() -> None:
    whole = [replace(ANSWERS[0], tokens=REAL.output_tokens)] * REAL.asked
    assert _all(REAL, whole) == whole
    for wrong in (whole[1:], [*whole[1:], ANSWERS[0]]):
        with pytest.raises(ClientFailed, match="of 10 answers"):
            _all(REAL, wrong)


@pytest.mark.parametrize("load", [*IN_TURNS, *TOGETHER], ids=lambda load: load.name)
def test_all_clients_are_asked_for_the_same(load: Any) -> None:
    url, file = f"http://127.0.0.1:{PORT}", Path("result.json")
    ours = BenchSettings.parse(octavo_flags(load, url, 3, file), {})
    asked = (ours.config.requests, ours.shape.prompt.high, ours.shape.output.high)
    same = VllmLoad(load.name, load.streams, load.asked, load.prompt_tokens, load.output_tokens, rate=load.rate)
    words = dict(itertools.pairwise(vllm.flags(same, port=PORT, tokenizer=file, seed=3, folder=file, model=load.model)))
    names = ("--num-prompts", "--random-input-len", "--random-output-len")
    assert tuple(int(words[name]) for name in names) == asked
    assert words["--model"] == ours.config.model == load.model
    theirs = " ".join(guidellm_flags(load, url, file, 3, file))
    for value, said in zip(asked, ("count={}", "prompt_tokens={}", "output_tokens={}"), strict=True):
        assert said.format(value) in theirs
    if load.rate:
        assert ours.config.rate == float(words["--request-rate"]) == load.rate
        assert "--max-concurrency" not in words
        assert f"kind=poisson,rate={load.rate}" in theirs
    else:
        assert ours.config.concurrency == int(words["--max-concurrency"]) == load.streams
        assert words["--request-rate"] == "inf"
        assert f"kind=concurrent,streams={load.streams}" in theirs


def test_who_is_asked_for_some_time_is_not_held_to_a_number() -> None:
    load = replace(REAL, seconds=20.0)
    ours = BenchSettings.parse(octavo_flags(load, "http://127.0.0.1:1", 3, Path("result.json")), {})
    assert (ours.config.seconds, ours.config.requests) == (20.0, None)
    whole = [replace(ANSWERS[0], tokens=load.output_tokens)] * 3
    assert _all(load, whole) == whole
    with pytest.raises(ClientFailed, match="some of"):
        _all(load, [*whole, ANSWERS[0]])


def test_the_short_form_asks_each_stream_twice() -> None:
    assert (PACED.quick().requests, PACED.quick().streams, PACED.quick().warmup) == (16, 8, 16)


# -- packets -----------------------------------------------------------------------------------------------------------


def packet(source: int, target: int, data: bytes, *, protocol: int = 6) -> bytes:
    """An IPv4 packet with a TCP segment, padded as a small frame is."""
    tcp = source.to_bytes(2) + target.to_bytes(2) + bytes(8) + b"\x80" + bytes(19)  # 32 bytes: with a time stamp
    length = 20 + len(tcp) + len(data)
    ip = b"\x45\x00" + length.to_bytes(2) + bytes(5) + bytes([protocol]) + bytes(10)
    return ip + tcp + data + b"\0\0"


def test_a_segment_is_read_whatever_its_options() -> None:
    assert parsed(packet(40_000, PORT, b"hello"), 1.5) == Packet(1.5, 40_000, PORT, b"hello")
    assert parsed(packet(40_000, PORT, b""), 1.5) is None
    assert parsed(packet(40_000, PORT, b"hello", protocol=17), 1.5) is None


def test_an_exchange_is_from_the_requests_first_packet_over_the_first_event_to_the_last() -> None:
    post, body = b"POST /v1/completions HTTP/1.1\r\n", b'{"prompt": "x"}'
    named = post + b"Host: here\r\nuser-agent: somebody/1.0\r\n\r\n"
    seen = [
        Packet(1.0, 40_000, PORT, b"POST /tokenize HTTP/1.1\r\n"),
        Packet(1.1, PORT, 40_000, b'HTTP/1.1 200 OK\r\n\r\n{"count": 1} data:'),
        Packet(2.0, 40_000, PORT, post),
        Packet(2.1, 40_000, PORT, body),
        Packet(2.2, 40_001, PORT, post + body),
        Packet(2.3, PORT, 40_000, b"HTTP/1.1 200 OK\r\n\r\n"),
        Packet(2.7, PORT, 40_001, b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n"),
        Packet(3.0, PORT, 40_000, b"data: {}\n\n"),
        Packet(3.1, PORT, 40_000, b"data: {}\n\n"),
        Packet(4.0, 40_000, PORT, named + body),  # the connection is kept
        Packet(4.25, PORT, 40_000, b"data: {}\n\n"),
    ]
    first, second, third = exchanges(seen, PORT)
    assert first == Exchange(2.0, 3.0, 3.1, (pytest.approx(0.1),), connected=True)
    assert second == Exchange(2.2, 2.7, 2.7, connected=True)
    assert third == Exchange(4.0, 4.25, 4.25, agent=b"somebody/1.0")


def test_the_filter_is_a_program_of_whole_steps_that_ends() -> None:
    steps = len(port_filter(PORT)) / 8
    assert steps == 9
    assert port_filter(PORT)[-8:] == b"\x06\0\0\0\0\0\0\0", "whatever is not wanted is dropped"


def test_packets_of_one_port_are_seen_with_the_kernels_time() -> None:
    """A server that waits for a tenth of a second, beside another port on which just as much goes on."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as other:
        threads = [
            threading.Thread(target=_answer_one, args=(each, pause)) for each, pause in ((listener, 0.1), (other, 0))
        ]
        for thread in threads:
            thread.start()
        try:
            with Watcher(listener.getsockname()[1]) as watcher:
                waited = [_ask(each.getsockname()[1]) for each in (listener, other)]
        except PermissionError:
            for each in (listener, other):  # so that the threads end
                _ask(each.getsockname()[1])
            pytest.skip("packet sockets need root, or CAP_NET_RAW")
        finally:
            for thread in threads:
                thread.join(10)
    (seen,) = watcher.exchanges()
    assert 0.1 <= seen.first - seen.asked <= waited[0], "no sooner than it was answered, no later than it was read"


def _answer_one(listener: socket.socket, pause: float) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        time.sleep(pause)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n")


def _ask(port: int) -> float:
    """Seconds from before it is sent until something has come."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        began = time.perf_counter()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\n\r\n{}")
        connection.recv(4096)
        return time.perf_counter() - began
