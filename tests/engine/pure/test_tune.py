"""Which launch stays, what is kept of it, and when it is used again."""

from __future__ import annotations

import json
import math
import pwd
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.triton import measured
from octavo_engine.kernels.triton.measured import Circumstances, Measurement
from octavo_engine.kernels.triton.targets import A100, B200, H100, TABLE, Launch, Row, launch_on
from octavo_engine.tune.candidates import SPACES, candidates
from octavo_engine.tune.search import Case, search
from octavo_engine.tune.settings import TuneConfig

HERE = Circumstances("NVIDIA H200", "3.9.0", "abc")
ROW = Row("norm_row", 90, 4096, Launch(2, 1, {}))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def case(times: Sequence[float]) -> Case:
    launches = [Launch(warps, 1, {"TILE": 64}) for warps in range(1, len(times) + 1)]
    return Case("decode16", 128, 90, launches, lambda launch: times[launch.warps - 1])


@pytest.mark.parametrize(
    ("times", "warps"),
    [
        ((3.0, 1.0, 2.0), 2),
        ((1.0, 0.99, 2.0), 1),  # no faster than noise
        ((math.inf, 4.0, 5.0), 2),  # the usual one does not fit
        ((1.0, math.inf), 1),
    ],
)
def test_the_fastest_stays_if_it_is_worth_it(times: Sequence[float], warps: int) -> None:
    (found,) = search([case(times)])
    assert found.row == Row("decode16", 90, 128, Launch(warps, 1, {"TILE": 64}))
    assert found.usual_seconds == times[0]
    assert f"{warps} warps" in str(found)


def test_where_nothing_can_be_launched_nothing_is_said() -> None:
    assert list(search([case((math.inf, math.inf))])) == []


@pytest.mark.parametrize("target", [A100, H100, B200])
@pytest.mark.parametrize("kernel", SPACES)
def test_the_usual_launch_is_tried_first_and_the_list_is_bounded(kernel: str, target: object) -> None:
    for row in TABLE:
        if row.kernel == kernel:
            tried = candidates(kernel, row.size, row.launch)
            assert tried[0] == row.launch
            assert 3 <= len(tried) <= 25
            assert all(launch not in tried[:place] for place, launch in enumerate(tried))
            assert {frozenset(launch.blocks) for launch in tried} == {frozenset(row.launch.blocks)}


def test_every_kernel_that_is_tuned_is_in_the_table() -> None:
    assert {row.kernel for row in TABLE} >= set(SPACES)


def test_what_was_measured_goes_before_the_table_on_its_device_for_its_size_only() -> None:
    usual = launch_on(H100, "norm_row", 4096)
    assert usual != ROW.launch
    assert launch_on(replace(H100, measured=(ROW,)), "norm_row", 4096) == ROW.launch
    for other in (1024, 8192):
        assert launch_on(H100, "norm_row", other) != ROW.launch
        assert launch_on(replace(H100, measured=(ROW,)), "norm_row", other) == launch_on(H100, "norm_row", other)
    assert launch_on(H100, "norm_row", 4096) == usual


def test_a_measurement_is_found_again() -> None:
    row = Row("quantized16", 90, 16, Launch(8, 3, {"OUTPUTS": 128, "ROWS": 16}))
    path = measured.keep(Measurement(HERE, "0.1.0", (ROW, row)))
    assert path == measured.place()
    assert measured.rows_for(HERE) == (ROW, row)


@pytest.mark.parametrize("change", [{"device": "NVIDIA A100"}, {"triton": "4.0"}, {"kernels": "def"}], ids=str)
def test_other_circumstances_find_nothing(change: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    measured.keep(Measurement(HERE, "0.1.0", (ROW,)))
    assert measured.rows_for(replace(HERE, **change)) == ()
    assert ("octavo tune again" in caplog.text) == ("device" not in change)


def test_each_device_has_one_measurement() -> None:
    other = replace(HERE, device="NVIDIA A100")
    measured.keep(Measurement(HERE, "0.1.0", (ROW,)))
    measured.keep(Measurement(other, "0.1.0", (ROW,)))
    measured.keep(Measurement(replace(HERE, kernels="def"), "0.1.0", ()))
    assert [each.circumstances.kernels for each in measured.read()] == ["abc", "def"]
    assert measured.find(other) == (ROW,)


def test_rows_of_another_model_are_kept() -> None:
    wider = replace_size(ROW, 8192)
    newer = ROW._replace(launch=Launch(4, 1, {}))
    assert measured.merged((ROW, wider), (newer,)) == (newer, wider)


def replace_size(row: Row, size: int) -> Row:
    return row._replace(size=size)


BROKEN = {
    "no JSON": "{",
    "no measurements": "{}",
    "not a list": '{"measurements": 3}',
    "no device": '{"measurements": [{}]}',
    "no number": json.dumps(
        {"measurements": [{"device": "d", "triton": "3", "kernels": "a", "octavo": "0", "rows": [
            {"kernel": "k", "capability": 90, "size": 1, "warps": "4", "stages": 1, "blocks": {}}]}]}
    ),
    "no names": json.dumps(
        {"measurements": [{"device": "d", "triton": "3", "kernels": "a", "octavo": "0", "rows": [
            {"kernel": "k", "capability": 90, "size": 1, "warps": 4, "stages": 1, "blocks": [64]}]}]}
    ),
    "too deep": "[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("content", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_file_is_said_and_does_not_stop_a_start(content: str, caplog: pytest.LogCaptureFixture) -> None:
    measured.place().parent.mkdir(parents=True)
    measured.place().write_text(content)
    assert measured.rows_for(HERE) == ()
    assert "is not used" in caplog.text
    measured.keep(Measurement(HERE, "0.1.0", (ROW,)))
    assert measured.find(HERE) == (ROW,)


def test_without_a_home_nothing_is_found_and_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: int) -> None:
        raise KeyError("no account")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert measured.rows_for(HERE) == ()
    with pytest.raises(RuntimeError, match="home"):
        measured.keep(Measurement(HERE, "0.1.0", (ROW,)))


def test_a_change_of_a_kernel_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    before = measured.digest_of(tmp_path)
    measured.digest_of.cache_clear()
    (tmp_path / "a.py").write_text("2")
    assert measured.digest_of(tmp_path) != before
    measured.digest_of.cache_clear()


def test_settings_name_what_is_wrong() -> None:
    assert TuneConfig.parse(["place", "--context", "512"]) == TuneConfig(model="place", context=512)
    with pytest.raises(InvalidConfiguration, match="name a model"):
        TuneConfig.parse([])
    with pytest.raises(InvalidConfiguration, match="--milliseconds is 0"):
        TuneConfig.parse(["place", "--milliseconds", "0"])
