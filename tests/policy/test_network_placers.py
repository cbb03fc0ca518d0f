"""Placement networks: probabilities against enumeration, means against loops, what they start from
and what moves them.
"""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import placeopt as po
from placeopt.model.errors import InputError, Refused
from placeopt.model.problem import PlacementProblem
from placeopt.solvers.policy.advantages import rank_utilities
from placeopt.solvers.policy.graph_parsing import NeuralParsing, NeuralParsingPolicy, left_out
from placeopt.solvers.policy.network_placer import (
    GraphPlacer,
    RecurrentPlacer,
    SoftGrouper,
    stretches,
)
from placeopt.solvers.policy.structure_features import STRUCTURE
from placeopt.solving.registry import make_solver

torch = pytest.importorskip("torch")
networks = pytest.importorskip("placeopt.solvers.policy.placement_networks")

NAMES = ("recurrent-placer", "graph-placer", "visiting-placer", "soft-grouper", "neural-parsing")


def problem(num_ops=4, num_devices=2, seed=0, **fields):
    """Return a random graph."""
    rng = np.random.default_rng(seed)
    edges = [
        (u, v, int(rng.integers(1, 9)))
        for u in range(num_ops)
        for v in range(u + 1, num_ops)
        if rng.random() < 0.5
    ]
    return PlacementProblem.from_edges(rng.integers(1, 20, (num_ops, num_devices)), edges, **fields)


def every_choice(sizes):
    """Return all rows of choices, one column per entry of `sizes`."""
    return torch.tensor(list(itertools.product(*(range(size) for size in sizes))))


@pytest.mark.parametrize(
    ("solver", "sizes"),
    [
        (RecurrentPlacer(hidden=4), [2] * 4),
        (GraphPlacer(hidden=4), [2] * 4),
        (SoftGrouper(hidden=4, groups=2), [2] * 6),
    ],
)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_probabilities_of_all_choices_sum_to_one(solver, sizes, temperature):
    """And samples come as often as their probability says."""
    case = problem()
    nodes = networks.describe(case, solver.groups_of(case), None, 0.0)
    torch.manual_seed(0)
    network = solver.network(nodes)()
    with torch.no_grad():
        rows = every_choice(sizes)
        chance = network.log_probability(rows, temperature).sum(dim=1).exp()
        drawn = network.sample(4000, temperature, torch.Generator().manual_seed(1))
    assert float(chance.sum()) == pytest.approx(1.0, abs=1e-4)
    row = drawn @ torch.tensor([2**i for i in reversed(range(len(sizes)))])
    seen = torch.bincount(row, minlength=len(rows)) / 4000
    assert float((seen - chance).abs().max()) < 0.04


def test_messages_are_means_over_neighbours():
    """Against a plain loop; a node that nobody sends to receives 0."""
    source, target = torch.tensor([0, 0, 1]), torch.tensor([2, 1, 2])
    messages = torch.arange(8.0).reshape(4, 2)
    received = networks._means(messages, source, target)
    for node in range(4):
        mine = [
            messages[u].tolist()
            for u, v in zip(source.tolist(), target.tolist(), strict=True)
            if v == node
        ]
        assert received[node].tolist() == (np.mean(mine, axis=0).tolist() if mine else [0.0, 0.0])


@pytest.mark.parametrize("name", ["recurrent-placer", "graph-placer", "soft-grouper"])
def test_a_warm_start_is_near_the_teacher(name):
    """At a low temperature every sample is the placement to begin with."""
    case = po.load("gen:layered?layers=6&width=4&seed=1", cluster="uniform:3")
    first = make_solver("edge-zeroing").solve(case, po.Budget(), seed=0).solution.device
    solver = make_solver(name)
    nodes = networks.describe(case, np.array(case.units.unit), first, 50.0)
    torch.manual_seed(0)
    network = solver.network(nodes)()
    with torch.no_grad():
        devices = network.devices(network.sample(5, 0.1, torch.Generator().manual_seed(0)))
    assert (devices.numpy() == first).all()


@pytest.mark.parametrize("rule", ["reinforce", "ppo"])
@pytest.mark.parametrize("name", ["recurrent-placer", "graph-placer", "soft-grouper"])
def test_learning_makes_better_samples_likelier(name, rule):
    """Steps on one batch raise the probability of its best placement over that of its worst."""
    from placeopt.solvers.policy.network_policy import NetworkPolicy

    case = problem(6, 2, seed=3)
    solver = make_solver(name, learning=rule, hidden=8)
    nodes = networks.describe(case, solver.groups_of(case), None, 0.0)
    policy = NetworkPolicy(case, solver, 100.0, np.random.default_rng(0), solver.network(nodes))
    samples = policy.sample(16, 1.0)
    values = np.arange(100, 260, 10)

    def lead():
        with torch.no_grad():
            chance = policy.network.log_probability(samples.choices, 1.0).sum(dim=1)
        return float(chance[0] - chance[-1])

    before = lead()
    for _ in range(5):
        policy.learn(samples, values, 1.0)
    assert lead() > before + 0.05


