"""The witness of a bound on the makespan, or on the loads of devices: steps from "suppose a better
solution" to a contradiction.

One step is of fronts: how much work the ends of a schedule hold, each a small statement with its
model. The statement "the first t ticks of a schedule hold at most W of energy" is proved by a
search (CP-SAT); what is written beside it is a model, without a solution, of more than W: any
solver can repeat it. In the model, s is the start of an op, g the energy that it delivers in the
window, and x whether it runs on a device; precedence, transfers and one op at a time on a device
are kept (`placeopt.makespan.bounds.front`).

Another is of delays of segments (`placeopt.makespan.bounds.segments`): each is derived
from its own supposition, whose ops are numbered along the segment. A step names all segments that
look alike, so that one derivation proves the delay of each.

Where transfers wait for channels, flows between ops prove delays and bounds, too, of the whole
problem or of segments: what every op sends through every tensor is written down, so that a checker
adds up and searches nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, takewhile
from typing import Any

import numpy as np

from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis
from placeopt.makespan.bounds.communication import HeadsTails, heads_tails
from placeopt.makespan.bounds.congestion import (
    Inside,
    Partition,
    Segments,
    Sending,
    partitions,
    pins_of,
    to_best_hub,
)
from placeopt.makespan.bounds.front import FrontProof, front_proof
from placeopt.makespan.bounds.relaxation import INFINITE as IMPOSSIBLE, Relaxation, islands
from placeopt.makespan.bounds.segment_graph import Evidence, Segment, with_delays
from placeopt.makespan.bounds.segments import Spread, half_way, segment_delays, spreads
from placeopt.makespan.proof.derivation import Choice, Effort, OutOfReachError, derive
from placeopt.makespan.proof.steps import Columns, overfull_window, pigeonhole, sweep
from placeopt.makespan.proof.supposition import INFINITE, Supposition
from placeopt.model.arrays import Ints, as_pairs, by_key, frozen, together
from placeopt.model.bound import Belief, Step, Witness
from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.model.problem import INCOMPATIBLE, PlacementProblem
from placeopt.model.uniform_flow import MOST_SENT, flow_above

Places = dict[int, list[tuple[int, int, int]]]
"""(device, class, ticks) where each op may begin."""


LARGEST = 2**50
"""Ticks beyond which no lemmas are looked for: they are found in floating point, which is exact
below."""

Copies = dict[tuple[int, tuple[int, ...], str], list[tuple[int, ...]]]
"""Segments, as lists of ops, by what one derivation proves of all of them: their delay, the places
of the ops spread in it, and their looks."""


Found = tuple[list[Step], tuple[Belief, ...]]
"""Steps to a contradiction, and what they believe."""

KINDS = ("none", "whole", "useful", "flows", "all")
"""Delays that a supposition is told beside its own, cheapest first; `whole` is a step instead."""

QUEUES = ("whole", "flows")
"""Those for which transfers have to wait for one another."""


def makespan_witness(problem: PlacementProblem, bound: int, method: str, seconds: float) -> Witness:
    """Return what proves that no schedule is shorter than `bound`, or than as much of it as can be
    shown.

    Paths and loads come first, then propagation and, for small problems, cases, then fronts, whose
    statements have to be believed. What none of them shows in half of the time is lowered to the
    best combinatorial bound of which steps are found.

    Parameters
    ----------
    bound, method : a bound in ticks that is known to hold, and what found it.
    seconds : time for it, a second at least; paths and loads need none.
    """
    end, name = time.perf_counter() + max(seconds, 1.0), method
    aim, found = bound, bound > 0 and _steps(problem, bound, half_way(end), cases=5000)
    if not found:
        name, (aim, found) = "propagation", _next_best(problem, bound, end)
    if not found:
        return Witness(0, "none", {"steps": []})
    steps, beliefs = found
    content: dict[str, Any] = {"steps": steps, "unit": problem.common_unit}
    if (island := islands(problem)).any():
        content["islands"] = island.tolist()
    return Witness(aim, name, content, beliefs)


def load_witness(problem: PlacementProblem, bound: int, method: str) -> Witness:
    """Return what proves that some device has a load of at least `bound`, whatever the order of ops
    and their transfers.

    Weights of classes of devices, or pigeonholes; what they do not show is lowered to what they do.
    """
    choices = class_choices(Supposition(problem, bound, edges=False))
    low, high, unit = 0, bound, problem.common_unit
    middle, best = bound, Witness(0, "none", {"steps": []})
    while low < high:  # what closes for a bound closes for a smaller one: bisection
        most = (middle - 1) // unit * unit
        steps = _load_steps(Supposition(problem, most, edges=False), choices)
        if steps is None:
            high = middle - 1
        else:
            low, name = middle, method if middle == bound else "load"
            best = Witness(middle, name, {"steps": steps, "unit": unit})
        middle = (low + high + 1) // 2
    return best


def _load_steps(
    state: Supposition, choices: list[Choice], most_ends: int = 64
) -> list[Step] | None:
    """Return steps by which paths, and the loads of devices, refute a supposition, None if they do
    not; they are found in whole numbers, however large.
    """
    by_edges = np.zeros((state.problem.num_ops, len(state.count)), np.int64)
    steps: list[Step] = []
    for backwards in range(1 + bool(state.edges)):
        sweep(state, backwards=bool(backwards), goal=by_edges)
        steps.append(["sweep", backwards, []])
        if state.closed:
            return steps
    for members in {id(x): x for x in state.group}.values():
        if len(members) > 1 and state.too_much(members):
            return [*steps, ["apart", members[0], members[1], members]]
    columns = Columns(state)
    step = pigeonhole(columns) or overfull_window(columns, choices, most_ends=most_ends)
    return None if step is None else [*steps, step]


def _next_best(problem: PlacementProblem, bound: int, end: float) -> tuple[int, Found | None]:
    """Return the best of the combinatorial bounds, none above `bound`, that steps show until `end`:
    from the least upwards as far as no delays are needed, then the best one by these.
    """
    analysis = Analysis(problem, seconds=_left(end) / 2, upper=bound, written=True)
    analysis.run_all((*COMBINATORIAL, "congestion", "segments"), optional=True)
    aims = sorted({min(bound, found) for found in analysis.bounds.values()} - {0})
    shown: tuple[int, Found | None] = 0, None
    while aims and (found := _steps(problem, aims[0], half_way(end), KINDS[:1])):
        shown = aims.pop(0), found
    better = ((aim, _steps(problem, aim, half_way(end), KINDS[1:])) for aim in reversed(aims))
    return next((pair for pair in better if pair[1]), shown)


def _steps(
    problem: PlacementProblem, aim: int, end: float, kinds: Sequence[str] = KINDS, *, cases: int = 0
) -> Found | None:
    """Return steps that refute what is shorter than `aim`, and what they believe; None if none were
    found.

    Parameters
    ----------
    end : in seconds of `time.perf_counter`, but for paths and loads. kinds : of steps, and delays.
    cases : that may be told apart; without any there are no fronts either.
    """
    unit = problem.common_unit
    most = (aim - 1) // unit * unit
    state = Supposition(problem, most)
    steps = _load_steps(state, class_choices(state), 2)  # the whole, and what is read off at once
    if steps is not None or most >= LARGEST:
        return None if steps is None else (steps, ())
    analysis = Analysis(problem, seconds=_left(end), upper=most + 1)
    for kind in kinds:
        until = half_way(end) if cases or kind != kinds[-1] else end
        if kind in QUEUES and not partitions(problem):
            continue
        if kind == "whole":
            step = whole_step(problem, most, until)
            if step is not None:
                return [step], ()
            continue
        state = Supposition(problem, most)
        steps = _raised(kind, state, analysis, until)
        if steps or kind == "none":
            found = _derived(state, until, max(1, cases))
            if found is not None:
                return [*steps, *found], ()
    return _by_fronts(problem, most, end) if cases else None


def _left(end: float) -> float:
    """Return the seconds until `end` (`time.perf_counter`)."""
    return max(0.0, end - time.perf_counter())


def _raised(kind: str, state: Supposition, analysis: Analysis, end: float) -> list[Step]:
    """Add delays of a kind to a supposition and return the steps that prove them."""
    if kind == "none":
        return []
    analysis.run_all(COMBINATORIAL, optional=True)
    if kind == "flows":
        return raise_by_flows(state, analysis, end)
    return raise_by_segments(state, analysis, end, everything=kind == "all")


def raise_by_flows(state: Supposition, analysis: Analysis, end: float) -> list[Step]:
    """Add the delays of segments that flows show to a supposition, and longer ones that hold
    however ops are spread; return the steps that prove them, none where there are no flows.
    """
    evidence = analysis.evidence(0)
    steps = [
        _segment_step(state, alike, ticks, [step])
        for alike, ticks, step in segment_flows(state.problem, evidence, end)
    ]
    return steps + _fork_join_steps(state, spreads(evidence, end)) if steps else []


def _derived(state: Supposition, until: float, cases: int) -> list[Step] | None:
    """Return steps that refute a supposition, of small problems by so many cases; None if none were
    found.
    """
    small = _is_small(state.problem)
    goals = None if small else goals_of(state, until)
    effort = Effort(cases if small else 1, until, class_choices(state), goals)
    try:
        return derive(state, effort)
    except OutOfReachError:
        return None


def _is_small(problem: PlacementProblem, *, most_ops: int = 40) -> bool:
    """Whether lemmas are looked for without knowing what they prove, and cases are told apart."""
    return problem.num_ops <= most_ops


def _by_fronts(problem: PlacementProblem, most: int, end: float) -> Found | None:
    """Raise heads and tails, then let fronts close the supposition; None if they do not prove it
    until `end`.
    """
    state = Supposition(problem, most)
    goals = (None, None) if _is_small(problem) else goals_of(state, end)(state)
    effort = Effort(1, end, class_choices(state))
    steps: list[Step] = [
        ["sweep", backwards, effort.sweep(state, backwards=bool(backwards), goal=goal)]
        for backwards, goal in enumerate(goals)
    ]
    analysis = Analysis(problem, seconds=_left(end), upper=most + 1)
    analysis.run_all(COMBINATORIAL, optional=True)
    proof = front_proof(_supposed(state, analysis), end)
    if proof is None or proof.bound <= most:
        return None
    weights = [proof.weights[c] for c in _classes(state, analysis.relaxation)]
    step, beliefs = _front_step(state, proof, weights)
    return [*steps, step], beliefs


def _supposed(state: Supposition, analysis: Analysis) -> Evidence:
    """Return what a supposition says, and no more, by the classes of the relaxation: some of them,
    on unlike islands, are one of the supposition.
    """
    r = analysis.relaxation
    kind = np.array(state.kind)[np.unique(r.class_of, return_index=True)[1]]
    never = state.most + 1  # what cannot be, as a number
    head, tail = (
        np.where(r.compute < 0, INCOMPATIBLE, np.minimum(far, never)[:, kind]).astype(np.int64)
        for far in (np.array(state.head, object), np.array(state.tail, object))
    )
    weights = analysis.load.weights[_classes(state, r)][kind]
    heads = HeadsTails(head, tail, r.compute)
    return Evidence(r, heads, weights, analysis.best()[0], never)


def _classes(state: Supposition, relaxation: Relaxation) -> list[int]:
    """Return the relaxation's class of each class of devices of a supposition."""
    return [int(relaxation.class_of[state.kind.index(c)]) for c in range(len(state.count))]


