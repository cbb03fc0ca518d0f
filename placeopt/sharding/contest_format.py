"""The contest's JSON of a sharding problem, plain or gzip: nested lists under "problem".

    {"problem": {"name": ..., "nodes": {"intervals": [[start, end]..], "costs": [[..]..], "usages":
    [[..]..]},
                 "edges": {"nodes": [[u, v]..], "costs": [[..]..]}, "usage_limit": ...}}

`read` takes our own JSON as well, so that one call reads every file of a sharding problem.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import zlib
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from placeopt.io.body import Body, show
from placeopt.io.serialize import from_dict
from placeopt.model.arrays import UNLIMITED, Ints
from placeopt.model.errors import InputError
from placeopt.model.files import (
    first_bytes,
    no_garbage_collection,
    one_line,
    parse_json,
    read_bytes,
)
from placeopt.sharding.evaluate import profile_of
from placeopt.sharding.problem import ShardingProblem, starts_of

MAX_BYTES = 2**30
"""Largest text, after decompression; the largest known instance has 146 MB."""

_GZIP = b"\x1f\x8b"
_HEAD = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\{\s*"problem"\s*:\s*\{'
    rb'|.{0,200}"format"\s*:\s*"placeopt/sharding"',
    re.DOTALL,
)


def holds_sharding(source: Any) -> bool:
    """Whether a source is a file that begins like a sharding problem."""
    if not isinstance(source, str | Path):
        return False
    head = first_bytes(source, 4096)
    if head.startswith(_GZIP):
        with contextlib.suppress(zlib.error):
            head = zlib.decompressobj(31).decompress(head, 4096)
    return _HEAD.match(head) is not None


def read(path: str | Path, *, max_bytes: int = MAX_BYTES) -> ShardingProblem:
    """Read a sharding problem, in the contest's format or in ours, plain or gzip.

    Raises
    ------
    InputError
        One line: what is wrong with the file, where, and what was expected.
    """
    where = f"file '{path}'"
    with no_garbage_collection():
        data = parse_json(_text(path, where, max_bytes), where)
        if isinstance(data, dict) and "format" in data:
            return from_dict(data, "sharding", where)
        return from_contest(data, where, default_name=Path(path).name.partition(".")[0])


def from_contest(data: Any, where: str = "JSON", default_name: str = "sharding") -> ShardingProblem:
    """Return the problem of the contest's parsed JSON."""
    body = Body(data, where).body("problem")
    nodes, edges = body.body("nodes"), body.body("edges")
    sizes, cost = _rows(nodes, "costs")
    widths, usage = _rows(nodes, "usages")
    _same(nodes, "usages", "as many usages as costs", sizes, widths)
    interval = _pairs(nodes, "intervals", len(sizes))
    lengths, table = _rows(edges, "costs")
    edge = _pairs(edges, "nodes", len(lengths))
    if edge.size and (edge.min() < 0 or edge.max() >= len(sizes)):
        e = int(np.argmax(((edge < 0) | (edge >= len(sizes))).any(axis=1)))
        raise edges.wrong(f"nodes[{e}]", f"nodes 0..{len(sizes) - 1}", edge[e].tolist())
    expected = sizes[edge[:, 0]] * sizes[edge[:, 1]]
    _same(edges, "costs", "one cost per pair of strategies", expected, lengths)
    stated = _stated_limit(body)
    problem = ShardingProblem(
        name=body.text("name", default_name),
        node_ptr=starts_of(sizes),
        cost=cost,
        usage=usage,
        interval=interval,
        edge=edge,
        edge_cost=table,
        usage_limit=UNLIMITED if stated is None else min(UNLIMITED, stated),
    )
    if stated is not None and stated >= UNLIMITED:
        _check_useless(body, problem, stated)
    return problem


def _stated_limit(body: Body) -> int | None:
    """Return the limit, of any size; None without one."""
    stated = body.get("usage_limit") if body.has("usage_limit") else None
    if stated is not None and (type(stated) is not int or stated < 0):
        raise body.wrong("usage_limit", "a whole number that is not negative", stated)
    return stated


def _check_useless(body: Body, problem: ShardingProblem, stated: int) -> None:
    """Refuse a limit of 2^62 or more, which is taken for none, unless no choice can pass it."""
    most = profile_of(
        problem.interval, np.maximum.reduceat(problem.usage, problem.node_ptr[:-1])
    ).peak
    if most > stated:
        expected = (
            f"a limit below 2^62, or one that no choice passes ({most}); count usages in "
            "larger units"
        )
        raise body.wrong("usage_limit", expected, stated)


def _text(path: str | Path, where: str, max_bytes: int) -> str:
    """Return the text of a file, decompressed where it is gzip, of one piece or of several behind
    one another; never more than `max_bytes` of it.
    """
    data = read_bytes(path, max_bytes=max_bytes)
    try:
        if data.startswith(_GZIP):
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(max_bytes + 1)
            if len(data) > max_bytes:
                raise InputError(
                    f"{where}: more than the limit of {max_bytes} bytes when decompressed"
                )
        return data.decode("utf-8-sig")
    except EOFError as error:
        raise InputError(f"{where}: truncated gzip: it ends in the middle") from error
    except (OSError, zlib.error) as error:
        raise InputError(f"{where}: not a valid gzip file: {one_line(str(error))}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: expected UTF-8 text, received byte {data[error.start]:#04x} at offset "
            f"{error.start}"
        ) from error


def _rows(body: Body, key: str) -> tuple[Ints, Ints]:
    """Return lengths and flat values of a list of lists of whole numbers."""
    rows = body.items(key)
    for i, row in enumerate(rows):
        if not isinstance(row, list):
            raise body.wrong(f"{key}[{i}]", "a list", row)
    if set(map(type, chain.from_iterable(rows))) - {int}:
        i, j = next(
            (i, j) for i, row in enumerate(rows) for j, x in enumerate(row) if type(x) is not int
        )
        raise body.wrong(f"{key}[{i}][{j}]", "a whole number", rows[i][j])
    lengths = np.fromiter(map(len, rows), np.int64, count=len(rows))
    try:
        flat = np.fromiter(chain.from_iterable(rows), np.int64, count=int(lengths.sum()))
    except OverflowError as error:
        raise InputError(f'{body.where}: "{key}": a number passes the range of 64 bits') from error
    return lengths, flat


def _pairs(body: Body, key: str, count: int) -> Ints:
    lengths, flat = _rows(body, key)
    _same(body, key, "pairs", np.full(count, 2), lengths)
    return flat.reshape(count, 2)


def _same(body: Body, key: str, what: str, expected: Ints, found: Ints) -> None:
    if len(expected) != len(found):
        raise InputError(
            f'{body.where}: "{key}": expected {len(expected)} rows, received {len(found)}'
        )
    wrong = np.flatnonzero(expected != found)
    if wrong.size:
        i = int(wrong[0])
        raise InputError(
            f'{body.where}: "{key}[{i}]": expected {what} ({int(expected[i])}), received '
            f"{show(int(found[i]))}"
        )
