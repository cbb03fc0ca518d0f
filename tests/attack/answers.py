"""Poor answers of HiGHS, GLOP and CP-SAT: none, late, or (of floating-point programs, which no bound
may believe) noisy, false and invented ones.

CP-SAT is believed where it proves something, so that its answers are only made weaker: it stops
before it begins, or a solution is not known to be the best.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np

from placeopt.latency.bounds import flow
from placeopt.makespan.bounds import elementary, front, segments
from placeopt.period.bounds.covering import Master
from placeopt.sharding import exact_rest

if TYPE_CHECKING:
    from collections.abc import Iterator

LINEAR = (flow, elementary)
EXACT = (front, segments, exact_rest)
"""Modules that ask for linear programs, and those that ask CP-SAT."""


MOST = 40
"""Poor answers in all, so that what goes on until answers are good ones ends."""


@contextmanager
def poor_answers(rng, chance: float) -> Iterator[None]:
    """Let each answer be a poor one with some chance."""
    left = [MOST]

    def poor(share: float = chance) -> bool:
        found = left[0] > 0 and rng.random() < share
        left[0] -= found
        return found

    with ExitStack() as stack:
        for module in LINEAR:
            asked = _poorly(module.linear_program, rng, poor)
            stack.enter_context(mock.patch.object(module, "linear_program", asked))
        for module in EXACT:
            asked = _weakly(module.solve_interruptibly, rng, poor)
            stack.enter_context(mock.patch.object(module, "solve_interruptibly", asked))
        stack.enter_context(mock.patch.object(Master, "solve", _priced(Master.solve, rng, poor)))
        stack.enter_context(_unsolved(lambda: poor(chance / 3)))
        yield


def _poorly(ask, rng, poor):
    """Return what asks HiGHS, and answers with noise, that there is nothing, or not at all."""

    def asked(*given, **named):
        if not poor():
            return ask(*given, **named)
        kind = rng.choice(["none", "none", "failed", "infeasible", "noise", "noise"])
        if kind != "noise":
            status = {"none": 1, "failed": 4, "infeasible": 2}[kind]
            return SimpleNamespace(status=status, x=None, fun=None, ineqlin=None, eqlin=None)
        true = ask(*given, **named)
        if true.x is None:
            return _invented(true, rng, **named)
        found = {"status": true.status, "x": _noisy(true.x, rng), "fun": true.fun}
        for part in ("ineqlin", "eqlin"):
            if getattr(true, part, None) is not None:
                marginals = _noisy(getattr(true, part).marginals, rng)
                found[part] = SimpleNamespace(marginals=marginals)
        return SimpleNamespace(**found)

    return asked


def _invented(true, rng, below=None, equal=None, **_named):
    """Return a solution of a linear program that has none, where its rows say how long it is."""
    if below is None or equal is None:
        return true
    found = {}
    for part, (_, right) in (("ineqlin", below), ("eqlin", equal)):
        first, last = (-(10 ** rng.uniform(-12, 1)) for _ in range(2))
        split = rng.choice([rng.randint(0, len(right)), (len(right) + 1) // 2])
        marginals = np.where(np.arange(len(right)) < split, first, last)
        found[part] = SimpleNamespace(marginals=marginals)
    return SimpleNamespace(status=0, x=np.zeros(below[0].shape[1]), fun=0.0, **found)


def _noisy(values, rng):
    """Return values, some of them other ones of the same sign."""
    changed = np.array(values, dtype=np.float64)
    if rng.random() < 0.1:
        return 0.0 * changed
    for i in range(len(changed)):
        if rng.random() < 0.3:
            changed[i] *= rng.choice([0.0, 0.5, 1.0 + 1e-9, 2.0])
    return changed


def _priced(solve, rng, poor):
    """Return what solves a covering program, its prices with noise."""

    def solved(master, seconds):
        value, prices, weights = solve(master, seconds)
        if not poor():
            return value, prices, weights
        noisy = _noisy(prices, rng)
        shares = dict(zip(weights, _noisy(list(weights.values()), rng).tolist(), strict=True))
        return value, noisy if noisy.any() else prices, shares

    return solved


def _unsolved(poor):
    """Return a context in which GLOP gives some programs up."""
    from ortools.linear_solver import pywraplp

    solve = pywraplp.Solver.Solve

    def solved(solver, *given):
        return pywraplp.Solver.NOT_SOLVED if poor() else solve(solver, *given)

    return mock.patch.object(pywraplp.Solver, "Solve", solved)


def _weakly(solve, rng, poor):
    """Return what runs CP-SAT for no time at all, or does not say that its solution is the best."""
    from ortools.sat.python import cp_model

    def solved(search, model, *given):
        if not poor():
            return solve(search, model, *given)
        if rng.random() < 0.5:
            search.parameters.cp_model_presolve = False
            search.parameters.max_deterministic_time = 0.0
            return solve(search, model, *given)
        code = solve(search, model, *given)
        return cp_model.FEASIBLE if code == cp_model.OPTIMAL else code

    return solved
