"""The judge of a placement under the period: every violation in words.

Plain Python, with edges of its own, so that kernels and judge can be held against each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any

from placeopt.makespan.judge import placement_violations
from placeopt.model.arrays import positions
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem


def period_violations(problem: PlacementProblem, placement: Placement) -> list[str]:
    """List in words every constraint that `placement` breaks; empty if it is feasible."""
    found = placement_violations(problem, placement)
    device = placement.device.tolist()
    if len(device) != problem.num_ops or not all(0 <= d < problem.num_devices for d in device):
        return found
    if problem.contiguity == "chain":
        found.extend(_chain_violations(problem, device))
    elif problem.contiguity == "convex":
        found.extend(_convex_violations(problem, device))
    return found


def ordered_pairs(problem: PlacementProblem) -> list[tuple[int, int]]:
    """Pairs of ops that the contiguity speaks about: edges between forward ops, for `chain` also
    mirrored ones of orphans.
    """
    backward, group = problem.backward.tolist(), problem.colocation.tolist()
    grouped = problem.colocation >= 0
    with_forward = set(problem.colocation[grouped & ~problem.backward].tolist())
    pairs = []
    for t, u in enumerate(problem.producer.tolist()):
        for v in problem.readers_of(t):
            if not backward[u] and not backward[v]:
                pairs.append((u, v))
            elif (
                problem.contiguity == "chain"
                and backward[u]
                and backward[v]
                and not {group[u], group[v]} <= with_forward
            ):
                pairs.append((v, u))
    return pairs


def wait_forever(before: Mapping[Any, Collection[Any]]) -> set[Any]:
    """Return what is left when all that waits for nothing is taken away, again and again."""
    left, order = set(before), TopologicalSorter(before)
    with suppress(CycleError):  # what waits for no circle is taken away all the same
        order.prepare()
    while free := order.get_ready():
        order.done(*free)
        left.difference_update(free)
    return left


def _chain_violations(problem: PlacementProblem, device: list[int]) -> list[str]:
    before: dict[int, set[int]] = {d: set() for d in range(problem.num_devices)}
    for u, v in ordered_pairs(problem):
        if device[u] != device[v]:
            before[device[v]].add(device[u])
    on_cycle = ", ".join(f"'{problem.device_names[d]}'" for d in sorted(wait_forever(before)))
    if not on_cycle:
        return []
    return [
        f"contiguity 'chain': devices {on_cycle} feed each other in a cycle, so they form no "
        "pipeline"
    ]


def _convex_violations(problem: PlacementProblem, device: list[int]) -> list[str]:
    position = positions(problem.topological_order.tolist())
    left: list[set[int]] = [
        set() for _ in range(problem.num_ops)
    ]  # devices that a path to the op has left
    for u, v in sorted(ordered_pairs(problem), key=lambda pair: position[pair[0]]):
        left[v] |= left[u]
        if device[u] != device[v]:
            left[v].add(device[u])
    return [
        f"contiguity 'convex': a path leaves device '{problem.device_names[device[v]]}' and "
        f"re-enters it at op '{problem.op_names[v]}'"
        for v in range(problem.num_ops)
        if device[v] in left[v]
    ]
