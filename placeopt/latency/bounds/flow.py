"""Lower bound on the latency with slots by a flow over paths and a dynamic program over ideals
(`flow`).

Let a path of ops carry one unit of flow, or let it split and join again: lambda_e on every edge e,
phi_v through every op v. On a path the slots and the ops of the pool follow each other, and as
slots are convex the path visits each at most once, so the latency is at least the time of every
unit on the path, and for any flow

    latency >= sum over slots S of phi(S) duration(S) + sum over ops v of the pool of phi_v
    compute[v, pool],

where phi(S) is the flow that visits S. The right side is smallest over all placements by a dynamic
program: slots and ops of the pool can be sorted such that none waits for a later one, every prefix
of that order is an ideal (a down-set) I of the graph, and

    f[s][I] = min( min over maximal v of I of  f[s][I - v] + phi_v compute[v, pool],
                   min over ideals I' inside I of  f[s - 1][I'] + phi(I - I') duration(I - I') ).

Every flow proves f[slots][all ops]; the best flow is found by cutting planes: each placement that
the program returns is a linear bound on what any flow can prove (the value of a game between paths
and placements). Flows are rounded to integers along paths, so that the program adds integers and
its value is a proof. The placements are good as well: the program knows the memory, the transfers
and the pool.

What a flow costs before and behind an ideal tells whether a placement better than the best one
known can pass it. No other flow has to price the ideals that none passes (`FlowBound.bury`), nor
has a finer graph those that are the same there: near the end few in a thousand are left.

Where the best flow proves less than the best placement takes, the placements are halved and each
half has a flow of its own (`FlowBound.halves`): branch and bound, the half with the lowest bound
first. Beside the halves run labels, placements of the ideals that are left (`FlowBound.labels`): a
decision diagram that is relaxed by merging, and exact at the end.

Classes of colocation are kept together as far as the program can see. With q slots the nodes of a
class may lie in several slots of one accelerator, so with q = 1 no slot parts a class, and with q =
2 the accelerator of a class that is parted has no third slot: a slot parts classes only with
earlier slots or only with later ones, all that it parts it shares with the same one, and both fit
into one memory. The program keeps, of the slots that hold the classes which cross the border of an
ideal, whether they are one, and what two of them take at least, rounded down to steps; what it
forgets relaxes the problem. A node whose only predecessor is of its class is in the pool where that
one is, and nothing else waits between the two: both enter the pool in one step.

Devices may differ: every slot takes the smallest times and the largest capacity of any accelerator.

Graphs are made small enough first (`Reduction`). Ops that take no time and whose results nobody
needs are left out; ops of a colocation class that only follow, or only feed, their neighbour become
one node; and if there are still too many ideals, ops are left out that hide little (`_loss`) for
the ideals that they make (`_worth`), those on a longest path late: the best flow goes there above
all. The order through them stays; slots are convex, so what lies between two nodes of a slot is in
it (`Between`); and slots pay for the tensors on the way (`Charges`). Each step relaxes the problem:
a bound for the reduced graph holds for the whole one.

References
----------
D. Bergman, A. A. Cire, W.-J. van Hoeve, J. Hooker: "Decision Diagrams for Optimization", Springer
2016.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import heapify, heappop, heappush
from typing import Any

import networkx as nx
import numpy as np

from placeopt.latency.bounds.slot_program import (
    APART,
    FREE,
    SLOT,
    TOGETHER,
    UNRELATED,
    Flow,
    FlowArrays,
    Labels,
    SlotTables,
    fill_rows,
    find_dead,
    label_rows,
    no_labels,
)
from placeopt.latency.evaluate import latency_batch
from placeopt.model.arrays import (
    NO_VALUE,
    Flags,
    Floats,
    Ints,
    as_pairs,
    by_key,
    by_number,
    fastest,
    pointers,
    positions,
    row_at,
    running_sums,
    stable_order,
    sums_by,
    together,
    touching_tensors,
    true_places,
    value_ranks,
)
from placeopt.model.ideals import Lattice, ideal_lattice, ideal_sums
from placeopt.model.linear_program import LEAST_TOLERANCE, linear_program
from placeopt.model.objective import INFEASIBLE
from placeopt.model.problem import PlacementProblem
from placeopt.model.projection import unit_of_ops
from placeopt.model.threads import call_interruptibly

Offer = Callable[[Ints, Ints], None]
"""Takes a placement: devices and slots."""


Upper = Callable[[], int | None]
"""Returns the latency of the best known placement, None where none is known."""


@dataclass(frozen=True)
class Effort:
    """How large the programs are, and how long they are gone on with.

    Attributes
    ----------
    max_ops : of a problem that is tried at all. max_ideals : of the finest graph.
    first_ideals, finer : of the coarsest graph, and how many times as many each one after it has.
    dearer : how many times as long a round takes with `finer` times as many, as measured on
    Inception and NASNet from 2000 to 30 000.
    most_steps : of memory. states : ideals times steps, at most.
    min_weight : of all paths that a flow is rounded to; where less is all that 64 bits have room
    for, the problem is not tried.
    most_rounds : flows that are priced.
    step : 1 / step is the part of the way to the flow of the master problem that is gone where the
    last round was not in vain.
    close : the bound ends where the master problem promises no relative improvement above this,
    and a placement with less of a share is not in the mix.
    labels : times the nodes that an ideal has to remember of each, a quarter of a gigabyte.
    chunk_seconds : between two looks at the clock.
    """

    max_ops: int = 5_000
    max_ideals: int = 60_000
    first_ideals: int = 120
    finer: int = 4
    dearer: int = 8
    most_steps: int = 16
    states: int = 8_000
    min_weight: int = 10**3
    most_rounds: int = 400
    step: int = 4
    close: float = 1e-7
    labels: int = 2**25
    chunk_seconds: float = 0.1


class FlowBound:
    """The bound for one problem; keeps its cuts between calls.

    Attributes
    ----------
    lower : the best bound so far in ticks. idle : rounds since the last that raised it.
    parted : whether it has halves. exact : whether labels say all that there is to say. width :
    labels of an ideal at most. finest : whether no finer graph follows.
    usable : whether the problem, reduced, has few enough ideals. most_nodes : of the graph that has
    nothing left out.
    """

    effort = Effort()

    def __init__(
        self,
        problem: PlacementProblem,
        *,
        max_ideals: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.problem, self.lower, self.usable = problem, 0, False
        self._accelerators = true_places(problem.io_class >= 0)
        self._pools = true_places(problem.io_class < 0)
        if not self._accelerators or not 1 < problem.num_ops <= self.effort.max_ops:
            return
        io = problem.io_ticks[:, self._accelerators].min(axis=1)
        self._slot_time = fastest(problem.compute[:, self._accelerators])
        pool_time = fastest(problem.compute[:, self._pools])
        reduction = Reduction(problem, self._slot_time, pool_time, io)
        most = self.effort.max_ideals if max_ideals is None else max_ideals
        self._graph, found = reduction.graph, reduction.reduce(most, stop)
        if found is None:
            return
        self.nodes, self.lattice = found
        # one without a node is no slot
        self._num_slots = min(len(self._accelerators) * problem.slots, len(self.nodes.ops))
        self.most_nodes = reduction.most_nodes
        self._set_arrays()
        self._set_tables()
        self._cuts: list[Floats] = []
        self._priced: list[Ints] = []  # slot of every node in the placement of each cut
        self._guesses: list[Floats] = []  # cuts by placements found on a coarser graph
        self.idle = 0
        self.parted, self.exact, self.width = False, False, 1
        self._promise = np.inf
        self._ways: list[Ints] = []  # the ideals that each passes
        self.dead = np.zeros(self.lattice.num_ideals, np.bool_)  # see `bury`
        self._open = np.inf  # what was left of the gap when they were looked for
        self._worth_it = False  # whether many were found
        self.finest = False
        self._known = 0  # rounds since the last that found a new placement
        self._mix = np.zeros(0)  # shares of the cuts in what is best against every flow
        self._best_flow: Floats | None = None
        self._begin = [self._flow_on(1.0, *self._way(set()))]  # flows to begin with
        self._opening = False  # whether the last flow was one of them
        largest = np.maximum(self.arrays.slot_time, self.arrays.pool_time)
        moves = 2 * self._num_slots * int(self.arrays.io_time.sum())
        total = int(np.maximum(largest, 0).sum()) + moves + 1 + self._hidden
        self._weight = 2**60 // total
        self.usable = self._weight >= self.effort.min_weight

    def _classes(self) -> dict[str, Any]:
        """The fields of `FlowArrays` about classes and memory."""
        nodes, unit = self.nodes, self.problem.units.unit
        n = len(nodes.ops)
        group = unit_of_ops(unit[[ops[0] for ops in nodes.ops]]).copy()
        leader, pool_time = self._leaders(group)
        follower = np.flatnonzero(leader != np.arange(n))
        follower = follower[stable_order(leader[follower])]
        resident = np.array([int(self.problem.resident[ops].sum()) for ops in nodes.ops], np.int64)
        whole = int(resident.sum()) + sum(b.resident for b in nodes.between)
        capacity = min(int(self.problem.capacity[self._accelerators].max()), whole)
        parted = self.problem.slots > 1 and bool((np.bincount(group) > 1).any())
        most_steps = min(self.effort.most_steps, self.effort.states // self.lattice.num_ideals)
        self._steps = max(1, most_steps) if parted else 1
        return {
            "pool_time": pool_time,
            "resident": resident,
            "capacity": capacity,
            "group": group,
            "group_size": np.bincount(group),
            "leader": leader,
            "follower_ptr": pointers(leader[follower], n),
            "follower": follower,
            "most_open": min(self.problem.slots - 1, 2),
            "step": capacity // self._steps + 1,
            "steps": self._steps,
        }

    def _leaders(self, group: Ints) -> tuple[Ints, Ints]:
        """Return the node with which each one enters the pool, and the ticks of nodes there."""
        nodes, leader = self.nodes, np.arange(len(group))
        before = by_number(len(leader), ((v, u) for u, v in nodes.edges))
        pool_time = np.array(nodes.pool_time, np.int64)
        for v, found in enumerate(before):  # in topological order
            if len(found) == 1 and group[found[0]] == group[v]:
                leader[v] = leader[found[0]]
                if pool_time[v] < 0:
                    pool_time[leader[v]] = -1
        return leader, pool_time

    def _left_out(self) -> dict[str, Any]:
        """The fields of `FlowArrays` about ops that were left out between nodes."""
        between = self.nodes.between
        ends = sorted(
            (v, i, at)
            for i, b in enumerate(between)
            for at in (False, True)
            for v in (b.behind if at else b.before)
        )
        node, index, behind = np.array(ends, np.int64).reshape(-1, 3).T
        return {
            "between_ptr": pointers(node, len(self.nodes.ops)),
            "between": index.copy(),
            "between_behind": behind == 1,
            "between_time": np.array([b.time for b in between], np.int64),
            "between_resident": np.array([b.resident for b in between], np.int64),
        }

    def _set_arrays(self) -> None:
        nodes = self.nodes
        n = len(nodes.ops)
        slot_time = np.array([_in_turn(self._slot_time, ops) for ops in nodes.ops], np.int64)
        producer = np.array([u for u, _, _ in nodes.tensors], np.int64)
        size = np.array([len(heads) for _, heads, _ in nodes.tensors], np.int64)
        consumer = np.array([v for _, heads, _ in nodes.tensors for v in heads], np.int64)
        pointer = running_sums(size)
        touch_ptr, touch_tensor, touch_role = touching_tensors(n, producer, pointer, consumer)
        self._ends = as_pairs(nodes.edges)
        self.arrays = FlowArrays(
            slot_time=slot_time,
            io_time=np.array([ticks for _, _, ticks in nodes.tensors], np.int64),
            size=size,
            touch_ptr=touch_ptr,
            touch_tensor=touch_tensor,
            touch_role=touch_role,
            edge_ptr=pointers(self._ends[:, 0], n),
            edge_head=self._ends[:, 1].copy(),
            edge_rule=np.zeros(len(self._ends), np.int8),
            **self._classes(),
            **self._left_out(),
        )
        a = self.arrays
        self._fast = fastest(np.column_stack([a.slot_time, a.pool_time]))
        self._hidden = sum(max(b.time, 0) for b in nodes.between)
        self._scale = max(1, int(np.maximum(a.slot_time, 0).sum()) + self._hidden)

    def _set_tables(self) -> None:
        ideals, held = self.lattice.num_ideals, self._steps**2
        if self.problem.slots == 2 and (self.arrays.group_size > 1).any():
            held *= 3
        shape = ideals, held, self._num_slots + 1
        self._tables = SlotTables(
            np.empty(shape, np.int64),
            np.zeros(shape, np.int64),
            np.empty((ideals, self._num_slots + 1), np.int64),
            np.zeros((ideals, 2), np.int64),
            np.zeros(ideals, np.int64),
            np.zeros((ideals, held), np.int16),
            np.zeros(ideals, np.int64),
            no_labels(),
        )

    # --- the bound
    # -------------------------------------------------------------------------------------

    def run(self, upper: Upper, stop: Callable[[], bool], offer: Offer | None = None) -> int:
        """Raise the bound until it meets `upper`, nothing is left to gain, or `stop`; return it.

        Parameters
        ----------
        upper : asked for the ticks of the best placement known.
        offer : called with the (device, slot) of every op of placements that the program finds.
        """
        for _ in self.pieces(upper, offer):
            if stop():
                break
        return self.lower

    def pieces(self, upper: Upper, offer: Offer | None = None) -> Iterator[bool]:
        """Do what `run` does in pieces of about a tenth of a second.

        Yields whether a round is over.
        """
        for _ in range(self.effort.most_rounds if self.usable else 0):
            flow, promise = self._next_flow()
            if self._guesses and not self._may_gain(promise, upper()):
                self._guesses = []
                flow, promise = self._next_flow()
            self._promise = promise
            if not self._may_gain(promise, upper()):
                return
            node_flow, edge_flow, total = self._round(flow)
            self._last = (yield from self._price(node_flow, edge_flow, total, upper)), total
            most = upper()
            limit = NO_VALUE if most is None else most * total
            value = -(-min(int(self._tables.value[-1, :, -1].min()), limit) // total)
            self._judge(flow, value)
            if most is not None and self.lower >= most:
                return
            self._note(self._units(), offer)
            if self.idle == 0 and (self.finest or self._worth_it):
                yield from self.bury(upper)
            yield True

    def _note(self, units: Ints, offer: Offer | None) -> None:
        """Keep the program's placement, if it is a new one, and offer it."""
        if any((units == other).all() for other in self._priced):
            self._known += 1
            return
        self._known = 0
        self._cuts.append(self._cut(units))
        self._priced.append(units)
        self._ways.append(np.array([ideal for ideal, _, _ in self._steps_taken()]))
        self._show(units, offer)

    def bury(self, upper: Upper) -> Iterator[bool]:
        """Find the ideals that no placement better than the best known passes, by what the last
        flow costs before and behind each; and forget the placements found that pass one.

        The rounds to come need no values of these, and a flow may prove more without them. It takes
        as long as a round. So it is done again where half of the gap is left, or on a finer graph
        if it was worth it: once `Effort.finer` rounds save as much.
        """
        most = upper()
        if most is None or 2 * (most - self.lower) > self._open:
            return
        self._open, alive = most - self.lower, int((~self.dead).sum())
        self._tables.rest.fill(NO_VALUE)
        yield from self._sweep(find_dead, *self._last, upper)
        died, finer = alive - int((~self.dead).sum()), self.effort.finer
        self._worth_it = died * finer >= alive
        kept = [not self.dead[way].any() for way in self._ways]
        if not all(kept):
            self._mix = self._mix[kept[: len(self._mix)]]
            self._promise = np.inf
        self._keep(kept)

    def _keep(self, kept: list[bool]) -> None:
        """Forget the placements found but these."""
        self._cuts = list(itertools.compress(self._cuts, kept))
        self._priced = list(itertools.compress(self._priced, kept))
        self._ways = list(itertools.compress(self._ways, kept))

    def _may_gain(self, promise: float, most: int | None) -> bool:
        """Whether a flow that promises so much may prove more than is proved, by enough to try:
        more than a tick, or all up to the best value known.
        """
        if self._known and (promise - self.lower) / 2**self._known < LEAST_TOLERANCE * self._scale:
            return False
        closes = most is not None and promise > most - 1
        return closes or promise > self.lower * (1 + self.effort.close) + 1

    def gains_little(self, most: int | None) -> bool:
        """Whether flows can gain less than one part in `Effort.dearer` of what they leave."""
        gained = self._promise - self.lower
        return most is None or gained * self.effort.dearer < most - self._promise

    def halves(self, most: int) -> list[FlowBound]:
        """Return the two halves of the placements, each with a bound of its own to go on with;
        nothing while flows may gain more here than they leave, or where there is no difference.

        Against the best mix of placements no flow proves more than the mix costs, which is less
        than `most`. It is split where its placements differ most, by share and by flow: is a class
        in the pool or in slots, or do the ends of an edge share a slot? Where they do not differ,
        one of them lasts longer than any path in it, as a slot lets what comes in at one node wait
        for what goes out of another. Where the two share a slot, that is an edge.
        """
        gained = self._promise - self.lower
        gains = self.idle == 0 or gained > most - self._promise
        if (gains and self._may_gain(self._promise, most)) or not self._mix.any():
            return []
        self.parted = True
        a, close = self.arrays, self.effort.close
        used = np.flatnonzero(self._mix > close)
        units, share = np.array(self._priced)[used], self._mix[used]
        flow = self._round(self._flow)[0] / self._weight
        groups, ends = len(a.group_size), self._ends
        held = np.array([sums_by(a.group, unit >= 0, groups) for unit in units])
        through = np.zeros(groups)
        np.maximum.at(through, a.group, flow)
        together = (units[:, ends[:, 0]] == units[:, ends[:, 1]]) & (units[:, ends[:, 0]] >= 0)
        inside = np.concatenate([share @ (held == a.group_size), share @ together])
        outside = np.concatenate([share @ (held == 0), share @ ~together])
        differ = np.minimum(inside, outside)
        differ[differ <= close] = 0
        at = int((differ * (np.append(through, flow[ends].min(axis=1)) + close)).argmax())
        if differ[at] > 0:
            return [self._half(at, within) for within in (True, False)]
        for unit in units[np.argsort(-share)]:
            pair = self._missing_edge(unit)
            if pair is not None:
                linked, at = self._with_edge(*pair)
                return [linked._half(groups + at, within, UNRELATED) for within in (True, False)]
        return []

    def _missing_edge(self, units: Ints) -> tuple[int, int] | None:
        """Return the nodes by which what takes longest in a placement enters and leaves a slot,
        without a path of edges from the one to the other.
        """
        n, ends = len(units), self._ends[self.arrays.edge_rule != UNRELATED].tolist()
        unit = np.where(units < 0, np.arange(n) + n, units).tolist()  # each node of the pool
        lasts = dict(zip(unit, self._durations(units).tolist(), strict=True))
        order = nx.DiGraph()
        order.add_weighted_edges_from((-1, u, lasts[u]) for u in unit)
        apart = ((unit[u], unit[v]) for u, v in ends if unit[u] != unit[v])
        order.add_weighted_edges_from((u, v, lasts[v]) for u, v in apart)
        way = nx.dag_longest_path(order)[1:]
        reached = {v for v in range(n) if unit[v] in way[:1]}  # no way where nothing takes time
        for here, there in itertools.pairwise(way):
            out = [u for u, v in ends if (unit[u], unit[v]) == (here, there)]
            inner = nx.DiGraph((u, v) for u, v in ends if unit[u] == unit[v] == here)
            inner.add_nodes_from(reached)
            came, reached = reached, reached.union(*(nx.descendants(inner, v) for v in reached))
            if not reached.intersection(out):
                return min(came), out[0]
            reached = {v for u, v in ends if u in reached and unit[v] == there}
        return None

    def _with_edge(self, tail: int, head: int) -> tuple[FlowBound, int]:
        """Return the same bound with another edge, and its number.

        The program takes the nodes of a slot from behind, and the flow that visits it grows with
        every one of them. An edge back to an earlier node comes with its head; as the two always
        share a slot, its flow is left out where the tail comes in (`_price`).
        """
        a, more = self.arrays, copy(self)
        low, high = sorted((tail, head))
        at, n = int(a.edge_ptr[low + 1]), len(a.group)
        more.arrays = a._replace(
            edge_ptr=a.edge_ptr + (np.arange(n + 1) > low),
            edge_head=np.insert(a.edge_head, at, high),
            edge_rule=np.insert(a.edge_rule, at, FREE),
        )
        more._ends = np.insert(self._ends, at, (tail, head), axis=0)
        more._best_flow = np.insert(self._flow, 2 * n + at, 0)
        more._cuts = [np.insert(cut, 2 * n + at, 0) for cut in self._cuts]
        more.__dict__.pop("_balance", None)
        return more, at

    def _half(self, at: int, within: bool, apart: int = APART) -> FlowBound:
        """Return the bound for the placements with a class in slots, or a pair in one, or not."""
        a, half = self.arrays, copy(self)
        classes = len(a.group_size)
        slot_time, pool_time, rule = a.slot_time.copy(), a.pool_time.copy(), a.edge_rule.copy()
        units = np.array(self._priced)
        if at < classes:
            there = units[:, a.group == at] >= 0
            kept = (there == within).all(axis=1).tolist()
            (pool_time if within else slot_time)[a.group == at] = -1
        else:
            ends = self._ends[at - classes]
            first, last = units[:, ends].T
            kept = (((first == last) & (first >= 0)) == within).tolist()
            rule[at - classes] = TOGETHER if within else apart
            if within:
                pool_time[np.isin(a.group, a.group[ends])] = -1
        half.arrays = a._replace(slot_time=slot_time, pool_time=pool_time, edge_rule=rule)
        half._fast = fastest(np.column_stack([slot_time, pool_time]))
        half._keep(kept)
        half.dead = self.dead.copy()
        half._guesses, half._begin = [], [] if half._cuts else [self._flow]
        half.idle, half._promise, half._mix, half._known = 0, np.inf, np.zeros(0), 0
        return half

    def _judge(self, flow: Floats, value: int) -> None:
        """Keep a flow that proves more than those before it, or is the first."""
        self.idle = 0 if value > self.lower else self.idle + (not self._opening)
        if value > self.lower or self._best_flow is None:
            self.lower, self._best_flow = max(self.lower, value), flow

    def _next_flow(self) -> tuple[Floats, float]:
        """A flow to begin with, if it promises more than is proved; then one between a step from
        the best flow towards what is best against the placements found so far, and what is nearest
        to the best flow of all that promises half of that (`_nearest`); and what is promised.
        Where the last placement was known before, it is what is nearest alone, with half as much
        left of the promise each time.

        Far from the best flow few placements are known, and what the master problem promises there
        is worth little: the step is short, and the shorter the more rounds were in vain. What is
        nearest goes where these placements let more be proved, but on few edges at a time.

        Where none of the placements found is left, the best flow finds another.

        Variables: flow that starts at each node, that ends there, and on each edge; then the value.
        """
        self._opening = bool(self._begin)
        while self._begin:
            flow = self._begin.pop(0)
            promise = min(
                (-float(cut[:-1] @ flow) * self._scale for cut in self._cuts), default=np.inf
            )
            if self._may_gain(promise, None):
                return flow, promise
        from scipy.sparse import hstack

        self._opening = False
        if not self._cuts and not self._guesses:
            return self._flow, np.inf
        balance, best = self._balance, self._flow
        cuts = np.array([*self._cuts, *self._guesses])
        cost = np.append(np.zeros(len(best)), -1.0)
        right = np.append(np.zeros(len(self.nodes.ops)), 1.0)
        equal = hstack([balance, np.zeros((len(right), 1))]), right
        most = np.append(self._most_flow, np.inf)
        answer = linear_program(
            cost,
            below=(cuts, np.zeros(len(cuts))),
            equal=equal,
            bounds=np.column_stack([np.zeros_like(most), most]),
            exactly=True,
        )
        if answer.x is None:
            return best, 0.0
        promise = -float(answer.fun) * self._scale
        self._mix = -answer.ineqlin.marginals[: len(self._cuts)]
        step = (answer.x[:-1] - best) / (self.effort.step + self.idle)
        left = (promise - self.lower) / 2 ** (1 + self._known)
        near = self._nearest((promise - left) / self._scale, cuts[:, :-1])
        return best + (near if self._known else (step + near) / 2), promise

    def _nearest(self, level: float, cuts: Floats) -> Floats:
        """Return the least change of the best flow, all edges added up, with which no placement
        found so far costs less than `level`; none where there is no such flow.
        """
        from scipy.sparse import hstack

        best, balance = np.maximum(self._flow, 0), self._balance
        bounds = np.concatenate([self._most_flow, best])  # more and less
        answer = linear_program(
            np.ones(2 * len(best)),
            below=(np.hstack([cuts, -cuts]), -level - cuts @ best),
            equal=(hstack([balance, -balance]), np.zeros(balance.shape[0])),
            bounds=np.column_stack([np.zeros_like(bounds), bounds]),
            exactly=True,
        )
        if answer.x is None:
            return np.zeros_like(best)
        more, less = np.split(answer.x, 2)
        return more - less

    @property
    def _flow(self) -> Floats:
        """The flow that proves most; after a round there is one."""
        assert self._best_flow is not None
        return self._best_flow

    @property
    def _most_flow(self) -> Floats:
        """What may start and end at each node, and go along each edge."""
        edges = np.where(self.arrays.edge_rule == UNRELATED, 0.0, np.inf)
        return np.append(np.full(2 * len(self.nodes.ops), np.inf), edges)

    @cached_property
    def _balance(self) -> Any:
        """The sparse rows that keep a flow: what comes to each node leaves it, and, in the
        last one, what starts anywhere.
        """
        from scipy.sparse import csr_matrix

        n, (tail, head) = len(self.nodes.ops), self._ends.T
        v, e = np.arange(n), 2 * n + np.arange(len(tail))
        sign = np.repeat([1.0, -1.0, 1.0, -1.0, 1.0], [n, n, len(e), len(e), n])
        rows = np.concatenate([v, v, head, tail, np.full(n, n)])
        columns = np.concatenate([v, n + v, e, e, v])
        return csr_matrix((sign, (rows, columns)), shape=(n + 1, 2 * n + len(e)))

    def _round(self, flow: Floats) -> tuple[Ints, Ints, int]:
        """Split the flow into paths of integer weight: (per node, per edge, total)."""
        node_flow = np.zeros(len(self.nodes.ops), np.int64)
        edge_flow = np.zeros(len(self._ends), np.int64)
        total = 0
        for amount, path, edges in self._paths(flow):
            weight = round(amount * self._weight)
            total += weight
            node_flow[path] += weight
            edge_flow[edges] += weight
        if total == 0:  # no flow at all: any path will do
            node_flow[0] = total = 1
        return node_flow, edge_flow, total

    def _paths(self, flow: Floats) -> Iterator[tuple[float, list[int], list[int]]]:
        """Yield paths that make up the flow: (amount, nodes, edges)."""
        n = len(self.nodes.ops)
        start, end, rest = flow[:n].copy(), flow[n : 2 * n].copy(), flow[2 * n :].copy()
        head = self._ends[:, 1].tolist()
        leaving = by_number(n, zip(self._ends[:, 0].tolist(), itertools.count(), strict=False))
        for _ in range(4 * (n + len(rest)) + 4):
            v = int(np.argmax(start))
            amount = start[v]
            if amount < LEAST_TOLERANCE:
                break
            first, path, edges, seen = v, [v], [], {v}
            while True:
                out = [e for e in leaving[v] if head[e] not in seen]
                e = max(out, key=rest.__getitem__, default=-1)
                if e < 0 or end[v] >= rest[e] or rest[e] < LEAST_TOLERANCE:
                    amount = min(amount, max(end[v], LEAST_TOLERANCE))
                    break
                amount = min(amount, rest[e])
                v = int(head[e])
                path.append(v)
                edges.append(e)
                seen.add(v)
            start[first] -= amount
            end[v] -= amount
            rest[edges] -= amount
            yield float(amount), path, edges

    def begin_at(self, coarse: FlowBound) -> None:
        """Begin with the best flow on a coarser graph of the same problem, whose ops are all here:
        its paths, each from end to end by the longest way through as many of its nodes as a way can
        pass (all, where none stands for several ops). The placements found there that fit, every op
        that was left out beside a neighbour, count until they let nothing more be proved.
        """
        if not self.usable or not coarse.usable or coarse._best_flow is None:
            return
        here = {v: i for i, ops in enumerate(self.nodes.ops) for v in ops}
        flow = np.zeros(2 * len(self.nodes.ops) + len(self._ends))
        for amount, path, _ in coarse._paths(coarse._best_flow):
            flow += self._flow_on(amount, *self._way({here[coarse.nodes.ops[v][0]] for v in path}))
        self._begin.insert(0, flow)
        first = [ops[0] for ops in self.nodes.ops]
        for units in coarse._priced:
            device, slot = coarse._placement(units)
            if latency_batch(self.problem, device[None], slot[None])[0] < INFEASIBLE:
                pool = ~np.isin(device, self._accelerators)
                keys = np.where(pool, -1, device * self.problem.slots + slot)[first]
                there = value_ranks(np.append(keys, -1))[:-1] - 1
                self._guesses.append(self._cut(there))
        if coarse.dead.any():
            self.dead |= self._dead_on(coarse)
        self._open, self._worth_it = np.inf if coarse._worth_it else coarse._open, coarse._worth_it

    def _dead_on(self, coarse: FlowBound) -> Flags:
        """Return which ideals are dead on a coarser graph: those that part no node there, and none
        from the one that it follows into the pool, are passed by placements that pass the same
        ideal there.
        """
        here = {v: i for i, ops in enumerate(self.nodes.ops) for v in ops}
        held = self._held()
        nodes = [sorted({here[v] for v in ops}) for ops in coarse.nodes.ops]
        whole = np.column_stack([held[:, at].all(axis=1) for at in nodes])
        some = np.column_stack([held[:, at].any(axis=1) for at in nodes])
        clear = (whole == some).all(axis=1) & (whole == whole[:, coarse.arrays.leader]).all(axis=1)
        number = positions(bits.tobytes() for bits in coarse.lattice.bits)
        rows = np.zeros((len(whole), 8 * coarse.lattice.bits.shape[1]), np.uint8)
        packed = np.packbits(whole, axis=1, bitorder="little")
        rows[:, : packed.shape[1]] = packed
        # all placements pass the empty one
        found = np.array([number.get(row.tobytes(), 0) for row in rows[clear]], np.int64)
        dead = np.zeros(len(clear), np.bool_)
        dead[clear] = coarse.dead[found]
        return dead

    def _flow_on(self, amount: float, first: int, edges: list[int]) -> Floats:
        """Return the flow that goes one way: from a node along some edges."""
        n = len(self.nodes.ops)
        flow = np.zeros(2 * n + len(self._ends))
        flow[[first, n + (int(self._ends[edges[-1], 1]) if edges else first)]] = amount
        flow[[2 * n + e for e in edges]] = amount
        return flow

    def _way(self, stops: set[int]) -> tuple[int, list[int]]:
        """Return the first node and the edges of the path that takes longest at the fastest times,
        of those through most of these nodes.
        """
        fast = np.maximum(self._fast, 0)
        fast[list(stops)] += fast.sum() + 1
        time, longest, ends = fast.tolist(), fast.tolist(), self._ends.tolist()
        came = [-1] * len(time)
        for e, (u, v) in enumerate(ends):  # by tail, and nodes are in topological order
            if longest[u] + time[v] > longest[v]:
                longest[v], came[v] = longest[u] + time[v], e
        first, edges = int(np.argmax(longest)), []
        while came[first] >= 0:
            edges.append(came[first])
            first = ends[came[first]][0]
        return first, edges[::-1]

    def _price(
        self, node_flow: Ints, edge_flow: Ints, total: int, upper: Upper
    ) -> Generator[bool, None, Flow]:
        """Fill the tables of the program under the flow of weight `total`, as far as they cost at
        most the best value known by then; return the flow as the program reads it.
        """
        tail, head = self._ends.T
        low = ideal_sums(self.lattice, (np.maximum(self._fast, 0) * node_flow)[None])[0]
        # what goes back along an edge stays in the slot that its tail brings it to
        back = np.where(tail > head, edge_flow, 0)
        node_flow = node_flow - sums_by(tail, back, len(node_flow))
        flow = Flow(node_flow, edge_flow - back, low, self.dead, 0)
        yield from self._sweep(fill_rows, flow, total, upper)
        return flow

    def _sweep(
        self,
        kernel: Any,
        flow: Flow,
        total: int,
        upper: Upper,
        tables: SlotTables | None = None,
    ) -> Iterator[bool]:
        """Let a kernel go through all rows of the tables under the flow of weight `total`, in
        chunks: from the first, or back, as far as they cost at most the best value known by then.
        """
        count, row, chunk = self.lattice.num_ideals, 0, 16
        tables = self._tables if tables is None else tables
        while row < count:
            begin, most = time.perf_counter(), upper()
            limit = NO_VALUE - 1 if most is None else min(most * total, NO_VALUE - 1)
            flow = flow._replace(limit=limit, most=NO_VALUE if most is None else most)
            last = min(row + chunk, count)
            rows = (count - last, count - row) if kernel is find_dead else (row, last)
            call_interruptibly(partial(kernel, self.arrays, self.lattice, flow, tables, *rows))
            row = last
            spent = time.perf_counter() - begin
            chunk = max(
                1, min(chunk * 4, int(chunk * self.effort.chunk_seconds / max(spent, 1e-9)))
            )
            if row < count:
                yield False

    def labels(self, upper: Upper, offer: Offer | None = None) -> Iterator[bool]:
        """Raise the bound by labels: of every ideal, all placements that the best flow lets end
        below the best value known. Yields whether the ideals are through once more.

        A label knows what the flow does not: that a slot waits for the last of all that enters it.
        Where an ideal has too many some are merged, which relaxes them (Bergman et al.), the fewer
        the more often the ideals are gone through; `exact` says that none was.
        """
        node_flow, edge_flow, total = self._round(self._flow)
        flow = yield from self._price(node_flow, edge_flow, total, upper)
        self._last, self._open = (flow, total), np.inf
        yield from self.bury(upper)
        tables = self._tables._replace(rest=self._tables.rest.copy())
        empty = self._without_labels(flow)
        yield True
        while not self.exact:
            rows, width = int((~self.dead).sum()) * self.width + 1, empty.time.shape[1]
            if rows * width > self.effort.labels:
                return
            names = "last", "ended", "state", "used", "came"
            labels = empty._replace(
                time=np.zeros((rows, width), np.int64),
                counts=np.zeros(2, np.int64),
                width=self.width,
                **{name: np.zeros(rows, np.int64) for name in names},
            )
            tables = tables._replace(labels=labels)
            yield from self._sweep(label_rows, flow, total, upper, tables)
            found, most = labels.last[slice(*labels.ptr[-2:])], upper()
            least = int(found.min(initial=NO_VALUE if most is None else most))
            self.lower, self.exact = max(self.lower, least), labels.counts[1] == 0
            if len(found):
                steps = self._labelled(labels, int(labels.ptr[-2] + found.argmin()))
                self._show(self._units(steps), offer)
            yield True
            self.width *= self.effort.finer

    def _without_labels(self, flow: Flow) -> Labels:
        """Return what labels know of the graph and the flow."""
        lattice, (first, second) = self.lattice, self._ends.T.tolist()
        n, held, found = len(self.nodes.ops), self._held(), []
        left = np.zeros(n, np.int64)
        carried = zip(second, flow.edge.tolist(), strict=True)
        heads = by_number(n, zip(first, carried, strict=True))
        fast = np.maximum(self._fast, 0)
        for u in reversed(range(n)):
            leaves, tail = np.zeros((2, lattice.num_ideals), np.int64)
            out = np.zeros(lattice.num_ideals, np.bool_)
            for v, amount in heads[u]:
                here = held[:, u] & ~held[:, v]
                out |= here
                leaves += amount * here
                after = fast[v] + left[v]
                tail = np.maximum(tail, after * here)
                left[u] = max(left[u], after)
            at = np.flatnonzero(out)
            found.append(np.stack([at, np.full_like(at, u), leaves[at], tail[at]]))
        ideal, border, leaves, tail = np.concatenate(found, axis=1)
        order = stable_order(ideal)
        ends = flow.node - sums_by(self._ends[:, 0], flow.edge, n)
        ptr = pointers(ideal[order], lattice.num_ideals)
        return no_labels()._replace(
            border_ptr=ptr,
            border=border[order],
            leaves=leaves[order],
            gone=ideal_sums(lattice, ends[None])[0],
            ends=ends,
            tail=tail[order],
            ptr=np.zeros(lattice.num_ideals + 1, np.int64),
            time=np.zeros((0, int(np.diff(ptr).max())), np.int64),
        )

    @staticmethod
    def _labelled(labels: Labels, label: int) -> Iterator[tuple[int, int, int]]:
        """Yield the steps of a label's placement, as `_steps_taken`."""
        while label > 0:
            before, choice = divmod(int(labels.came[label]), 2)
            below, above = np.searchsorted(labels.ptr, [before, label], side="right").tolist()
            yield below - 1, above - 1, choice
            label = before

    def _held(self) -> Flags:
        """Return which nodes each ideal holds, shape (I, N)."""
        bits = self.lattice.bits.view(np.uint8)
        count = len(self.nodes.ops)
        return np.unpackbits(bits, axis=1, count=count, bitorder="little").view(np.bool_)

    def _steps_taken(self) -> Iterator[tuple[int, int, int]]:
        """Yield the steps of the program's placement from the last one: the ideal before it and
        after it, and whether it is of the pool or a slot.
        """
        ideal, s = self.lattice.num_ideals - 1, self._num_slots
        state = int(self._tables.value[ideal, :, s].argmin())
        while ideal > 0:
            above, (came, choice) = ideal, divmod(int(self._tables.back[ideal, state, s]), 2)
            ideal, state = divmod(came, self._tables.value.shape[1])
            s -= choice == SLOT
            yield ideal, above, choice

    def _units(self, steps: Iterable[tuple[int, int, int]] | None = None) -> Ints:
        """Slot of every node in the program's placement, or the one of these steps, -1 for the
        pool; slots in order.
        """
        n, members = len(self.nodes.ops), self.lattice.members
        steps = self._steps_taken() if steps is None else steps
        taken = [(below, above) for below, above, choice in steps if choice == SLOT]
        unit = np.full(n, -1, np.int64)
        for slot, (below, above) in enumerate(reversed(taken)):
            unit[members(above, n) & ~members(below, n)] = slot
        return unit

    def _durations(self, units: Ints) -> Ints:
        """Return how long each node takes where it is, in the pool or in its slot."""
        a, unit = self.arrays, units.tolist()
        there = units >= 0
        lasts = sums_by(units[there], a.slot_time[there], max(1, int(units.max()) + 1))
        for b in self.nodes.between:
            held = {unit[v] for v in b.before} & {unit[v] for v in b.behind}
            lasts[list(held - {-1})] += b.time
        for u, heads, ticks in self.nodes.tensors:
            at = {unit[v] for v in heads}
            if unit[u] >= 0 and at != {unit[u]}:
                lasts[unit[u]] += ticks
            for s in at - {unit[u], -1}:
                lasts[s] += ticks
        return np.where(units >= 0, lasts[np.maximum(units, 0)], a.pool_time)

    def _cut(self, units: Ints) -> Floats:
        """Row of the master problem: value <= cost of this placement under any flow."""
        n, ends, duration = len(units), self._ends, self._durations(units) / self._scale
        enters = (units[ends[:, 0]] != units[ends[:, 1]]) | (units[ends[:, 1]] < 0)
        return np.concatenate([-duration, np.zeros(n), -duration[ends[:, 1]] * enters, [1.0]])

    def _homes(self, units: Ints) -> list[int]:
        """Accelerator of every slot: those that share a class together, the fullest first, each
        where it fits most closely.
        """
        slots = range(int(units.max(initial=-1)) + 1)
        used = [int(self.arrays.resident[units == slot].sum()) for slot in slots]
        parts = self._slots_together(units, len(used))
        free = [int(self.problem.capacity[d]) for d in self._accelerators]
        left = [self.problem.slots] * len(free)
        home = [0] * len(used)
        for units_of in sorted(parts, key=lambda part: -sum(used[u] for u in part)):
            size = sum(used[u] for u in units_of)
            fitting = [i for i in range(len(free)) if left[i] >= len(units_of) and free[i] >= size]
            at = (
                min(fitting, key=free.__getitem__)
                if fitting
                else max(range(len(free)), key=lambda i: (left[i], free[i]))
            )
            free[at] -= size
            left[at] -= len(units_of)
            for unit in units_of:
                home[unit] = at
        return home

    def _slots_together(self, units: Ints, number: int) -> list[list[int]]:
        """Return the slots in parts: those that share a class are in one."""
        shared = nx.Graph()
        shared.add_nodes_from(range(number))
        first: dict[int, int] = {}
        for group, unit in together(self.arrays.group, units):
            if unit >= 0:
                shared.add_edge(first.setdefault(group, unit), unit)
        return list(map(list, nx.connected_components(shared)))

    def _placement(self, units: Ints, *, late: bool = False) -> tuple[Ints, Ints]:
        """(device, slot) of every op.

        In an order of slots and ops of the pool none waits for a later one; one that was left out
        goes where the last of those before it is, or, first of all if `late`, where the first of
        those behind it is.
        """
        p = self.problem
        device = np.full(p.num_ops, -1, np.int64)
        slot = np.zeros(p.num_ops, np.int64)
        pool = self._pools[0] if self._pools else self._accelerators[0]
        home = self._homes(units)
        for ops, unit in zip(self.nodes.ops, units.tolist(), strict=True):
            device[ops] = pool if unit < 0 else self._accelerators[home[unit]]
            if unit >= 0:  # in this order on every accelerator
                slot[ops] = home[:unit].count(home[unit])
        place = self._turns(units)
        order, graph = p.topological_order.tolist(), self._graph
        turns = (order, graph.predecessors, max), (order[::-1], graph.successors, min)
        for ops, near, nearest in turns[::-1] if late else turns:
            for v in ops:
                if v not in place and (beside := [u for u in near(v) if u in place]):
                    u = nearest(beside, key=place.__getitem__)
                    device[v], slot[v], place[v] = device[u], slot[u], place[u]
        device[(device < 0) | (p.compute[np.arange(p.num_ops), device] < 0)] = pool
        return device, slot

    def _turns(self, units: Ints) -> dict[int, int]:
        """Return the turn of every op that was not left out in an order of slots and ops of the
        pool.
        """
        n = len(units)
        number = np.where(units < 0, n + np.arange(n), units)
        ends = number[self._ends[self.arrays.edge_rule != UNRELATED]]
        order = nx.DiGraph()
        order.add_nodes_from(number.tolist())
        order.add_edges_from(ends[ends[:, 0] != ends[:, 1]].tolist())
        turn = positions(nx.topological_sort(order))
        return {
            v: turn[i] for i, ops in zip(number.tolist(), self.nodes.ops, strict=True) for v in ops
        }

    def _show(self, units: Ints, offer: Offer | None) -> None:
        """Offer the placement, with what was left out early and late."""
        if offer is not None:
            offer(*self._placement(units))
            offer(*self._placement(units, late=True))


