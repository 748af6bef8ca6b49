"""What a panel looks like, decided once: a unit, a reading aid, a legend that tells the last and the highest value."""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.builders import bargauge, common, prometheus, table, text, timeseries
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.common import (
    GraphGradientMode,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

from boards.queries import Query

Panel = timeseries.Panel | bargauge.Panel | table.Panel | text.Panel
DATA_SOURCE = DataSourceRef(type_val="prometheus", uid="$datasource")
SECONDS, RATIO, COUNT = "s", "percentunit", "short"
TOKENS, TOKENS_PER_SECOND, REQUESTS_PER_SECOND = "suffix: tok", "suffix: tok/s", "reqps"
LOOKS_PER_SECOND = "suffix: looks/s"
HEIGHT = 8  # of the grid's rows; the grid is 24 columns wide
_TARGET_LABELS = ("Time", "__name__", "job", "instance", "endpoint", "container")


def graph(
    title: str,
    help: str,
    unit: str,
    *queries: Query,
    width: int = 8,
    stacked: bool = False,
    limit: float | None = None,
    link: tuple[str, str] | None = None,
) -> timeseries.Panel:
    """Lines over time. `help` says what to read from it, and what to change.

    Args:
        stacked: when the parts add up.
        limit: a dashed line: what lies above it needs a look.
        link: title and address of where a click on a line leads.
    """
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
    if limit is not None:
        panel.thresholds(_limit(limit))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED))
    if link is not None:
        panel.data_links([_link(*link)])
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
    hidden = dict.fromkeys((*_TARGET_LABELS, "Value"), True)
    return (
        _table(title, help, width)
        .with_target(_target(query).instant().format(PromQueryFormat.TABLE))
        .with_transformation(DataTransformerConfig(id_val="organize", options={"excludeByName": hidden}))
    )


def figures(
    title: str, help: str, columns: Mapping[str, tuple[str, str]], link: tuple[str, str], *, width: int = 24
) -> table.Panel:
    """A row for each service, a column for each figure.

    Args:
        columns: by heading, the expression and its unit; each expression has the same labels.
        link: title and address of where a click on a service's name leads.
    """
    letters = {chr(ord("A") + index): heading for index, heading in enumerate(columns)}
    panel = _table(title, help, width).override_by_name("inferenceservice", [_linked(*link)])
    for letter, heading in letters.items():
        expr, unit = columns[heading]
        panel.with_target(_target(Query(expr, heading), ord(letter) - ord("A")).instant().format(PromQueryFormat.TABLE))
        panel.override_by_name(heading, [DynamicConfigValue(id_val="unit", value=unit)])
    named = {f"Value #{letter}": heading for letter, heading in letters.items()}
    return panel.with_transformation(DataTransformerConfig(id_val="merge", options={})).with_transformation(
        DataTransformerConfig(
            id_val="organize",
            options={"excludeByName": dict.fromkeys(_TARGET_LABELS, True), "renameByName": named},
        )
    )


def notes(title: str, help: str, markdown: str, *, width: int = 6) -> text.Panel:
    """Words beside the panels that they speak of."""
    panel = text.Panel().title(title).description(help).datasource(DATA_SOURCE).span(width).height(HEIGHT)
    return panel.mode(TextMode.MARKDOWN).content(markdown)


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


def _table(title: str, help: str, width: int) -> table.Panel:
    panel = table.Panel().title(title).description(help).datasource(DATA_SOURCE).span(width).height(HEIGHT)
    return panel.show_header(True)  # without any option the panel's options would be null


def _target(query: Query, index: int = 0) -> prometheus.Dataquery:
    letter = chr(ord("A") + index)
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter).datasource(DATA_SOURCE)


def _legend() -> common.VizLegendOptions:
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.TABLE).placement(LegendPlacement.BOTTOM)
    return legend.show_legend(True).calcs(["lastNotNull", "max"])


def _limit(value: float) -> dashboards.ThresholdsConfig:
    steps = [Threshold(value=None, color="green"), Threshold(value=value, color="red")]
    return dashboards.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _link(title: str, address: str) -> dashboards.DashboardLink:
    return dashboards.DashboardLink(title).url(address)


def _linked(title: str, address: str) -> DynamicConfigValue:
    return DynamicConfigValue(id_val="links", value=[{"title": title, "url": address}])
