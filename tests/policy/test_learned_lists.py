"""Learned list schedulers: they begin as HEFT, their schedules are schedules, their gradients are
right, their files come back.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product

import numpy as np
import pytest
from random_problems import random_problem

from placeopt.api import load
from placeopt.makespan.evaluate import evaluate
from placeopt.model.errors import InputError
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.heuristics.list_scheduling import heft_plan
from placeopt.solvers.policy.list_policy import ListPolicy, Pass, Shift, climb, trained
from placeopt.solving.registry import make_solver


def moved(seed, size=0.3):
    """Return a policy all of whose numbers matter, warm."""
    policy = ListPolicy.heft(widths=(3, 2, 4))
    vector = policy.vector + size * np.random.default_rng(seed).normal(size=len(policy.vector))
    return replace(policy.with_vector(vector), heats=(5.0, 0.9))


def contexts():
    """Return problems without contention, with colocation and capacities among them."""
    for seed in range(40):
        yield Context(random_problem(np.random.default_rng(seed), max_ops=14, contention="none"))


@pytest.mark.interpreted
def test_it_begins_as_heft():
    """Before any training every op goes where HEFT's priorities and finishes send it."""
    for seed in range(6):
        source = f"gen:layered?layers=6&width=6&ccr=2&spread=0.9&seed={seed}"
        context = Context(load(source, "uniform:4"))
        plan = ListPolicy.heft().scheduler(context).schedule()
        assert plan.start.tolist() == heft_plan(context).start.tolist()


@pytest.mark.interpreted
def test_schedules_keep_every_constraint():
    """Whatever the weights, greedy or drawn: executed as planned, a schedule ends when it says, and
    keeps what HEFT keeps.
    """
    count = 0
    for seed, context in enumerate(contexts()):
        scheduler = moved(seed).scheduler(context)
        for random, backward in product((None, 1 + seed), (False, True)):
            plan = scheduler.schedule(Pass(random, backward))
            if plan.overflow:
                continue
            placement = context.ranked(plan)
            assert evaluate(context.problem, placement, "planned").makespan == plan.finish.max()
            count += 1
    assert count > 80


def mirrored(problem):
    """Return a problem without shared tensors, its edges and links turned."""
    return PlacementProblem(
        name="mirrored",
        compute=problem.compute,
        producer=problem.consumer,
        consumer_ptr=np.arange(problem.num_edges + 1),
        consumer=problem.producer[problem.edge_tensor],
        transfer=problem.transfer[problem.edge_tensor],
        link_class=problem.link_class.T.copy(),
    )


@pytest.mark.interpreted
def test_a_backward_pass_is_a_pass_of_the_turned_graph():
    """From the sinks a policy says what it says of a problem whose edges point the other way, and
    ends no later.
    """
    count = 0
    for seed, context in enumerate(contexts()):
        problem = context.problem
        if problem.num_edges == 0 or (problem.colocation >= 0).any():
            continue
        free = problem.replace(capacity=np.full(problem.num_devices, 2**60))
        policy, other = moved(seed), Context(mirrored(free))
        plan = policy.scheduler(Context(free)).schedule(Pass(backward=True))
        there = policy.scheduler(other).schedule()
        assert plan.device.tolist() == there.device.tolist()
        assert plan.finish.max() <= there.finish.max()
        count += 1
    assert count > 8


def chance(policy, context, outcome):
    """Return the probability of an outcome of a choice between two, and its gradient.

    The gradients of both outcomes are (1 - p) x and -p x for some x, which gives p.
    """
    scheduler, ones, found = policy.scheduler(context), np.ones(context.problem.num_ops), {}
    for random in range(1, 60):
        plan = scheduler.schedule(Pass(random))
        found.setdefault(outcome(plan), scheduler.gradient([(Pass(random), ones)]))
    first, second = found[0], found[1]
    at = int(np.abs(first - second).argmax())
    return -second[at] / (first[at] - second[at]), first


CHOICES = {
    "op": (
        PlacementProblem.from_edges([[7], [4], [3]], [(0, 2, 5), (1, 2, 3)]),
        lambda plan: int(plan.start[0] > 0),
    ),
    "device": (PlacementProblem.from_edges([[7, 4]], []), lambda plan: int(plan.device[0])),
}
"""Problems with one choice, and which way it went."""


@pytest.mark.parametrize("kind", CHOICES)
def test_gradients_agree_with_finite_differences(kind):
    """The gradient of a log-probability, of a choice between two ops and between two devices: in 20
    directions that move every weight up or down, so that a wrong one shows in each.
    """
    problem, outcome = CHOICES[kind]
    context, policy, step = Context(problem), moved(3), 1e-5
    p, gradient = chance(policy, context, outcome)
    assert 0.02 < p < 0.98
    for direction in np.random.default_rng(0).choice([-1.0, 1.0], (20, len(policy.vector))):
        logs = []
        for sign in (1, -1):
            vector = policy.vector + sign * step * direction
            other = replace(policy.with_vector(vector), heats=policy.heats)
            logs.append(np.log(chance(other, context, outcome)[0]))
        assert (logs[0] - logs[1]) / (2 * step) == pytest.approx(gradient @ direction, abs=1e-4)


def test_choices_are_drawn_by_their_probability():
    """Over many draws an outcome comes as often as the gradient says, and credit scales it."""
    context = Context(PlacementProblem.from_edges([[7, 4]], []))
    policy = moved(5)
    scheduler = policy.scheduler(context)
    p, _ = chance(policy, context, CHOICES["device"][1])
    drawn = [scheduler.schedule(Pass(i)).device[0] for i in range(1, 4001)]
    assert np.mean(np.array(drawn) == 0) == pytest.approx(p, abs=0.03)
    whole, half = (scheduler.gradient([(Pass(9), np.full(1, x))]) for x in (1.0, 0.5))
    assert half == pytest.approx(whole / 2)


