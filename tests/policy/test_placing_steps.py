"""Placing steps: exact values, nothing left behind by a rejected step, slopes, training, files."""

from __future__ import annotations

import numpy as np
import pytest
from random_problems import random_problem

from placeopt.api import load
from placeopt.makespan.evaluate import evaluate
from placeopt.model.budget import Budget
from placeopt.model.errors import InputError, Refused
from placeopt.solvers.policy.placing_steps import Kind, Place
from placeopt.solvers.policy.step_arrays import NEVER
from placeopt.solvers.policy.step_policy import PRETRAINED, TABLES, WHOLE, StepPolicyModel, pretrained
from placeopt.solvers.policy.step_training import DECODING, EVENED, LEARNED, decoded, evolve, learn_steps
from placeopt.solvers.policy.zero_shot import StepWalk, ZeroShot, walkable
from placeopt.solving.registry import make_solver


def random_model(seed):
    """Return a policy all of whose numbers matter."""
    rng = np.random.default_rng(seed)
    model = StepPolicyModel.untrained()
    return model.with_vector(model.vector + 0.3 * rng.normal(size=len(model.vector)))


def problems():
    """Return problems that placing steps decode, with colocation and capacities among them."""
    found = []
    for seed in range(70):
        problem = random_problem(np.random.default_rng(seed), max_ops=16)
        if walkable(problem) and problem.num_devices > 1:
            found.append(problem)
    return found


def started(problem, model, seed=3):
    """Return a walk from the topological order, or None where the policy finds no room."""
    walk = StepWalk(problem)
    return walk if walk.begin(model, problem.topological_order, seed=seed) != NEVER else None


@pytest.mark.interpreted
def test_values_are_those_of_the_evaluator():
    """The best value is that of the `planned` execution of the best placement, which satisfies every constraint."""
    count = 0
    for problem in problems():
        walk = started(problem, random_model(1))
        if walk is not None:
            first = walk.best_value
            walk.run(random_model(1), steps=150, rate=0.2)
            assert evaluate(problem, walk.best(), "planned").makespan == walk.best_value <= first
            count += 1
    assert count >= 6


@pytest.mark.interpreted
def test_rejected_steps_leave_nothing_behind():
    """After many steps the incumbent, decoded from scratch, has the same value, loads and bytes."""
    for problem in problems()[:8]:
        model = random_model(2)
        walk = started(problem, model)
        if walk is None:
            continue
        walk.run(model, steps=120)
        state = walk.state
        known = int(state.value[0]), state.load.tolist(), state.used.tolist(), state.start.tolist()
        assert sorted(state.sequence.tolist()) == list(range(problem.num_ops))
        assert walk.begin(model, state.sequence.copy(), state.device.copy()) == known[0]
        assert (state.load.tolist(), state.used.tolist(), state.start.tolist()) == known[1:]


def test_the_untrained_policy_decodes_as_heft():
    """Ops by b-level on the device of their earliest finish, with insertion: the value of HEFT."""
    for seed in range(4):
        problem = load(f"gen:layered?layers=6&width=6&ccr=1.5&seed={seed}", "uniform:3")
        graph, model = ZeroShot(problem), StepPolicyModel.untrained()
        heft = make_solver("heft").solve(problem, Budget(evaluations=1), seed=0).value
        assert graph.walk.begin(model, graph.own_order(model)) == heft


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_of_step_is_taken(kind):
    """With one kind alone, steps are accepted, and the value stays exact."""
    problem = load("gen:layered?layers=7&width=6&ccr=1.5&seed=1", "uniform:3")
    tables = dict(StepPolicyModel.untrained().tables)
    tables["kind"] = np.full_like(tables["kind"], 0.0)
    tables["kind"][:, 0] = -40.0
    tables["kind"][kind, 0] = 0.0
    walk = started(problem, StepPolicyModel(tables))
    walk.run(StepPolicyModel(tables), steps=80, heat=(0.05, 0.01))
    assert walk.state.tally[:, 0].tolist() == [80 if other == kind else 0 for other in Kind]
    assert walk.state.tally[kind, 1] > 0
    assert evaluate(problem, walk.best(), "planned").makespan == walk.best_value


