"""What a panel looks like, decided once: a unit, a reading aid, a legend that tells the last and the highest value."""

from __future__ import annotations

from grafana_foundation_sdk.builders import bargauge, common, prometheus, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import (
    GraphGradientMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import AnnotationQuery, DataSourceRef, DataTransformerConfig
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from boards.queries import Query

Panel = timeseries.Panel | bargauge.Panel | table.Panel
DATA_SOURCE = DataSourceRef(type_val="prometheus", uid="$datasource")
SECONDS, RATIO, COUNT = "s", "percentunit", "short"
TOKENS, TOKENS_PER_SECOND, REQUESTS_PER_SECOND = "suffix: tok", "suffix: tok/s", "reqps"
HEIGHT = 8  # of the grid's rows; the grid is 24 columns wide


def graph(title: str, help: str, unit: str, *queries: Query, width: int = 8, stacked: bool = False) -> timeseries.Panel:
    """Lines over time. `help` says what to read from it, and what to change; `stacked` when the parts add up."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(help)
        .datasource(DATA_SOURCE)
        .unit(unit)
        .min(0)
        .span(width)
        .height(HEIGHT)
        .show_points(VisibilityMode.NEVER)
        .gradient_mode(GraphGradientMode.OPACITY)
        .fill_opacity(30 if stacked else 8)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for index, query in enumerate(queries):
        panel.with_target(_target(query, index).range())
    return panel.max(1) if unit == RATIO else panel


def bars(title: str, help: str, unit: str, query: Query, *, width: int = 8) -> bargauge.Panel:
    """The present value of each series as a bar."""
    return (
        bargauge.Panel()
        .title(title)
        .description(help)
        .datasource(DATA_SOURCE)
        .unit(unit)
        .min(0)
        .span(width)
        .height(HEIGHT)
        .orientation(VizOrientation.HORIZONTAL)
        .with_target(_target(query).instant())
    )


def labels(title: str, help: str, query: Query, *, width: int = 8) -> table.Panel:
    """The labels of each series as a table, without its value: for `_info` metrics."""
    hidden = dict.fromkeys(("Time", "Value", "__name__", "job", "instance", "endpoint", "container"), True)
    return (
        table.Panel()
        .title(title)
        .description(help)
        .datasource(DATA_SOURCE)
        .span(width)
        .height(HEIGHT)
        .with_target(_target(query).instant().format(PromQueryFormat.TABLE))
        .with_transformation(DataTransformerConfig(id_val="organize", options={"excludeByName": hidden}))
    )


class Events(Builder[AnnotationQuery]):  # type: ignore[misc]
    """Marks on every graph: one for each series that `expr` returns, told by its labels, e.g. `{{reason}}`."""

    def __init__(self, name: str, expr: str, text: str) -> None:
        self._query = _Titled(name=name, datasource=DATA_SOURCE, icon_color="blue", expr=expr)
        self._query.title, self._query.text = name, text

    def build(self) -> AnnotationQuery:
        """The annotation."""
        return self._query


class _Titled(AnnotationQuery):  # type: ignore[misc]
    """The model lacks the fields that the Prometheus data source takes a mark's text from."""

    title, text = "", ""

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "titleFormat": self.title, "textFormat": self.text, "step": "15s"}


def _target(query: Query, index: int = 0) -> prometheus.Dataquery:
    letter = chr(ord("A") + index)
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter).datasource(DATA_SOURCE)


def _legend() -> common.VizLegendOptions:
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.TABLE).placement(LegendPlacement.BOTTOM)
    return legend.show_legend(True).calcs(["lastNotNull", "max"])
