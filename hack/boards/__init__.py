"""Grafana dashboards and Prometheus rules as code.

`queries` writes PromQL, `panels` draws one, `frame` has what all boards share; each board is a module of its own, and
`rules` are what is recorded and warned of. `python -m boards` writes `dashboards/` and the chart's copies; with
`--check` it says which of them are not up to date.
"""
