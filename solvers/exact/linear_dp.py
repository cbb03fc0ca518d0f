"""`linear-dp`: the dynamic program over the prefixes of topological orders (DPL).

`ideal_program` on a total order has n + 1 ideals instead of exponentially many. It finds the best
pipeline whose stages are consecutive in that order; over several orders the best one is
kept. The first order follows branches depth first, the others are random.

References
----------
J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, section 5.1.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from placeopt.model.arrays import Floats, Ints, by_number, together, true_places
from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.ideals import linear_lattice
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.period.bounds import period_bounds
from placeopt.period.contracted import ContractedProblem, contract
from placeopt.period.evaluate import order_edges, period_batch
from placeopt.solvers.exact.ideal_program import (
    MAX_CELLS,
    ChainOutcome,
    IdealProgram,
    best_chain,
    coarse_enough,
    stage_devices,
    states_along,
)
from placeopt.solving.base import SearchSolver
from placeopt.solving.options import option
from placeopt.solving.tracker import PlacementTracker


class ChainSearch(SearchSolver):
    """What searches for chains of stages share: the best pipeline along a few orders comes first;
    of large graphs nodes are joined for that, so that it takes no more than seconds.

    Attributes
    ----------
    orders : topological orders that are tried, an option of every subclass.
    """

    kernels = ("period-dp",)
    orders: int

    def search(self, problem: PlacementProblem, tracker: PlacementTracker) -> None:
        """Keep the best pipeline along the tried orders, then go on from it."""
        model = chain_model(tracker)
        if model is None:
            return
        for _ in search_orders(tracker, model.coarse(math.isqrt(MAX_CELLS)), self.orders):
            pass
        raise_bounds(tracker)
        if not tracker.stop():
            self.go_on(tracker, model)

    def go_on(self, tracker: PlacementTracker, model: ContractedProblem) -> None:
        """Nothing is left to do, unless a subclass knows better."""


QUICK = 2**8
"""States up to which the first answer is worth any time limit; every further one has to keep it."""


@dataclass(frozen=True)
class LinearDp(ChainSearch):
    """Best pipeline along topological orders; a chain is feasible for every contiguity."""

    orders: int = option(4, "orders tried; the first is fixed, the rest come from the seed", low=1)


def chain_model(tracker: PlacementTracker) -> ContractedProblem | None:
    """Contract the tracker's problem for chains; None, with the reason recorded, where there is no
    chain.
    """
    try:
        return contract(tracker.problem, contiguity="chain")
    except InfeasibleProblemError as error:
        if tracker.problem.contiguity == "chain":
            tracker.infeasible(str(error))
        else:
            tracker.message = f"no chain: {error}"
    return None


def raise_bounds(tracker: PlacementTracker) -> None:
    """Record the bounds of the tracker's problem that take milliseconds."""
    for method, value in period_bounds(tracker.problem, 0.0, ("op", "pigeonhole")):
        tracker.raise_bound(value, method)


def search_orders(
    tracker: PlacementTracker, model: ContractedProblem, orders: int = 4
) -> Iterator[None]:
    """Offer the best pipeline along each of `orders` topological orders of a contracted `chain`
    model, one per step; along the first one, joined nodes and few states of the devices come first
    where a pass over all takes longer than a second.
    """
    few = min(QUICK, states_along(model, least=model.problem.num_devices + 1))
    first = (few, QUICK) if few < math.prod((model.type_counts + 1).tolist()) <= QUICK else (few,)
    joined = coarse_enough(model)
    if joined is not model:
        _search_along(tracker, joined, np.arange(joined.num_nodes), few)
        yield
    for index, order in enumerate(_orders(model, orders, tracker.rng())):
        for states in (states_along(model),) if index else first:
            if tracker.evaluations > 0 and tracker.stop():
                return
            _search_along(tracker, model, order, states)
            yield


def _search_along(
    tracker: PlacementTracker,
    model: ContractedProblem,
    order: Ints,
    states: int,
    sequence: Ints | None = None,
) -> None:
    """Offer the best pipeline along one order.

    Parameters
    ----------
    states, sequence : most states, and types of the devices in an order, see `IdealProgram`.
    """
    along, lattice = model.renumbered(order), linear_lattice(model.num_nodes)
    program = IdealProgram(along, lattice, most_states=states, sequence=sequence)
    tracker.count()
    small = len(program.arrays.digit) <= QUICK
    stop = None if small and tracker.value is None else tracker.stop
    offer_stages(tracker, along, best_chain(program, tracker.value, stop))


def order_by(model: ContractedProblem, keys: Floats | Ints) -> Ints:
    """Return the topological order that takes the node of the least key among those that are
    ready.
    """
    import networkx as nx

    order = nx.lexicographical_topological_sort(model.order_graph, lambda v: keys[v])
    return np.array(list(order), np.int64)


def chain_positions(
    problem: PlacementProblem, device: Ints, generator: np.random.Generator
) -> Ints:
    """Position of every device in a random pipeline order of a feasible chain."""
    source, target = order_edges(problem, "chain")
    k = problem.num_devices
    edge = np.zeros((k, k), np.bool_)
    edge[device[source], device[target]] = True
    np.fill_diagonal(edge, False)
    position = np.full(k, -1, np.int64)
    for rank in range(k):
        left = position < 0
        position[generator.choice(np.flatnonzero(left & ~edge[left].any(axis=0)))] = rank
    return position