def _by_halves(
    root: FlowBound, upper: Upper, offer: Offer | None = None, *, alone: bool = False
) -> Iterator[tuple[int, bool]]:
    """Yield the bound of a graph and whether a round is over: of the halves of its placements,
    halves of halves and so on, the one with the lowest bound comes next; or of the whole `alone`.
    """
    number, ended = itertools.count(), NO_VALUE
    waiting = [(root.lower, next(number), root, root.pieces(upper, offer))]
    while waiting:
        _, _, node, pieces = heappop(waiting)
        others, over = min(ended, waiting[0][0] if waiting else NO_VALUE), False
        for over in pieces:
            yield min(others, node.lower), over
            if over:
                break
        most = upper()
        closed = most is not None and node.lower >= most
        halves = [] if alone or most is None or closed else node.halves(most)
        for half in halves:
            heappush(waiting, (half.lower, next(number), half, half.pieces(upper, offer)))
        if over and not halves and not closed:
            heappush(waiting, (node.lower, next(number), node, pieces))
        elif not halves:
            ended = min(ended, node.lower)
    yield ended, False


def _by_turns(
    level: FlowBound, halves: Iterator[tuple[int, bool]], labels: Iterator[bool]
) -> Iterator[tuple[int, bool]]:
    """Yield rounds of the halves of a level and of its labels, as many of the former as an ideal
    has labels, until labels are exact or both have ended.
    """
    waiting = [(0, 0, halves), (0, 1, ((level.lower, over) for over in labels))]
    while waiting and not level.exact:
        (spent, number, found), over = heappop(waiting), False
        for bound, over in found:
            yield bound, over
            if over:
                break
        if over:
            heappush(waiting, (spent + (level.width if number else 1), number, found))


