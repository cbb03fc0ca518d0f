"""The families of the attack: a seed of a family is one small problem, and everything the package
says of it is compared.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import brute_force
import compare
import family_pipeline
import family_sharding
import family_split
from case import NO_LIMIT, draw
from limits import clock

from placeopt.model.errors import InfeasibleProblemError
from placeopt.model.objective import objective_of

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Outcome:
    """What the attack on one problem found."""

    feasible: bool
    differences: list[str] = field(default_factory=list)


def attack_makespan(seed: int) -> Outcome:
    """Attack a makespan as ever, and one in ten with peak memory and five ops."""
    rng = random.Random(seed)
    case = draw(rng, "makespan")
    if rng.random() < 0.1:
        case = _five_ops(rng)
    return _placement(case, rng)


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
    """Compare what is said of a placement problem; one in twenty by its exact solvers, one in four
    by every bound.
    """
    problem, best = compare.problem_of(case), brute_force.optimum(case)
    found = compare.evaluations(case, problem, rng) + compare.bounds(case, problem, best, 0.0)
    if rng.random() < 0.25:
        found += bounds_by_looks(problem, best, rng)
    names = rng.sample(compare.solvers_of(case.objective), 1) if rng.random() < 0.25 else []
    names += [name for name in compare.EXACT[case.objective] if rng.random() < 0.05]
    for name in dict.fromkeys(names):
        found += compare.solver_answer(case, problem, best, name, rng.randrange(1000))
    return Outcome(best is not None, found)


def bounds_by_looks(problem, best, rng: random.Random) -> list[str]:
    """Compare every bound, ended after a random number of looks at the clock, or never."""
    looks = rng.choice([3, 10, 30, 100, None])
    upper = rng.choice([None, best])
    with clock(looks):
        try:
            report = objective_of(problem).bounds(problem, 1000.0, upper=upper)
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
    "period": attack_period,
    "latency": attack_latency,
    "split": lambda seed: Outcome(*family_split.attack(seed)),
    "sharding": lambda seed: Outcome(*family_sharding.attack(seed)),
    "pipeline": lambda seed: Outcome(*family_pipeline.attack(seed)),
}
"""By name; each is called with a seed."""