@pytest.mark.parametrize("name", NAMES)
def test_without_torch_a_placer_refuses_in_one_line(name, monkeypatch):
    """It names the extra, and a comparison skips it."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda module: None if module == "torch" else found(module)
    )
    with pytest.raises(Refused, match=r"pip install 'placeopt\[torch\]'") as refusal:
        make_solver(name).solve(problem(), po.Budget(evaluations=10))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_placer_leaves_torch_as_it_was(name):
    """Its random numbers are its own, and the number of threads is given back."""
    torch.manual_seed(7)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    make_solver(name, teacher="").solve(problem(8, 3), po.Budget(evaluations=64), seed=1)
    assert (torch.random.get_rng_state() == state).all()
    assert torch.get_num_threads() == threads


def test_stretches_are_few_and_in_order():
    """At most `length` groups, rising along a topological order, units together."""
    case = po.load("gen:layered?layers=12&width=5&seed=2", cluster="uniform:2")
    order = case.topological_order
    for length in (1, 7, 60, 100):
        group = stretches(case, length)
        assert group.max() + 1 <= length
        assert len(np.unique(group)) == group.max() + 1
        assert (np.diff(group[order]) >= 0).all()


def test_ablations_blank_their_features():
    """Each name blanks the columns that carry it; structure all but the op types."""
    assert left_out("none") == []
    assert [STRUCTURE[i] for i in left_out("fractal_dimension")] == ["fractal_dimension"]
    assert left_out("structure") == list(range(len(STRUCTURE)))
    assert min(left_out("types")) == len(STRUCTURE)
    assert not set(left_out("types")) & set(left_out("structure"))


@pytest.mark.parametrize("without", ["none", "parsing"])
def test_only_learned_parsing_moves_the_network(without):
    """`parsing` keeps the scores as they are."""
    case = po.load("gen:layered?layers=6&width=5&seed=3", cluster="uniform:2")
    policy = NeuralParsingPolicy(case, NeuralParsing(without=without), np.random.default_rng(0))
    before = policy.scores()
    samples = policy.sample(16, 1.0)
    policy.learn(samples, np.arange(16), 1.0)
    assert (policy.scores() == before).all() == (without == "parsing")


def test_scores_climb_along_the_score_function():
    """The network's step raises the log-probability of the samples that were rewarded (finite
    difference of the kernels).
    """
    case = po.load("gen:layered?layers=6&width=5&seed=3", cluster="uniform:2")
    policy = NeuralParsingPolicy(case, NeuralParsing(), np.random.default_rng(0))
    samples = policy.sample(32, 1.0)
    values = np.arange(32)
    slope = rank_utilities(values) @ samples.residual
    before = policy.network().detach().numpy()
    policy.learn(samples, values, 1.0)
    assert float((policy.network().detach().numpy() - before) @ slope) > 0


def test_visits_earn_what_the_makespan_falls_by():
    """The value of an episode after a segment is that of its placement, and the budget counts every
    visit.
    """
    from placeopt.makespan.evaluate import evaluate_batch
    from placeopt.solvers.policy.visiting_placer import VisitingPlacer, Visits
    from placeopt.solving.tracker import Tracker

    case = problem(10, 3, seed=5)
    solver = VisitingPlacer(batch=3, horizon=4, teacher="")
    tracker = Tracker(solver.name, case, po.Budget(evaluations=60))
    visits = Visits(solver, None, tracker)
    visits.reset()
    visits.segment(range(4), tracker)
    devices = visits.device[:, case.units.unit].astype(np.int32)
    ranks = np.tile(visits.ranks, (3, 1))
    assert visits.value.tolist() == evaluate_batch(case, devices, ranks, "priority").tolist()
    assert tracker.evaluations == 3 * 5
    assert SimpleNamespace(value=tracker.value).value <= visits.value.min()


@pytest.mark.parametrize("name", NAMES)
def test_ops_that_cost_nothing_somewhere_are_learned_from(name):
    """Where no incumbent and no op measures the rewards, one tick does: no division by zero, no
    warning.
    """
    free = PlacementProblem.from_edges([[0, 5], [5, 0], [0, 5]], [(0, 1, 3), (1, 2, 3)])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = po.solve(free, make_solver(name, teacher=""), evaluations=40)
    assert result.value >= 5


def test_visits_take_no_options_of_other_placers():
    """What has no effect is refused."""
    for option in ("learning", "clip", "epochs", "entropy"):
        with pytest.raises(InputError, match=f"no option '{option}'"):
            make_solver("visiting-placer", **{option: 1})
