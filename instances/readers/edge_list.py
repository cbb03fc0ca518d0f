"""Edge lists: one edge per line, `u v`, `u v weight` or `u -> v`, commas or spaces between.

`name: time` gives the time of an op in ticks; ops without one take `op_time`. `#` begins a comment.
Lines as networkx writes them (`a b {'weight': 3}`) are understood.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from placeopt.instances.readers.draft import Draft, all_ticks, ticks
from placeopt.model.errors import InputError, check_choice
from placeopt.model.files import one_line, read_text
from placeopt.model.graph import UNKNOWN, OpGraph

_MARK = re.compile("[#:,{]|->")
_WEIGHT = re.compile(r"""['"]weight['"][ ]?:([^,{}]+)""")


def read(
    path: Path,
    *,
    weight: str = "ticks",
    op_time: float = 1,
    unit: str = "",
    tick_seconds: float = 1e-9,
    max_bytes: int,
) -> OpGraph:
    """Read an edge list; each edge is a tensor of its own.

    Parameters
    ----------
    weight : what the third column is: "ticks" between two different devices, or "bytes".
    op_time : ticks of an op without a `name: time` line.
    unit : of the times: s, ms, us or ns; a tick by default.
    tick_seconds : length of a tick.

    Raises
    ------
    InputError
        If a line has another form, an edge is there twice, or only some edges have a weight.
    """
    check_choice("option weight", weight, ("ticks", "bytes"))
    text = read_text(path, max_bytes=max_bytes)
    default = ticks(op_time, "option op_time", "ticks")
    draft = Draft(path.stem, tick_seconds=tick_seconds, unit=unit)
    if unit or _MARK.search(text) or not _read_plain(draft, text, weight, default):
        _read_lines(draft, text, weight, default)
    return draft.build()


def _read_lines(draft: Draft, text: str, weight: str, default: int) -> None:
    """Read a text line by line, whatever forms its lines have."""
    times: dict[str, int] = {}
    names: dict[str, None] = {}
    last: dict[int, int] = {}  # the last line with an edge of so many cells
    for line, row in enumerate(text.splitlines(), start=1):
        cells = parse_line(row, line)
        if not cells:
            continue
        names[cells[0]] = None
        if len(cells) == 2 and cells[1].startswith(":"):
            if cells[0] in times:
                raise InputError(f"line {line}: op '{one_line(cells[0])}' has two times; keep one")
            times[cells[0]] = draft.rounded(cells[1][1:], line, "time")
            continue
        names[cells[1]] = None
        last[len(cells)] = line
        if len(cells) == 2:
            draft.edge(cells[0], cells[1], line, ticks=0)
            continue
        count = ticks if weight == "bytes" else draft.rounded
        amount = count(cells[2], line, "weight")
        size, time = (amount, UNKNOWN) if weight == "bytes" else (0, amount)
        draft.edge(cells[0], cells[1], line, size=size, ticks=time)
    if len(last) > 1:
        raise InputError(f"line {last[2]}: the edge has no weight, but others have one")
    for name in names:
        draft.op(name, name, times={"*": times.get(name, default)})


def _read_plain(draft: Draft, text: str, weight: str, default: int) -> bool:
    """Add the edges of a file of nothing but `u v` or `u v weight` at once; False where it is
    anything else.
    """
    rows = [line.split() for line in text.splitlines()]
    if {len(row) for row in rows} not in ({2}, {3}):
        return False
    sources, targets, *weights = zip(*rows, strict=True)
    amounts = all_ticks(weights[0]) if weights else [0] * len(sources)
    if amounts is None:
        return False
    given = {"sizes": amounts} if weights and weight == "bytes" else {"ticks": amounts}
    draft.edges(sources, targets, range(1, len(sources) + 1), **given)
    names = list(dict.fromkeys(itertools.chain.from_iterable(zip(sources, targets, strict=True))))
    draft.ops(names, range(len(names)), {"*": [default] * len(names)})
    return True


def parse_line(line: str, number: int) -> list[str]:
    """Return the cells [u, v] or [u, v, weight] of an edge, [name, ":time"] of an op, [] of an
    empty line.

    Every step is linear in the length of the line.

    Raises
    ------
    InputError
        If the line has another form.
    """
    line = line.partition("#")[0]
    cells = line.split()
    if len(cells) in (0, 2, 3) and not _MARK.search(line):
        return cells  # nearly every line of a large file
    line = line.strip()
    text, brace, data = line.partition("{")
    name, colon, time = text.rpartition(":")
    if colon and not brace and len(name.split()) == len(time.split()) == 1:
        return [name.strip(), f":{time.strip()}"]
    cells = _separated(text)
    if brace:
        weights = _WEIGHT.findall(" ".join(data.split()))
        if len(weights) > 1 or not data.endswith("}"):
            raise InputError(
                f"line {number}: expected one 'weight' in {{...}}, received {line[:60]!r}"
            )
        cells += map(str.strip, weights)
    if len(cells) not in (2, 3):
        raise InputError(
            f"line {number}: expected 'u v', 'u v weight' or 'name: time', received {line[:60]!r}"
        )
    return cells


def _separated(text: str) -> list[str]:
    """Split at an arrow, commas and spaces; no cells where there is nothing between two of them."""
    source, arrow, rest = text.partition("->")
    cells = [source, *rest.strip().split(",")] if arrow else text.rstrip().split(",")
    return " ".join(cells).split() if all(map(str.strip, cells)) else []
