"""STG, the standard task graphs of Kasahara's group, in both directions.

The first number is the number of tasks without the two dummies (entry and exit). Then a line per
task: `id time predecessors p1 p2 ...`, or, with communication, `id time predecessors p1 c1 p2 c2
...`, or the pairs `p c` on the lines that follow. `#` begins a comment. A transfer costs c between
two different processors.

References
----------
Tobita and Kasahara, "A standard task graph set for fair evaluation of multiprocessor scheduling
algorithms", Journal of Scheduling 5(5), 2002.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from placeopt.instances.readers.draft import Draft, abstract_draft, whole
from placeopt.model.arrays import together
from placeopt.model.errors import InputError
from placeopt.model.files import read_text
from placeopt.model.graph import UNKNOWN, OpGraph


def read(path: Path, *, unit: str = "", tick_seconds: float = 0.0, max_bytes: int) -> OpGraph:
    """Read a task graph; the dummies are kept, so that op i is task i.

    Each edge is a tensor of its own; without communication costs it costs nothing.
    `unit` and `tick_seconds` are as in `abstract_draft`.
    """
    text = read_text(path, max_bytes=max_bytes)
    lines = [
        (position, cells)
        for position, raw in enumerate(text.splitlines(), start=1)
        if (cells := raw.partition("#")[0].split())
    ]
    if not lines or len(lines[0][1]) != 1:
        raise InputError("line 1: expected the number of tasks")
    count = whole(lines[0][1][0], lines[0][0], "number of tasks", least=1)
    draft = abstract_draft(path.stem, unit, tick_seconds)
    at = 1
    while at < len(lines):
        at += _add_task(draft, lines, at)
    if len(draft.names) not in (count, count + 2):
        raise InputError(
            f"expected {count} tasks and two dummies, received {len(draft.names)} lines: "
            "the file is truncated or the count is wrong"
        )
    return draft.build()


def _add_task(draft: Draft, lines: list[tuple[int, list[str]]], at: int) -> int:
    """Add a task with its predecessors; return how many lines it has."""
    where, cells = lines[at]
    if len(cells) < 3:
        raise _expected("id time predecessors ...", where, cells)
    task = whole(cells[0], where, "task id")
    fan_in = whole(cells[2], where, "number of predecessors")
    draft.op(task, where, name=f"task{task}", times={"*": draft.rounded(cells[1], where, "time")})
    pairs = cells[3:]
    apart = not pairs and fan_in > 0  # the pairs follow, one a line
    if apart:
        following = lines[at + 1 : at + 1 + fan_in]
        wrong = next((line for line in following if len(line[1]) != 2), None)
        if wrong is not None:
            raise _expected("predecessor cost", *wrong)
        pairs = [cell for _, pair in following for cell in pair]
    _add_predecessors(draft, task, where, pairs, fan_in)
    return 1 + (fan_in if apart else 0)


def _expected(form: str, where: int, cells: list[str]) -> InputError:
    return InputError(f"line {where}: expected '{form}', received {' '.join(cells)[:60]!r}")


def _add_predecessors(draft: Draft, task: int, where: int, cells: list[str], count: int) -> None:
    """Add the edges of a task: its predecessors, each followed by a cost, or none by any."""
    if len(cells) == count:
        cells = [cell for p in cells for cell in (p, "0")]
    if len(cells) != 2 * count:
        raise InputError(
            f"line {where}: expected {count} predecessors (each with or without a cost), "
            f"received {len(cells)} numbers; the file may be truncated"
        )
    for p, c in zip(cells[::2], cells[1::2], strict=True):
        cost = draft.rounded(c, where, "cost")
        draft.edge(whole(p, where, "predecessor"), task, where, ticks=cost)


def write(graph: OpGraph) -> str:
    """Return the STG text of a graph whose ops all have one measured time.

    Tasks are numbered in topological order. A zero-time entry and exit are added, unless the graph
    begins and ends with one; names, sizes and types are lost, and parallel tensors of two ops
    become one edge of the larger cost.

    Raises
    ------
    InputError
        If times are missing or differ between devices, or only some tensors have a measured time.
    """
    if len(graph.measured_kinds) != 1 or (graph.measured < 0).any():
        raise InputError(
            f"graph '{graph.name}': STG needs one measured time per op, the same on every device; "
            "write another format"
        )
    known = graph.measured_transfer != UNKNOWN
    if known.any() and not known.all():
        raise InputError(
            f"graph '{graph.name}': STG needs a measured time for every tensor, or for none"
        )
    rows = _rows(graph)
    with_cost = bool((graph.measured_transfer > 0).any())
    lines = [str(len(rows) - 2)]
    for task, time, row in rows:
        cells = [task, time, len(row)]
        for u in sorted(row):
            cells += [u, row[u]] if with_cost else [u]
        lines.append(" ".join(map(str, cells)))
    return "\n".join([*lines, ""])


def _rows(graph: OpGraph) -> list[tuple[int, int, dict[int, int]]]:
    """Return (task, time, cost of the edge from each predecessor) of every task, entry and exit
    included.
    """
    order, times = graph.topological_order.tolist(), graph.measured[:, 0]
    sources, sinks = _ends(graph)
    entry, exit_ = _is_dummy(graph, sources), _is_dummy(graph, sinks)
    if exit_:
        order.remove(sinks[0])
        order.append(sinks[0])
    number = {op: i + (not entry) for i, op in enumerate(order)}
    incoming = _incoming(graph, number)
    rows: list[tuple[int, int, dict[int, int]]] = []
    if not entry:
        rows.append((0, 0, {}))
        incoming |= {op: {0: 0} for op in sources}
    rows += [(number[op], int(times[op]), incoming[op]) for op in order]
    return rows if exit_ else [*rows, (len(rows), 0, {number[op]: 0 for op in sinks})]


def _is_dummy(graph: OpGraph, ends: list[int]) -> bool:
    """Whether a graph begins or ends with one op that takes no time."""
    return len(ends) == 1 < graph.num_ops and not graph.measured[ends[0], 0]


def _incoming(graph: OpGraph, number: dict[int, int]) -> dict[int, dict[int, int]]:
    """Return the cost of the edge from each predecessor, by its task, of every op."""
    incoming: dict[int, dict[int, int]] = {op: {} for op in number}
    for t, v in together(graph.edge_tensor, graph.consumer):
        row, u = incoming[v], number[int(graph.producer[t])]
        row[u] = max(row.get(u, 0), int(graph.measured_transfer[t]), 0)
    return incoming


def _ends(graph: OpGraph) -> tuple[list[int], list[int]]:
    """Return the ops without predecessors and those without successors."""
    edges = graph.edges
    every = np.arange(graph.num_ops)
    return np.setdiff1d(every, edges[:, 1]).tolist(), np.setdiff1d(every, edges[:, 0]).tolist()
