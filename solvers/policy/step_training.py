"""Train policies of placing steps on several graphs: how they decode by evolution strategies, their steps by policy gradient.

**Decoding** is greedy, so it has no gradient: each generation perturbs the weights at random, in pairs of opposite signs, and
decodes some graphs. The weights move along the perturbations, each by how much better its side was; the differences on a graph are
over their spread there, so that no graph pulls more than others.

**Steps** are drawn, so their choices (op, kind, size, device) have a score function. A step earns the part of the value that it
saves, less what its work would have saved on average (the price of work): what is maximised is the gain per time.

References
----------
- T. Salimans, J. Ho, X. Chen, S. Sidor, I. Sutskever. Evolution strategies as a scalable alternative to reinforcement learning.
  2017.
- R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement learning. Machine
  Learning 8, 1992.
- A. Schwartz. A reinforcement learning method for maximizing undiscounted rewards. ICML 1993. (Gain per time.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeopt.model.errors import InputError
from placeopt.solvers.policy.adam import Adam
from placeopt.solvers.policy.step_arrays import NEVER
from placeopt.solvers.policy.step_policy import TABLES, TIMES, StepPolicyModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from placeopt.solvers.policy.zero_shot import ZeroShot

    Floats = NDArray[np.float64]
    Judge = Callable[[ZeroShot, StepPolicyModel, int], float]

SPREAD = 0.15
"""Standard deviation of the perturbations."""

DECODING = ("order", "place")
"""Tables that decoding depends on."""

LEARNED = ("pick", "kind", "kind_late", "log_reach", "move")
"""Tables that the policy gradient changes."""

EVENED = ("kind", "kind_late")
"""Of these, what is set back at the end: scores of kinds make ops, sizes and devices be learned where they are of use, but a policy
that keeps them is short-sighted, since a step that gains nothing now may be what a later one needs."""

MOST = 3.0
"""Largest weight of a kind of step, so that none dies out."""

LEGS, WORK_PER_OP = 4, 6_000
"""Parts of a training run, each with a price of its own, and its units of work for each op."""


def decoded(graph: ZeroShot, model: StepPolicyModel, seed: int) -> float:
    """Logarithm of the value that the policy decodes in its own order, without any step."""
    value = graph.walk.begin(model, graph.own_order(model))
    return float(np.log(value)) if value != NEVER else np.inf


def evolve(
    model: StepPolicyModel,
    graphs: Sequence[ZeroShot],
    judge: Judge,
    *,
    generations: int,
    seed: int,
    some: int = 8,
    pairs: int = 12,
    rate: float = 0.05,
) -> StepPolicyModel:
    """Return a policy that was trained for a judge.

    Parameters
    ----------
    judge : called with a graph, a policy and a seed; smaller is better.
    some, pairs : graphs and pairs of policies of each generation.
    rate : Adam's step; it falls to a tenth.

    Raises
    ------
    InputError
        If there are no graphs.
    """
    if not graphs:
        raise InputError("evolve: expected at least one graph")
    rng = np.random.default_rng(seed)
    vector = model.vector.copy()
    adam = Adam(len(vector), rate)
    moving = model.with_tables({name: np.full_like(model.tables[name], name in DECODING) for name in TABLES}).vector
    for generation in range(generations):
        noise = rng.normal(size=(pairs, len(vector))) * moving
        chosen = rng.choice(len(graphs), min(some, len(graphs)), replace=False)
        seeds = rng.integers(1, 2**31, len(chosen))
        gain = np.empty((pairs, len(chosen)))
        for i, direction in enumerate(noise):
            sides = [model.with_vector(vector + sign * SPREAD * direction) for sign in (1, -1)]
            for j, (graph, number) in enumerate(zip(chosen.tolist(), seeds.tolist(), strict=True)):
                better, worse = (judge(graphs[graph], side, number) for side in sides)
                gain[i, j] = worse - better if np.isfinite(worse - better) else 0.0
        pull = (gain / (gain.std(axis=0) + 1e-9)).mean(axis=1)
        vector += (1 - 0.9 * generation / generations) * adam.step(pull @ noise / (pairs * SPREAD))
    return model.with_vector(vector)


def learn_steps(
    model: StepPolicyModel, graphs: Sequence[ZeroShot], *, rounds: int, seed: int, rate: float = 0.1, batch: int = 14
) -> StepPolicyModel:
    """Return a policy whose steps were trained to gain most per work.

    Parameters
    ----------
    rounds : runs on every graph, each from a start of its own.
    rate : Adam's step; it falls to a tenth. batch : runs per step.

    Raises
    ------
    InputError
        If there are no graphs.
    """
    if not graphs:
        raise InputError("learn_steps: expected at least one graph")
    rng = np.random.default_rng(seed)
    steps = {name: Adam(model.tables[name].shape, rate) for name in LEARNED}
    price = np.full((len(graphs), LEGS), np.nan)
    for turn in range(rounds):
        order = rng.permutation(len(graphs))
        for at in range(0, len(order), batch):
            total = {name: np.zeros_like(model.tables[name]) for name in LEARNED}
            for i in order[at : at + batch].tolist():
                for name, slope in run_slopes(graphs[i], model, int(rng.integers(1, 2**31)), price[i]).items():
                    total[name] += slope
            share = 1 - 0.9 * turn / rounds
            moved = {name: np.array(model.tables[name]) + share * steps[name].step(total[name]) for name in LEARNED}
            for name in EVENED:
                moved[name] = np.clip(moved[name], -MOST, MOST)
            model = model.with_tables(moved)
    return model.with_tables({name: np.zeros_like(model.tables[name]) for name in EVENED})


def run_slopes(graph: ZeroShot, model: StepPolicyModel, seed: int, price: Floats) -> dict[str, Floats]:
    """Return the slopes of one run, over its gains; `price` of each leg is moved towards what work earned in it."""
    walk, state = graph.walk, graph.walk.state
    graph.begin_at(model, seed)
    whole, typical = walk.view.whole, walk.view.typical
    total = {name: np.zeros_like(model.tables[name]) for name in LEARNED}
    for leg in range(LEGS):
        slopes = (state.slope_pick, state.slope_kind, state.slope_reach, state.slope_move, state.gained)
        for array in slopes:
            array[:] = 0.0
        before = int(state.spent[1])
        known = price[leg] if np.isfinite(price[leg]) else 0.0
        walk.run(model, work=WORK_PER_OP * walk.problem.num_ops // LEGS, part=(leg / LEGS, (leg + 1) / LEGS), price=known)
        earned = float(state.gained[0]) / max(1, int(state.spent[1]) - before)
        first = not np.isfinite(price[leg])
        price[leg] = earned if first else price[leg] + 0.3 * (earned - price[leg])
        if first:
            continue  # without a price all work looks good
        move = state.slope_move.copy()
        move[:TIMES] /= typical
        found = (state.slope_pick, state.slope_kind[0], state.slope_kind[1], state.slope_reach, move)
        for name, slope in zip(LEARNED, found, strict=True):
            total[name] += np.outer(slope, whole) / (float(state.gained[0]) + 0.002)
    return total


def choose_heat(model: StepPolicyModel, graphs: Sequence[ZeroShot], heats: Sequence[float], *, samples: int = 2) -> StepPolicyModel:
    """Return the policy at the temperature that is best on some graphs, by the mean logarithm of the values of whole runs."""
    found = []
    for heat in heats:
        walk = np.zeros_like(model.tables["walk"])
        walk[0, 0] = np.log(heat)
        warm = model.with_tables({"walk": walk})
        values = [graph.run(warm, seed=seed).value for graph in graphs for seed in range(samples)]
        found.append((float(np.log(values).mean()), heat, warm))
    return min(found, key=lambda choice: choice[:2])[2]
