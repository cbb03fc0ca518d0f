"""The attack: small problems of every option, everything the package says of them against brute
force.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import brute_force
from case import NO_LIMIT, draw
from compare import attack, problem_of, solvable
from families import FAMILIES

from placeopt.latency.bounds.flow import FlowBound
from placeopt.period.bounds.closing import Closing
from placeopt.period.bounds.covering import cover_bound
from placeopt.period.contracted import contract


def differences(seeds, **options):
    """Attack one problem per seed; return (seed, case, differences) of those that differ."""
    found = []
    for seed in seeds:
        rng = random.Random(seed)
        case = draw(rng)
        wrong = attack(case, rng, **options)
        if wrong:
            found.append((seed, case, wrong))
    return found


@pytest.mark.parametrize("part", range(4))
def test_a_slice_of_the_attack_finds_nothing(part):
    """Evaluators, judges, bounds and solvers agree with brute force on 60 problems."""
    assert differences(range(60 * part, 60 * part + 60)) == []


FOUND = (1160, 2880, 3647, 1952, 2637, 3398, 4017, 5606)
"""Seeds that found something: a path bound that took the wrong link, false infeasibility,
colocation without a device, CPUs taken for one though each holds only a part."""


def test_what_the_attack_once_found_stays_fixed():
    """Every seed that once made a difference makes none, with all exact solvers."""
    assert differences(FOUND, exact=1.0) == []


@pytest.mark.slow
def test_a_long_attack_finds_nothing():
    """The same on 5000 problems, with every exact solver and linear programs."""
    assert differences(range(10_000, 15_000), num_solvers=2, exact=0.5, bound_seconds=0.2) == []


def draw_with_classes(rng):
    """Return a case of the latency whose classes are worth parting between the slots of an
    accelerator.
    """
    case = draw(rng, "latency")
    n, case.slots = case.num_ops, rng.choice([1, 2, 2, 2, 3])
    case.colocation = [rng.choice([-1, 0, 0, 1, 1, 2]) for _ in range(n)]
    if rng.random() < 0.6:
        case.producer = list(range(n - 1))
        case.consumers = [
            [v + 1] + [w for w in range(v + 2, n) if rng.random() < 0.3] for v in range(n - 1)
        ]
        case.transfer, case.tensor_bytes = (
            [[rng.randint(0, 20)] for _ in range(n - 1)],
            [0] * (n - 1),
        )
        case.link_class = [[0] * case.num_devices for _ in range(case.num_devices)]
    if rng.random() < 0.6:
        total = sum(case.resident)
        case.capacity = [
            rng.randint(max(0, total // 2 - 1), total) for _ in range(case.num_devices)
        ]
    if max(case.io_class) < 0:
        case.io_class[0] = 0
    return case


def test_the_bound_of_the_latency_knows_classes_and_slots():
    """The bound by flows never passes the best latency where classes may be parted between slots,
    and often meets it.
    """
    checked = met = 0
    for seed, problem, best in solvable(draw_with_classes, range(150)):
        flow = FlowBound(problem, max_ideals=10**4 if seed % 2 else 8).run(
            lambda: None, lambda: False
        )
        assert flow <= best, seed
        checked, met = checked + 1, met + (flow == best)
    assert checked > 80
    assert met > checked // 3


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_slice_of_every_family_finds_nothing(family):
    """Evaluators, judges, bounds and a share of exact solvers agree with brute force on 20 problems
    of each family.
    """
    found = {seed: FAMILIES[family](seed).differences for seed in range(20)}
    assert {seed: wrong for seed, wrong in found.items() if wrong} == {}


def test_closing_ends_where_no_set_has_anything_to_pay():
    """One device must hold all that takes time: prices of the other one's sets are nothing, and the
    bound stays true.
    """
    case = draw(random.Random(0), "period")
    case.compute = [[-1, 14], [0, 0], [-1, 17], [-1, 0]]
    case.producer, case.consumers, case.transfer = [0], [[2, 3]], [[9]]
    case.link_class, case.channel, case.io_class = [[0, 0]] * 2, [[-1, -1]] * 2, [0, -1]
    case.resident, case.tensor_bytes, case.capacity = [2, 3, 0, 1], [2], [NO_LIMIT] * 2
    case.colocation, case.backward, case.contiguity = [-1] * 4, [False] * 4, "none"
    case.pipeline = "1f1b"
    assert brute_force.optimum(case) == 31
    model = contract(problem_of(case), contiguity="none")
    cover = cover_bound(model, float("inf"))
    assert Closing(cover, lambda: 32, lambda device: None).raise_from(9, 100.0) == 31
