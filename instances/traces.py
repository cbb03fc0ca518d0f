"""Trace: measured times of calls, by the name of the call where the profiler knows it, else by its
kind and turn.

`read_trace` tells three formats apart by their content. ONNX Runtime's profile
(`SessionOptions.enable_profiling`) is a list of Chrome trace events: a node's time is the event
`NAME_kernel_time` of category Node; `model_run` of category Session bounds one execution; nodes of
a nested graph are counted by the If, Loop or Scan around them.

Kineto's trace is what torch.profiler exports (`export_chrome_trace`). A call is an outermost
operator event (`aten::linear`, category cpu_op) of a thread. Where there are GPU kernels, its time
is that of the kernels that it, or an operator inside it, started; else its own. An annotation
`placeopt:NAME` around a call, as `placeopt profile` makes, names the op.

Execution traces of MLCommons Chakra are JSON: nodes with names, dependences and times. They have
two forms: `{"nodes": [...]}` of PyTorch's observer once it is linked with a Kineto trace
(`inclusive_dur`, microseconds), and what Chakra's own tool writes of its protobuf files, one object
after the other (`durationMicros`). Kernels count with the operator that they depend on by control;
operators inside another count with that one.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.instances.readers.torch_ops import base_name
from placeopt.model.arrays import by_key
from placeopt.model.errors import InputError
from placeopt.model.files import Data, one_line, raised, read_text
from placeopt.model.graph import OpGraph

Spans = list[tuple[float, float]]
"""(begin, end) of runs."""


MAX_BYTES = 2**30

MEASURED, FITTED, GUESSED = "measured", "fitted", "guessed"
"""How a time is known: measured for this very op, derived from measured ones by a rule, or from a
data sheet."""

_END = "_kernel_time"

MARK = "placeopt:"

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")

_TIMES = ("inclusive_dur", "durationMicros", "duration_micros", "dur", "exclusive_dur")

_PARENTS = ("ctrl_deps", "ctrlDeps", "ctrl_dep", "parent")


@dataclass(frozen=True, eq=False)
class Trace:
    """Seconds of calls.

    Attributes
    ----------
    source : what wrote it.
    by_name : times of a call by its name, one per execution.
    by_kind : times of all calls of a kind ("linear", "MatMul"), in order, executions one after the
    other.
    family : "cpu" or "gpu": where the calls ran.
    """

    source: str
    by_name: dict[str, list[float]]
    by_kind: dict[str, list[float]]
    family: str


def read_trace(path: str | Path) -> Trace:
    """Read a profile of ONNX Runtime, a Kineto trace of torch.profiler, or a Chakra execution trace
    with times.

    Raises
    ------
    InputError
        If the file is none of these, or holds no times of operators.
    """
    where = f"trace '{path}'"
    data = _parse(read_text(path, max_bytes=MAX_BYTES, what="trace"), where)
    for name, (recognises, read) in _FORMATS.items():
        if not recognises(data):
            continue
        try:
            found = read(data)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InputError(f"{where}: damaged {name} trace ({raised(error)})") from error
        rows = (*found.by_name.items(), *found.by_kind.items())
        if not rows:
            raise InputError(
                f"{where}: it holds no times of operators; profile with operators recorded"
            )
        for title, times in rows:
            if not all(0 <= time < float("inf") for time in times):
                raise InputError(
                    f"{where}: damaged {name} trace: '{one_line(title)}' has a time that is "
                    "negative or no number"
                )
        return found
    raise InputError(
        f"{where}: not recognised; expected costs of placeopt, a profile of ONNX Runtime, a Kineto "
        "trace of torch.profiler (JSON) or a Chakra execution trace (JSON)"
    )


def _parse(text: str, where: str) -> Any:
    """Parse JSON, or several JSON values one after the other, as Chakra's tool writes them."""
    decoder, at, found = json.JSONDecoder(), 0, []
    text = text.strip()
    try:
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            found.append(value)
            while at < len(text) and text[at].isspace():
                at += 1
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON: {one_line(str(error))}") from error
    return found[0] if len(found) == 1 else found


