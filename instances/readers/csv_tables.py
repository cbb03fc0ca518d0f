"""CSV tables of ops and edges, in both directions.

The op table has the header
`op[,type,layer,flops,bytes_moved,resident,parameters,colocation,time:KIND,...]`, the edge table
`source,target[,tensor,bytes,ticks,shape]`; columns are those of `attributes`. Both stand in one
file, an empty line between them; or the op table in one file and the edge table in the file given
by the option `edges` (default: the same name with `.edges.csv`, if it exists); or an edge table
alone, whose ops are the names it mentions.

Cells are separated by commas, semicolons or tabs, as the first header is. Comments (`#`) may stand
before it. A first column without a name, the index of a data frame, is left out.
"""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from placeopt.instances.readers.attributes import (
    AttributeDraft,
    Names,
    OpColumns,
    edge_attributes,
    edge_columns,
    op_attributes,
    op_columns,
    used_columns,
)
from placeopt.model.errors import InputError
from placeopt.model.files import csv_rows, csv_text, one_line, read_text
from placeopt.model.graph import OpGraph

OP_HEADS = ("op", "name", "id", "node", "task")
EDGE_HEADS = (
    ("source", "target"),
    ("src", "dst"),
    ("from", "to"),
    ("u", "v"),
    ("producer", "consumer"),
)

_HEAD = re.compile(r"(?:[^\S\r\n]*(?:#[^\r\n]*)?(?:\r\n?|\n))*+")
"""Empty lines and comments before the first header."""

_LINE_END = re.compile(r"[\r\n]|\Z")

Table = tuple[list[int], list[list[str]]]
"""Line numbers and rows; the first is the header."""


def read(path: Path, *, edges: str = "", max_bytes: int, **names: Any) -> OpGraph:
    """Read op and edge tables.

    Parameters
    ----------
    edges : file of the edge table, where it is not in `path`.
    names : as in `Names`, of columns.
    """
    tables = _tables(read_text(path, max_bytes=max_bytes))
    ops, links = _ops_and_edges(tables)
    stem = path.name.removesuffix(".csv").removesuffix(".ops")
    other = path.parent / edges if edges else path.with_name(f"{stem}.edges.csv")
    if links is None and (edges or other.exists()):
        links = _edge_table(other, max_bytes)
    if links is None and ops is not None and len(ops[1]) > 2:
        _tell_unread(stem, op_columns(tuple(ops[1][0][1:]), Names(**names)))
    draft = AttributeDraft(stem, Names(**names), tick_seconds=1e-9)
    if ops is not None:
        _add_ops(draft, ops)
    if links is not None:
        _add_edges(draft, links, known=ops is not None)
    return draft.build()


def _tell_unread(name: str, columns: OpColumns) -> None:
    """Warn of columns that may hold the edges of a table without an edge table."""
    if columns.unread:
        warnings.warn(
            f"{name}: there are no edges, and the column '{one_line(columns.unread[0])}' is not "
            "read; write edges as a table source,target behind an empty line, or in "
            f"{one_line(name)}.edges.csv",
            stacklevel=2,
        )


def _ops_and_edges(tables: list[Table]) -> tuple[Table | None, Table | None]:
    """Tell the op table from the edge table; refuse a third one, and a file without any."""
    ops = next((t for t in tables if is_op_header(t[1][0])), None)
    links = next((t for t in tables if is_edge_header(t[1][0])), None)
    stray = next((t for t in tables if t is not ops and t is not links), None)
    if stray is not None or not tables:
        header = ",".join(stray[1][0])[:60] if stray else "an empty file"
        raise InputError(f"expected the header op,... or source,target,..., received {header}")
    return ops, links


def _edge_table(path: Path, max_bytes: int) -> Table:
    """Return the edge table of a file of its own."""
    found = _tables(read_text(path, max_bytes=max_bytes))
    if len(found) != 1 or not is_edge_header(found[0][1][0]):
        raise InputError(
            f"edge table '{path.name}': expected one table with the header source,target,..."
        )
    return found[0]


