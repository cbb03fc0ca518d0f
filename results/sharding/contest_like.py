"""Problems like those of the ASPLOS 2025 contest, drawn at random: a model of repeated layers on a
mesh of two axes.

A tensor of r dimensions has a layout per way to put each axis of the mesh on one of its dimensions
or on none: (r + 1)^2 of them. An element-wise op has the layouts of its output; a product of two
matrices sums over a third dimension as well, so that it has 16 strategies, and pays for the axes on
it. An edge costs what it takes to bring a tensor from one layout to the other: slicing is free,
gathering moves the whole tensor, exchanging two dimensions a part of it. A weight is live from the
start to its last reader, an activation as its family says. The limit is a multiple of the peak that
the smallest usages reach, as in the contest (1.1 there).

`derived` makes new problems out of a given one: another limit, costs permuted within their nodes,
the whole repeated one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.arrays import UNLIMITED
from placeopt.model.errors import InputError
from placeopt.sharding.evaluate import profile_of
from placeopt.sharding.problem import ShardingProblem

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

FORBIDDEN = 10**18
"""Cost of what the contest's compiler rules out."""

RANK = 2
"""Dimensions of activations and weights; a product sums over one more."""

PRODUCT_READ = np.array([0, -1, 1, -1])
"""By the dimension of a product that an axis is on (rows, columns, summed over, none) the dimension
of its first factor."""

WEIGHT_READ = np.array([-1, 1, 0, -1])
"""The same for its second factor, the weight."""


@dataclass(frozen=True)
class Family:
    """How the problems of a family are drawn.

    Attributes
    ----------
    lives : "training" (until the backward pass: nested), "inference" (until the last reader),
    "staircase" (a window of fixed length), "mixed" (each node one of these).
    limit : multiple of the smallest peak.
    follow : part of the element-wise edges that forbid all but equal layouts.
    skips : chance of an op to read an op of an earlier layer as well. branches : ops of a layer
    that read the same input. idle : nodes without edges per op, as copies and constants are.
    rich : strategies are repeated with other costs and usages so many times. kinds : different
    layers, which take turns; 0 for layers that are all different.
    """

    lives: str = "training"
    limit: Fraction = Fraction(11, 10)
    mesh: tuple[int, int] = (8, 4)
    follow: float = 0.0
    skips: float = 0.1
    branches: int = 2
    layer: int = 40  # ops
    idle: float = 0.3
    rich: int = 1
    kinds: int = 1


FAMILIES: dict[str, Family] = {
    "training": Family(),
    "inference": Family(lives="inference", layer=25, mesh=(4, 2)),
    "staircase": Family(lives="staircase", skips=0.3, kinds=3),
    "follow": Family(follow=0.8, idle=0.0, layer=60),
    "loose": Family(limit=Fraction(3, 2), branches=4, kinds=2),
    "rich": Family(rich=3, layer=20, skips=0.2),
    "unlike": Family(lives="mixed", kinds=0, skips=0.4, branches=3),
    "tight": Family(lives="training", limit=Fraction(102, 100), mesh=(16, 2), kinds=4),
    "long chain": Family(lives="inference", skips=0.0, branches=1, layer=80, idle=0.1),
}
"""Families on which the solver was developed."""

APART: dict[str, Family] = {
    "mixed follow": Family(lives="mixed", follow=0.4, kinds=2),
    "tight staircase": Family(lives="staircase", limit=Fraction(103, 100), mesh=(4, 4)),
    "loose rich": Family(limit=Fraction(13, 10), rich=2, kinds=3, skips=0.3),
    "forward follow": Family(lives="inference", follow=0.9, layer=30, branches=3),
    "dense": Family(skips=0.8, branches=5, layer=30, kinds=0),
    "flat mesh": Family(mesh=(32, 1), kinds=2, skips=0.05),
    "tight mixed": Family(lives="mixed", limit=Fraction(105, 100), follow=0.2, layer=50),
}
"""Families of the same kind that no choice was made on."""