def match(graph: OpGraph, trace: Trace) -> dict[str, tuple[float, str]]:
    """Return (seconds, how it is known) by op, for the ops that the trace tells of.

    A time with the op's own name counts: the median over the executions, without the first where
    there are several. Otherwise the calls of a kind are taken in order: where their number is a
    multiple of the number of ops of that kind, op and call of equal turn belong together
    (measured); where it is not, every op of the kind gets the mean (fitted).

    Raises
    ------
    InputError
        If no op of the graph is in the trace.
    """
    by_name = _own_names(graph, trace.by_name)
    found: dict[str, tuple[float, str]] = {}
    left: dict[str, list[str]] = {}
    for name, kind in zip(graph.op_names, graph.op_types, strict=True):
        if name in by_name:
            found[name] = (typical(by_name[name]), MEASURED)
        elif kind in trace.by_kind:
            left.setdefault(kind, []).append(name)
    for kind, names in left.items():
        times = np.array(trace.by_kind[kind])
        if len(times) % len(names) == 0:
            turns = times.reshape(-1, len(names)).T.tolist()
            found |= {
                name: (typical(turn), MEASURED) for name, turn in zip(names, turns, strict=True)
            }
        else:
            found |= dict.fromkeys(names, (float(times.mean()), FITTED))
    if not found:
        kinds = list(trace.by_kind or trace.by_name)
        raise InputError(
            f"graph '{graph.name}': none of its ops is in the {trace.source} trace, which tells of "
            f"{', '.join(kinds[:5])}; profile this model"
        )
    return found