def improve_orders(
    tracker: PlacementTracker, model: ContractedProblem, generator: np.random.Generator
) -> Iterator[None]:
    """Offer the best pipelines along orders of nodes and of devices near the incumbent of a chain,
    one per step, without end.
    """
    of_devices = generator.spawn(1)[0]

    def known() -> tuple[Ints, Ints] | None:
        if tracker.solution is None:
            return None
        device = tracker.solution.device
        place = chain_positions(tracker.problem, device, of_devices)
        return place[model.node_devices(device)], place

    for order, sequence in orders_near(model, known, generator, of_devices):
        _search_along(tracker, model, order, states_along(model), sequence)
        yield


def devices_near(place: Ints, generator: np.random.Generator) -> Ints:
    """Return the devices in an order near that of a chain: k^u of the k are moved, by k^w places (u
    and w as in `orders_near`).
    """
    k, keys = len(place), place.astype(np.float64)
    moved = generator.choice(k, round(k ** generator.random()), replace=False)
    keys[moved] += k ** generator.uniform(-1, 1) * generator.standard_normal(len(moved))
    return np.argsort(keys)


def orders_near(
    model: ContractedProblem,
    known: Callable[[], tuple[Ints, Ints] | None],
    generator: np.random.Generator,
    of_devices: np.random.Generator,
) -> Iterator[tuple[Ints, Ints | None]]:
    """Yield topological orders of the nodes near those of a chain, each with the types of the
    devices in an order near the chain's, without end; while there is none, any order, and None.

    Nodes are ordered by their stage, but some are moved: n^u of n nodes, by k^w of k stages, since
    it is not known at what scale the chain can be improved (u uniform in [0, 1], w in [-1, 1]).
    By turns they are any nodes, each with a normal distance of its own, or neighbours in the graph,
    which move together.

    Parameters
    ----------
    known : asked each time for the stages of every node and of every device, None without a chain.
    generator, of_devices : for the orders of nodes, and of devices.
    """
    beside = _neighbours(model)
    together = False
    while True:
        keys, sequence = generator.standard_normal(model.num_nodes), None
        if (chain := known()) is not None:
            stage, place = chain
            sequence = model.type_of[devices_near(place, of_devices)]
            count = round(model.num_nodes ** generator.random())
            far = float(stage.max() + 1) ** generator.uniform(-1, 1)
            keys /= 1e3 * len(keys)  # breaks ties at random and is far below any distance
            moved = (
                _connected(beside, count, generator)
                if together
                else generator.choice(model.num_nodes, count, replace=False)
            )
            keys[moved] += far * generator.standard_normal(1 if together else count)
            keys += stage
            together = not together
        yield order_by(model, keys), sequence


def _neighbours(model: ContractedProblem) -> list[list[int]]:
    """Return the nodes that share an order edge with every node."""
    edges = together(model.order_from, model.order_to)
    return by_number(model.num_nodes, (end for u, v in edges for end in ((u, v), (v, u))))


def _connected(beside: list[list[int]], count: int, generator: np.random.Generator) -> Ints:
    """Return up to `count` nodes that a random growth from a random node reaches."""
    open_ = [int(generator.integers(len(beside)))]
    found = set(open_)
    while open_ and len(found) < count:
        u = open_.pop(int(generator.integers(len(open_))))
        new = [v for v in beside[u] if v not in found][: count - len(found)]
        found.update(new)
        open_ += new
    return np.array(sorted(found))


def offer_devices(tracker: PlacementTracker, device: Ints) -> bool:
    """Offer a placement, the device of every op, if it is feasible; return whether it is."""
    ticks = int(period_batch(tracker.problem, device[None, :])[0])
    if ticks < INFEASIBLE:
        tracker.offer(ticks, Placement(device))
    return ticks < INFEASIBLE


def accelerator_type(model: ContractedProblem) -> int:
    """Return the most numerous type of device that can run most nodes: the accelerators of a
    problem with both.
    """
    return max(
        range(model.num_types),
        key=lambda g: (len(model.types[g]), int(model.allowed[:, g].sum()), -g),
    )


def offer_parts(tracker: PlacementTracker, model: ContractedProblem, part: Ints, kind: int) -> bool:
    """Offer the split that puts part p of the nodes on the p-th device of a type; return whether it
    is valid.
    """
    device = np.asarray(model.types[kind])[part][model.node]
    tracker.count()
    return offer_devices(tracker, device)


def offer_stages(
    tracker: PlacementTracker, model: ContractedProblem, outcome: ChainOutcome
) -> None:
    """Offer the chain that a search found, if it found one."""
    if outcome.value is not None:
        tracker.offer(outcome.value, Placement(stage_devices(model, outcome.stages)[0]))


def _orders(model: ContractedProblem, count: int, generator: np.random.Generator) -> Iterator[Ints]:
    yield np.arange(model.num_nodes)
    for _ in range(count - 1):
        waiting = np.bincount(model.order_to, minlength=model.num_nodes)
        ready = true_places(waiting == 0)
        order = []
        while ready:
            # Half of the time stay on the branch that is open, so that orders are not all breadth
            # first.
            at = len(ready) - 1 if generator.random() < 0.5 else int(generator.integers(len(ready)))
            u = ready.pop(at)
            order.append(u)
            waiting[model.successors[u]] -= 1
            ready += [v for v in model.successors[u] if waiting[v] == 0]
        yield np.array(order, np.int64)
