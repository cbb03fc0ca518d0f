"""First incumbent for the period models: the given start, pipelines by dynamic programming,
annealing.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.ideals import ideal_lattice
from placeopt.model.objective import INFEASIBLE
from placeopt.model.placement import Placement
from placeopt.period.contracted import contract
from placeopt.period.evaluate import period_batch
from placeopt.solvers.exact.chain_search import best_chain
from placeopt.solvers.exact.ideal_program import IdealProgram, stage_devices
from placeopt.solvers.exact.linear_dp import search_orders
from placeopt.solvers.exact.period_local_search import anneal_period

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placeopt.period.contracted import ContractedProblem
    from placeopt.solving.tracker import Tracker

_ORDERS, _MAX_IDEALS, _CYCLES, _MAX_NODES = 4, 60_000, 6, 2_000
_SHARE, _MOST_SECONDS = 0.15, 60.0
_TURN_SECONDS = 3.0
_FEW_CHOICES = 100  # nodes times devices up to which a few cycles are enough whatever the time


def warm_seconds(tracker: Tracker[Placement]) -> float:
    """Time for a warm start: a share of a limited budget, infinity (a fixed number of cycles) of an
    unlimited one.
    """
    left = tracker.seconds_left
    return left if np.isinf(left) else min(_MOST_SECONDS, _SHARE * left)


def enough_cycles(seconds: float, choices: int, cycles: int) -> int | None:
    """`cycles` where they are the limit, None where the time is."""
    return cycles if np.isinf(seconds) or choices <= _FEW_CHOICES else None


def warm_start(tracker: Tracker[Placement], *, seconds: float, ideals: bool = True) -> None:
    """Offer good placements to `tracker` within about `seconds`.

    Parameters
    ----------
    ideals : also run the program over all ideals, when they are few (never for `chain`: there it
    would be
        the whole answer, and a model that starts from it proves nothing by itself).
    """
    problem = tracker.problem
    deadline = tracker.elapsed + seconds

    def stop() -> bool:
        return tracker.elapsed >= deadline or tracker.stop()

    free = contract(problem, contiguity="none")
    try:
        chain: ContractedProblem | None = contract(problem, contiguity="chain")
    except InfeasibleProblemError:
        chain = None  # fused cycles fit no device: there is no chain, but perhaps something else
    if chain is not None and chain.num_nodes <= _MAX_NODES:
        search_orders(tracker, chain, _ORDERS)
        if ideals and problem.contiguity != "chain" and not stop():
            _all_ideals(tracker, chain, stop)
    if (
        problem.contiguity == "none"
        and not stop()
        and free.num_nodes > 1
        and problem.num_devices > 1
    ):
        cycles = enough_cycles(seconds, free.num_nodes * problem.num_devices, _CYCLES)
        _anneal(tracker, free, stop, cycles)


def improve(
    tracker: Tracker[Placement],
    *,
    seconds: float,
    salt: int = 0,
    walks: int = 2,
    done: Callable[[], bool] = lambda: False,
) -> None:
    """Anneal again and again for `seconds` in all, each time from the incumbent with short cycles
    first.

    Only for `none`, where annealing works on the contracted problem. A fresh start of the cycles
    finds more than ever longer ones. `walks` of them run at the same time, on threads.

    Parameters
    ----------
    salt : added to the seed, so that calls differ.
    done : asked between rounds; they end when it answers True.
    """
    problem = tracker.problem
    if problem.contiguity != "none" or problem.num_devices < 2:
        return
    end, turn = tracker.elapsed + seconds, 0
    with ThreadPoolExecutor(walks) as pool:
        while (
            tracker.solution is not None
            and tracker.elapsed < end
            and not tracker.stop()
            and not done()
        ):
            turn += 1
            model, first = _incumbent(tracker)
            if model.num_nodes < 2:
                return
            walk = partial(_walk, tracker, model, first, min(end, tracker.elapsed + _TURN_SECONDS))
            found = pool.map(
                walk, [tracker.seed + salt + 1000 * (walks * turn + i) for i in range(walks)]
            )
            tracker.count(walks)
            ticks, device = min(found, key=lambda pair: pair[0])
            if int(period_batch(problem, device[None, :])[0]) < INFEASIBLE:
                tracker.offer(ticks, Placement(device))


def _incumbent(tracker: Tracker[Placement]) -> tuple[ContractedProblem, NDArray[np.int64]]:
    """Return the problem contracted for what beats the incumbent, and the incumbent's device of
    every node.
    """
    assert tracker.solution is not None
    model = contract(tracker.problem, contiguity="none", limit=tracker.value)
    device = np.zeros(model.num_nodes, dtype=np.int64)
    device[model.node] = tracker.solution.device
    return model, device


def _walk(
    tracker: Tracker[Placement],
    model: ContractedProblem,
    first: NDArray[np.int64],
    end: float,
    seed: int,
) -> tuple[int, NDArray[np.int64]]:
    """Anneal from the incumbent until `end`; return the best (ticks, device of every op)."""
    assert tracker.value is not None
    found = [(tracker.value, first)]
    anneal_period(
        model,
        first,
        tracker.value,
        lower_bound=tracker.lower_bound,
        seed=seed,
        cycles=None,
        stop=lambda: tracker.elapsed >= end,
        offer=lambda ticks, device: found.append((ticks, device)),
    )
    ticks, device = found[-1]
    return ticks, model.expand(device)


def _all_ideals(tracker: Tracker[Placement], chain: ContractedProblem, stop) -> None:  # type: ignore[no-untyped-def]
    lattice = ideal_lattice(chain.num_nodes, chain.order_from, chain.order_to, limit=_MAX_IDEALS)
    if lattice is not None:
        outcome = best_chain(IdealProgram(chain, lattice), tracker.value, stop)
        tracker.count()
        if outcome.value is not None:
            tracker.offer(outcome.value, Placement(stage_devices(chain, outcome.stages)[0]))


def _anneal(
    tracker: Tracker[Placement],
    model: ContractedProblem,
    stop: Any,
    cycles: int | None,
) -> None:
    problem = tracker.problem
    if tracker.solution is None:
        device = _balanced(model)
        value = int(model.total.max(axis=1).sum()) + 2 * int(model.weight.sum()) + 1
    else:
        model, device = _incumbent(tracker)
        value = int(tracker.value)  # type: ignore[arg-type]

    def offer(ticks: int, node_device: NDArray[np.int64]) -> None:
        found = Placement(model.expand(node_device))
        if int(period_batch(problem, found.device[None, :])[0]) < INFEASIBLE:
            tracker.offer(ticks, found)

    def counting_stop() -> bool:
        tracker.count()
        return stop()

    anneal_period(
        model,
        device,
        value,
        lower_bound=tracker.lower_bound,
        seed=tracker.seed,
        cycles=cycles,
        stop=counting_stop,
        offer=offer,
    )


def _balanced(model: ContractedProblem) -> NDArray[np.int64]:
    """Give nodes, the largest bytes first, to the compatible device with the most free memory
    left.
    """
    type_of = {d: g for g, devices in enumerate(model.types) for d in devices}
    free = [int(model.capacity[type_of[d]]) for d in sorted(type_of)]
    device = np.zeros(model.num_nodes, dtype=np.int64)
    for v in np.argsort(-model.resident, kind="stable").tolist():
        best = max(
            (d for d in type_of if model.allowed[v, type_of[d]]), key=lambda d: (free[d], -d)
        )
        device[v] = best
        free[best] -= int(model.resident[v])
    return device