def test_slopes_are_those_of_the_choices():
    """The slopes of one step are its advantage times d log p / d weight, worked out from what the policy saw."""
    problem = load("gen:layered?layers=6&width=6&ccr=1.5&seed=5", "uniform:4")
    seen = set()
    for seed in range(30):
        model = random_model(seed)
        walk = started(problem, model, seed)
        state, policy = walk.state, walk.view.policy(model)
        before = int(state.spent[1]) + 8 * problem.num_ops  # LOOK_WORK is not the step's
        walk.run(model, steps=1, price=1.0)
        advantage = float(state.gained[0]) - (int(state.spent[1]) - before)
        kind, op = int(state.tally[:, 0].argmax()), int(state.tried[0])
        if state.tally[:, 1].any() or advantage == 0:
            continue  # an accepted step's features are no longer there
        seen.add(kind)
        shares = np.exp(state.features @ policy.pick)
        expected = state.features[op] - (shares / shares.sum()) @ state.features
        assert state.slope_pick / advantage == pytest.approx(expected, abs=1e-9)
        if state.tried[2] >= 0:
            score = np.where(np.isfinite(state.drawn_score), state.drawn @ policy.move, -np.inf)
            share = np.exp(score - score.max())
            known = np.where(np.isfinite(score)[:, None], state.drawn, 0)
            expected = known[int(state.tried[2])] - (share / share.sum()) @ known
            assert state.slope_move / advantage == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert len(seen) >= 4


def test_a_run_repeats_and_is_never_above_its_seed():
    """The same seed gives the same placement; other seeds give samples; steps only help."""
    graph = ZeroShot(load("gen:lu?tiles=4&seed=3", "uniform:5"))
    first, again = (graph.run(pretrained(), seed=4, work_per_op=800) for _ in range(2))
    assert first.placement == again.placement
    assert first.value == again.value <= first.seeded <= first.decoded
    assert graph.run(pretrained(), seed=5, work_per_op=800).steps > 0


def test_contention_is_refused():
    """Steps do not decode channels."""
    drawn = (random_problem(np.random.default_rng(seed), contention="source") for seed in range(20))
    problem = next(problem for problem in drawn if problem.num_channels > 0)
    with pytest.raises(Refused):
        StepWalk(problem)


def test_training_repeats_and_says_what_it_changed():
    """Decoding and steps change their own tables only; the same seed gives the same; no graphs is an error."""
    graphs = [ZeroShot(load(f"gen:layered?layers=5&width=5&ccr=2&seed={seed}", "uniform:3")) for seed in range(3)]
    first = StepPolicyModel.untrained()
    one, two = (evolve(first, graphs, decoded, generations=12, pairs=6, seed=0) for _ in range(2))
    assert one.vector.tolist() == two.vector.tolist()
    assert [name for name in TABLES if (one.tables[name] != first.tables[name]).any()] == list(DECODING)
    later = learn_steps(one, graphs, rounds=3, seed=0, batch=3)
    assert all((later.tables[name] != one.tables[name]).any() for name in LEARNED if name not in EVENED)
    assert all((later.tables[name] == one.tables[name]).all() for name in TABLES if name not in LEARNED)
    for train in (lambda: evolve(first, [], decoded, generations=1, seed=0), lambda: learn_steps(first, [], rounds=1, seed=0)):
        with pytest.raises(InputError, match="at least one graph"):
            train()


def test_policy_files_come_back_and_wrong_ones_are_refused(tmp_path):
    """A saved policy has the same weights; a wrong version, row or number is one clear line."""
    model = random_model(7)
    path = model.save(tmp_path / "steps.json")
    assert StepPolicyModel.load(path).vector == pytest.approx(model.vector, rel=1e-5)
    text = path.read_text()
    for old, new in (('"version": 1', '"version": 9'), ('"idle"', '"idol"'), ('"order"', '"odor"')):
        path.write_text(text.replace(old, new))
        with pytest.raises(InputError, match=r"steps\.json"):
            StepPolicyModel.load(path)
    with pytest.raises(InputError, match="order must be"):
        StepPolicyModel({"order": np.zeros((len(Place), len(WHOLE) + 1))})


def test_the_pretrained_policy_says_how_it_was_made():
    """The file in the package names its command, and differs from the policy before training."""
    model = StepPolicyModel.load(PRETRAINED)
    assert any("pretrain.py" in line for line in model.provenance)
    assert (model.vector != StepPolicyModel.untrained().vector).any()