def class_choices(state: Supposition) -> list[Choice]:
    """Return weights of classes worth trying in windows: all equal, the load bound's, each class on
    its own, and those for which bytes have prices, too.
    """
    none = np.zeros(len(state.count), np.int64)
    if len(none) == 1:
        return [(np.ones_like(none), none)]
    analysis = Analysis(state.problem, seconds=5.0)
    of, load = _classes(state, analysis.relaxation), analysis.load
    weights = [np.ones_like(none), load.weights[of], *np.eye(len(none), dtype=np.int64)]
    priced = [(load.priced[0][of], load.priced[1][of])] if load.priced else []
    return [(choice, none) for choice in weights] + priced


def goals_of(
    state: Supposition, end: float = math.inf
) -> Callable[[Supposition], tuple[Ints, Ints]]:
    """Return a function that finds heads and tails of a state by the kernels of
    `placeopt.makespan.bounds.communication`, until `end` (`time.perf_counter`).
    """
    analysis = Analysis(state.problem, seconds=_left(end))
    relaxation, weights = analysis.relaxation, analysis.load.weights
    column = _classes(state, relaxation)
    pairs = list(together(relaxation.source, relaxation.target))

    def goals(now: Supposition) -> tuple[Ints, Ints]:
        delays = as_pairs([[min(x, IMPOSSIBLE) for x in now.edges[pair]] for pair in pairs])
        free, pay = map(frozen, delays.T)
        costs = replace(relaxation, free=free, pay=pay)
        longer = [(u, v, ticks) for (u, v), ticks in now.delays.items()]
        costs = with_delays(costs, longer) if longer else costs
        found = heads_tails(costs, None, end, weights)
        return found.head[:, column], found.tail[:, column]

    return goals