def _own_names(graph: OpGraph, by_name: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return times by the names of ops: a runtime that fuses the calls behind an op appends to its
    name ("fc/MatMulAddFusion").
    """
    ops = set(graph.op_names)
    found = {name: times for name, times in by_name.items() if name in ops}
    for title, times in by_name.items():
        name = title
        while name not in ops and name:
            name = name.rpartition("/")[0]
        if name:
            found.setdefault(name, times)
    return found


def typical(times: list[float]) -> float:
    """Median over executions; the first is a warm-up where there are several."""
    return float(np.median(times[1:] if len(times) > 1 else times))


def merged(parts: Mapping[str, Spans]) -> dict[str, list[float]]:
    """Return the durations of (start, duration) pairs in order of their start."""
    return {kind: [duration for _, duration in sorted(rows)] for kind, rows in parts.items()}


def _is_onnxruntime(data: Any) -> bool:
    """Whether parsed JSON is an ONNX Runtime profile."""
    return isinstance(data, list) and any(
        isinstance(event, dict) and event.get("cat") in ("Node", "Session") and "dur" in event
        for event in data[:200]
    )


def _read_onnxruntime(data: Any) -> Trace:
    """Read a profile of ONNX Runtime; a node that an execution runs several times counts with
    their sum.
    """
    runs = _runs(data)
    sums = [defaultdict[str, float](float) for _ in runs]
    kinds: dict[str, str] = {}
    family = "cpu"
    for turn, title, event in _calls(data, runs):
        sums[turn][title] += 1e-6 * float(event["dur"])
        arguments = event.get("args") or {}
        kinds[title] = str(arguments.get("op_name", ""))
        family = "gpu" if "CUDA" in str(arguments.get("provider", "")) else family
    by_name = by_key(item for table in sums for item in table.items())
    nameless = by_name.pop("", None)
    return Trace("ONNX Runtime", by_name, {kinds[""]: nameless} if nameless else {}, family)


def _calls(data: Any, runs: Spans) -> Iterator[tuple[int, str, Data]]:
    """Yield (execution, name, event) of every call of a node in an execution."""
    begins = [first for first, _ in runs]
    for event in data:
        name = str(event.get("name", ""))
        if event.get("cat") != "Node" or not name.endswith(_END):
            continue
        start = float(event["ts"])
        turn = bisect_right(begins, start) - 1
        if turn >= 0 and start <= runs[turn][1]:
            yield turn, name.removesuffix(_END), event


def _runs(data: Any) -> Spans:
    """Return begin and end of every execution; one without ends where none is recorded."""
    runs = sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in data
        if e.get("cat") == "Session" and e.get("name") == "model_run"
    )
    return runs or [(float("-inf"), float("inf"))]


def _is_kineto(data: Any) -> bool:
    """Whether parsed JSON is a Kineto trace."""
    events = data.get("traceEvents") if isinstance(data, dict) else None
    return isinstance(events, list) and any(
        isinstance(e, dict) and e.get("cat") in ("cpu_op", *_KERNELS) for e in events
    )


def read_kineto(data: Any) -> Trace:
    """Read a Kineto trace."""
    events = [e for e in data["traceEvents"] if isinstance(e, dict) and e.get("ph") == "X"]
    calls = [e for e in events if e.get("cat") in ("cpu_op", "user_annotation")]
    kernels = _kernel_times(events)
    named: dict[str, Spans] = {}
    kinds: dict[str, Spans] = {}
    for outer, inside in _outermost(calls):
        name = str(outer["name"])
        started = sum(kernels.get(_launch(event), 0.0) for event in (outer, *inside))
        duration = 1e-6 * (started if kernels else float(outer["dur"]))
        row = (float(outer["ts"]), duration)
        if name.startswith(MARK):
            named.setdefault(name.removeprefix(MARK), []).append(row)
        else:
            kinds.setdefault(base_name(name), []).append(row)
    return Trace("Kineto", merged(named), merged(kinds), "gpu" if kernels else "cpu")


def _kernel_times(events: Sequence[Data]) -> dict[Any, float]:
    """Return microseconds of GPU kernels by the call that started them; some that nobody started
    are left out.
    """
    kernels = defaultdict[Any, float](float)
    for event in events:
        if event.get("cat") in _KERNELS:
            kernels[_launch(event)] += float(event["dur"])
    if kernels.pop(None, None) is not None and not kernels:
        raise ValueError("no kernel has the External id of the call that started it")
    return kernels


def _launch(event: Data) -> Any:
    """Return what joins a kernel and the operator that started it."""
    return (event.get("args") or {}).get("External id")


def _outermost(calls: Sequence[Data]) -> list[tuple[Data, list[Data]]]:
    """Return the calls that lie in no other of their thread, with those inside; other annotations
    are looked through.
    """
    found: list[tuple[Data, list[Data]]] = []
    threads = by_key(
        ((event.get("pid"), event.get("tid")), event)
        for event in calls
        if event.get("cat") == "cpu_op" or str(event["name"]).startswith(MARK)
    )
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


def _is_chakra(data: Any) -> bool:
    """Whether parsed JSON is a Chakra trace."""
    if isinstance(data, dict) and "chakra" in str(data.get("schema", "")).lower():
        return True
    rows = _nodes(data)
    return bool(rows) and all("id" in row for row in rows[:20])


def _read_chakra(data: Any) -> Trace:
    """Read a Chakra trace."""
    rows = {int(row["id"]): row for row in _nodes(data)}
    seconds, kernels = _times(rows)
    by_kind = by_key(
        (base_name(str(rows[key]["name"])), time)
        for key in sorted(seconds)
        if (time := kernels.get(key, seconds[key])) > 0
    )
    return Trace("Chakra", {}, by_kind, "gpu" if kernels else "cpu")


def _times(rows: dict[int, Data]) -> tuple[dict[int, float], dict[int, float]]:
    """Return the seconds of outermost operators, and of the kernels that belong to them."""
    above = {key: _parent(row, rows) for key, row in rows.items()}
    seconds: dict[int, float] = {}
    kernels = defaultdict[int, float](float)
    for key, row in rows.items():
        top = _top(key, above, rows)
        time = 1e-6 * next((float(row[name]) for name in _TIMES if row.get(name)), 0.0)
        if _is_operator(row):
            if top == key:
                seconds[key] = time
        elif top is not None and time:
            kernels[top] += time
    return seconds, kernels


def _nodes(data: Any) -> list[Data]:
    rows = data.get("nodes") if isinstance(data, dict) else data
    if isinstance(rows, list):
        return [row for row in rows if isinstance(row, dict) and "name" in row]
    return []


def _is_operator(row: Data) -> bool:
    return "::" in str(row.get("name", ""))


def _parent(row: Data, rows: dict[int, Any]) -> int | None:
    for key in _PARENTS:
        found = row.get(key)
        first = next(iter(found), None) if isinstance(found, list) else found
        if first is not None and int(first) in rows and int(first) != int(row["id"]):
            return int(first)
    return None


def _top(key: int, above: dict[int, int | None], rows: dict[int, Any]) -> int | None:
    """Return the outermost operator that a node is, or is started by; None if there is none."""
    found, seen = None, set[int]()
    at: int | None = key
    while at is not None and at not in seen:
        seen.add(at)
        if _is_operator(rows[at]):
            found = at
        at = above[at]
    return found


_FORMATS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Trace]]] = {
    "onnxruntime_profile": (_is_onnxruntime, _read_onnxruntime),
    "kineto": (_is_kineto, read_kineto),
    "chakra": (_is_chakra, _read_chakra),
}
