"""What every board has: a uid that stays, variables, links to the others, marks for decisions, rows of panels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from boards import panels
from boards.panels import Events, Panel

TAG = "octavo"
Rows = Mapping[str, Callable[[], Sequence[Panel]]]
FOUND_BY = "octavo_requests_running"
"""A series that every engine has from its start: what can be chosen is what has it."""


@dataclass(frozen=True)
class Frame:
    """A board without its panels. `uid` never changes: links and bookmarks rest on it."""

    title: str
    uid: str
    description: str
    variables: Sequence[Builder[VariableModel]]
    marks: Sequence[Events] = ()


def board(frame: Frame, rows: Rows) -> dashboard.Dashboard:
    """The whole board; panels flow from left to right, a row under the other."""
    result = (
        dashboard.Dashboard(f"Octavo / {frame.title}")
        .uid(frame.uid)
        .description(frame.description)
        .tags([TAG])
        .time("now-30m", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(_others())
        .variables([_data_source(), *frame.variables])
    )
    for mark in frame.marks:
        result.annotation(mark)
    numbers = count(1)
    for title, content in rows.items():
        result.with_row(dashboard.Row(title).id(next(numbers)))
        for panel in content():
            result.with_panel(panel.id(next(numbers)))
    return result


def one_service() -> list[Builder[VariableModel]]:
    """Namespace, service and its pods: what the board is about."""
    in_namespace = f'{FOUND_BY}{{namespace="$namespace"}}'
    in_service = f'{FOUND_BY}{{namespace="$namespace",inferenceservice="$service"}}'
    return [
        chosen("namespace", "Namespace", f"label_values({FOUND_BY}, namespace)"),
        chosen("service", "Service", f"label_values({in_namespace}, inferenceservice)"),
        any_of("pod", "Pod", f"label_values({in_service}, pod)"),
    ]


def many_services() -> list[Builder[VariableModel]]:
    """Namespaces and services, all of them at first; also those without a replica, which the operator alone knows."""
    found_by = "octavo_operator_service_replicas"
    in_namespaces = f'{found_by}{{namespace=~"$namespace"}}'
    return [
        any_of("namespace", "Namespace", f"label_values({found_by}, namespace)"),
        any_of("service", "Service", f"label_values({in_namespaces}, inferenceservice)"),
    ]


def chosen(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """One value of those that `query` finds."""
    variable = dashboard.QueryVariable(name).label(label).datasource(panels.DATA_SOURCE).query(query)
    return variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)


def any_of(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """Any number of them, at first all."""
    all_of_them = VariableOption(selected=True, text="All", value="$__all")
    return chosen(name, label, query).multi(True).include_all(True).all_value(".*").current(all_of_them)


def service_address(labels: str) -> str:
    """Where the Service board shows the service that was clicked at.

    Args:
        labels: of what was clicked at, in Grafana's words: `__field.labels` of a line, `__data.fields` of a row.
    """
    chosen_service = f"var-namespace=${{{labels}.namespace}}&var-service=${{{labels}.inferenceservice}}"
    return f"/d/octavo-service?var-datasource=${{datasource}}&{chosen_service}&${{__url_time_range}}"


def _data_source() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _others() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("Octavo's boards").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.include_vars(True).keep_time(True)