class Levels:
    """Bounds of ever finer graphs, and of the halves of the placements of one beside finer ones.

    Attributes
    ----------
    best : the best bound so far in ticks.
    """

    def __init__(self, upper: Upper, offer: Offer | None = None) -> None:
        self._upper, self._offer, self.best = upper, offer, 0
        self._halves: Iterator[tuple[int, bool]] | None = None  # those beside
        self._behind = self._each = 0.0  # work that they have not had, and that of a round

    def through(self, level: FlowBound, before: FlowBound | None, last: bool) -> Iterator[bool]:
        """Raise the bound by a level until it is to be left; yield whether a round is over."""
        effort, start, rounds = level.effort, self.best, 0
        halves, level.finest = _by_halves(level, self._upper, self._offer, alone=not last), last
        for over in self._raised(halves):
            yield over
            if last and level.parted:
                break
            if not over:
                continue
            rounds += 1
            if rounds == effort.finer and before is not None:
                self._compare(before, (self.best - start) * effort.dearer)
            yield from self._keep_up(_work(level))
            if not last and rounds >= effort.finer and level.gains_little(self._upper()):
                break
        if not last:
            yield from level.bury(self._upper)
        if level.parted:
            labels = level.labels(self._upper, self._offer)
            yield from self._raised(_by_turns(level, halves, labels))

    def _compare(self, before: FlowBound, gain: int) -> None:
        """Begin with the halves of the level before where a level gained little, else end them."""
        most = self._upper()
        if most is None or gain >= most - self.best:
            self._halves = None
        elif self._halves is None:
            self._halves = _by_halves(before, self._upper, self._offer)
            self._behind, self._each = 0.0, _work(before)

    def _keep_up(self, work: float) -> Iterator[bool]:
        """Go on with the halves beside until they have had as much work, or end."""
        self._behind += work
        while self._halves is not None and self._behind > 0:
            self._behind, over = self._behind - self._each, False
            for over in self._raised(self._halves):
                yield over
                if over:
                    break
            self._halves = self._halves if over else None

    def _raised(self, found: Iterator[tuple[int, bool]]) -> Iterator[bool]:
        for bound, over in found:
            self.best = max(self.best, bound)
            yield over


