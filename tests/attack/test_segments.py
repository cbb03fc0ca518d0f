"""The bound by segments on forks and joins of every option, against brute force."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from case import NO_LIMIT, draw
from compare import solvable

from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis


def draw_fork(rng):
    """Return a case whose first op feeds branches that meet again at the last one, with tensors of
    one or several readers.
    """
    case = draw(rng, "makespan")
    while case.num_ops != 4 or case.num_devices == 1:
        case = draw(rng, "makespan")
    if rng.random() < 0.6:
        case.capacity = [NO_LIMIT] * case.num_devices
    top = rng.choice([3, 20, 20])
    case.compute = [
        [rng.randint(0, top) if ticks >= 0 else -1 for ticks in row] for row in case.compute
    ]
    if rng.random() < 0.5:  # all branches alike on every device: what heads see least of
        case.compute = [[max(row)] * case.num_devices for row in case.compute]
    readers = [[1, 2]] if rng.random() < 0.5 else [[1], [2]]
    rows = [(0, targets) for targets in readers] + [(1, [3]), (2, [3])]
    if rng.random() < 0.3:
        rows.append((1, [2]))
    if rng.random() < 0.2:
        rows.append((0, [3]))
    ticks = [rng.randint(0, top) for _ in rows]
    case.producer, case.consumers = [u for u, _ in rows], [targets for _, targets in rows]
    classes = 1 + max(max(row) for row in case.link_class)
    case.transfer = [[t + rng.randrange(3) for _ in range(classes)] for t in ticks]
    case.tensor_bytes = [rng.randrange(4) for _ in rows]
    return case


def compared(seeds):
    """Return (differences, raised, met): seeds whose bound is above the optimum, and how often it
    helps and is the optimum.
    """
    wrong, raised, met = [], 0, 0
    for seed, problem, best in solvable(draw_fork, seeds):
        analysis = Analysis(problem, seconds=3600.0)
        for name in (*COMBINATORIAL[:5], "segments", *COMBINATORIAL[5:]):
            before = analysis.best()[0]
            if analysis.run(name) > best:
                wrong.append((seed, name, analysis.bounds[name], best))
            raised += name == "segments" and analysis.bounds[name] > before
        met += analysis.best()[0] == best
    return wrong, raised, met


def test_segments_never_pass_the_optimum():
    """On forks and joins the bound, and all that read the heads that it raised, stay below brute
    force.
    """
    wrong, raised, met = compared(range(150))
    assert wrong == []
    assert raised > 5
    assert met > 50


@pytest.mark.slow
def test_segments_never_pass_the_optimum_on_many():
    """The same on 3000 problems."""
    assert compared(range(1000, 4000))[0] == []
