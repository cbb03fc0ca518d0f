"""`plan-ideals`: optimal on tiny problems by brute force, on published inputs no worse than
published values.
"""

from __future__ import annotations

import csv
import dataclasses
import json

import numpy as np
import pytest
from plan_samples import best_sample_time, random_problem

from placeopt.io import serialize
from placeopt.model.errors import InputError
from placeopt.model.objective import objective_of
from placeopt.model.result import Budget
from placeopt.plans.piper_json import read_piper
from placeopt.plans.plan import PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.sample_problem import sample_ticks
from placeopt.solvers.planning import ideal_planner
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run
from placeopt.solving.tracker import Tracker

FILES = {"bert": "bert32a100", "resnet": "resnet", "gnmt": "gnmt"}
BANDWIDTH = 25 * 2**30
"""Bytes per second that the published values were computed with; the files say 25e9."""


def solve(problem, **options):
    """Run the planner to the end."""
    return run(problem, make_solver("plan-ideals", "plan", **options), Budget(60.0))


@pytest.mark.parametrize("seed", range(40))
def test_the_optimum_is_that_of_brute_force(seed):
    """Value and bound are the least time per sample of all plans; where none fits, that is said."""
    layers = 3 + seed % 3
    problem = random_problem(seed, layers=layers, devices=3 + seed % 3, edges=layers > 3)
    if seed % 7 == 0:
        problem = problem.replace(allow_recompute=False)
    best, result = best_sample_time(problem), solve(problem)
    if best is None:
        assert result.status == "infeasible"
        assert result.solution is None
    else:
        assert (result.value, result.lower_bound) == (best, best)
        assert result.status == "optimal"


@pytest.mark.parametrize("seed", range(12))
def test_layers_that_can_only_be_recomputed_are(seed):
    """They were left out: no plan was found, or the bound was above plans that there are."""
    problem = random_problem(seed, layers=3, devices=3)
    work = problem.work.copy()
    work[seed % 2, 0, seed % 3] = work[0, 0, 0] = -1
    problem = problem.replace(work=work)
    best, result = best_sample_time(problem), solve(problem)
    if best is None:
        assert result.status == "infeasible"
    else:
        assert (result.value, result.lower_bound) == (best, best)


@pytest.mark.parametrize("seed", range(8))
def test_bounds_hold(seed):
    """The quick bounds are not above the optimum."""
    problem = random_problem(100 + seed, layers=3)
    best = best_sample_time(problem)
    for value in objective_of(problem).bounds(problem, 0.0).bounds.values():
        assert best is None or value <= best


def published(data, name, devices, memory):
    """Return a published input, and the value of the authors' program."""
    for row in csv.DictReader((data / "piper" / "reference.csv").open()):
        if (row["input"], int(row["devices"]), float(row["memory_gib"])) == (name, devices, memory):
            path = data / "piper" / f"{FILES[name]}.json"
            problem = read_piper(path, devices=devices, memory=memory * 2**30, bandwidth=BANDWIDTH)
            assert problem.samples == int(row["samples_in_batch"])
            return problem, float(row["time_per_sample"])
    raise LookupError(name)


@pytest.mark.jit
@pytest.mark.parametrize(
    ("name", "devices", "memory"),
    [
        ("bert", 8, 8.0),
        ("bert", 32, 2.0),
        ("bert", 128, 8.0),
        ("bert", 512, 8.0),
        ("gnmt", 8, 2.4),
        ("resnet", 8, 8.0),
    ],
)
def test_published_values_are_reached_and_proved(data, name, devices, memory):
    """The values of the published program are optima of its own cost model."""
    problem, reference = published(data, name, devices, memory)
    result = solve(problem)
    assert result.status == "optimal"
    assert result.seconds == pytest.approx(reference, rel=1e-8)


@pytest.mark.slow
def test_a_published_value_is_beaten(data):
    """On 64 devices of 1.5 GiB the published program recomputes more than it has to."""
    problem, reference = published(data, "resnet", 64, 1.5)
    result = solve(problem)
    assert result.status == "optimal"
    assert result.seconds < reference * 0.9996


