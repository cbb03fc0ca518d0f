"""Fronts as a step of a proof: how much work the ends of a schedule hold, each a small statement
with its model.

The statement "the first t ticks of a schedule hold at most W of energy" is proved by a search
(CP-SAT); what is written beside it is a model, without a solution, of more than W: any solver can
repeat it. In the model, s is the start of an op, g the energy that it delivers in the window, and x
whether it runs on a device; precedence, transfers and one op at a time on a device are kept
(`placeopt.makespan.bounds.front`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.makespan.bounds.front import front_proof
from placeopt.makespan.proof.supposition import INFINITE
from placeopt.model.bound import Belief
from placeopt.model.cp_sat import cp_solver, solve_interruptibly

if TYPE_CHECKING:
    from placeopt.makespan.bounds.analysis import Analysis
    from placeopt.makespan.bounds.front import FrontProof
    from placeopt.makespan.proof.supposition import Supposition
    from placeopt.model.bound import Step

Model = dict[str, Any]


def front_step(
    state: Supposition, analysis: Analysis, known: int, end: float
) -> tuple[Step, tuple[Belief, ...]] | None:
    """Return the step that closes the supposition, and what it takes on trust; None if fronts do
    not prove it until `end`.

    Parameters
    ----------
    state : supposition whose heads and tails have been raised.
    known : a bound proved otherwise, ticks.
    """
    proof = front_proof(analysis.evidence(known), end)
    if proof is None or proof.bound <= state.most:
        return None
    weights = [
        proof.weights[int(analysis.relaxation.class_of[state.kind.index(c)])]
        for c in range(len(state.count))
    ]
    return _step(state, proof, weights)


def _step(
    state: Supposition, proof: FrontProof, weights: list[int]
) -> tuple[Step, tuple[Belief, ...]]:
    width = sum(y * x for x, y in zip(state.count, weights, strict=True))
    beliefs = []
    for backwards, (ticks, most) in enumerate((proof.first, proof.last)):
        if most < width * ticks:
            side = "last" if backwards else "first"
            words = (
                f"the {side} {ticks} ticks of a schedule of at most {state.most} hold at most "
                f"{most} of energy"
            )
            beliefs.append(
                Belief(
                    f"{words}, where devices of classes {state.kind} weigh {weights}",
                    front_model(state, weights, ticks, most + 1, backwards=bool(backwards)),
                )
            )
    return ["front", weights, list(proof.first), list(proof.last)], tuple(beliefs)


def front_model(
    state: Supposition, weights: list[int], window: int, least: int, *, backwards: bool
) -> Model:
    """Return the statement that ops deliver `least` energy in the first (or last) `window` ticks,
    as a model.
    """
    far = state.tail if backwards else state.head
    variables: dict[str, list[int]] = {}
    rows: list[Any] = []
    lanes: list[list[list[Any]]] = [[] for _ in state.kind]
    on: dict[int, list[tuple[int, int]]] = {}  # op -> (device, ticks)
    for v in state.order[::-1] if backwards else state.order:
        here = [
            (d, c, int(state.time[v][c] or 0))
            for d, c in enumerate(state.kind)
            if state.time[v][c] is not None
            and far[v][c] < window
            and state.kind[:d].count(c) <= len(on)
        ]  # devices of a class are alike: the i-th op uses one of the first i
        if not here:
            continue
        names = [f"x{v}.{d}" for d, _, _ in here]
        energy = min(weights[c] * (state.time[v][c] or 0) for c in state.classes(v))
        variables[f"s{v}"] = [int(min(far[v][c] for _, c, _ in here)), window]
        variables[f"g{v}"] = [0, energy]
        variables.update({name: [0, 1] for name in names})
        rows += [
            [[[-1, name] for name in names], -1, []],
            [[[-1, f"g{v}"], *([energy, name] for name in names)], 0, []],
        ]
        for name, (d, c, ticks) in zip(names, here, strict=True):
            rows.append([[[1, f"s{v}"]], int(far[v][c]), [name]])
            rows.append([[[-1, f"g{v}"], [-weights[c], f"s{v}"]], -weights[c] * window, [name]])
            lanes[d].append([f"s{v}", ticks, name])
        on[v] = [(d, ticks) for d, _, ticks in here]
    for u, v in state.edges:
        rows += _order_rows(on, state.edges[u, v], *((v, u) if backwards else (u, v)))
    rows.append([[[1, f"g{v}"] for v in on], least, []])
    return {"variables": variables, "rows": rows, "alone": lanes}


def _order_rows(
    on: dict[int, list[tuple[int, int]]], delays: list[float], u: int, v: int
) -> list[Any]:
    """An op runs only after the one before it, and after its transfer where that is on another
    device.
    """
    free, pay = delays
    rows: list[Any] = []
    for e, _ in on.get(v, ()):
        rows.append([[*([1, f"x{u}.{d}"] for d, _ in on.get(u, ())), [-1, f"x{v}.{e}"]], 0, []])
        for d, ticks in on.get(u, ()):
            both = [f"x{u}.{d}", f"x{v}.{e}"]
            delay = free if d == e else max(free, pay)
            if delay == INFINITE:
                rows.append([[[-1, name] for name in both], -1, []])
            else:
                rows.append([[[1, f"s{v}"], [-1, f"s{u}"]], ticks + int(delay), both])
    return rows


def has_no_solution(model: Model, seconds: float, num_workers: int = 2) -> bool | None:
    """Repeat a statement by CP-SAT: True if the model has no solution, False if it has one, None if
    time was short.
    """
    from ortools.sat.python import cp_model

    cp = cp_model.CpModel()
    known = {
        name: cp.new_int_var(low, high, name) for name, (low, high) in model["variables"].items()
    }
    for terms, least, given in model["rows"]:
        row = cp.add(sum(factor * known[name] for factor, name in terms) >= least)
        if given:
            row.only_enforce_if([known[name] for name in given])
    for lane in model["alone"]:
        cp.add_no_overlap(
            [
                cp.new_optional_fixed_size_interval_var(known[start], ticks, known[name], "")
                for start, ticks, name in lane
            ]
        )
    solver = cp_solver(workers=num_workers, seconds=seconds)
    status = solve_interruptibly(solver, cp)
    if status == cp_model.INFEASIBLE:
        return True
    return False if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