def _work(level: FlowBound) -> float:
    """Return about how long a round takes: see `Effort.dearer`, for the ideals that are left."""
    ideals, left = level.lattice.num_ideals, 1 - float(level.dead.mean())
    return float(left * ideals ** (np.log(level.effort.dearer) / np.log(level.effort.finer)))


def flow_bounds(
    problem: PlacementProblem,
    upper: Upper,
    offer: Offer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, bool]]:
    """Yield the best bound so far and whether a round is over, after every piece of work: on coarse
    graphs first, then on ever finer ones, and on the finest for ever smaller parts of the
    placements.

    Coarse graphs give bounds within a second, placements whose values cut the program of the finer
    ones short, and the flow and the cuts that the next level begins with. A level has
    `Effort.finer` times the ideals of the one before, and its rounds take `Effort.dearer` times as
    long. So it is left, after `finer` rounds, once flows can gain less than such a share of what
    they leave of the gap. Where its first rounds close less than such a share, the halves of the
    placements of the level before get as much work as it and those after it, until one closes more.

    Parameters
    ----------
    upper, offer : as for `FlowBound.run`. stop : ends the reduction of the graph.
    """
    effort, levels, before, last = FlowBound.effort, Levels(upper, offer), None, False
    ideals = effort.first_ideals
    while not last:
        flow = FlowBound(problem, max_ideals=min(ideals, effort.max_ideals), stop=stop)
        if before is not None:
            flow.begin_at(before)
        whole = flow.usable and len(flow.nodes.ops) == flow.most_nodes
        last = ideals >= effort.max_ideals or whole
        ideals *= effort.finer
        if flow.usable:
            for over in levels.through(flow, before, last):
                yield levels.best, over
            before = flow
    yield levels.best, True