Model = dict[str, Any]


def _front_step(
    state: Supposition, proof: FrontProof, weights: list[int]
) -> tuple[Step, tuple[Belief, ...]]:
    """Return the step that closes the supposition, and what it takes on trust.

    Parameters
    ----------
    state : supposition whose heads and tails have been raised.
    weights : of its classes of devices.
    """
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
    on = _front_devices(state, far, window, state.order[::-1] if backwards else state.order)
    for v, here in on.items():
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
    for u, v in state.edges:
        rows += _order_rows(on, state.edges[u, v], *((v, u) if backwards else (u, v)))
    rows.append([[[1, f"g{v}"] for v in on], least, []])
    return {"variables": variables, "rows": rows, "alone": lanes}


def _front_devices(
    state: Supposition, far: Sequence[Sequence[float]], window: int, order: Sequence[int]
) -> Places:
    """Return (device, class, ticks) where each op may begin in a window; those that may not are
    left out.

    Parameters
    ----------
    far : ticks from the window's start to the op, by class.
    """
    found: Places = {}
    for v in order:
        here = [
            (d, c, int(state.time[v][c] or 0))
            for d, c in enumerate(state.kind)
            if state.time[v][c] is not None
            and far[v][c] < window
            and state.kind[:d].count(c) <= len(found)
        ]  # devices of a class are alike: the i-th op uses one of the first i
        if here:
            found[v] = here
    return found


