"""The trace that torch.profiler exports (`export_chrome_trace`), written by Kineto.

A call is an outermost operator event (`aten::linear`, category cpu_op) of a thread. Where there are
GPU kernels, its time is that of the kernels that it, or an operator inside it, started; else its
own. An annotation `placeopt:NAME` around a call, as `placeopt profile` makes, names the op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.instances.readers.torch_ops import base_name
from placeopt.instances.traces.trace import Trace, merged

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK = "placeopt:"

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")


def recognises(data: Any) -> bool:
    """Whether parsed JSON is such a trace."""
    events = data.get("traceEvents") if isinstance(data, dict) else None
    return isinstance(events, list) and any(
        isinstance(e, dict) and e.get("cat") in ("cpu_op", *_KERNELS) for e in events
    )


def read(data: Any) -> Trace:
    """Read it."""
    events = [e for e in data["traceEvents"] if isinstance(e, dict) and e.get("ph") == "X"]
    calls = [e for e in events if e.get("cat") in ("cpu_op", "user_annotation")]
    kernels = _kernel_times(events)
    named: dict[str, list[tuple[float, float]]] = {}
    kinds: dict[str, list[tuple[float, float]]] = {}
    for outer, inside in _outermost(calls):
        name = str(outer["name"])
        started = sum(kernels.get(_launch(event), 0.0) for event in (outer, *inside))
        duration = 1e-6 * (started if kernels else float(outer["dur"]))
        row = (float(outer["ts"]), duration)
        if name.startswith(MARK):
            named.setdefault(name.removeprefix(MARK), []).append(row)
        elif outer.get("cat") == "cpu_op":
            kinds.setdefault(base_name(name), []).append(row)
    return Trace("Kineto", merged(named), merged(kinds), "gpu" if kernels else "cpu")


def _kernel_times(events: Sequence[dict[str, Any]]) -> dict[Any, float]:
    """Return microseconds of GPU kernels by the call that started them."""
    kernels: dict[Any, float] = {}
    for event in events:
        if event.get("cat") in _KERNELS:
            key = _launch(event)
            kernels[key] = kernels.get(key, 0.0) + float(event["dur"])
    return kernels


def _launch(event: dict[str, Any]) -> Any:
    """Return what joins a kernel and the operator that started it."""
    return (event.get("args") or {}).get("External id")


def _outermost(
    calls: Sequence[dict[str, Any]],
) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return the calls that lie in no other of their thread, with those inside; other annotations
    are looked through.
    """
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    threads: dict[Any, list[dict[str, Any]]] = {}
    for event in calls:
        if event.get("cat") == "cpu_op" or str(event["name"]).startswith(MARK):
            threads.setdefault((event.get("pid"), event.get("tid")), []).append(event)
    for events in threads.values():
        end = float("-inf")
        for event in sorted(events, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
            start = float(event["ts"])
            if start >= end:
                found.append((event, []))
                end = start + float(event["dur"])
            else:
                found[-1][1].append(event)
    return found