def _in_turn(times: Ints, ops: list[int]) -> int:
    """Ticks of ops one after the other, -1 where some of them cannot run."""
    return -1 if (times[ops] < 0).any() else int(times[ops].sum())


@dataclass(frozen=True)
class Nodes:
    """The reduced graph: nodes in topological order, the ops that each stands for, the order, and
    the tensors.
    """

    ops: list[list[int]]
    pool_time: list[int]
    edges: list[tuple[int, int]]
    tensors: list[tuple[int, tuple[int, ...], int]]  # producer, consumers, ticks
    between: list[Between]


@dataclass(frozen=True)
class Between:
    """Ops that were left out: a slot with a node before them and one behind them holds them, too.

    Attributes
    ----------
    before, behind : nodes. time : ticks on an accelerator, -1 where they cannot run there.
    resident : bytes.
    """

    before: tuple[int, ...]
    behind: tuple[int, ...]
    time: int
    resident: int


class Charges:
    """Ticks that slots pay at least for tensors, while ops are left out one by one.

    A charge (u, H) of c ticks says: a slot with u pays c unless it holds all of H, and one without
    u pays c if it holds any of H. At first they are the tensors.

    To leave v out, each charge (u, H) of c with v in H and each charge (v, B) of b are joined to
    (u, H - v + B) by some amount: those from one charge add up to at most c, and those to one to at
    most b. What is left of c stays on (u, H - v). No slot S pays more than before. Let v be in S,
    and look at what was c. Where u is not in S, or something of H is not, S paid c and pays at most
    c now. Otherwise it pays what was joined to those B that are not all in S, for which it paid b.
    Let v not be in S. Where u is in S, or something of H is, S paid c; otherwise it pays what was
    joined to those B of which something is in S, for which it paid b.
    """

    def __init__(self, problem: PlacementProblem, io: Ints) -> None:
        self._ticks: dict[tuple[int, frozenset[int]], int] = {}
        self._of: list[set[frozenset[int]]] = [set() for _ in range(problem.num_ops)]
        self._into: list[set[tuple[int, frozenset[int]]]] = [set() for _ in range(problem.num_ops)]
        for t, u in enumerate(problem.producer.tolist()):
            self._add(u, frozenset(problem.readers_of(t)), int(io[t]))

    def loss(self, v: int) -> int:
        """Ticks that go unpaid where v is left out and its neighbours are apart."""
        comes = sum(self._ticks[charge] for charge in self._into[v])
        goes = sum(self._ticks[v, heads] for heads in self._of[v])
        return abs(comes - goes)

    def leave_out(self, v: int) -> set[int]:
        """Leave an op out and return those whose loss may be another now."""
        near = {u for u, _ in self._into[v]}.union(*self._of[v])
        left = {heads: self._take(v, heads) for heads in sorted(self._of[v], key=sorted)}
        for u, heads in sorted(self._into[v], key=lambda charge: (charge[0], sorted(charge[1]))):
            rest, others = self._take(u, heads), heads - {v}
            near |= others
            for behind, ticks in left.items():
                joined = min(rest, ticks)
                self._add(u, others | behind, joined)
                left[behind] -= joined
                rest -= joined
            self._add(u, others, rest)
        return near

    def all(self) -> list[tuple[int, frozenset[int], int]]:
        """Return the charges as (u, H, ticks)."""
        return [(u, heads, ticks) for (u, heads), ticks in self._ticks.items()]

    def between(self, node: dict[int, int]) -> list[tuple[int, tuple[int, ...], int]]:
        """Return the charges between nodes, given the node of every op: producer, consumers,
        ticks.
        """
        paid: Counter[tuple[int, tuple[int, ...]]] = Counter()
        for u, heads, ticks in self.all():
            behind = tuple(sorted({node[v] for v in heads} - {node[u]}))
            if behind:
                paid[node[u], behind] += ticks
        return sorted((u, heads, ticks) for (u, heads), ticks in paid.items())

    def _add(self, u: int, heads: frozenset[int], ticks: int) -> None:
        if ticks and heads:
            self._ticks[u, heads] = self._ticks.get((u, heads), 0) + ticks
            self._of[u].add(heads)
            for v in heads:
                self._into[v].add((u, heads))

    def _take(self, u: int, heads: frozenset[int]) -> int:
        self._of[u].discard(heads)
        for v in heads:
            self._into[v].discard((u, heads))
        return self._ticks.pop((u, heads))