@pytest.mark.jit
def test_no_plan_fits(data):
    """What the published program answers by 1e30 is proved."""
    problem, reference = published(data, "bert", 64, 1.0)
    assert reference == 1e30
    assert solve(problem).status == "infeasible"


def test_the_published_plan_has_the_published_price(data):
    """A stage list of the published program is priced as published."""
    problem, reference = published(data, "bert", 8, 8.0)
    sizes, at, stages = [(6, 1), (4, 3), (4, 3), (4, 3), (4, 2), (4, 1), (5, 0), (6, 0)], 0, []
    for size, again in sizes:
        layers = tuple(range(at, at + size))
        stages.append(PlanStage(layers, (ReplicaGroup("device", 1, 1),), layers[size - again :]))
        at += size
    ticks = sample_ticks(problem, TrainingPlan(tuple(stages)))
    assert ticks * problem.tick_seconds == pytest.approx(reference, rel=1e-8)


def test_json_keeps_problem_and_plan(tmp_path):
    """A problem and its result survive JSON."""
    problem = random_problem(3)
    result = solve(problem)
    again = serialize.load(serialize.save(problem, tmp_path / "problem.json"))
    assert again.hash == problem.hash
    assert serialize.from_dict(serialize.to_dict(result.solution)) == result.solution


def test_wrong_plans_are_refused():
    """The judge names what is wrong with a plan."""
    problem = next(
        p
        for p in map(random_problem, range(50))
        if best_sample_time(p) is not None and len(p.source)
    )
    objective, plan = objective_of(problem), solve(problem).solution
    whole = PlanStage(tuple(range(problem.num_layers)), (ReplicaGroup("device", 1, 1),))
    wrong = {
        "no stage has": dataclasses.replace(
            plan, stages=(dataclasses.replace(whole, layers=(0,)),)
        ),
        "divide": dataclasses.replace(
            plan, stages=(dataclasses.replace(whole, replicas=(ReplicaGroup("d", 1, 4),)),)
        ),
        "tensor degree 3": dataclasses.replace(
            plan, stages=(dataclasses.replace(whole, replicas=(ReplicaGroup("d", 3, 1),)),)
        ),
        "is in the stages": dataclasses.replace(plan, stages=(whole, whole)),
        "devices, there are": dataclasses.replace(
            plan, stages=(dataclasses.replace(whole, replicas=(ReplicaGroup("d", 2, 6),)),)
        ),
    }
    for words, bad in wrong.items():
        assert any(words in violation for violation in objective.judge(problem, bad)), words


def test_bad_input_is_one_line(tmp_path):
    """A malformed file is refused in one line."""
    path = tmp_path / "bad.json"
    path.write_text('{"nodes": [{"id": 0, "TMPCs": {"x": []}}], "edges": []}')
    with pytest.raises(InputError, match="tensor degrees"):
        read_piper(path)
    option = dict.fromkeys(("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB"), 1)
    option |= {"syncTimeFw": {"next": 1}, "syncTimeBw": {}}
    path.write_text(json.dumps({"nodes": [{"id": 0, "TMPCs": {"1": [option]}}], "edges": []}))
    with pytest.raises(InputError, match="ids of layers as keys, received 'next'"):
        read_piper(path)


