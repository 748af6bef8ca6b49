"""Bad days of a source: cut, slow, silent, damaged, changing; and of ourselves: killed, full, two at once."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
import urllib.request
from collections import namedtuple
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faulty_http import Fault, running
from fetching import fetch, held, hurry, leftovers, manifest, start
from model_sources import BucketFiles, HubFiles, RegistryFiles, WebFiles, sha256
from octavo_engine.errors import (
    CheckpointInvalid,
    DiskFull,
    InvalidConfiguration,
    ModelChanged,
    ModelCorrupt,
    ModelSourceUnreachable,
)
from octavo_engine.fetch import directory, retry
from octavo_engine.fetch.directory import Directory
from octavo_engine.fetch.http import retry_after
from octavo_engine.fetch.part import PartFile, Span
from patience import PATIENCE_SECONDS
from tiny_files import FETCHED, checkpoint, gguf, large

COMMIT = "c" * 40
WEIGHTS = "model.safetensors"
SIZE = 300_000


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    hurry(monkeypatch)


def wanted(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name in FETCHED}


def of_kind(kind: str, files: dict[str, bytes]):
    """A place of that kind, and how it is addressed from the URL of its server."""
    match kind:
        case "hf":
            return HubFiles({COMMIT: files}, {"main": COMMIT}), lambda url: ("hf://org/tiny", {"endpoint": url})
        case "s3":
            keys = {f"t/{name}": content for name, content in files.items()}
            return BucketFiles(keys), lambda url: ("s3://models/t", {"endpoint": url})
        case "oci":
            return RegistryFiles(files), lambda url: (f"oci://{url.removeprefix('http://')}/org/tiny:v1", {})
    return WebFiles(files, ranged=kind == "web"), lambda url: (f"{url}/models/tiny", {})


def path_of(kind: str) -> str:
    """What the requests for the weights' bytes have in common."""
    return {"oci": f"/blobs/sha256:{sha256(large(SIZE)[WEIGHTS])}", "hf": f"/resolve/{COMMIT}/{WEIGHTS}"}.get(
        kind, f"/{WEIGHTS}"
    )


KINDS = ["hf", "s3", "oci", "web", "web-without-ranges"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 1, 4096, 20_000, 60_001])
def test_cut_connections_are_continued(tmp_path, kind, after):
    files = large(SIZE)
    place, address = of_kind(kind, files)
    with running(place) as server:
        source, access = address(server.url)
        server.faults.append(Fault(path_of(kind), cut_after=after, times=25))
        fetch(source, tmp_path, **access)
        assert server.faults[0].times == 0 or after > 4096
    assert held(tmp_path) == wanted(files)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503, "headers": {"Retry-After": "0"}, "times": 4},
        {"status": 429, "times": 3},
        {"status": 500, "times": 3},
        {"reset": True, "times": 3},
    ],
    ids=["503", "429", "500", "reset"],
)
def test_passing_troubles_are_waited_out(tmp_path, kind, fault):
    files = large(SIZE)
    place, address = of_kind(kind, files)
    with running(place) as server:
        source, access = address(server.url)
        server.faults.append(Fault(path_of(kind), **fault))
        server.faults.append(Fault("", bodies_only=False, **fault))
        fetch(source, tmp_path, **access)
    assert held(tmp_path) == wanted(files)


@pytest.mark.parametrize("kind", ["hf", "s3", "oci", "web"])
def test_a_second_run_goes_on_where_the_first_gave_up(tmp_path, monkeypatch, kind):
    files = large(SIZE)
    place, address = of_kind(kind, files)
    with running(place) as server:
        source, access = address(server.url)
        # The first replies are whole; then nothing works any more.
        server.faults += [
            Fault(path_of(kind), times=2),
            Fault(path_of(kind), reset=True, times=10_000),
        ]
        with pytest.raises(ModelSourceUnreachable, match=r"no progress for 1 s"):
            fetch(source, tmp_path, patience_seconds=1, connections=1, **access)
        assert WEIGHTS not in held(tmp_path)
        assert not (tmp_path / ".octavo/manifest.json").exists()
        server.faults.clear()
        server.asked.clear()
        fetch(source, tmp_path, **access)
        weights = [asked.range for asked in server.requests(path_of(kind)) if asked.range]
        fetched_again = sum(end - start for start, end in weights if end - start > 1)
        assert fetched_again < SIZE
    assert held(tmp_path) == wanted(files)


