"""Grafana dashboards as code: `queries` writes PromQL, `panels` draws one, each board is a module of its own.

`python -m boards` writes `dashboards/*.json`; `python -m boards --check` says which of them are not up to date.
"""
