"""The parts of searches that a name chooses do what their papers say, in compiled walks and in
batches alike.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from random_problems import random_problem

from placeopt.api import load
from placeopt.model.errors import InputError
from placeopt.model.objective import objective_of
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.random_bits import random_states
from placeopt.model.result import Budget
from placeopt.solvers.search.annealing import ACCEPTANCES, COOLINGS, limits
from placeopt.solvers.search.annealing_walks import AnnealingWalk, move_weights
from placeopt.solvers.search.genetic import CROSSOVERS, SELECTIONS
from placeopt.solvers.search.lns import WINDOWS, Lns, WindowSearch
from placeopt.solvers.search.search_space import SearchSpace
from placeopt.solvers.search.walk_kernels import MOVES
from placeopt.solving.registry import make_solver
from placeopt.solving.tracker import Tracker

pytestmark = pytest.mark.jit


def knotted(seed=0, num_ops=60):
    """Return a problem with clusters, in which moves of every kind change something."""
    rng = np.random.default_rng(seed)
    edges = {}
    for v in range(1, num_ops):
        for _ in range(2):
            edges[int(rng.integers(max(0, v - 6), v)), v] = int(rng.integers(1, 20))
    return PlacementProblem.from_edges(
        rng.integers(1, 20, (num_ops, 3)), [(u, v, c) for (u, v), c in sorted(edges.items())]
    )


def walk_on(problem, moves="all", acceptance="metropolis", seed=0):
    """Return a walk from a random placement."""
    rng = np.random.default_rng(seed)
    space, device = SearchSpace(problem), rng.integers(0, problem.num_devices, problem.num_ops)
    random = random_states(rng, 1)[0]
    return AnnealingWalk(
        space, device, space.sequence, random, move_weights(moves), ACCEPTANCES[acceptance]
    )


@pytest.mark.parametrize("name", COOLINGS)
def test_coolings_fall_from_hot_to_cold(name):
    """A cooling begins at `hot`, ends at `cold` and never rises; scaling and reheating change what
    they say.
    """
    cooling = COOLINGS[name](50.0, 0.5)
    temperature = [cooling.at(x) for x in np.linspace(0, 1, 33)]
    assert temperature[0] == pytest.approx(50.0)
    assert temperature[-1] == pytest.approx(0.5)
    assert (np.diff(temperature) < 0).all()
    assert cooling.scaled(3.0).at(0.3) == pytest.approx(3.0 * cooling.at(0.3))
    assert cooling.reheated(0.5).at(0.0) == pytest.approx(25.0)
    assert cooling.reheated(1e-6).hot == cooling.cold


def test_coolings_keep_their_law():
    """Per step a geometric cooling loses a share, a linear one an amount, and Lundy's T becomes T /
    (1 + beta T).
    """
    at = {
        name: np.array([COOLINGS[name](9.0, 1.0).at(x) for x in np.linspace(0, 1, 9)])
        for name in COOLINGS
    }
    assert np.ptp(at["geometric"][1:] / at["geometric"][:-1]) == pytest.approx(0, abs=1e-12)
    assert np.ptp(np.diff(at["linear"])) == pytest.approx(0, abs=1e-12)
    beta = (at["lundy-mees"][:-1] / at["lundy-mees"][1:] - 1) / at["lundy-mees"][:-1]
    assert np.ptp(beta) == pytest.approx(0, abs=1e-12)


def test_metropolis_accepts_with_its_probability():
    """What is worse by x passes the drawn limit in a share exp(-x / T) of the draws."""
    draw = np.random.default_rng(0).random(200_000)
    limit = limits("metropolis", np.full(len(draw), 100), 90, 10.0, draw)
    for worse in (1, 5, 20):
        assert (limit >= 100 + worse).mean() == pytest.approx(np.exp(-worse / 10.0), abs=0.004)


def test_deterministic_limits():
    """Threshold accepting looks at the current value, record-to-record travel at the best one."""
    values, draw = np.array([100, 130, 2**63 - 1]), np.zeros(3)
    assert limits("threshold", values, 90, 15.0, draw)[:2].tolist() == [115.0, 145.0]
    assert limits("record-to-record", values, 90, 15.0, draw)[:2].tolist() == [105.0, 130.0]


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
def test_compiled_walks_keep_to_their_limit(acceptance):
    """Step by step no accepted value exceeds the rule's limit, and worse values are accepted below
    it.
    """
    walk, heat, worse, over = walk_on(knotted(), acceptance=acceptance), 30.0, 0, 0
    walk.run(300, 1.0, 1.0)
    for _ in range(600):
        before, best = walk.value, walk.best_value
        walk.run(1, heat, heat)
        limit = before + heat if acceptance != "record-to-record" else max(before, best + heat)
        worse += walk.value > before
        over += walk.value > limit
    assert worse > 20
    assert (over > 0) == (acceptance == "metropolis")


@pytest.mark.parametrize("moves", ["reassign", "swap, critical", "reorder,overtake,gather"])
def test_only_the_named_moves_are_proposed(moves):
    """A walk proposes the moves it was given and no other."""
    walk = walk_on(knotted(), moves)
    walk.run(500, 10.0, 1.0)
    named = [name.strip() for name in moves.split(",")]
    assert [name for name, count in zip(MOVES, walk.tally[:, 0], strict=True) if count] == [
        m for m in MOVES if m in named
    ]


def test_selections_prefer_as_they_say():
    """A tournament of two takes place i of n with probability (2 (n - i) - 1) / n^2, ranking with 2
    (n - i) / (n (n + 1)).
    """
    rng, n, draws = np.random.default_rng(0), 5, 40_000
    place = np.arange(n)
    expected = {
        "tournament": (2 * (n - place) - 1) / n**2,
        "linear-ranking": 2 * (n - place) / (n * (n + 1)),
        "anyone": np.full(n, 1 / n),
    }
    assert expected.keys() == SELECTIONS.keys()
    for name, select in SELECTIONS.items():
        share = np.bincount([select(rng, n) for _ in range(draws)], minlength=n) / draws
        assert share == pytest.approx(expected[name], abs=0.01), name


def test_crossovers_take_what_they_say():
    """One point takes a suffix, two points a stretch, the uniform one every group half of the
    time.
    """
    rng = np.random.default_rng(1)
    taken = {
        name: np.array([cross(rng, 9) for _ in range(3000)]) for name, cross in CROSSOVERS.items()
    }
    assert (np.diff(taken["one-point"].astype(int), axis=1) >= 0).all()
    changes = np.abs(np.diff(np.pad(taken["two-point"].astype(int), ((0, 0), (1, 1))), axis=1)).sum(
        axis=1
    )
    assert set(changes.tolist()) == {0, 2}
    assert taken["uniform"].mean(axis=0) == pytest.approx(np.full(9, 0.5), abs=0.05)
    for rows in taken.values():
        assert rows.any(axis=0).all()
        assert not rows.all(axis=0).any()


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_free_what_they_say(name):
    """A window has at most the wanted number of different ops, and is of its kind."""
    problem = knotted(3)
    tracker = Tracker("lns", problem, Budget(evaluations=5), seed=0)
    placement = make_solver("etf").solve(problem, Budget(evaluations=5)).solution
    search = WindowSearch(
        Lns(), problem, tracker, np.ones((problem.num_ops, problem.num_devices), dtype=bool)
    )
    now, rng = search._incumbent(placement), np.random.default_rng(0)
    rank = np.empty(problem.num_ops, dtype=np.int64)
    rank[now.order] = np.arange(problem.num_ops)
    adjacent = {
        frozenset((int(problem.producer[t]), int(c)))
        for t, c in zip(problem.edge_tensor, problem.consumer, strict=True)
    }
    for _ in range(30):
        free = WINDOWS[name](problem, now, 12, rng)
        assert len(set(free.tolist())) == len(free) <= 12
        if name == "time":
            assert np.diff(np.sort(rank[free])).max() == 1
        elif name == "device-pair":
            assert len(np.unique(now.device[free])) <= 2
        elif name == "critical-path":
            step = [now.finish[u] <= now.start[v] for u, v in itertools.pairwise(free[:6])]
            assert all(step)
        else:
            assert all(
                any(frozenset((u, v)) in adjacent for u in free[:i].tolist())
                for i, v in enumerate(free.tolist())
                if i
            )


OPTIONS = [
    *(("annealing", {"cooling": name}) for name in COOLINGS),
    *(("annealing", {"acceptance": name}) for name in ACCEPTANCES),
    ("annealing", {"moves": "reassign,cluster"}),
    *(("genetic", {"crossover": name}) for name in CROSSOVERS),
    *(("genetic", {"selection": name}) for name in SELECTIONS),
]


@pytest.mark.parametrize(("solver", "options"), OPTIONS)
@pytest.mark.parametrize("objective", ["makespan", "period"])
def test_every_part_searches(solver, options, objective):
    """With any part a search improves on its start, keeps every constraint, and repeats itself."""
    problem = load("gen:ffnn?layers=6", cluster="uniform:3", objective=objective)
    first = Placement(np.zeros(problem.num_ops, dtype=np.int64))
    value, _ = objective_of(problem).value(problem, first)
    made = make_solver(solver, start="random", **options)
    result = made.solve(problem, Budget(evaluations=300), seed=2, initial=first)
    assert objective_of(problem).judge(problem, result.solution) == []
    assert result.value < value
    assert (
        made.solve(problem, Budget(evaluations=300), seed=2, initial=first).solution
        == result.solution
    )


@pytest.mark.parametrize("windows", [*WINDOWS, "time,connected"])
def test_large_neighbourhood_search_with_some_windows(windows):
    """Windows of some kinds only, drawn alike, still improve a random problem or leave it as it
    is.
    """
    problem = random_problem(np.random.default_rng(5), max_ops=14)
    solver = Lns(windows=windows, adaptive=False, effort=0.05)
    start = make_solver("etf").solve(problem, Budget(evaluations=5)).solution
    result = solver.solve(problem, Budget(evaluations=4), seed=0, initial=start)
    assert result.value <= objective_of(problem).value(problem, start)[0]


@pytest.mark.parametrize(
    ("solver", "options"),
    [
        ("annealing", {"cooling": "icy"}),
        ("annealing", {"acceptance": "never"}),
        ("annealing", {"moves": "reassign,hop"}),
        ("genetic", {"crossover": "three-point"}),
        ("genetic", {"selection": "best"}),
        ("lns", {"windows": "bay"}),
    ],
)
def test_unknown_names_are_one_line(solver, options):
    """A name that is not known is refused with those that are."""
    (key,) = options
    with pytest.raises(
        InputError, match=rf"{solver} option {key}: expected .*, received '[\w-]+'"
    ) as error:
        make_solver(solver, **options)
    assert "\n" not in str(error.value)