@pytest.mark.parametrize("hints", [{"etags": True}, {"dates": True}, {}], ids=["etags", "dates", "nothing"])
def test_a_part_is_continued_only_with_the_same_content(tmp_path, hints):
    """Between two runs the file becomes another of the same size."""
    old, new = large(SIZE, seed=1), large(SIZE, seed=2)
    place = WebFiles(old, **{"etags": False} | hints)
    with running(place) as server:
        server.faults += [Fault(f"/{WEIGHTS}", times=2), Fault(f"/{WEIGHTS}", reset=True, times=10_000)]
        with pytest.raises(ModelSourceUnreachable):
            fetch(f"{server.url}/models/tiny", tmp_path, patience_seconds=1, connections=1)
        server.faults.clear()
        place.files = new
        fetch(f"{server.url}/models/tiny", tmp_path)
    assert held(tmp_path) == wanted(new)


def test_finished_files_are_not_fetched_again(tmp_path):
    files = large(SIZE)
    with running(WebFiles(files)) as server:
        server.faults.append(Fault(WEIGHTS, reset=True, times=10_000))
        with pytest.raises(ModelSourceUnreachable):
            fetch(f"{server.url}/models/tiny", tmp_path, patience_seconds=1)
        server.faults.clear()
        server.asked.clear()
        fetch(f"{server.url}/models/tiny", tmp_path)
        assert all(asked.range == (0, 1) for asked in server.requests("config.json"))
    assert held(tmp_path) == wanted(files)


@pytest.mark.parametrize("kind", ["hf", "s3", "oci"])
@pytest.mark.parametrize("byte", [0, 777, 40_000])
def test_one_turned_bit_is_noticed_and_repaired(tmp_path, caplog, kind, byte):
    files = large(SIZE)
    place, address = of_kind(kind, files)
    with running(place) as server:
        source, access = address(server.url)
        server.faults.append(Fault(path_of(kind), flip=byte))
        fetch(source, tmp_path, connections=1, **access)
    assert held(tmp_path) == wanted(files)
    assert "damaged" in caplog.text


@pytest.mark.parametrize("kind", ["hf", "oci", "s3"])
def test_damage_that_stays_is_an_error_and_no_model(tmp_path, kind):
    place, address = of_kind(kind, large(SIZE))
    with running(place) as server:
        source, access = address(server.url)
        # Each time another byte: a tag that is no MD5 would give the same bytes twice.
        server.faults += [Fault(path_of(kind), flip=number, times=1) for number in range(500, 800)]
        with pytest.raises(ModelCorrupt, match="arrived twice"):
            fetch(source, tmp_path, **access)
        assert not (tmp_path / ".octavo/manifest.json").exists()
        server.faults.clear()
        fetch(source, tmp_path, **access)  # and nothing of the damage is left
    assert held(tmp_path) == wanted(large(SIZE))


def test_a_damaged_header_is_noticed_without_any_hash(tmp_path):
    with running(WebFiles(large(SIZE), etags=False)) as server:
        server.faults.append(Fault(WEIGHTS, flip=9))
        fetch(f"{server.url}/models/tiny", tmp_path, connections=1)
        assert held(tmp_path) == wanted(large(SIZE))
    with running(WebFiles({"m.gguf": b"no GGUF at all"})) as server:
        with pytest.raises(CheckpointInvalid, match=r"m\.gguf: not a GGUF file"):
            fetch(f"{server.url}/models/tiny/m.gguf", tmp_path / "other")
        server.answer.files["m.gguf"] = gguf(1)  # type: ignore[attr-defined]
        fetch(f"{server.url}/models/tiny/m.gguf", tmp_path / "other")


@pytest.mark.parametrize("kind", ["s3", "web"])
def test_a_file_that_changes_meanwhile_is_begun_anew(tmp_path, kind):
    old, new = large(SIZE, seed=1), large(SIZE, seed=2)
    place, address = of_kind(kind, dict(old))
    with running(place) as server:
        answer = server.answer

        def changing(asked):
            if path_of(kind) in asked.path and asked.range and asked.range[0] >= 128 * 1024:
                place.files.update({f"t/{name}" if kind == "s3" else name: content for name, content in new.items()})
            return answer(asked)

        server.answer = changing
        source, access = address(server.url)
        fetch(source, tmp_path, connections=1, **access)
    assert held(tmp_path) == wanted(new)
    assert leftovers(tmp_path) == []


def test_a_file_that_never_rests_is_given_up(tmp_path):
    place = WebFiles(large(SIZE))
    with running(place) as server:
        answer, seeds = server.answer, iter(range(10_000))

        def changing(asked):
            if WEIGHTS in asked.path and asked.range and asked.range[0] >= 64 * 1024:
                place.files.update(large(SIZE, seed=next(seeds)))
            return answer(asked)

        server.answer = changing
        with pytest.raises(ModelChanged, match="keeps changing"):
            fetch(f"{server.url}/models/tiny", tmp_path, connections=1)