@pytest.mark.interpreted
def test_a_shift_is_added_to_the_scores():
    """Whatever the weights, devices that a shift favours by far are taken, from both ends, and of
    ready ops the one that it favours is first.
    """
    problem = load("gen:layered?layers=4&width=4&ccr=1&seed=3", "uniform:3")
    context, n, rng = Context(problem), problem.num_ops, np.random.default_rng(0)
    home = rng.integers(3, size=n)
    favoured = Shift(np.zeros(n), 1e6 * (home[:, None] == np.arange(3)))
    for backward in (False, True):
        plan = moved(1).scheduler(context).schedule(Pass(backward=backward, shift=favoured))
        assert plan.device.tolist() == home.tolist()
    alone = Context(PlacementProblem.from_edges([[3], [4], [5]], []))
    for v in range(3):
        shift = Shift(1e6 * (np.arange(3) == v), np.zeros((3, 1)))
        assert moved(2).scheduler(alone).schedule(Pass(shift=shift)).start[v] == 0


def test_a_climb_ends_earlier_than_independent_draws():
    """It begins with the best scores from both ends; over a dozen graphs of a family that the policy
    did not learn on, the best of 64 passes is shorter than that of as many draws at the
    temperatures that it was drawn at before. Where it learned, as on layered graphs, both end
    within their noise.
    """
    ratios = []
    for seed in range(12):
        source = f"gen:in-tree?depth=6&ccr=2&seed={seed}"
        context = Context(load(source, "uniform:4"))
        scheduler = trained().scheduler(context)
        plans = list(islice(climb([scheduler], np.random.default_rng(seed)), 64))
        for backward in (False, True):
            greedy = scheduler.schedule(Pass(backward=backward))
            assert plans[backward].start.tolist() == greedy.start.tolist()
        ways = [Pass(1 + i, backward=i % 2 == 1) for i in range(64)]
        colder = replace(trained(), heats=(0.4, 0.1)).scheduler(context)
        drawn = [colder.schedule(way).finish.max() for way in ways]
        ratios.append(min(plan.finish.max() for plan in plans) / min(drawn))
    assert np.exp(np.mean(np.log(ratios))) < 1


def test_tuning_keeps_its_budget_and_its_first_pass():
    """The search keeps its budget, is never above the policy's first pass, and repeats, with
    passes alone and with a walk.
    """
    problem = load("gen:layered?layers=7&width=7&ccr=2&seed=4", "uniform:4")
    first = make_solver("learned-list", passes=1).solve(problem, Budget(evaluations=9), seed=0)
    for samples in (1.0, 0.1):
        solver = make_solver("tuned-list", samples=samples)
        found = [solver.solve(problem, Budget(evaluations=300), seed=1) for _ in range(2)]
        assert all(one.evaluations == 300 and one.value <= first.value for one in found)
        assert found[0].solution == found[1].solution


def test_tuning_goes_on_from_the_weights_before_training_where_they_are_better(tmp_path):
    """A policy that knows nothing takes two passes from the search, and no more."""
    file = moved(7, size=3.0).save(tmp_path / "nothing.json")
    problem = load("gen:layered?layers=7&width=7&ccr=2&seed=4", "uniform:4")

    def value(solver, evaluations, **options):
        made = make_solver(solver, **options)
        return made.solve(problem, Budget(evaluations=evaluations), seed=0).value

    heft = value("learned-list", 9, policy="heft", passes=2)
    assert value("learned-list", 99, policy=str(file)) > heft
    assert value("tuned-list", 99, policy=str(file), samples=1.0) < heft


def test_list_policy_files_come_back_and_wrong_ones_are_refused(tmp_path):
    """A saved policy has the same weights; a wrong version, a missing or a misshapen table is one
    clear line.
    """
    policy = moved(7)
    path = policy.save(tmp_path / "list.json")
    assert ListPolicy.load(path).vector == pytest.approx(policy.vector, rel=1e-3)
    assert ListPolicy.load(path).heats == policy.heats
    text = path.read_text()
    for old, new in (
        ('"version": 2', '"version": 9'),
        ('"turn"', '"tern"'),
        ('"widths": [', '"widths": [1'),
    ):
        path.write_text(text.replace(old, new))
        with pytest.raises(InputError, match=r"list\.json"):
            ListPolicy.load(path)


def test_the_trained_policy_says_how_it_was_made():
    """The file in the package names its command, and differs from the policy before training."""
    assert any("train.py" in line for line in trained().provenance)
    assert (trained().vector != ListPolicy.heft().vector).any()


def test_a_pass_repeats_and_training_was_worth_it():
    """Equal passes come of equal numbers, others of others; over a dozen graphs the trained weights
    end earlier than those before training, in one pass and drawn at one temperature.
    """
    ratios, policies = (
        [],
        [replace(one, heats=(0.1, 0.1)) for one in (trained(), ListPolicy.heft())],
    )
    for seed in range(12):
        source = f"gen:layered?layers=9&width=8&ccr=3&spread=0.9&seed={seed}"
        context = Context(load(source, "uniform:4"))
        now, before = (policy.scheduler(context) for policy in policies)
        for random in (None, 5):
            plan, again = (
                now.schedule(Pass(random)),
                policies[0].scheduler(context).schedule(Pass(random)),
            )
            assert plan.start.tolist() == again.start.tolist()
            assert plan.device.tolist() == again.device.tolist()
            ratios.append(plan.finish.max() / before.schedule(Pass(random)).finish.max())
        assert (now.schedule(Pass(6)).start != plan.start).any()
    assert np.exp(np.mean(np.log(ratios))) < 0.97
