"""Doppler graphs: sharded op graphs with costs for identical devices, as text.

Line 1: number of nodes, inputs included; line 2: ids of the inputs, which are no ops, so that N =
nodes - inputs ops remain; lines 3 and 4: sources and destinations of the edges between ops,
comma-separated; then N rows `comp,comm[,optype]`. Edges count the ops from 0 in the order of the
rows, which is topological. comp is the time of the op, comm the time its output takes between
different devices, both taken as ticks of 1e-10 seconds (the released simulator divides by 1e10).

References
----------
Yao et al., "DOPPLER: Dual-Policy Learning for Device Assignment in Asynchronous Dataflow Graphs",
2025.
"""

from __future__ import annotations

from pathlib import Path

from placeopt.instances.readers.draft import Draft, whole
from placeopt.model.errors import InputError
from placeopt.model.files import read_text
from placeopt.model.graph import OpGraph


def read(path: Path, *, unit: str = "", tick_seconds: float = 1e-10, max_bytes: int) -> OpGraph:
    """Read a graph: op i is the i-th row, measured on any device; its output is one tensor.

    The graph gives no sizes: transfers are measured and tensors have 0 bytes. An op that uses a
    tensor twice waits for it once. Inputs are everywhere from the start.
    `unit` tells the unit of the times where they are no ticks.
    """
    lines = read_text(path, max_bytes=max_bytes).splitlines()
    if len(lines) < 5:
        raise InputError(
            f"expected a count, inputs, two lines of edges and a row per op, received {len(lines)} "
            "lines"
        )
    total = whole(lines[0].strip(), "line 1", "number of nodes", least=1)
    inputs = _ids(lines[1], "line 2", total)
    expected = total - len(inputs)
    if len(set(inputs)) != len(inputs):
        raise InputError("line 2: an input is there twice; ids must be distinct")
    sources, targets = (_ids(lines[i], f"line {i + 1}", expected) for i in (2, 3))
    if len(sources) != len(targets):
        raise InputError(
            f"line 4: expected {len(sources)} destinations, one per source, received {len(targets)}"
        )
    rows = [(i, line) for i, line in enumerate(lines[4:], start=5) if line.strip()]
    if len(rows) != expected:
        raise InputError(
            f"expected {expected} rows comp,comm after line 4 ({total} nodes less {len(inputs)} "
            f"inputs), received {len(rows)}: the file is truncated or the counts are wrong"
        )
    draft = Draft(path.stem, tick_seconds=tick_seconds, repeated="merge", unit=unit)
    comm: list[int] = []
    for op, (position, line) in enumerate(rows):
        where = f"line {position}"
        cells = _cells(line, where)
        comm.append(draft.rounded(cells[1], where, "comm"))
        time = draft.rounded(cells[0], where, "comp")
        draft.op(op, where, name=f"op{op}", type="".join(cells[2:]), times={"*": time})
    for u, v in zip(sources, targets, strict=True):
        draft.edge(u, v, "line 4", tensor="output", ticks=comm[u])
    return draft.build()


def _cells(line: str, where: str) -> list[str]:
    """Return the cells of a row comp,comm[,optype]; a trailing comma is allowed."""
    cells = [cell.strip() for cell in line.strip().rstrip(",").split(",")]
    if len(cells) not in (2, 3):
        raise InputError(f"{where}: expected comp,comm[,optype], received {line.strip()[:60]!r}")
    return cells


def _ids(line: str, where: str, total: int) -> list[int]:
    """Parse comma-separated node ids; a trailing comma is allowed."""
    text = line.strip().rstrip(",").strip()
    if not text:
        return []
    ids = [whole(part.strip(), where, "node id") for part in text.split(",")]
    if max(ids) >= total:
        raise InputError(f"{where}: expected node ids in 0..{total - 1}, received {max(ids)}")
    return ids
