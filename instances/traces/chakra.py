"""Execution traces of MLCommons Chakra as JSON: nodes with names, dependences and times.

Two forms: `{"nodes": [...]}` of PyTorch's observer once it is linked with a Kineto trace
(`inclusive_dur`, microseconds), and what Chakra's own tool writes of its protobuf files, one object
after the other (`durationMicros`). Kernels count with the operator that they depend on by control;
operators inside another count with that one.
"""

from __future__ import annotations

from typing import Any

from placeopt.instances.readers.torch_ops import base_name
from placeopt.instances.traces.trace import Trace

_TIMES = ("inclusive_dur", "durationMicros", "duration_micros", "dur", "exclusive_dur")
_PARENTS = ("ctrl_deps", "ctrlDeps", "ctrl_dep", "parent")


def recognises(data: Any) -> bool:
    """Whether parsed JSON is such a trace."""
    if isinstance(data, dict) and "chakra" in str(data.get("schema", "")).lower():
        return True
    rows = _nodes(data)
    return bool(rows) and all("name" in row and "id" in row for row in rows[:20])


def read(data: Any) -> Trace:
    """Read it."""
    rows = {int(row["id"]): row for row in _nodes(data)}
    seconds, kernels = _times(rows)
    by_kind: dict[str, list[float]] = {}
    for key in sorted(seconds):
        time = kernels.get(key, seconds[key])
        if time > 0:
            by_kind.setdefault(base_name(str(rows[key]["name"])), []).append(time)
    return Trace("Chakra", {}, by_kind, "gpu" if kernels else "cpu")


def _times(rows: dict[int, dict[str, Any]]) -> tuple[dict[int, float], dict[int, float]]:
    """Return the seconds of outermost operators, and of the kernels that belong to them."""
    above = {key: _parent(row, rows) for key, row in rows.items()}
    seconds: dict[int, float] = {}
    kernels: dict[int, float] = {}
    for key, row in rows.items():
        top = _top(key, above, rows)
        time = 1e-6 * next((float(row[name]) for name in _TIMES if row.get(name)), 0.0)
        if _is_operator(row):
            if top == key:
                seconds[key] = time
        elif top is not None and time:
            kernels[top] = kernels.get(top, 0.0) + time
    return seconds, kernels


def _nodes(data: Any) -> list[dict[str, Any]]:
    rows = data.get("nodes") if isinstance(data, dict) else data
    if isinstance(rows, list):
        return [row for row in rows if isinstance(row, dict) and "name" in row]
    return []


def _is_operator(row: dict[str, Any]) -> bool:
    return "::" in str(row.get("name", ""))


def _parent(row: dict[str, Any], rows: dict[int, Any]) -> int | None:
    for key in _PARENTS:
        value = row.get(key)
        value = value[0] if isinstance(value, list) and value else value
        if (
            value is not None
            and not isinstance(value, list)
            and int(value) in rows
            and int(value) != int(row["id"])
        ):
            return int(value)
    return None


def _top(key: int, above: dict[int, int | None], rows: dict[int, Any]) -> int | None:
    """Return the outermost operator that a node is, or is started by; None if there is none."""
    found, seen, at = None, set[int](), key
    while at not in seen:
        seen.add(at)
        if _is_operator(rows[at]):
            found = at
        before = above[at]
        if before is None:
            break
        at = before
    return found