@dataclass(eq=False)
class Reduction:
    """What decides which ops are kept and merged.

    Attributes
    ----------
    slot_time, pool_time : ticks of every op on the fastest accelerator and in the fastest pool, -1
    where it runs on none.
    io : ticks of every tensor between an accelerator and the host at least.
    most_nodes : of the first graph that was tried, which has only free ends left out.
    on_path : an op on a longest path, where most of the flow goes, hides so many times what it does
    elsewhere. Of 1, 10 and 100, chosen on families of results/engine that choices are made on:
    bounds after 11 s are 2.4 % higher with 10 than with 1 in the mean, and 1 % more with 100
    (results/engine).
    """

    on_path = 100

    problem: PlacementProblem
    slot_time: Ints
    pool_time: Ints
    io: Ints

    def __post_init__(self) -> None:
        self.graph = _op_graph(self.problem, range(self.problem.num_ops))
        self.most_nodes = 0
        self._longest = self._longest_path()
        self._beside = self._ops_beside()

    def reduce(self, max_ideals: int, stop: Callable[[], bool]) -> tuple[Nodes, Lattice] | None:
        """Return the reduced graph with its ideals, or None if even two ops have too many, or at a
        stop.

        Ops are left out a twelfth at a time until the ideals are few enough; then as few of the
        last twelfth as will do.
        """
        kept = self._without_idle_ends()
        gone = sorted(set(range(self.problem.num_ops)) - kept)  # in the order of leaving
        found: tuple[Nodes, Lattice] | None = None
        charges, least = self._charges(gone), len(gone)
        losses = [(self._worth(v, charges), v) for v in kept]
        heapify(losses)
        while not stop() and (found := self._within(kept, charges, max_ideals)) is None:
            step, least = max(1, len(kept) // 12), len(gone)
            if len(kept) - step < 2:
                return None
            gone += self._leave_out(step, kept, charges, losses)
        while len(gone) - least > 1 and not stop():
            middle = (least + len(gone)) // 2
            kept = set(range(self.problem.num_ops)) - set(gone[:middle])
            finer = self._within(kept, self._charges(gone[:middle]), max_ideals)
            if finer is None:
                least = middle
            else:
                found, gone = finer, gone[:middle]
        return found

    def _charges(self, gone: list[int]) -> Charges:
        """Return the charges once ops are left out in this order."""
        charges = Charges(self.problem, self.io)
        for v in gone:
            charges.leave_out(v)
        return charges

    def _within(
        self, kept: set[int], charges: Charges, max_ideals: int
    ) -> tuple[Nodes, Lattice] | None:
        """Return the graph of the ops `kept` with its ideals, None if there are more."""
        nodes = self._nodes(kept, charges)
        n = len(nodes.ops)
        self.most_nodes = max(self.most_nodes, n)
        edges = as_pairs(nodes.edges)
        lattice = ideal_lattice(n, edges[:, 0], edges[:, 1], limit=max_ideals)
        return None if lattice is None else (nodes, lattice)

    def _leave_out(
        self, number: int, kept: set[int], charges: Charges, losses: list[tuple[float, int]]
    ) -> list[int]:
        """Leave out and return so many ops that are worth least; `losses` is a heap that may hold
        old ones.
        """
        gone: list[int] = []
        while len(gone) < number:
            worth, v = heappop(losses)
            if v in kept and worth == self._worth(v, charges):
                kept.remove(v)
                gone.append(v)
                for w in sorted(kept & charges.leave_out(v)):
                    heappush(losses, (self._worth(w, charges), w))
        return gone

    def _worth(self, v: int, charges: Charges) -> float:
        """Ticks that leaving an op out can hide, per op that can be beside it: with each there are
        more ideals.
        """
        return self._loss(v, charges) / (1 + self._beside[v])

    def _loss(self, v: int, charges: Charges) -> int:
        """Ticks that leaving an op out can hide: its own, and what its neighbours pay no more; on
        a longest path they count more.
        """
        lost = int(self.problem.min_compute[v]) + charges.loss(v)
        return lost * self.on_path if v in self._longest else lost

    def _longest_path(self) -> set[int]:
        """Return the ops of a path that takes longest at the fastest times."""
        time, source = self.problem.min_compute.tolist(), -1
        timed = nx.DiGraph()
        timed.add_weighted_edges_from((u, v, time[v]) for u, v in self.graph.edges)
        timed.add_weighted_edges_from((source, v, time[v]) for v in self.graph)
        order = [source, *self.problem.topological_order.tolist()]
        return set(nx.dag_longest_path(timed, topo_order=order)) - {source}

    def _ops_beside(self) -> list[int]:
        """Return for every op how many others are neither before nor behind it."""
        order = self.problem.topological_order.tolist()
        ordered = [0] * len(order)
        for turn, near in ((order, self.graph.predecessors), (order[::-1], self.graph.successors)):
            reached = [0] * len(order)  # bits of the op and all on that side of it
            for v in turn:
                reached[v] = 1 << v
                for u in near(v):
                    reached[v] |= reached[u]
                ordered[v] += reached[v].bit_count() - 1
        return [len(order) - 1 - number for number in ordered]

    def _without_idle_ends(self) -> set[int]:
        """Ops without those at either end of the graph that take no time and whose tensors cost
        nothing.
        """
        p = self.problem
        free = (self.slot_time <= 0) & (self.pool_time == 0)
        silent = free.copy()
        silent[p.producer[self.io > 0]] = False
        kept = set(range(p.num_ops))
        for v in reversed(p.topological_order.tolist()):
            if free[v] and kept.isdisjoint(self.graph.successors(v)):
                kept.discard(v)
        for v in p.topological_order.tolist():
            if silent[v] and kept.isdisjoint(self.graph.predecessors(v)):
                kept.discard(v)
        return kept if len(kept) > 1 else set(range(p.num_ops))

    def _nodes(self, kept: set[int], charges: Charges) -> Nodes:
        """Return the reduced graph of the ops `kept`."""
        p = self.problem
        graph = _op_graph(p, kept)
        group, members = self._merge_classes(graph)
        position = np.argsort(p.topological_order)
        merged = nx.DiGraph()
        merged.add_nodes_from(members)
        merged.add_edges_from((group[u], group[v]) for u, v in graph.edges if group[u] != group[v])
        order = list(nx.lexicographical_topological_sort(merged, key=position.__getitem__))
        number = positions(order)
        node = {v: number[g] for v, g in group.items()}
        return Nodes(
            [sorted(members[g]) for g in order],
            [self._group_pool_time(graph, members[g]) for g in order],
            sorted((number[u], number[v]) for u, v in merged.edges),
            charges.between(node),
            self._between(kept, node),
        )

    def _between(self, kept: set[int], node: dict[int, int]) -> list[Between]:
        """Return what was left out between nodes, ops between the same ones together."""
        p = self.problem
        (before, predecessor, _), (behind, successor, _) = p.predecessors, p.successors
        order = p.topological_order.tolist()
        first = _nearest(order, before, predecessor, node)
        last = _nearest(order[::-1], behind, successor, node)
        found = by_key(
            ((tuple(sorted(first[v])), tuple(sorted(last[v]))), v)
            for v in order
            if v not in kept and first[v] and last[v] and not first[v] & last[v]
        )
        return [
            Between(*ends, _in_turn(self.slot_time, ops), int(p.resident[ops].sum()))
            for ends, ops in found.items()
        ]

    def _merge_classes(self, graph: nx.DiGraph) -> tuple[dict[int, int], dict[int, list[int]]]:
        """Merge neighbours of one class where one only follows, or only feeds, the other; return
        the node of every op, and the ops of every node.

        Either both are in one slot, or both are in the pool, where the one can be next to the other
        in every order; every way in must reach every way out, or the node would order what the ops
        do not. With several slots an accelerator's class may sit in several of them, so only
        weights join: first ops that take no time and feed one other only, which cost nothing in
        that one's slot.
        """
        group, members = dict(zip(graph, graph, strict=True)), {v: [v] for v in graph}
        colour = self.problem.units.head
        again = True
        while again:
            again = False
            for u, v in list(graph.edges):
                a, b = group[u], group[v]
                if a == b or colour[u] != colour[v] or len(members[a]) + len(members[b]) > 64:
                    continue
                if self._may_merge(graph, group, members, a, b):
                    group.update(dict.fromkeys(members[b], a))
                    members[a] += members.pop(b)
                    again = True
        return group, members

    def _may_merge(
        self,
        graph: nx.DiGraph,
        group: dict[int, int],
        members: dict[int, list[int]],
        a: int,
        b: int,
    ) -> bool:
        """Whether the node b can become a part of a, which feeds it."""
        before_b = {group[x] for x, _ in graph.in_edges(members[b])} - {b}
        after_a = {group[x] for _, x in graph.out_edges(members[a])} - {a}
        if self.problem.slots > 1:
            weight = len(members[a]) == 1 and not self.slot_time[a] and not graph.in_degree(a)
            joins = weight and after_a == {b}
        else:
            joins = before_b == {a} or after_a == {b}
        both = members[a] + members[b]
        return joins and _crossing_time(graph, both, dict.fromkeys(both, 0)) is not None

    def _group_pool_time(self, graph: nx.DiGraph, ops: list[int]) -> int:
        """Ticks that any path through the node takes in the pool, -1 if some op cannot run
        there.
        """
        times = {v: int(self.pool_time[v]) for v in ops}
        if min(times.values()) < 0:
            return -1
        if len(ops) == 1:
            return times[ops[0]]
        return _crossing_time(graph, ops, times) or 0


def _nearest(order: list[int], ptr: Ints, near: Ints, node: dict[int, int]) -> list[set[int]]:
    """Return per op the first nodes on its paths backwards, where `near` are its neighbours there
    and `order` begins with the ops that have none.
    """
    found: list[set[int]] = [set() for _ in order]
    for v in order:
        for u in row_at(near, ptr, v).tolist():
            found[v] |= {node[u]} if u in node else found[u]
    return found


def _op_graph(problem: PlacementProblem, ops: Iterable[int]) -> nx.DiGraph:
    """Return the order of the ops `ops`; those left out hand their order on."""
    kept = set(ops)
    graph = nx.DiGraph()
    graph.add_nodes_from(kept)
    ptr, successor, _ = problem.successors
    after: dict[int, set[int]] = {}  # kept ops right after an op that was left out
    for u in reversed(problem.topological_order.tolist()):
        heads: set[int] = set()
        for v in row_at(successor, ptr, u).tolist():
            heads |= {v} if v in kept else after[v]
        if u in kept:
            graph.add_edges_from((u, v) for v in heads)
        else:
            after[u] = heads
    return graph


def _crossing_time(graph: nx.DiGraph, ops: list[int], times: dict[int, int]) -> int | None:
    """Smallest longest time from an op with a predecessor outside to one with a successor outside.

    None if some way in does not reach some way out. Without ways in (out), the first (last) ops of
    the group count.
    """
    part = graph.subgraph(ops)
    entries = _open_ends(ops, graph.predecessors, part.in_degree)
    exits = _open_ends(ops, graph.successors, part.out_degree)
    order = list(nx.topological_sort(part))
    longest = [_longest_from(part, order, entry, times) for entry in entries]
    if not all(reach.keys() >= set(exits) for reach in longest):
        return None
    return min(reach[last] for reach in longest for last in exits)


def _open_ends(
    ops: list[int], near: Callable[[int], Iterable[int]], degree: Callable[[int], int]
) -> list[int]:
    """Return the ops with neighbours outside; where there are none, those without any inside."""
    inside = set(ops)
    ends = [v for v in ops if not inside.issuperset(near(v))]
    return ends or [v for v in ops if degree(v) == 0]


def _longest_from(
    part: nx.DiGraph, order: list[int], entry: int, times: dict[int, int]
) -> dict[int, int]:
    """Return the longest time from the start of one node to the end of each that it reaches."""
    reach = {entry: times[entry]}
    for v in order:
        for w in part.successors(v) if v in reach else ():
            reach[w] = max(reach.get(w, 0), reach[v] + times[w])
    return reach
