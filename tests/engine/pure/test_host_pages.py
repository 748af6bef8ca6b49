"""Pages of a host's memory: there before they are wanted, begun on a guess, and given back where it was wrong."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path

import pytest

from octavo_engine.config import EngineConfig
from octavo_engine.errors import InsufficientMemory
from octavo_engine.runtime import host, host_pages, host_room
from octavo_engine.runtime.host_pages import PIECE_BYTES, HostPages, HugeAllowance
from patience import PATIENCE_SECONDS

MIB = 1024**2


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


@pytest.mark.parametrize("begun", [False, True], ids=["asked for at once", "begun ahead"])
def test_every_page_is_there_and_zero(begun):
    before, size = resident_bytes(), 2 * PIECE_BYTES + 4096
    pages = HostPages(size)
    if begun:
        pages.begin()
    pages.complete(size, threads=2)
    assert resident_bytes() - before > 0.95 * size
    assert pages.memory[:size] == bytes(size)


def test_a_kernel_that_cannot_populate_still_gives_pages(monkeypatch):
    monkeypatch.setattr(host_pages, "POPULATE_WRITE", 12345)
    before, size = resident_bytes(), 64 * MIB
    pages = HostPages(size)
    pages.complete(size, threads=2)
    assert resident_bytes() - before > 0.9 * size


@pytest.mark.parametrize("kept", [0, 5 * MIB + 1, PIECE_BYTES, PIECE_BYTES + 4096])
def test_what_was_begun_and_is_not_wanted_is_given_back(kept):
    before = resident_bytes()
    pages = HostPages(3 * PIECE_BYTES)
    pages.begin()
    pages._ahead.join()
    assert resident_bytes() - before > 2.9 * PIECE_BYTES
    pages.expect(kept)
    assert resident_bytes() - before < kept + 8 * MIB
    pages.complete(kept, threads=2)
    assert resident_bytes() - before > 0.95 * kept - MIB
    assert pages.memory[:kept] == bytes(kept)


def test_the_thread_ahead_ends_at_what_is_expected_and_never_works_twice(monkeypatch):
    """It is held in its first piece while the guess is corrected to two."""
    entered, go_on, put = threading.Event(), threading.Event(), []

    def write(address, size):
        put.append((address, size))
        entered.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return 0

    monkeypatch.setattr(host_pages, "_write", write)
    pages = HostPages(4 * PIECE_BYTES)
    pages.begin()
    assert entered.wait(PATIENCE_SECONDS)
    pages.expect(PIECE_BYTES + 1)
    go_on.set()
    pages._ahead.join(PATIENCE_SECONDS)
    assert [size for _, size in put] == [PIECE_BYTES, 1]
    monkeypatch.setattr(host_pages, "_populate", lambda address, size: pytest.fail("a piece is put twice"))
    pages.complete(PIECE_BYTES + 1, threads=2)


def test_more_than_the_machine_has_is_refused_by_name():
    with pytest.raises(InsufficientMemory, match="--kv-cache-memory-bytes"):
        HostPages(1 << 56)


def test_a_promise_that_is_not_kept_is_an_error_that_names_the_flag(monkeypatch):
    monkeypatch.setattr(host_pages, "_populate", lambda address, size: 12)
    with pytest.raises(InsufficientMemory, match=r"does not give 0\.06 GiB .*--kv-cache-memory-bytes"):
        HostPages(PIECE_BYTES).complete(PIECE_BYTES, threads=2)


def test_huge_pages_are_given_up_when_they_take_too_long_and_not_before(monkeypatch):
    """The kernel here takes 0.2 s of processor time for each piece of 64 MiB in huge pages."""
    clock, advised = iter(0.2 * number for number in range(100)), []

    def advise(address, size, *, advice):
        advised.append(advice == mmap.MADV_HUGEPAGE)
        return 0

    monkeypatch.setattr(host_pages, "_advise", advise)
    monkeypatch.setattr(host_pages.time, "thread_time", lambda: next(clock))
    allowance = HugeAllowance()
    assert {allowance.spend(0, PIECE_BYTES, lambda address, size: 0) for _ in range(8)} == {0}
    assert advised == [True] * 3 + [False] * 5


@pytest.fixture
def begun(monkeypatch):
    """What is begun on a host of 64 MiB more than the process takes, without an accelerator."""
    sizes = []

    class Begun:
        def __init__(self, size):
            sizes.append(size)

        def begin(self):
            pass

    monkeypatch.setattr(host_room, "HostPages", Begun)
    monkeypatch.setattr(host, "memory_limit", lambda: 512 * MIB + 64 * MIB)
    monkeypatch.setattr(host, "memory_left", lambda: None)
    monkeypatch.setattr(host, "has_accelerator", lambda: False)
    return sizes


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (EngineConfig(), [64 * MIB]),  # a quarter would be more than is left
        (EngineConfig(kv_cache_memory_bytes=3 * MIB), [3 * MIB]),
        (EngineConfig(kv_cache_memory_bytes=900 * MIB), [64 * MIB]),
        (EngineConfig(device="cuda"), []),
        (EngineConfig(tensor_parallel_size=2), []),
    ],
)
def test_what_is_begun_fits_beside_the_process(begun, config, expected):
    host_room.pages_ahead(config)
    assert begun == expected


def test_nothing_is_begun_where_a_device_may_hold_the_cache(begun, monkeypatch):
    monkeypatch.setattr(host, "has_accelerator", lambda: True)
    assert host_room.pages_ahead(EngineConfig()) is None
    assert host_room.pages_ahead(EngineConfig(device="cpu")) is not None


def test_without_room_nothing_is_begun(begun, monkeypatch):
    monkeypatch.setattr(host, "memory_limit", lambda: 400 * MIB)
    assert host_room.pages_ahead(EngineConfig()) is None


@pytest.mark.parametrize(("name", "there"), [("nvidiactl", True), ("nvidia0", True), ("dxg", True), ("null", False)])
def test_an_accelerator_is_known_by_its_node(tmp_path, name, there):
    (tmp_path / name).touch()
    assert host.has_accelerator(tmp_path) is there
