"""`plan-ideals`: the best plan over ideals, data and tensor degrees and recomputation, with proof.

The smallest limit for which there is a plan whose stages all keep to it is found by bisection; each
question is answered exactly, so that a limit that is refuted is a bound over all plans, wherever
the search is cut off. Plans of prefixes of the given order come first: their value lets most pairs
of ideals be passed over.

A question asks for a plan whose stages all take at most so many ticks. Stages are found from the
last one backwards. A label at an ideal J says: the layers outside J are placed, on K devices with
data degrees that sum to D. A stage J - I with degrees d, t is possible if its ticks stay within the
limit while it keeps y = ceil((D + d) / d) micro-batches; fewer D and fewer K are never worse, so
that an ideal needs only the labels that no other dominates. For every pair of ideals and pair of
degrees the largest y is found once, by bisection.

Which layers are recomputed is a knapsack: the memory saved must cover what is missing, for the
least extra work. It is decided exactly: by the greedy solution, by the linear relaxation, or by
branch and bound in the order of the ratio. Where branch and bound meets its limit of nodes,
`optimistic` says what to assume, so that two runs enclose the truth.

References
----------
Tarnawski, Narayanan, Phanishayee: "Piper: multidimensional planner for DNN parallelization",
NeurIPS 2021: the space and the cost model. The search by limits replaces its table over (ideal,
devices, sum of data degrees). Kellerer, Pferschy, Pisinger: "Knapsack problems", Springer 2004, ch.
5: branch and bound by the linear relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeopt.model.arrays import Bits, Flags, Floats, Ints, running_sums, stable_order, true_places
from placeopt.model.compiled import entry, inner_kernel, row_of
from placeopt.model.ideals import Lattice, ideal_lattice, linear_lattice
from placeopt.model.threads import call_interruptibly
from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.sample_problem import PLAIN, RECOMPUTE, SamplePlanProblem, sample_ticks
from placeopt.solvers.planning.step_search import put_first, unlink
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.tracker import Tracker

DEVICE_KIND = "device"
"""Kind of the devices of a problem whose devices are all equal."""

METHOD = "ideals"
"""Name of the bound that refuted limits prove."""


class IdealPlans:
    """Plans over the ideals of a problem.

    Attributes
    ----------
    complete : whether the lattice holds every ideal, so that what is refuted is refuted for all
    plans.
    """

    def __init__(self, problem: SamplePlanProblem, lattice: Lattice, complete: bool) -> None:
        self.problem, self.lattice, self.complete = problem, lattice, complete
        self.only, known = _first_choices(problem)
        self.arrays = _arrays(known, lattice)
        degrees, n = len(problem.tensor_degrees), problem.num_layers
        flights = min(problem.devices, problem.samples) + 2
        self.scratch = Work(
            np.zeros((degrees, flights, n), np.int16),
            np.zeros((degrees, flights), np.bool_),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
            np.zeros(n + 1, np.int8),
            np.zeros(n, np.bool_),
            np.zeros(n),
            np.zeros(n, np.int64),
            np.zeros(1, np.int64),
        )

    @property
    def least(self) -> int:
        """Ticks that no plan can beat: all work, shared equally by all devices."""
        return -(-int(self.arrays.least[-1]) // self.problem.devices)

    @property
    def most(self) -> int:
        """Ticks that every plan keeps to."""
        problem = self.problem
        total = int(np.maximum(problem.work, 0).max(axis=(0, 1)).sum())
        total += int(problem.sync.max(axis=0).sum()) * problem.devices
        return total + int((problem.sent + problem.received).max(axis=0, initial=0).sum())

    def within(self, limit: int, optimistic: bool = False) -> TrainingPlan | None:
        """Return a plan whose stages take at most `limit` ticks each, None if there is none.

        `exact` afterwards says whether every knapsack was decided.
        """
        self.scratch.unknown[0] = 0
        labels, last = call_interruptibly(
            lambda: search_limit(self.arrays, self.scratch, limit, optimistic)
        )
        self.exact = int(self.scratch.unknown[0]) == 0
        if last < 0:
            return None
        return self._plan(labels, int(last))

    def refuted(self, limit: int) -> bool:
        """Whether no plan keeps to `limit`, given that `within` has found none."""
        return self.complete and (self.exact or self.within(limit, optimistic=True) is None)

    def _plan(self, labels: Ints, at: int) -> TrainingPlan | None:
        """Read a plan off its labels, from the first stage to the last."""
        problem, inner, stages = self.problem, 0, []
        while labels[at, LABEL_PARENT] >= 0:
            outer, degree, data = (
                int(labels[at, key]) for key in (LABEL_FROM, LABEL_TENSOR, LABEL_DATA)
            )
            flight = -(-int(labels[at, LABEL_D]) // data)
            if recomputed_layers(self.arrays, self.scratch, (inner, outer, degree), flight) < 0:
                return None  # only with optimistic knapsacks
            members = self.lattice.members(outer, problem.num_layers) & ~self.lattice.members(
                inner, problem.num_layers
            )
            group = ReplicaGroup(DEVICE_KIND, problem.tensor_degrees[degree], data)
            again = np.flatnonzero((self.scratch.taken | self.only[degree]) & members)
            stages.append(PlanStage(tuple(true_places(members)), (group,), tuple(again.tolist())))
            inner, at = outer, int(labels[at, LABEL_PARENT])
        return TrainingPlan(tuple(stages))


def all_plans(problem: SamplePlanProblem, max_ideals: int) -> IdealPlans | None:
    """Return all plans; None if there are more ideals than `max_ideals`."""
    lattice = ideal_lattice(problem.num_layers, problem.source, problem.target, limit=max_ideals)
    return None if lattice is None else IdealPlans(problem, lattice, complete=True)


def _first_choices(problem: SamplePlanProblem) -> tuple[Flags, SamplePlanProblem]:
    """Return which layers can only be recomputed, by tensor degree, and the problem in which that
    is their choice without recomputation, and the only one.
    """
    plain, again = problem.work[:, PLAIN], problem.work[:, RECOMPUTE]
    only = problem.allow_recompute & (plain < 0) & (again >= 0)
    changed = {}
    for key in ("work", "kept", "fixed"):
        values = getattr(problem, key).copy()
        values[:, PLAIN][only] = values[:, RECOMPUTE][only]
        changed[key] = values
    changed["work"][:, RECOMPUTE][only] = -1
    return only, problem.replace(**changed)


def _arrays(problem: SamplePlanProblem, lattice: Lattice) -> PlanArrays:
    n = problem.num_layers
    inside = np.array([lattice.members(i, n) for i in range(lattice.num_ideals)], np.int64)
    plain, again = problem.work[:, PLAIN], problem.work[:, RECOMPUTE]
    both = problem.allow_recompute & (again >= 0)
    fastest = np.where(both, np.minimum(plain, again), plain)
    lacking = (plain < 0).astype(np.int64)
    tensor = np.array(problem.tensor_degrees, np.int64)
    device_ticks = np.where(lacking > 0, 2**62, fastest * tensor[:, None]).min(axis=0)
    per_ideal = np.where(lacking > 0, 0, fastest) @ inside.T
    cut = (inside[:, problem.source] > 0) & (inside[:, problem.target] == 0)
    order = stable_order(per_ideal, axis=1)
    return PlanArrays(
        bits=lattice.bits,
        plain=per_ideal,
        least=inside @ device_ticks,
        sync=problem.sync @ inside.T,
        work=problem.work,
        kept=problem.kept,
        fixed=problem.fixed,
        sent_out=problem.sent @ cut.T.astype(np.int64),
        cut_ptr=running_sums(cut.sum(axis=1)),
        cut_edge=np.nonzero(cut)[1].astype(np.int64),
        target=problem.target,
        sent=problem.sent,
        received=problem.received,
        tensor=tensor,
        data=np.array(problem.data_degrees, np.int64),
        lacking=lacking @ inside.T,
        by_work=order,
        rising=np.take_along_axis(per_ideal, order, axis=1),
        work_sum=np.maximum(plain, 0) @ inside.T,
        kept_sum=problem.kept @ inside.T,
        fixed_sum=problem.fixed @ inside.T,
        smaller=_smaller(problem),
        devices=problem.devices,
        samples=problem.samples,
        capacity=problem.capacity,
        choices=2 if problem.allow_recompute else 1,
    )


def _smaller(problem: SamplePlanProblem) -> bool:
    """Whether recomputing a layer never takes more memory, whatever is in flight (one micro-batch
    or more).
    """
    if not problem.allow_recompute:
        return True
    kept = problem.kept[:, PLAIN] - problem.kept[:, RECOMPUTE]
    once = kept + problem.fixed[:, PLAIN] - problem.fixed[:, RECOMPUTE]
    return bool(((kept >= 0) & (once >= 0) & (problem.work[:, RECOMPUTE] >= 0)).all())


NODE_LIMIT = 20_000
"""Nodes of branch and bound per knapsack."""

LABEL_D, LABEL_K, LABEL_FROM, LABEL_PARENT, LABEL_DATA, LABEL_TENSOR, LABEL_NEXT = range(7)
"""Columns of a label: D, K, ideal J and label it came from, data degree and index of the tensor
degree of the stage in front of which it stands, next label of the same ideal (-1: none)."""

LABEL_COLUMNS = 7
ONE = np.uint64(1)


class PlanArrays(NamedTuple):
    """What the kernel reads (n layers, I ideals, T tensor degrees, E edges)."""

    bits: Bits  # (I, words)
    plain: Ints  # (T, I) ticks of all layers of the ideal, the faster choice of each
    least: Ints  # (I,) least device-ticks of its layers
    sync: Ints  # (T, I)
    work: Ints  # (T, 2, n)
    kept: Ints  # (T, 2, n)
    fixed: Ints  # (T, 2, n)
    sent_out: Ints  # (T, I) ticks of the edges that leave the ideal, paid by their sources
    cut_ptr: Ints  # (I + 1,) edges that leave each ideal
    cut_edge: Ints
    target: Ints  # (E,)
    sent: Ints  # (T, E)
    received: Ints  # (T, E)
    tensor: Ints  # (T,)
    data: Ints  # (number of data degrees,)
    lacking: Ints  # (T, I) layers of the ideal that have no such tensor degree
    by_work: Ints  # (T, I) ideals by rising `plain`
    rising: Ints  # (T, I) `plain` in that order
    work_sum: Ints  # (T, I) ticks of all layers of the ideal without recomputation
    kept_sum: Ints  # (T, 2, I)
    fixed_sum: Ints  # (T, 2, I)
    devices: int
    samples: int
    capacity: int
    choices: int  # 2 with recomputation, 1 without
    smaller: bool  # whether recomputation never takes more memory, so that all of it takes least


class Work(NamedTuple):
    """Scratch of the kernel."""

    order: NDArray[
        np.int16
    ]  # (T, Y, n) layers by rising extra work per unit of memory saved, per micro-batches in flight
    ordered: Flags  # (T, Y)
    extra: Ints  # (n,) knapsack: extra work of the layers that may be recomputed
    saved: Ints  # (n,) memory that saves
    state: NDArray[np.int8]  # (n + 1,) per item: 0 not tried, 1 taken, 2 left out
    taken: Flags  # (n,) layers that are recomputed
    ratio: Floats  # (n,)
    members: Ints  # (n,) layers of the stage at hand
    unknown: Ints  # (1,) knapsacks that met the limit of nodes


@inner_kernel
def _memory(arrays, t, r, v, y):  # type: ignore[no-untyped-def]
    """Units of a layer of which y micro-batches are kept."""
    return arrays.kept[t, r, v] * y + arrays.fixed[t, r, v]


@inner_kernel
def _sort_layers(arrays, scratch, t, y):  # type: ignore[no-untyped-def]
    """Order the layers by extra work per unit saved when y micro-batches are kept."""
    n = arrays.work.shape[2]
    for v in range(n):
        saved = _memory(arrays, t, 0, v, y) - _memory(arrays, t, 1, v, y)
        extra = arrays.work[t, 1, v] - arrays.work[t, 0, v]
        scratch.ratio[v] = np.inf if saved <= 0 else extra / saved
    scratch.order[t, y] = np.argsort(scratch.ratio, kind="mergesort")
    scratch.ordered[t, y] = True


@inner_kernel
def _contains(arrays, ideal, v):  # type: ignore[no-untyped-def]
    return arrays.bits[ideal, v >> 6] >> np.uint64(v & 63) & ONE


@inner_kernel
def _branch(scratch, count, need, allowed):  # type: ignore[no-untyped-def]
    """Decide exactly whether items 0..count-1, sorted by ratio, can save `need` for `allowed`: 1,
    0, or -1 unknown.

    Depth first, taking an item before leaving it out; a branch is cut when even fractions of the
    items that are left cannot save what is missing.
    """
    nodes, depth, saved, spent = 0, 0, 0, 0
    state = scratch.state
    state[: count + 1] = 0
    while True:
        nodes += 1
        if nodes > NODE_LIMIT:
            return -1
        if saved >= need:
            return 1
        room, possible = allowed - spent, saved
        for i in range(depth, count):
            if scratch.extra[i] <= room:
                room -= scratch.extra[i]
                possible += scratch.saved[i]
            else:
                possible += (
                    np.int64(np.ceil(scratch.saved[i] * (room / scratch.extra[i]))) + count + 1
                )
                break
        if possible >= need and depth < count:
            if spent + scratch.extra[depth] <= allowed:
                state[depth] = 1
                spent += scratch.extra[depth]
                saved += scratch.saved[depth]
            else:
                state[depth] = 2
            depth += 1
            continue
        while depth > 0 and state[depth - 1] == 2:
            depth -= 1
            state[depth] = 0
        if depth == 0:
            return 0
        state[depth - 1] = 2
        spent -= scratch.extra[depth - 1]
        saved -= scratch.saved[depth - 1]


@inner_kernel
def _collect(arrays, scratch, stage, y):  # type: ignore[no-untyped-def]
    """Take the faster choice of every layer of a stage, marked in `taken`; list the slower but
    smaller ones as items.

    Returns (work, memory, number of items).
    """
    inner, outer, t = stage
    if not scratch.ordered[t, y]:
        _sort_layers(arrays, scratch, t, y)
    scratch.taken[:] = False
    memory, work, count = 0, 0, 0
    for place in range(arrays.work.shape[2]):
        v = scratch.order[t, y, place]
        if not _contains(arrays, outer, v) or _contains(arrays, inner, v):
            continue
        plain, again = arrays.work[t, 0, v], arrays.work[t, 1, v]
        work += plain
        memory += _memory(arrays, t, 0, v, y)
        if arrays.choices == 1 or again < 0:
            continue
        extra = again - plain
        saved = _memory(arrays, t, 0, v, y) - _memory(arrays, t, 1, v, y)
        if extra < 0 or (
            extra == 0 and saved > 0
        ):  # start from the other choice; to leave it may save memory
            work += extra
            memory -= saved
            extra, saved = -extra, -saved
            scratch.taken[v] = True
        if saved > 0:
            scratch.extra[count], scratch.saved[count], scratch.members[count] = extra, saved, v
            count += 1
    return work, memory, count


@inner_kernel
def _fits(arrays, scratch, stage, y, allowed, optimistic):  # type: ignore[no-untyped-def]
    """Whether the layers of a stage (inner, outer, t) fit with y micro-batches for at most
    `allowed` ticks of work.

    If so, the items with state 1 are those whose choice in `scratch.taken` has to change.
    """
    scratch.state[: len(scratch.extra) + 1] = 0
    work, memory, count = _collect(arrays, scratch, stage, y)
    room, need = allowed - work, memory - arrays.capacity
    if room < 0 or need <= 0:
        return room >= 0
    total = 0
    for i in range(count):
        total += scratch.saved[i]
    if total < need:
        return False
    _sort_items(scratch, count)
    left, got, relaxed, open_ended = room, 0, 0, True
    for i in range(count):
        if scratch.extra[i] <= left and got < need:
            left -= scratch.extra[i]
            got += scratch.saved[i]
            scratch.state[i] = 1
        elif open_ended and got < need:
            relaxed = (
                got + np.int64(np.ceil(scratch.saved[i] * (left / scratch.extra[i]))) + count + 1
            )
            open_ended = False
    if got >= need:
        return True
    if open_ended or relaxed < need:
        return False
    if not _enough_items(scratch, count, need, room):
        return False
    answer = _branch(scratch, count, need, room)
    if answer < 0:
        scratch.unknown[0] += 1
        return optimistic
    return answer == 1


@inner_kernel
def _enough_items(scratch, count, need, allowed):  # type: ignore[no-untyped-def]
    """Whether as many items as the largest savings need are possible at all: the cheapest of them
    must be allowed.

    Decides stages of like layers, where the linear relaxation is off by less than one layer.
    """
    saved, extra = np.sort(scratch.saved[:count]), np.sort(scratch.extra[:count])
    got, spent = 0, 0
    for i in range(count):
        got += saved[count - 1 - i]
        spent += extra[i]
        if got >= need:
            return spent <= allowed
    return False


@inner_kernel
def _quick(arrays, stage, y, allowed):  # type: ignore[no-untyped-def]
    """Return 1 if the stage fits without recomputation, 0 if it does not even fit with all of it,
    else -1.
    """
    inner, outer, t = stage
    kept = arrays.kept_sum[t, 0, outer] - arrays.kept_sum[t, 0, inner]
    fixed = arrays.fixed_sum[t, 0, outer] - arrays.fixed_sum[t, 0, inner]
    if kept * y + fixed <= arrays.capacity:
        return 1 if arrays.work_sum[t, outer] - arrays.work_sum[t, inner] <= allowed else -1
    if arrays.smaller:
        r = arrays.choices - 1
        kept = arrays.kept_sum[t, r, outer] - arrays.kept_sum[t, r, inner]
        fixed = arrays.fixed_sum[t, r, outer] - arrays.fixed_sum[t, r, inner]
        if kept * y + fixed > arrays.capacity:
            return 0
    return -1


@inner_kernel
def _possible(arrays, scratch, stage, y, allowed, optimistic):  # type: ignore[no-untyped-def]
    """Whether a stage fits; see `_fits`, which is asked only where sums do not tell."""
    quick = _quick(arrays, stage, y, allowed)
    return quick == 1 if quick >= 0 else _fits(arrays, scratch, stage, y, allowed, optimistic)


@inner_kernel
def _sort_items(scratch, count):  # type: ignore[no-untyped-def]
    """Sort the items by extra work per unit saved: nearly done, since layers come in that order."""
    for i in range(1, count):
        extra, saved, v = scratch.extra[i], scratch.saved[i], scratch.members[i]
        j = i
        while j > 0 and float(scratch.extra[j - 1]) * saved > float(extra) * scratch.saved[j - 1]:
            scratch.extra[j], scratch.saved[j] = scratch.extra[j - 1], scratch.saved[j - 1]
            scratch.members[j] = scratch.members[j - 1]
            j -= 1
        scratch.extra[j], scratch.saved[j], scratch.members[j] = extra, saved, v


@inner_kernel
def _traffic(arrays, inner, outer, t):  # type: ignore[no-untyped-def]
    """Ticks of the edges that enter and leave the stage outer - inner."""
    total = arrays.sent_out[t, outer]
    for k in row_of(arrays.cut_ptr, inner):
        e = arrays.cut_edge[k]
        if _contains(arrays, outer, arrays.target[e]):
            total += arrays.received[t, e]
        else:
            total -= arrays.sent[t, e]
    return total


@inner_kernel
def _inside(arrays, inner, outer):  # type: ignore[no-untyped-def]
    for w in range(arrays.bits.shape[1]):
        if arrays.bits[inner, w] & ~arrays.bits[outer, w]:
            return False
    return True


@inner_kernel
def _most_in_flight(  # type: ignore[no-untyped-def]
    arrays, scratch, stage, ends, allowed, optimistic
):
    """Return the largest number of micro-batches between the ends that fit, 0 if none does."""
    low, high = ends
    if not _possible(arrays, scratch, stage, low, allowed, optimistic):
        return 0
    if _possible(arrays, scratch, stage, high, allowed, optimistic):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if _possible(arrays, scratch, stage, middle, allowed, optimistic):
            low = middle
        else:
            high = middle
    return low


@inner_kernel
def _allowed(arrays, stage, d, limit):  # type: ignore[no-untyped-def]
    """Return the ticks of work that a stage may take on d replicas, -1 if even its least work is
    too much.
    """
    inner, outer, t = stage
    if arrays.lacking[t, inner] != arrays.lacking[t, outer] or not _inside(arrays, inner, outer):
        return -1
    least = arrays.plain[t, outer] - arrays.plain[t, inner]
    allowed = limit * d - (d - 1) * (arrays.sync[t, outer] - arrays.sync[t, inner])
    if least > allowed:
        return -1
    allowed -= _traffic(arrays, inner, outer, t)
    return allowed if least <= allowed else -1


@inner_kernel
def _insert(labels, head, used, ideal, row):  # type: ignore[no-untyped-def]
    """Add a label to an ideal unless another dominates it; those that it dominates are unlinked."""
    previous, at = -1, head[ideal]
    while at >= 0:
        if labels[at, LABEL_D] <= row[LABEL_D] and labels[at, LABEL_K] <= row[LABEL_K]:
            return used
        following = labels[at, LABEL_NEXT]
        if labels[at, LABEL_D] >= row[LABEL_D] and labels[at, LABEL_K] >= row[LABEL_K]:
            unlink(labels, LABEL_NEXT, head, ideal, previous, at)
        else:
            previous = at
        at = following
    return put_first(labels, LABEL_NEXT, head, ideal, used, row)


@inner_kernel
def _extend(arrays, table, step, flight, limit):  # type: ignore[no-untyped-def]
    """Put the stage of `step` before every label of its outer ideal that leaves it enough memory
    and devices.
    """
    labels, head, used = table
    inner, outer, t, d = step
    row = np.zeros(LABEL_COLUMNS, np.int64)
    row[LABEL_FROM], row[LABEL_DATA], row[LABEL_TENSOR] = outer, d, t
    at = head[outer]
    while at >= 0:
        row[LABEL_D], row[LABEL_K] = (
            labels[at, LABEL_D] + d,
            labels[at, LABEL_K] + d * arrays.tensor[t],
        )
        row[LABEL_PARENT] = at
        at = labels[at, LABEL_NEXT]
        left = arrays.devices - row[LABEL_K]
        if row[LABEL_D] > min(flight * d, arrays.samples) or arrays.least[inner] > limit * left:
            continue
        if used == len(labels):
            grown = np.empty((2 * used, LABEL_COLUMNS), np.int64)
            grown[:used] = labels
            labels = grown
        used = _insert(labels, head, used, inner, row)
    return labels, head, used


@inner_kernel
def _ranges(arrays, labels, at):  # type: ignore[no-untyped-def]
    """Return the fewest devices and the least and largest sum of data degrees of an ideal's
    labels.
    """
    fewest, least, most = arrays.devices, arrays.samples, 0
    while at >= 0:
        fewest = min(fewest, labels[at, LABEL_K])
        least, most = min(least, labels[at, LABEL_D]), max(most, labels[at, LABEL_D])
        at = labels[at, LABEL_NEXT]
    return fewest, least, most


@entry
def search_limit(arrays, scratch, limit, optimistic):  # type: ignore[no-untyped-def]
    """Return (labels, label of the finished plan or -1): a plan whose stages take at most `limit`
    ticks each.
    """
    num_ideals = len(arrays.bits)
    head = np.full(num_ideals, -1, np.int64)
    table = (np.empty((4096, LABEL_COLUMNS), np.int64), head, 0)
    row = np.zeros(LABEL_COLUMNS, np.int64)
    row[LABEL_FROM] = row[LABEL_PARENT] = -1
    table = (table[0], head, _insert(table[0], head, 0, num_ideals - 1, row))
    for outer in range(num_ideals - 1, 0, -1):
        if head[outer] < 0:
            continue
        fewest, least_d, most_d = _ranges(arrays, table[0], head[outer])
        for t in range(len(arrays.tensor)):
            for k in range(len(arrays.data)):
                d = arrays.data[k]
                left = arrays.devices - fewest - d * arrays.tensor[t]
                if left < 0 or least_d + d > arrays.samples:
                    break
                ends = ((least_d + 2 * d - 1) // d, (most_d + 2 * d - 1) // d)
                low = np.searchsorted(
                    arrays.rising[t], arrays.plain[t, outer] - limit * d, side="left"
                )
                for place in range(low, num_ideals):
                    inner = arrays.by_work[t, place]
                    if arrays.plain[t, inner] > arrays.plain[t, outer]:
                        break
                    if inner >= outer or arrays.least[inner] > limit * left:
                        continue
                    stage = (inner, outer, t)
                    allowed = _allowed(arrays, stage, d, limit)
                    if allowed < 0:
                        continue
                    flight = _most_in_flight(arrays, scratch, stage, ends, allowed, optimistic)
                    if flight > 0:
                        table = _extend(arrays, table, (inner, outer, t, d), flight, limit)
    return table[0][: table[2]].copy(), head[0]


@entry
def recomputed_layers(arrays, scratch, stage, y):  # type: ignore[no-untyped-def]
    """Return the least work of a stage that fits with y micro-batches, and mark the layers
    recomputed; -1: none.

    By bisection over the work allowed; `scratch.taken` marks the layers.
    """
    inner, outer, t = stage
    low, high = -1, 0
    for v in range(arrays.work.shape[2]):
        if _contains(arrays, outer, v) and not _contains(arrays, inner, v):
            high += max(arrays.work[t, 0, v], arrays.work[t, 1, v])
    if not _fits(arrays, scratch, stage, y, high, False):
        return -1
    while high - low > 1:
        middle = low + (high - low) // 2
        if _fits(arrays, scratch, stage, y, middle, False):
            high = middle
        else:
            low = middle
    _fits(arrays, scratch, stage, y, high, False)
    for i in range(len(scratch.members)):
        if scratch.state[i] == 1:
            scratch.taken[scratch.members[i]] = not scratch.taken[scratch.members[i]]
    return high


@dataclass(frozen=True)
class IdealPlanner(SearchSolver):
    """Bisection over the time per sample; each step an exact dynamic program over ideals."""

    name: ClassVar[str] = "plan-ideals"
    kernels: ClassVar[tuple[str, ...]] = ("plan-ideals",)
    max_ideals: int = option(
        2_000_000, "above this only prefixes of the given order are searched", low=1
    )

    def search(self, problem: SamplePlanProblem, tracker: Tracker[TrainingPlan]) -> None:
        """Plans of prefixes, whose stages are intervals of the given order, then of all ideals."""
        prefixes = IdealPlans(problem, linear_lattice(problem.num_layers), complete=False)
        tracker.raise_bound(prefixes.least, "area")
        _bisect(prefixes, tracker)
        everything = all_plans(problem, self.max_ideals)
        if everything is None:
            tracker.message = (
                f"more than {self.max_ideals} ideals: plans of one order of the layers only"
            )
        elif not tracker.stop():
            _bisect(everything, tracker)


def _bisect(plans: IdealPlans, tracker: Tracker[TrainingPlan]) -> None:
    """Narrow bound and value; what is refuted among prefixes only is no bound, but ends that search
    too.
    """
    low, widening = tracker.lower_bound, 1.0
    high = tracker.value
    while not tracker.stop() and (high is None or low < high):
        limit = _next_limit(plans, low, high, widening, low == tracker.lower_bound == plans.least)
        plan = plans.within(limit)
        tracker.count()
        if plan is not None:
            value = sample_ticks(plans.problem, plan)
            tracker.offer(value, plan)
            high = value if high is None else min(high, value)
            if value <= limit:
                continue
        elif plans.refuted(limit):
            if limit >= plans.most:
                tracker.infeasible("no plan fits the memory of the devices")
            tracker.raise_bound(limit + 1, METHOD)
        elif plans.complete and high is not None:
            return
        if high is None and limit >= plans.most:
            return
        low, widening = limit + 1, widening * 2


def _next_limit(
    plans: IdealPlans, low: int, high: int | None, widening: float, at_least: bool
) -> int:
    """Return the limit to ask for: wider ones until a plan is known, then the middle.

    Where bound and value are relatively as near as 0.001, or the bound is the least one that there
    is (`at_least`), the question is whether the value can be beaten at all.
    """
    if high is None:
        return plans.most if widening > 4 else min(plans.most, int(low * (1 + 0.05 * widening)))
    return high - 1 if at_least or high - low <= 1e-3 * high else (low + high) // 2
