"""Coarsening: the grids of time on which a makespan is searched, and the problem on such a grid,
without the ops that have no length there.

A grid is the common divisor of all times, or a coarser one.

Proof that the ticks of a unit times a bound of the coarse problem bound the fine one. Round all
times down: let every op and transfer of a schedule end at floor(its end / unit) and last floor(its
ticks / unit) units; then nothing starts before floor(its start / unit), so what followed an end
still does. An op v of zero units can be left out: where u, v and w on devices d, f and e wait for
one another, w starts at least t(u, d, f) + t(v, f, e) after the end of u, which is no less than
t(v, d, e) if f is d, than t(u, d, e) if f is e, and than the least t of u plus the least of v if it
is neither; and nothing is asked if d is e. So a tensor from u to w that takes the least of the
three is no longer than what the schedule waits.

Nothing is lost, either, where one device is best for v wherever its neighbours are: that of its
only predecessor, if no transfer from v is longer than the one to it, and likewise for its only
successor; any device if v has no predecessors, or no successors, and its transfers have no length
either. Only such ops are left out. In sharded graphs most are like that (norms, activations, forms
of blocks); what is left, the products and sums, is decided many times faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeopt.model.arrays import Flags, Ints, place_in, stable_order, together, true_places
from placeopt.model.placement import Placement, Schedule
from placeopt.model.problem import PlacementProblem

Links = dict[int, "Ints"]
"""Other op: units of the transfer, per link class."""

COARSE_HORIZON = 2**40
"""Horizons (in units) beyond this are solved on a coarser grid only."""


@dataclass(frozen=True)
class Coarse:
    """A coarse problem and where it comes from.

    Attributes
    ----------
    problem : times in units.
    fine : the problem that it was made from.
    unit : ticks of a unit.
    kept : int64[problem.num_ops], its ops in the fine problem, ascending.
    hosts : ops of the fine problem that were left out, in that order, each with the op on whose
    device it can be, -1 if
        any will do.
    """

    problem: PlacementProblem
    fine: PlacementProblem
    unit: int
    kept: Ints
    hosts: tuple[tuple[int, int], ...]

    def restrict(self, placement: Placement) -> Placement:
        """Return the part of a placement of the fine problem that the coarse one has."""
        ranks = None if placement.priority is None else placement.priority[self.kept]
        return Placement(placement.device[self.kept], ranks)

    def extend(self, schedule: Schedule) -> Placement:
        """Return a placement of the fine problem with the devices and in the order of a coarse
        schedule.
        """
        fine, order = self.fine, self.fine.topological_order
        device = np.zeros(fine.num_ops, np.int64)
        device[self.kept] = schedule.device
        for v, host in reversed(self.hosts):
            device[v] = device[host] if host >= 0 else 0
        start = np.zeros(fine.num_ops, np.int64)
        finish = np.zeros(fine.num_ops, np.int64)
        start[self.kept], finish[self.kept] = schedule.start, schedule.finish
        left_out = dict(self.hosts)
        pointer, source, tensor = fine.predecessors
        for v in order.tolist():
            if v in left_out:
                into = slice(pointer[v], pointer[v + 1])
                near = source[into]
                ticks = fine.transfer[tensor[into], fine.link_class[device[near], device[v]]]
                wait = np.where(device[near] == device[v], 0, ticks // self.unit)
                start[v] = finish[v] = (finish[near] + wait).max(initial=0)
        return Placement.from_starts(device, start, order[stable_order(finish[order])])


def natural_grid(
    problem: PlacementProblem,
    horizon: int,
    longest_times: int = 40,
    *,
    fewest_units: int = 4,
    most_units: int = 256,
    kept_of_best: float = 0.99,
    kept_of_all: float = 0.98,
) -> int:
    """Return the coarsest unit that keeps nearly all of the ops' work when their times are rounded
    down.

    Blocks of sharded matrices take small multiples of one time. With that as the unit little is
    lost, and few distinct times are left.

    Parameters
    ----------
    horizon : ticks. fewest_units, most_units : into which the grid divides it.
    longest_times : different times of ops, the longest, of which the unit may be a part.
    kept_of_best, kept_of_all : share of the work that the grid keeps at least, of what the one that
    keeps most does, and of all work.

    Returns
    -------
    int
        Ticks, a whole part of some op's time; 0 where every grid loses more.
    """
    times = problem.min_compute
    shortest, longest = max(1, horizon // most_units), max(1, horizon // fewest_units)
    units: set[int] = set()
    for ticks in np.unique(times[times >= shortest])[-longest_times:].tolist():
        units.update(ticks // parts for parts in range(-(-ticks // longest), ticks // shortest + 1))
    kept = {unit: int((times // unit).sum()) * unit for unit in units}
    most = max(kept.values(), default=0)
    least = max(kept_of_best * most, kept_of_all * int(times.sum()), 1)
    return max((unit for unit in units if kept[unit] >= least), default=0)


def coarsen(problem: PlacementProblem, unit: int) -> Coarse:
    """Round all times down to whole units and leave ops without length out where that changes
    nothing.

    Contention and lives of tensors are left out. Ops that some device cannot run, that belong to a
    colocation group or have resident bytes stay.

    Parameters
    ----------
    unit : ticks.
    """
    compute = np.where(problem.compute >= 0, problem.compute // unit, -1)
    before, after = _links(problem, unit)
    hosts = _leave_out(
        (compute == 0).all(axis=1) & (problem.colocation < 0) & (problem.resident == 0),
        before,
        after,
    )
    kept = np.setdiff1d(np.arange(problem.num_ops), [v for v, _ in hosts])
    number = place_in(kept, problem.num_ops)
    pairs = [(u, v) for u in kept.tolist() for v in sorted(after[u])]
    coarse = PlacementProblem(
        name=f"coarse {problem.name}",
        compute=compute[kept],
        producer=number[[u for u, _ in pairs]],
        consumer_ptr=np.arange(len(pairs) + 1),
        consumer=number[[v for _, v in pairs]],
        transfer=np.array([after[u][v] for u, v in pairs], np.int64).reshape(
            len(pairs), problem.transfer.shape[1]
        ),
        link_class=problem.link_class,
        resident=problem.resident[kept],
        capacity=problem.capacity,
        colocation=problem.colocation[kept],
        tick_seconds=problem.tick_seconds * unit,
    )
    return Coarse(coarse, problem, unit, kept, hosts)


def _links(problem: PlacementProblem, unit: int) -> tuple[list[Links], list[Links]]:
    """Return, per op, the links from its predecessors and to its successors; of several tensors the
    longest counts.
    """
    before: list[Links] = [{} for _ in range(problem.num_ops)]
    after: list[Links] = [{} for _ in range(problem.num_ops)]
    # sums stay in int64; no schedule of a search on this grid is that long
    units = np.minimum(problem.transfer // unit, COARSE_HORIZON)
    source = problem.edge_source
    for u, v, tensor in together(source, problem.consumer, problem.edge_tensor):
        _join(before, after, u, v, units[tensor])
    return before, after


def _join(before: list[Links], after: list[Links], u: int, v: int, units: Ints) -> None:
    """Have v wait for u at least so long where they are on different devices."""
    known = after[u].get(v)
    after[u][v] = before[v][u] = units if known is None else np.maximum(known, units)


def _leave_out(
    may_go: Flags, before: list[Links], after: list[Links]
) -> tuple[tuple[int, int], ...]:
    """Take ops out of the links; return them in that order, each with its host."""
    hosts: list[tuple[int, int]] = []
    waiting = true_places(may_go)
    while waiting and len(hosts) < len(may_go) - 1:  # a problem has an op
        v = waiting.pop()
        host = _host(before[v], after[v]) if may_go[v] else None
        if host is None:
            continue
        hosts.append((v, host))
        may_go[v] = False
        for w in after[v]:
            del before[w][v]
        for u, first in before[v].items():
            del after[u][v]
            for w, second in after[v].items():
                _join(
                    before,
                    after,
                    u,
                    w,
                    np.minimum(np.minimum(first, second), first.min() + second.min()),
                )
        waiting += [
            w for w in (*before[v], *after[v]) if may_go[w]
        ]  # with other neighbours it may go now
    return tuple(hosts)


def _host(before: Links, after: Links) -> int | None:
    """Return the neighbour whose device is best for an op without length, wherever they all are;
    None if there is none.
    """
    for near, far in ((before, after), (after, before)):
        longest = max((int(units.max()) for units in far.values()), default=0)
        if len(near) == 1:
            host, units = next(iter(near.items()))
            if longest <= units.min():
                return host
        elif not near and longest == 0:
            return -1
    return None