def test_silence_is_ended_by_patience(tmp_path, monkeypatch):
    monkeypatch.setattr("octavo_engine.fetch.http.READ_SECONDS", 0.2)
    with running(WebFiles(large(SIZE))) as server:
        server.faults.append(Fault(WEIGHTS, silent=0.5, times=10_000))
        with pytest.raises(ModelSourceUnreachable, match="does not answer in time"):  # and not an hour later
            fetch(f"{server.url}/models/tiny", tmp_path, patience_seconds=1)


def test_retry_after_is_honoured_and_bounded(tmp_path, monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout=None: waited.append(timeout or 0) or False)
    patience = retry.Patience(60)
    patience.wait(retry.Broken("busy", retry_after=7.0), "x")
    assert waited[0] == 7.0
    with pytest.raises(ModelSourceUnreachable, match="busy"):
        patience.wait(retry.Broken("busy", retry_after=61.0), "x")
    assert retry_after("12") == 12.0
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after("soon") is None


def test_a_killed_fetch_goes_on(tmp_path, gate):
    files = large(1_000_000)
    with running(WebFiles(files)) as server:
        server.faults.append(Fault(WEIGHTS, gate=gate, times=10_000))
        source = f"{server.url}/models/tiny"
        for _ in range(3):
            before = recorded(tmp_path)
            process = start(source, tmp_path, "--connections=2")
            until(lambda before=before: recorded(tmp_path) > before, process)
            process.kill()
            process.communicate()
        kept = recorded(tmp_path)
        assert kept > 0
        server.faults.clear()
        server.asked.clear()
        fetch(source, tmp_path)
        again = sum(
            end - begin for begin, end in (a.range or (0, 0) for a in server.requests(WEIGHTS)) if end - begin > 1
        )
        assert again <= len(files[WEIGHTS]) - kept
    assert held(tmp_path) == wanted(files)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Bodies stand still before it, in their midst, so that a fetch lasts until the test lets it go on."""
    made = threading.Event()
    yield made
    made.set()


def recorded(place: Path) -> int:
    """Bytes that count as there of the weights, which no fetch has whole while their gate is closed."""
    lines = set()
    for part in place.glob(".octavo/*.part"):
        with suppress(FileNotFoundError):  # a small file is finished in between
            if part.stat().st_size >= 1_000_000:
                lines |= set(part.with_name(f"{part.name}.journal").read_text().splitlines())
    return sum(int(end) - int(begin) for begin, _, end in (line.partition(" ") for line in lines))


def until(condition, process) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_ends_it_at_once_and_not_with_success(tmp_path, gate):
    with running(WebFiles(large(1_000_000))) as server:
        server.faults.append(Fault(WEIGHTS, gate=gate, times=10_000))
        process = start(f"{server.url}/models/tiny", tmp_path)
        until(lambda: recorded(tmp_path) > 0, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 143
        process.communicate()


def test_two_at_once_share_one_download(tmp_path, gate):
    files, waiting = large(1_000_000), list[str]()
    with running(WebFiles(files)) as server:
        server.faults.append(Fault(WEIGHTS, gate=gate, times=10_000))
        processes = [start(f"{server.url}/models/tiny", tmp_path) for _ in range(3)]

        def read(process) -> None:
            waiting.extend(line for line in process.stderr if "waiting for it" in line)

        readers = [threading.Thread(target=read, args=(process,)) for process in processes]
        for reader in readers:
            reader.start()
        until(lambda: len(waiting) == 2, processes[0])
        gate.set()
        assert [process.wait(PATIENCE_SECONDS) for process in processes] == [0, 0, 0]
        for reader, process in zip(readers, processes, strict=True):
            reader.join()
            process.communicate()
        fetched = sum(
            end - begin for begin, end in (a.range or (0, 0) for a in server.requests(WEIGHTS)) if end - begin > 1
        )
        assert fetched == len(files[WEIGHTS])
        assert len(waiting) == 2
    assert held(tmp_path) == wanted(files)


def test_progress_is_told_over_http(tmp_path, gate):
    files = large(1_000_000)
    with running(HubFiles({COMMIT: files}, {"main": COMMIT})) as server:
        server.faults.append(Fault("/resolve/", gate=gate, times=10_000))
        process = start("hf://org/tiny", tmp_path, "--endpoint", server.url, "--management-port=0")
        assert process.stderr is not None
        line = process.stderr.readline()
        url = line.split("progress on ")[1].strip()
        seen = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and not (seen and seen[-1]["bytes_done"] > 100_000):
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
                seen.append(json.load(answer))
        assert urllib.request.urlopen(url.replace("/progress", "/livez"), timeout=PATIENCE_SECONDS).status == 200
        gate.set()
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert json.loads(output) == {"revision": COMMIT, "bytes": sum(map(len, wanted(files).values())), "files": 4}
    last = seen[-1]
    assert set(last) == {"phase", "files_done", "files_total", "bytes_done", "bytes_total", "revision"}
    assert (last["phase"], last["files_total"], last["revision"]) == ("downloading", 4, COMMIT)
    assert last["bytes_total"] == sum(map(len, wanted(files).values()))
    assert [document["bytes_done"] for document in seen] == sorted(document["bytes_done"] for document in seen)


def test_a_taken_port_and_an_unwritable_destination_are_named(tmp_path):
    with running(WebFiles(checkpoint())) as server, pytest.raises(InvalidConfiguration, match="--management-port"):
        fetch(f"{server.url}/models/tiny", tmp_path, management_port=server.server_address[1])
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfiguration, match="--destination"):
        fetch("https://host.invalid/x", tmp_path / "file")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/.octavo").symlink_to(tmp_path)
    with pytest.raises(InvalidConfiguration, match="--destination"):
        fetch("https://host.invalid/x", tmp_path / "links")


def test_links_in_the_destination_are_not_followed(tmp_path):
    files, outside = checkpoint(), tmp_path / "outside"
    outside.write_text("precious")
    place = tmp_path / "d"
    place.mkdir()
    for name in FETCHED:
        (place / name).symlink_to(outside)
    with running(WebFiles(files)) as server:
        fetch(f"{server.url}/models/tiny", place)
    assert outside.read_text() == "precious"
    assert held(place) == wanted(files)
    assert not any((place / name).is_symlink() for name in FETCHED)


def test_a_small_volume_is_refused_before_a_byte_is_fetched(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(directory.shutil, "disk_usage", lambda path: usage(10, 0, 100_000))
    with running(WebFiles(large(SIZE))) as server:
        with pytest.raises(DiskFull, match=r"needs .* GiB more, has .* GiB"):
            fetch(f"{server.url}/models/tiny", tmp_path)
        assert all(asked.range == (0, 1) for asked in server.requests(WEIGHTS))


def test_a_volume_that_fills_up_meanwhile_is_named(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("octavo_engine.fetch.part.os.pwrite", full)
    with running(WebFiles(large(SIZE))) as server, pytest.raises(DiskFull, match="No space left"):
        fetch(f"{server.url}/models/tiny", tmp_path)


def test_a_manifest_speaks_only_of_files_that_are_there(tmp_path):
    files = checkpoint()
    with running(WebFiles(files)) as server:
        found = fetch(f"{server.url}/models/tiny", tmp_path)
        record = tmp_path / ".octavo/manifest.json"
        for spoiled, content in (
            (tmp_path / WEIGHTS, b"short"),
            (record, b"{}"),
            (record, b"nonsense"),
            (record, None),
        ):
            spoiled.unlink()
            if content is not None:
                spoiled.write_bytes(content)
            assert Directory(tmp_path).manifest() is None
            assert fetch(f"{server.url}/models/tiny", tmp_path, revision=found.revision) == found
            assert held(tmp_path) == wanted(files)


def test_a_kill_between_record_and_move_loses_nothing(tmp_path, monkeypatch):
    files = checkpoint()
    with running(WebFiles(files)) as server:

        def die(self: PartFile, target: Path) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(PartFile, "move_to", die)
        with pytest.raises(KeyboardInterrupt):
            fetch(f"{server.url}/models/tiny", tmp_path, connections=1)
        monkeypatch.undo()
        server.asked.clear()
        fetch(f"{server.url}/models/tiny", tmp_path)
        assert all(asked.range == (0, 1) for asked in server.requests("/config.json"))
    assert held(tmp_path) == wanted(files)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=12), st.integers(1, 40), st.binary(max_size=9)
)
def test_a_part_knows_what_is_missing(tmp_path_factory, written, longest, torn):
    part = PartFile(tmp_path_factory.mktemp("part") / "x.part", 100)
    there = set()
    for start_at, end in written:
        part.write(start_at, b"x" * max(0, end - start_at))
        part.record(Span(start_at, end))
        there |= set(range(start_at, end))
    part.close()
    with part.path.with_name("x.part.journal").open("ab") as journal_file:
        journal_file.write(torn.replace(b"\n", b"?"))
    part = PartFile(part.path, 100)
    missing = part.missing(longest)
    assert all(0 < span.end - span.start <= longest for span in missing)
    assert [place for span in missing for place in range(span.start, span.end)] == sorted(set(range(100)) - there)
    assert part.present() == len(there)
    part.close()
    part = PartFile(part.path, 101)  # the same name with another size is another file
    assert part.present() == 0
    part.close()


def test_no_line_is_longer_than_its_use(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with running(WebFiles(checkpoint())) as server:
        fetch(f"{server.url}/models/tiny", tmp_path)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("octavo_engine")]
    assert len(lines) == 2
    assert "4 files" in lines[0]
    assert "100 %" in lines[1]
    assert manifest(tmp_path)["source"].endswith("/models/tiny")
