"""The families of the attack: a seed of a family is one small problem, and everything the package
says of it is compared.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import brute_force
import compare
import family_lanes
import family_parts
import family_pipeline
import family_prices
import family_proof
import family_series
import family_sharding
import family_slots
import family_split
from case import NO_LIMIT, draw
from deep_bounds import deep_bounds
from limits import clock
from test_segments import draw_fork

from placeopt.makespan.bounds import METHODS
from placeopt.model.errors import InfeasibleProblemError, InputError
from placeopt.model.objective import objective_of

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Outcome:
    """What the attack on one problem found."""

    feasible: bool
    differences: list[str] = field(default_factory=list)


def attack_makespan(seed: int) -> Outcome:
    """Attack a makespan as ever, some with peak memory and five ops, parts in series, forks and
    joins, or times that are nearly multiples of one.
    """
    rng = random.Random(seed)
    case, kind = draw(rng, "makespan"), rng.random()
    if kind < 0.1:
        case = _five_ops(rng)
    elif kind < 0.15:
        case = _series(rng)
    elif kind < 0.3:
        case = draw_fork(rng)
    elif kind < 0.4:
        _on_grid(case, rng)
    if rng.random() < 0.1:
        _forbid(case, rng)
    return _placement(case, rng)


def _series(rng: random.Random):
    """Return a case of two parts of three ops, each op of the first before each of the second."""
    case = draw(rng, "makespan")
    while case.num_ops != 4 or case.num_devices != 2:
        case = draw(rng, "makespan")
    top = rng.choice([3, 20])
    case.compute = [[rng.randint(0, top) for _ in range(2)] for _ in range(6)]
    if rng.random() < 0.5:
        case.compute = [[row[0]] * 2 for row in case.compute]
    inner = [(u, v) for u in range(3) for v in range(u + 1, 3) if rng.random() < 0.5]
    readers: list[list[int]] = [[3, 4, 5] for _ in range(3)]
    for u, v in inner:
        readers[u].append(v)
    later = [(u + 3, [v + 3]) for u, v in inner]
    case.producer = [0, 1, 2, *(u for u, _ in later)]
    case.consumers = [*(sorted(row) for row in readers), *(row for _, row in later)]
    classes = 1 + max(map(max, case.link_class))
    case.transfer = [[rng.randint(0, top) for _ in range(classes)] for _ in case.producer]
    case.channel, case.memory, case.capacity = [[-1, -1]] * 2, "static", [NO_LIMIT] * 2
    case.resident, case.tensor_bytes = [0] * 6, [0] * len(case.producer)
    case.colocation, case.backward = [-1] * 6, [False] * 6
    return case


def _on_grid(case, rng: random.Random) -> None:
    """Make all times multiples of one, or a little more."""
    unit, more = rng.choice([7, 1000, 2**20]), rng.choice([0, 1, 3])
    for rows in (case.compute, case.transfer):
        for row in rows:
            row[:] = [x * unit + rng.randint(0, more) if 0 < x < 2**30 else x for x in row]


def _forbid(case, rng: random.Random) -> None:
    """Make devices of colocated ops incompatible, such that an op has one left."""
    case.colocation = [rng.choice([-1, 0, 0, 1]) for _ in range(case.num_ops)]
    for row in case.compute:
        keep = rng.randrange(case.num_devices)
        row[:] = [x if d == keep or rng.random() < 0.7 else -1 for d, x in enumerate(row)]


def _five_ops(rng: random.Random):
    """Return a case of the peak memory whose fifth op reads what the first one made."""
    case = draw(rng, "makespan")
    while case.num_ops != 4 or case.num_devices > 2:
        case = draw(rng, "makespan")
    case.compute.append([ticks if ticks >= 0 else 1 for ticks in case.compute[0]])
    case.producer.append(0)
    case.consumers.append([4])
    classes = len(case.transfer[0]) if case.transfer else 1 + max(map(max, case.link_class))
    case.transfer.append([rng.randint(0, 5) for _ in range(classes)])
    case.tensor_bytes.append(rng.randrange(4))
    case.resident.append(rng.randrange(3))
    case.colocation.append(-1)
    case.backward.append(False)
    total = sum(case.resident) + sum(case.tensor_bytes)
    case.memory, case.capacity = (
        "peak",
        [rng.randint(total // 3, total + 1) for _ in range(case.num_devices)],
    )
    return case


def attack_period(seed: int) -> Outcome:
    """Attack a period, bounds by prices too: they end after some looks at the clock instead of
    seconds.
    """
    rng = random.Random(seed)
    case = draw(rng, "period")
    if rng.random() < 0.5:
        case.capacity = [NO_LIMIT] * case.num_devices
    if rng.random() < 0.1:
        _forbid(case, rng)
    if rng.random() < 0.3:
        case.contiguity = "none"
    return _placement(case, rng)


def attack_latency(seed: int) -> Outcome:
    """Attack a latency; half of them with classes that may be parted between slots."""
    rng = random.Random(seed)
    case = draw(rng, "latency")
    if rng.random() < 0.5:
        case.colocation = [rng.choice([-1, 0, 0, 1]) for _ in range(case.num_ops)]
        case.slots = rng.choice([1, 2, 2, 3]) if case.num_ops < 5 else rng.choice([1, 2])
    return _placement(case, rng)


def _placement(case, rng: random.Random) -> Outcome:
    """Compare what is said of a placement problem; one in twenty by its exact solvers, some
    by every bound, together and one by one.
    """
    best = brute_force.optimum(case)
    try:
        problem = compare.problem_of(case)
    except InputError as error:  # an op that no device can run
        return Outcome(
            best is not None, [] if best is None else [f"refused ({error}), brute force has {best}"]
        )
    found = compare.evaluations(case, problem, rng) + compare.bounds(case, problem, best, 0.0)
    if rng.random() < 0.15:
        found += bounds_by_looks(problem, best, rng)
    if best is not None and rng.random() < 0.5:
        found += deep_bounds(problem, best, rng)
    names = rng.sample(compare.solvers_of(case.objective), 1) if rng.random() < 0.25 else []
    names += [name for name in compare.EXACT[case.objective] if rng.random() < 0.05]
    for name in dict.fromkeys(names):
        found += compare.solver_answer(case, problem, best, name, rng.randrange(1000))
    return Outcome(best is not None, found)


def bounds_by_looks(problem, best, rng: random.Random) -> list[str]:
    """Compare every bound, ended after a random number of looks at the clock, or never."""
    looks = rng.choice([3, 10, 30, 100, None])
    upper, known = rng.choice([None, best]), objective_of(problem).bound_methods or METHODS
    methods = rng.sample(known, rng.randint(1, len(known))) if rng.random() < 0.5 else None
    with clock(looks):
        try:
            report = objective_of(problem).bounds(problem, 1000.0, methods, upper)
        except InfeasibleProblemError as error:
            return (
                [] if best is None else [f"bounds say infeasible ({error}), brute force has {best}"]
            )
    if best is None:
        return []
    if report.infeasible:
        return [f"called infeasible ({report.infeasible}), brute force has {best}"]
    return [
        f"bound {name} {value} exceeds the optimum {best} after {looks} looks, upper {upper}"
        for name, value in report.bounds.items()
        if value > best
    ]


FAMILIES: dict[str, Callable[[int], Outcome]] = {
    "makespan": attack_makespan,
    "lanes": lambda seed: Outcome(*family_lanes.attack(seed)),
    "series": lambda seed: Outcome(*family_series.attack(seed)),
    "period": attack_period,
    "prices": lambda seed: Outcome(*family_prices.attack(seed)),
    "latency": attack_latency,
    "slots": lambda seed: Outcome(*family_slots.attack(seed)),
    "split": lambda seed: Outcome(*family_split.attack(seed)),
    "sharding": lambda seed: Outcome(*family_sharding.attack(seed)),
    "parts": lambda seed: Outcome(*family_parts.attack(seed)),
    "pipeline": lambda seed: Outcome(*family_pipeline.attack(seed)),
    "proof": lambda seed: Outcome(*family_proof.attack(seed)),
}
"""By name; each is called with a seed."""