@dataclass
class _Sheet:
    """Nodes and edges as they are drawn."""

    cost: list[Ints] = field(default_factory=list)
    usage: list[Ints] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)  # earlier nodes of every node
    edge: list[tuple[int, int]] = field(default_factory=list)
    table: list[Ints] = field(default_factory=list)

    def node(self, cost: Ints, usage: Ints) -> int:
        """Append a node and return its number."""
        self.cost.append(cost)
        self.usage.append(usage)
        self.reads.append([])
        return len(self.cost) - 1

    def read(self, node: int, source: int, table: Ints) -> None:
        """Append the edge from a source to its reader."""
        self.reads[node].append(source)
        self.edge.append((source, node))
        self.table.append(table.astype(np.int64))


@dataclass(frozen=True)
class _Op:
    """An op of a layer: which ops it reads (earlier ones of the layer, negative: of the layer
    before), its bytes, whether it multiplies by a weight, whether its edges forbid other layouts.
    """

    sources: tuple[int, ...]
    size: int
    weight: int  # bytes, 0: element-wise
    follows: bool


def contest_like(family: str | Family, nodes: int, seed: int) -> ShardingProblem:
    """Return a problem of about `nodes` nodes.

    Parameters
    ----------
    family : one of `FAMILIES` and `APART`, or a family itself.

    Raises
    ------
    InputError
        If there is no such family, or fewer than 10 nodes are asked for.
    """
    known = FAMILIES | APART
    if isinstance(family, str) and family not in known:
        raise InputError(f"family: expected one of {', '.join(known)}, received '{family}'")
    if nodes < 10:
        raise InputError(f"nodes: expected at least 10, received {nodes}")
    how = known[family] if isinstance(family, str) else family
    rng = np.random.default_rng(seed)
    sheet = _Sheet()
    drawn = [_layer(how, rng) for _ in range(how.kinds)]
    before: list[int] = []
    played = 0
    while (1 + how.idle) * len(sheet.cost) < nodes:
        ops = drawn[played % how.kinds] if drawn else _layer(how, rng)
        played += 1
        before = _play(sheet, how, ops, before, rng)
    interval = _lives(sheet, how, rng)
    _append_idle(sheet, how, interval, rng)
    sizes = np.array([len(row) for row in sheet.cost])
    problem = ShardingProblem(
        name=f"{family if isinstance(family, str) else 'drawn'}-{nodes}-{seed}",
        node_ptr=np.concatenate([[0], np.cumsum(sizes)]),
        cost=np.concatenate(sheet.cost).astype(np.int64),
        usage=np.concatenate(sheet.usage).astype(np.int64),
        interval=np.array(interval, dtype=np.int64),
        edge=np.array(sheet.edge, dtype=np.int64).reshape(-1, 2),
        edge_cost=np.concatenate([table.ravel() for table in sheet.table]),
    )
    return derived(problem, limit=how.limit)


def derived(
    problem: ShardingProblem,
    *,
    limit: Fraction | None = None,
    permuted: int | None = None,
    copies: int = 1,
) -> ShardingProblem:
    """Return a problem made of a given one.

    Parameters
    ----------
    limit : multiple of the peak that the smallest usages reach; None keeps the limit.
    permuted : seed with which the costs of every node, and of every edge that forbids nothing, are
    permuted; None keeps them.
    copies : how often the problem is repeated, one after the other. Nodes that are live from the
    first time point or to the last one are live from the first or to the last in all; each copy's
    last op with edges is joined to the next copy's first by a table of the problem, if one fits.
    """
    if permuted is not None:
        problem = _permuted(problem, np.random.default_rng(permuted))
    if copies > 1:
        problem = _repeated(problem, copies)
    if limit is not None:
        least = np.minimum.reduceat(problem.usage, problem.node_ptr[:-1])
        peak = profile_of(problem.interval, least).peak
        wanted = peak * limit.numerator // limit.denominator
        problem = replace(problem, usage_limit=min(wanted, UNLIMITED))
    return problem


def layouts(rank: int) -> Ints:
    """Return the layouts of a tensor: the dimension of each axis of the mesh, -1 for none."""
    return np.array(list(product(range(-1, rank), repeat=2)))


def parts(layout: Ints, mesh: tuple[int, int]) -> Ints:
    """Return into how many parts layouts (k, 2) split a tensor on a mesh."""
    return np.where(layout >= 0, np.array(mesh), 1).prod(axis=1)