def _order_rows(on: Places, delays: list[float], u: int, v: int) -> list[Any]:
    """An op runs only after the one before it, and after its transfer where that is on another
    device.
    """
    free, pay = delays
    rows: list[Any] = []
    before = on.get(u, ())
    for e, _, _ in on.get(v, ()):
        rows.append([[*([1, f"x{u}.{d}"] for d, _, _ in before), [-1, f"x{v}.{e}"]], 0, []])
        for d, _, ticks in before:
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


def raise_by_segments(
    state: Supposition,
    analysis: Analysis,
    end: float,
    *,
    everything: bool = True,
    most_cases: int = 400,
    search_share: float = 0.3,
) -> list[Step]:
    """Add the delays of segments to a supposition and return the steps that prove them; none where
    there are none.

    Parameters
    ----------
    analysis : of the problem, its cheaper bounds run.
    end : in seconds of `time.perf_counter`.
    everything : also segments that only raise heads and tails.
    most_cases : told apart for one segment. search_share : of the time, for looking for segments.
    """
    now = time.perf_counter()
    evidence, until = (
        analysis.evidence(min(state.most, analysis.best()[0])),
        now + search_share * (end - now),
    )
    copies: Copies = {}
    solved: dict[tuple[int, ...], int] = {}
    delays = [
        segment_delays(evidence, until, solved, everything=x)
        for x in (False, True)
        if x <= everything
    ]
    for segment, ticks in dict.fromkeys(chain(*delays)):
        _add(copies, state, segment, ticks)
    weights = np.ones(len(state.count), np.int64)
    steps: list[Step] = []
    for (ticks, *_), alike in copies.items():
        part = state.segment(alike[0], ticks - 1)
        try:
            found = derive(part, Effort(most_cases, end, [(weights, np.zeros_like(weights))]))
        except OutOfReachError:
            continue
        steps.append(_segment_step(state, alike, ticks, found))
    return steps + _fork_join_steps(state, spreads(evidence, until))


