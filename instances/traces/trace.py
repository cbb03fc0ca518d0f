"""Trace: measured times of calls, by the name of the call where the profiler knows it, else by its
kind and turn.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import InputError
from placeopt.model.files import one_line, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from placeopt.model.graph import OpGraph

MAX_BYTES = 2**30

MEASURED, FITTED, GUESSED = "measured", "fitted", "guessed"
"""How a time is known: measured for this very op, derived from measured ones by a rule, or from a
data sheet."""

FORMATS = ("onnxruntime_profile", "kineto", "chakra")
"""Modules of this folder with `recognises(data) -> bool` and `read(data) -> Trace`."""


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
    by_name: dict[str, list[float]] = field(default_factory=dict)
    by_kind: dict[str, list[float]] = field(default_factory=dict)
    family: str = "cpu"

    @property
    def empty(self) -> bool:
        """Whether nothing was measured."""
        return not self.by_name and not self.by_kind


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
    for name in FORMATS:
        module = importlib.import_module(f".{name}", __package__)
        if not module.recognises(data):
            continue
        try:
            found: Trace = module.read(data)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InputError(
                f"{where}: damaged {name} trace ({type(error).__name__}: {one_line(str(error))})"
            ) from error
        if found.empty:
            raise InputError(
                f"{where}: it holds no times of operators; profile with operators recorded"
            )
        for title, times in (*found.by_name.items(), *found.by_kind.items()):
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
            turns = times.reshape(-1, len(names))
            found |= {
                name: (typical(turns[:, i].tolist()), MEASURED) for i, name in enumerate(names)
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


def merged(parts: Mapping[str, list[tuple[float, float]]]) -> dict[str, list[float]]:
    """Return the durations of (start, duration) pairs in order of their start."""
    return {kind: [duration for _, duration in sorted(rows)] for kind, rows in parts.items()}
