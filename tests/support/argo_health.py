"""Runs Argo CD's health script as Argo CD does: Lua 5.1, the object as the global `obj`, a table as the answer."""

from __future__ import annotations

from typing import Any

from lupa import lua51  # type: ignore[import-untyped]

from node import config

SCRIPT = config.CHECKOUT / "gitops" / "argocd" / "health.lua"
STATUSES = frozenset({"Healthy", "Progressing", "Degraded", "Suspended"})
# Argo CD opens base, table, string and math (with os.time and os.date); nothing that reaches outside.
_FORBIDDEN = ("io", "os", "debug", "package", "require", "dofile", "loadfile", "load", "loadstring", "python")


def health(live: dict[str, Any]) -> tuple[str, str]:
    """Status and message that Argo CD shows for an object."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True, register_eval=False, register_builtins=False)
    names = lua.globals()
    for name in _FORBIDDEN:
        names[name] = None
    names.obj = _table(lua, live)
    answer = lua.execute(SCRIPT.read_text())
    status, message = answer["status"], answer["message"]
    assert status in STATUSES, status
    assert isinstance(message, str), message
    return str(status), message


def _table(lua: Any, value: Any) -> Any:
    """As Argo CD hands over JSON: objects and lists become tables, null becomes nil."""
    if isinstance(value, dict):
        return lua.table_from({key: _table(lua, item) for key, item in value.items() if item is not None})
    if isinstance(value, list):
        return lua.table_from([_table(lua, item) for item in value])
    return value
