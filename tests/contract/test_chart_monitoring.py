"""What the chart gives Prometheus and Grafana: the boards and the rules, whole, and only where they are asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

import chart_samples
from boards.__main__ import FOLDER
from chart_samples import of_kind
from operator_process import render_chart

pytestmark = pytest.mark.contract

KINDS = ("PrometheusRule", "ConfigMap", "GrafanaDashboard")
GRAFANA_OPERATOR = ("--api-versions", "grafana.integreatly.org/v1beta1/GrafanaDashboard")
BOARDS = {path.name: path for path in FOLDER.glob("*.json")}

Object = dict[str, Any]


def rendered(values: chart_samples.Values, *more: str) -> list[Object]:
    text = render_chart(chart_samples.NAMESPACE, *chart_samples.flags({"monitoring": values}), *more)
    return [item for item in yaml.safe_load_all(text) if item]


def test_nothing_of_it_comes_unasked() -> None:
    assert not {item["kind"] for item in rendered({})} & set(KINDS)


def test_the_boards_are_those_of_the_folder() -> None:
    maps = of_kind(rendered({"dashboards": {"enabled": True}}), "ConfigMap")
    found = {name: json.loads(text) for item in maps for name, text in item["data"].items()}
    assert found == {name: json.loads(path.read_text(encoding="utf-8")) for name, path in BOARDS.items()}
    assert all(item["metadata"]["labels"]["grafana_dashboard"] == "1" for item in maps)


def test_grafana_operator_is_told_where_its_kind_is_known() -> None:
    wish: chart_samples.Values = {"dashboards": {"enabled": True, "instances": {"team": "x"}}}
    assert of_kind(rendered(wish), "GrafanaDashboard") == []
    objects = rendered(wish, *GRAFANA_OPERATOR)
    shown = of_kind(objects, "GrafanaDashboard")
    maps = {item["metadata"]["name"]: item["data"].keys() for item in of_kind(objects, "ConfigMap")}
    assert len(shown) == len(BOARDS)
    for item in shown:
        assert item["spec"]["configMapRef"]["key"] in maps[item["spec"]["configMapRef"]["name"]]
        assert item["spec"]["instanceSelector"]["matchLabels"]["team"] == "x"


def test_the_rules_are_all_but_the_services_own() -> None:
    (rule,) = of_kind(rendered({"rules": {"enabled": True}, "labels": {"release": "p"}}), "PrometheusRule")
    everything = yaml.safe_load((FOLDER / "rules.yaml").read_text(encoding="utf-8"))
    assert rule["spec"]["groups"] == [group for group in everything["groups"] if group["name"] != "octavo-service"]
    assert rule["metadata"]["labels"]["release"] == "p"


def test_a_release_with_all_of_it_fits_into_its_record() -> None:
    """Helm keeps the rendered release in a Secret of a megabyte, and each ConfigMap has the same limit."""
    maps = of_kind(rendered({"dashboards": {"enabled": True}}), "ConfigMap")
    assert sum(len(text) for item in maps for text in item["data"].values()) < 400_000