def _fork_join_steps(state: Supposition, found: list[tuple[Segment, Spread]]) -> list[Step]:
    """Add delays that hold however ops are spread, where none as long is known, and return the
    steps that prove them.
    """
    copies: Copies = {}
    for segment, spread in found:
        if spread.ticks > state.delays.get((segment.first, segment.last), 0):
            number = {v: i for i, v in enumerate(segment.between, 1)}
            _add(copies, state, segment, spread.ticks, tuple(number[v] for v in spread.ops))
    return [
        _segment_step(state, alike, ticks, [["ends", list(ops), 0, len(alike[0]) - 1]])
        for (ticks, ops, _), alike in copies.items()
    ]


def _add(
    copies: Copies, state: Supposition, segment: Segment, ticks: int, spread: tuple[int, ...] = ()
) -> None:
    """Put a segment with those of the same delay, and the same ops spread, that look alike."""
    ops = (segment.first, *segment.between, segment.last)
    part = state.segment(ops, ticks - 1)
    looks = (
        f"{part.time} {sorted(part.edges.items())} {part.group} {part.problem.resident.tolist()}"
    )
    copies.setdefault((ticks, spread, looks), []).append(ops)


def _segment_step(
    state: Supposition, alike: list[tuple[int, ...]], ticks: int, steps: list[Step]
) -> Step:
    """Add the delay of segments that look alike to a supposition and return the step that proves
    it.
    """
    state.delays.update({(ops[0], ops[-1]): ticks for ops in alike})
    return ["segment", [list(ops) for ops in alike], ticks, steps]


def whole_step(problem: PlacementProblem, most: int, end: float) -> Step | None:
    """Return the step by which a flow between all ops refutes a horizon, None if none does."""
    pins, ticks = pins_of(problem), problem.min_compute
    steps = (
        _crossing(part, pins, sending, most, end)
        for part in partitions(problem)
        for sending in chain([Sending(ticks)], to_best_hub(part, ticks, pins))
    )
    return next(filter(None, steps), None)


def segment_flows(
    problem: PlacementProblem, evidence: Evidence, end: float
) -> Iterator[tuple[list[tuple[int, ...]], int, Step]]:
    """Yield segments that look alike, by their ops, a delay of each and the step that refutes
    less.
    """
    parts = partitions(problem)
    segments = Segments(problem, parts, lambda: evidence, end)
    found: dict[Segment, int] = {}
    for bounds in (partial(Inside.to_hubs, written=True), Inside.to_all):
        for delays in takewhile(lambda _: time.perf_counter() < end, segments.steps(bounds)):
            found.update(delays if isinstance(delays, list) else ())
    insides = ((Inside(problem, segment), ticks) for segment, ticks in found.items())
    alike = by_key(((t, b"".join(map(inside.looks, parts))), inside) for inside, t in insides)
    for (ticks, _), (inside, *others) in alike.items():
        steps = (
            _crossing(part.among(inside.tensors), inside.pins, sending, ticks - 1, end)
            for part in parts
            for sending in inside.sendings(part)
        )
        for step in filter(None, steps):
            yield [inside.ops, *(x.ops for x in others)], ticks, step
            break


def _crossing(
    part: Partition, pins: Sequence[Sequence[int]], sending: Sending, most: int, end: float
) -> Step | None:
    """Return the step by which a flow among nodes refutes `most` ticks.

    Parameters
    ----------
    end : in seconds of `time.perf_counter`.
    """
    nodes = len(sending.ticks)
    if nodes * sum(map(len, pins)) > MOST_SENT:
        return None
    best, flow = flow_above(sending.flows(part, pins, kept=True), part.least, most + 1, end)
    if flow is None or best <= most:
        return None
    return ["crossing", part.label, *flow.words(nodes, pins)]
