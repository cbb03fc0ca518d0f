"""The profile that ONNX Runtime writes with `SessionOptions.enable_profiling`: a list of Chrome
trace events.

A node's time is the event `NAME_kernel_time` of category Node; `model_run` of category Session
bounds one execution. Nodes of a nested graph are counted by the If, Loop or Scan around them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from placeopt.instances.traces.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

_END = "_kernel_time"


def recognises(data: Any) -> bool:
    """Whether parsed JSON is such a profile."""
    return isinstance(data, list) and any(
        isinstance(event, dict) and event.get("cat") in ("Node", "Session") and "dur" in event
        for event in data[:200]
    )


def read(data: Any) -> Trace:
    """Read it; a node that an execution runs several times counts with their sum."""
    runs = _runs(data)
    sums: list[dict[str, float]] = [{} for _ in runs]
    kinds: dict[str, str] = {}
    family = "cpu"
    for turn, title, event in _calls(data, runs):
        sums[turn][title] = sums[turn].get(title, 0.0) + 1e-6 * float(event["dur"])
        arguments = event.get("args") or {}
        kinds[title] = str(arguments.get("op_name", ""))
        family = "gpu" if "CUDA" in str(arguments.get("provider", "")) else family
    by_name: dict[str, list[float]] = {}
    for title, seconds in itertools.chain.from_iterable(table.items() for table in sums):
        by_name.setdefault(title, []).append(seconds)
    nameless = by_name.pop("", None)
    return Trace("ONNX Runtime", by_name, {kinds[""]: nameless} if nameless else {}, family)


def _calls(data: Any, runs: list[tuple[float, float]]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield (execution, name, event) of every call of a node in an execution."""
    for event in data:
        name = str(event.get("name", ""))
        if event.get("cat") != "Node" or not name.endswith(_END):
            continue
        start = float(event["ts"])
        turn = next((i for i, (first, last) in enumerate(runs) if first <= start <= last), -1)
        if turn >= 0:
            yield turn, name.removesuffix(_END), event


def _runs(data: Any) -> list[tuple[float, float]]:
    """Return begin and end of every execution; one without ends where none is recorded."""
    runs = sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in data
        if e.get("cat") == "Session" and e.get("name") == "model_run"
    )
    return runs or [(float("-inf"), float("inf"))]