def moving(size: int, mesh: tuple[int, int], have: Ints, want: Ints) -> Ints:
    """Return what it costs to bring a tensor of `size` bytes from layouts (k, 2) to others (l, 2):
    (k, l).
    """
    total = np.zeros((len(have), len(want)), dtype=np.int64)
    for axis in range(2):
        other = np.where(have[:, 1 - axis] >= 0, mesh[1 - axis], 1)
        moved = size // other * (mesh[axis] - 1) // mesh[axis]
        old, new = have[:, axis, None], want[None, :, axis]
        cost = np.where(new < 0, moved[:, None], moved[:, None] // mesh[axis] + 1)
        total += np.where((old == new) | (old < 0), 0, cost)
    return total


def _layer(how: Family, rng: np.random.Generator) -> list[_Op]:
    """Draw the ops of a layer."""
    ops: list[_Op] = []
    width = int(2 ** rng.uniform(18, 26))
    open_ops: list[int] = []
    for i in range(how.layer):
        first = open_ops.pop(0) if open_ops and rng.random() < 0.5 else i - 1
        sources = {first}
        if rng.random() < how.skips and i > 2:
            sources.add(int(rng.integers(0, i - 1)))
        if rng.random() < how.skips / 4:
            sources.add(-1 - int(rng.integers(0, how.layer)))
        if rng.random() < 0.3:
            open_ops += [i] * (how.branches - 1)
        size = int(width * 2.0 ** rng.integers(-3, 3))
        weight = int(size * 2.0 ** rng.integers(-4, 2)) if rng.random() < 0.25 else 0
        follows = weight == 0 and bool(rng.random() < how.follow)
        ops.append(_Op(tuple(sorted(sources)), size, weight, follows))
    return ops


def _play(
    sheet: _Sheet, how: Family, ops: list[_Op], before: list[int], rng: np.random.Generator
) -> list[int]:
    """Append a layer to the sheet and return the nodes of its ops."""
    mine: list[int] = []
    plain, product_ = layouts(RANK), layouts(RANK + 1)
    for op in ops:
        sources = [
            mine[s] if s >= 0 else before[s] for s in op.sources if s >= 0 or -s <= len(before)
        ]
        strategies = np.tile(product_ if op.weight else plain, (how.rich, 1))
        weight = -1
        if op.weight:
            count = parts(plain, how.mesh)
            weight = sheet.node(np.where(count == 1, 3, 1), op.weight // count + 1)
        node = sheet.node(*_of_strategies(op, strategies, how, rng))
        if weight >= 0:
            read = WEIGHT_READ[strategies]
            sheet.read(node, weight, moving(op.weight, how.mesh, plain, read))
        read = PRODUCT_READ[strategies] if op.weight else strategies
        for source in dict.fromkeys(sources):
            simple = len(sheet.cost[source]) == len(plain) * how.rich
            have = _made(np.tile(plain if simple else product_, (how.rich, 1)))
            table = moving(op.size, how.mesh, have, read)
            if op.follows:
                table[(have[:, None] != read[None]).any(axis=2)] = FORBIDDEN
            sheet.read(node, source, table)
        mine.append(node)
    return mine


def _made(strategies: Ints) -> Ints:
    """Return the layouts of what strategies make: the dimension summed over is gone."""
    return np.where(strategies < RANK, strategies, -1)


def _of_strategies(
    op: _Op, strategies: Ints, how: Family, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Return costs and usages of an op's strategies."""
    count = parts(_made(strategies), how.mesh)
    mesh = np.array(how.mesh)
    paid = (2 * op.size * (mesh - 1) // mesh * (strategies >= RANK)).sum(axis=1)
    scale = np.ones(len(strategies))
    scale[len(scale) // how.rich :] = rng.uniform(0.5, 2.0, len(scale) - len(scale) // how.rich)
    usage = (op.size // count / scale).astype(np.int64) + 1
    return (scale * (paid // count)).astype(np.int64), usage


def _lives(sheet: _Sheet, how: Family, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return the intervals: op i runs at time i, and in training its backward pass at 2 n - i."""
    n = len(sheet.cost)
    last = list(range(n))
    weights = [not reads for reads in sheet.reads]
    for v, reads in enumerate(sheet.reads):
        for source in reads:
            last[source] = max(last[source], v)
    horizon = 2 * n if how.lives in ("training", "mixed") else n + 1
    window = max(2, n // 8)
    interval = []
    for v in range(n):
        kind = how.lives
        if kind == "mixed":
            kind = str(rng.choice(["training", "inference", "staircase"]))
        if weights[v]:
            end = 2 * n - v if kind == "training" else last[v] + 1
            interval.append((0, min(horizon, end)))
        elif kind == "training":
            interval.append(_trained(v, last[v], n, rng))
        elif kind == "staircase":
            interval.append((v, min(horizon, v + window)))
        else:
            interval.append((v, last[v] + 2))
    return interval


def _trained(v: int, last: int, n: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return when an op of training is live: kept for the backward pass, made again there, or not
    needed there, each a third of them.
    """
    return ((v, 2 * n - v), (2 * n - last - 2, 2 * n - v), (v, last + 2))[int(rng.integers(3))]


def _append_idle(
    sheet: _Sheet, how: Family, interval: list[tuple[int, int]], rng: np.random.Generator
) -> None:
    """Append nodes without edges: copies of the usages of others, live for some time from then
    on.
    """
    horizon = max(end for _, end in interval)
    for v in rng.integers(0, len(sheet.cost), int(how.idle * len(sheet.cost))).tolist():
        start = int(rng.integers(0, horizon))
        length = int(2 ** rng.uniform(0, np.log2(horizon)))
        sheet.node(sheet.cost[v] * 0, sheet.usage[v])
        interval.append((start, min(horizon, start + length)))


def _permuted(problem: ShardingProblem, rng: np.random.Generator) -> ShardingProblem:
    cost, table = problem.cost.copy(), problem.edge_cost.copy()
    for start, stop in zip(problem.node_ptr[:-1], problem.node_ptr[1:], strict=True):
        if cost[start:stop].max() < FORBIDDEN:
            cost[start:stop] = rng.permutation(cost[start:stop])
    for start, stop in zip(problem.edge_ptr[:-1], problem.edge_ptr[1:], strict=True):
        if table[start:stop].max() < FORBIDDEN:
            table[start:stop] = rng.permutation(table[start:stop])
    return replace(problem, name=f"{problem.name} permuted", cost=cost, edge_cost=table)


def _repeated(problem: ShardingProblem, copies: int) -> ShardingProblem:
    n, horizon = problem.num_nodes, int(problem.interval[:, 1].max(initial=1))
    strategies = problem.num_strategies
    shift = np.repeat(np.arange(copies), n)
    start = np.tile(problem.interval[:, 0], copies)
    end = np.tile(problem.interval[:, 1], copies)
    live = end > start
    start = np.where(live & (start > 0), start + shift * horizon, 0)
    end = np.where(live & (end == horizon), copies * horizon, end + shift * horizon)
    end = np.where(live, end, start)
    joints, tables = _joints(problem, copies)
    edge = (problem.edge[None] + n * np.arange(copies)[:, None, None]).reshape(-1, 2)
    pointers = problem.node_ptr[:-1] + strategies * np.arange(copies)[:, None]
    return replace(
        problem,
        name=f"{problem.name} x {copies}",
        node_ptr=np.concatenate([pointers.ravel(), [copies * strategies]]),
        cost=np.tile(problem.cost, copies),
        usage=np.tile(problem.usage, copies),
        interval=np.stack([start, end], axis=1),
        edge=np.concatenate([edge, joints]),
        edge_cost=np.concatenate([np.tile(problem.edge_cost, copies), *tables]),
        node_names=(),
        strategy_names=(),
    )


def _joints(problem: ShardingProblem, copies: int) -> tuple[Ints, list[Ints]]:
    """Return the edges between copies and their tables."""
    sizes, n = problem.num_choices, problem.num_nodes
    if not problem.num_edges:
        return np.zeros((0, 2), dtype=np.int64), []
    first, last = int(problem.edge.min()), int(problem.edge.max())
    fits = np.flatnonzero(
        (sizes[problem.edge[:, 0]] == sizes[last]) & (sizes[problem.edge[:, 1]] == sizes[first])
    )
    if not fits.size:
        return np.zeros((0, 2), dtype=np.int64), []
    table = problem.edge_table(int(fits[0])).ravel()
    pairs = [[last + n * i, first + n * (i + 1)] for i in range(copies - 1)]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2), [table] * (copies - 1)
