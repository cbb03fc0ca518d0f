"""The profile that ONNX Runtime writes with `SessionOptions.enable_profiling`: a list of Chrome
trace events.

A node's time is the event `NAME_kernel_time` of category Node; `model_run` of category Session
bounds one execution. Nodes of a nested graph are counted by the If, Loop or Scan around them.
"""

from __future__ import annotations

import itertools
from typing import Any

from placeopt.instances.traces.trace import Trace

_END = "_kernel_time"


def recognises(data: Any) -> bool:
    """Whether parsed JSON is such a profile."""
    return isinstance(data, list) and any(
        isinstance(event, dict) and event.get("cat") in ("Node", "Session") and "dur" in event
        for event in data[:200]
    )


def read(data: Any) -> Trace:
    """Read it; a node that an execution runs several times counts with their sum."""
    runs = sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in data
        if e.get("cat") == "Session" and e.get("name") == "model_run"
    )
    runs = runs or [(float("-inf"), float("inf"))]
    sums: list[dict[str, float]] = [{} for _ in runs]
    kinds: dict[str, str] = {}
    family = "cpu"
    for event in data:
        name = str(event.get("name", ""))
        if event.get("cat") != "Node" or not name.endswith(_END):
            continue
        start, title = float(event["ts"]), name.removesuffix(_END)
        turn = next((i for i, (first, last) in enumerate(runs) if first <= start <= last), -1)
        if turn < 0:
            continue
        sums[turn][title] = sums[turn].get(title, 0.0) + 1e-6 * float(event["dur"])
        arguments = event.get("args") or {}
        kinds[title] = str(arguments.get("op_name", ""))
        family = "gpu" if "CUDA" in str(arguments.get("provider", "")) else family
    by_name: dict[str, list[float]] = {}
    by_kind: dict[str, list[float]] = {}
    for title, seconds in itertools.chain.from_iterable(table.items() for table in sums):
        if title:
            by_name.setdefault(title, []).append(seconds)
        else:
            by_kind.setdefault(kinds[title], []).append(seconds)
    return Trace("ONNX Runtime", by_name, by_kind, family)