def _add_ops(draft: AttributeDraft, table: Table) -> None:
    (_, *lines), ((_, *keys), *rows) = table
    columns = op_columns(tuple(keys), draft.meaning)
    by_column = list(zip(*rows, strict=True))
    if rows and all(by_column[0]) and columns.add_all(draft, by_column[0], by_column[1:], lines):
        return
    for line, row in zip(lines, rows, strict=True):
        columns.add(draft, _cell(row[0], line), row[1:], line)


def _add_edges(draft: AttributeDraft, table: Table, *, known: bool) -> None:
    (_, *lines), ((_, _, *keys), *rows) = table
    columns = edge_columns(tuple(keys), draft.meaning)
    for line, row in zip(lines, rows, strict=True) if not known else ():
        for end in row[:2]:
            if end not in draft.index:
                draft.op(_cell(end, line), line)
    if rows and columns.add_all(draft, list(zip(*rows, strict=True)), lines):
        return
    for line, row in zip(lines, rows, strict=True):
        columns.add(draft, _cell(row[0], line), _cell(row[1], line), row[2:], line)


def _cell(text: str, line: int) -> str:
    if not text:
        raise InputError(f"line {line}: expected the name of an op, received an empty cell")
    return text


def header_of(text: str) -> tuple[list[str], str]:
    """Return the header of the first table, behind blanks and comments, and what separates its
    cells.
    """
    line = text[_before_header(text) :]
    line = line[: _LINE_END.search(line).start()]  # type: ignore[union-attr]
    for separator in ",;\t":
        cells = _cells(line, separator)
        cells = cells[_index_columns(cells) :]
        if is_op_header(cells) or is_edge_header(cells):
            return cells, separator
    return _cells(line, ","), ","


def _before_header(text: str) -> int:
    return _HEAD.match(text).end()  # type: ignore[union-attr]


def _cells(line: str, separator: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def is_op_header(header: Sequence[str]) -> bool:
    """Whether a header is that of an op table."""
    return bool(header) and header[0].lower() in OP_HEADS


def is_edge_header(header: Sequence[str]) -> bool:
    """Whether a header is that of an edge table."""
    return tuple(cell.lower() for cell in header[:2]) in EDGE_HEADS


def _tables(text: str) -> list[Table]:
    """Split a file into tables at its empty lines and check that rows are as wide as their
    header.
    """
    separator, head = header_of(text)[1], _before_header(text)
    text = "\n" * len(text[:head].splitlines()) + text[head:]
    tables: list[Table] = [([], [])]
    for line, row in csv_rows(text, separator=separator):
        if any(row):
            _add_row(tables[-1], line, row)
        elif tables[-1][1]:
            tables.append(([], []))
    return [
        (lines, [row[_index_columns(rows[0]) :] for row in rows]) for lines, rows in tables if rows
    ]


def _index_columns(header: Sequence[str]) -> int:
    """Return how many columns, one at most, are the index of a data frame: they have no name."""
    return int(len(header) > 1 and not header[0])


def _add_row(table: Table, line: int, row: list[str]) -> None:
    """Add a row, the header first, to a table."""
    lines, rows = table
    if not rows and len({cell.lower() for cell in row}) != len(row):
        raise InputError(f"line {line}: the header names a column twice")
    if rows and len(row) != len(rows[0]):
        raise InputError(
            f"line {line}: expected {len(rows[0])} cells as in the header, received {len(row)}"
        )
    lines.append(line)
    rows.append(row)


def write(graph: OpGraph) -> str:
    """Return both tables as text; `read` gives the graph back, but for its name and tick length."""
    ops, edges = list(op_attributes(graph)), list(edge_attributes(graph))
    columns = used_columns(ops)
    rows = [["op", *columns]]
    for op, row in zip(graph.op_names, ops, strict=True):
        if op != op.strip() or not op:
            raise InputError(
                f"op name {op!r:.60}: CSV cannot hold names with outer spaces; write another format"
            )
        rows.append([op, *(_text(row.get(column, "")) for column in columns)])
    columns = used_columns([row for _, _, row in edges]) or ["tensor"]
    rows += [[], ["source", "target", *columns]]
    rows += [
        [graph.op_names[u], graph.op_names[v], *(_text(edge.get(column, "")) for column in columns)]
        for u, v, edge in edges
    ]
    return csv_text(rows)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