def piper_file(path, times=1, **changes):
    """Write a chain of two layers."""
    option = {"timePerSample": times, "parameterSize": 1, "memoryUsageA": 1, "memoryUsageB": 1}
    node = {"TMPCs": {"1": [option | {"syncTimeFw": {}, "syncTimeBw": {}}]}}
    body = {
        "nodes": [{"id": i, "name": f"TransformerLayer{i}", **node} for i in range(2)],
        "edges": [{"sourceId": 0, "destId": 1, "communicationCost": 1}],
        **{"maxDevices": 2, "mbsInBatch": 2, "bandwidth": 1, "maxMemoryPerDevice": 9},
    }
    path.write_text(json.dumps(body | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"maxDevices": 0}, "maxDevices: expected more than 0"),
        ({"mbsInBatch": 0}, "mbsInBatch: expected more than 0"),
        ({"bandwidth": 0}, "bandwidth: expected more than 0"),
        ({"times": 1e308}, "too long to count"),
        ({"nodes": [], "edges": []}, "ids of their own"),
    ],
)
def test_files_of_nothing_are_one_line(tmp_path, changes, words):
    """Numbers that are divided by were not looked at; layers with one id were one layer."""
    path = tmp_path / "bad.json"
    with pytest.raises(InputError, match=words):
        read_piper(piper_file(path, **changes))
    nodes = json.loads(piper_file(path).read_text())["nodes"]
    with pytest.raises(InputError, match="ids of their own"):
        read_piper(piper_file(path, nodes=[nodes[0], nodes[0]], edges=[]))
    with pytest.raises(InputError, match="copies"):
        read_piper(piper_file(path, nodes=nodes[:1], edges=[]), copies=3)
    assert read_piper(piper_file(path), copies=3).num_layers == 3
    assert solve(read_piper(piper_file(path, times=0, bandwidth=10**9))).status == "optimal"
    endless = read_piper(piper_file(path, maxMemoryPerDevice=1e30))
    assert solve(endless).status == "optimal"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kept": 2**52}, "pass 2\\^53"),
        ({"work": 2**62}, "pass 2\\^60"),
        ({"kept": -1}, "kept: expected numbers of at least 0"),
        ({"sent": -1}, "sent: expected numbers of at least 0"),
        ({"tensor_degrees": (0, 1)}, "tensor_degrees: expected at least 1"),
        ({"units_per_byte": 0}, "units_per_byte: expected at least 1"),
    ],
)
def test_problems_whose_sums_would_not_be_exact_are_refused(change, words):
    """Sums passed 64 bits unseen, and negative sizes broke what the search supposes."""
    problem = random_problem(3)
    ((key, value),) = change.items()
    if key in ("kept", "work", "sent"):
        value = np.full_like(getattr(problem, key), value)
    with pytest.raises(InputError, match=words):
        problem.replace(**{key: value})
    for ends in ({"source": problem.source * 0 - 1}, {"target": problem.target * 0 + 99}):
        with pytest.raises(InputError, match="edges have to run"):
            problem.replace(**ends)


class Undecided:
    """Plans of which no knapsack is decided: asked for a limit, they are longer, or there is none."""

    least, most = 10, 1000

    def __init__(self, problem, lattice=None, complete=True):
        self.problem, self.complete = problem, complete

    def within(self, limit, optimistic=False):
        """Whatever is asked."""
        return self.problem

    def refuted(self, limit):
        """Never."""
        return False


def test_a_limit_is_asked_for_once_where_plans_are_longer(monkeypatch):
    """Which layers a stage recomputes may be undecided for the limit that its plan was found for."""
    monkeypatch.setattr(ideal_planner, "sample_ticks", lambda problem, plan: 500)
    tracker = Tracker("plan-ideals", random_problem(0), Budget(evaluations=100))
    ideal_planner._bisect(Undecided(tracker.problem, complete=False), tracker)
    assert tracker.value == 500
    assert tracker.evaluations < 20


def test_what_is_not_decided_is_not_infeasible(monkeypatch):
    """No plan was found, and none refuted."""
    monkeypatch.setattr(Undecided, "within", lambda plans, limit: None)
    monkeypatch.setattr(ideal_planner, "IdealPlans", Undecided)
    monkeypatch.setattr(ideal_planner, "all_plans", lambda problem, most: Undecided(problem))
    tracker = Tracker("plan-ideals", random_problem(0), Budget(evaluations=100))
    make_solver("plan-ideals", "plan").search(tracker.problem, tracker)
    assert tracker.reason == ""
