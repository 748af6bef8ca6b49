"""Whatever names a metric, in code, charts, examples or docs, names one that exists; the engine's are documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prometheus_series import engine_series, operator_names

pytestmark = pytest.mark.contract

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("operator/octavo_operator", "hack", "charts", "examples", "docs", "dashboards", "README.md", "README.ja.md")
SERIES = engine_series()
FAMILIES = {re.sub(r"_(bucket|count|sum)$", "", name) if SERIES[name].type == "histogram" else name for name in SERIES}
KNOWN = {*SERIES, *FAMILIES, *operator_names(), "octavo_engine", "octavo_operator"}


def texts() -> dict[Path, str]:
    paths = [path for place in PLACES for path in [ROOT / place, *(ROOT / place).rglob("*")] if path.is_file()]
    return {
        path: path.read_text(encoding="utf-8")
        for path in paths
        if path.suffix in (".py", ".md", ".yaml", ".json", ".tpl")
    }


def names(text: str) -> set[str]:
    """Words that look like a metric, or like one of our packages."""
    return set(re.findall(r"\boctavo_[a-z0-9_]*[a-z0-9]\b", text))


def test_nothing_names_a_metric_that_nobody_exports() -> None:
    unknown = {str(path.relative_to(ROOT)): sorted(names(text) - KNOWN) for path, text in texts().items()}
    assert {path: found for path, found in unknown.items() if found} == {}


def test_every_metric_is_documented() -> None:
    documented = names((ROOT / "docs" / "METRICS.md").read_text(encoding="utf-8"))
    assert FAMILIES - documented == set()


def test_names_follow_the_conventions() -> None:
    for name, series in SERIES.items():
        assert name.startswith("octavo_")
        assert "model_name" in series.labels
        assert (series.type == "counter") == name.endswith("_total")
        assert not re.search(r"_(ms|milliseconds|percent|minutes|kb|mb)(_|$)", name), f"{name} is not in base units"
