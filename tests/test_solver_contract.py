"""The contract of every registered solver, of every type of problem and objective.

A solver that is registered is tested here without a line of its own: a valid solution, its value
recomputed, not below any lower bound, the budget kept, the same answer for the same seed, the
problem left alone, and never worse than the solution it was given to start from. Solvers of other
packages are run in the same way, whatever they claim.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest
from contract_problems import layered, other_problems

from placeopt.certify.certificate import solution_hash
from placeopt.makespan.evaluate import best_queue, evaluate
from placeopt.makespan.judge import placement_violations, schedule_violations
from placeopt.model.arrays import UNLIMITED
from placeopt.model.bound import BoundReport
from placeopt.model.cluster import contention_matrix
from placeopt.model.errors import InputError, SolverError
from placeopt.model.objective import objective_of
from placeopt.model.placement import QUEUES, Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget, Result
from placeopt.solvers.heuristics.repair import pack
from placeopt.solving.base import SearchSolver
from placeopt.solving.bound import bound
from placeopt.solving.registry import make_solver, register, solver_class, specs
from placeopt.solving.run import run

OURS = {name: spec for name, spec in specs().items() if spec.target.startswith("placeopt.")}
SOLVERS = sorted(
    name
    for name, spec in OURS.items()
    if spec.kind == "placement" and "makespan" in spec.objectives
)
OTHERS = sorted(
    (spec.kind, objective, name)
    for name, spec in OURS.items()
    for objective in spec.accepted
    if (spec.kind, objective) != ("placement", "makespan") and not spec.broken
)
"""(kind, objective, name) of every registered solver of anything but the makespan of a
placement."""
NEED_TORCH = (
    "graph-placer",
    "neural-parsing",
    "recurrent-placer",
    "soft-grouper",
    "visiting-placer",
)
"""Solvers that refuse where torch is not installed (tests/policy/test_network_placers.py holds
that)."""

EVALUATIONS = 48
SMALL = {"num_workers": 1, "workers": 1}
"""Options that keep a solver deterministic and thrifty, given where it has such a field."""


@functools.cache
def instances():
    """Return the problems of the contract by name; every one has a valid placement."""
    rng = np.random.default_rng(3)
    compute = rng.integers(1, 20, (14, 3))
    holes = compute.copy()
    holes[np.arange(14), rng.integers(0, 3, 14)] = -1
    total = int(layered(4).resident.sum())
    two_links = {
        "transfer": rng.integers(0, 15, (11, 2)),
        "link_class": np.array([[0, 0, 1], [0, 0, 1], [1, 1, 0]]),
    }
    return {
        "single-op": PlacementProblem.from_edges([[3, 2]], []),
        "one-device": layered(1, num_devices=1),
        "independent": PlacementProblem.from_edges(rng.integers(1, 9, (7, 3)), []),
        "zero-times": layered(2, compute=np.zeros((14, 3), dtype=np.int64)),
        "unrelated": layered(3),
        "identical": layered(3, compute=np.repeat(compute[:, :1], 3, axis=1)),
        "memory": layered(4, capacity=[total // 3 + 6] * 3),
        "colocation": layered(5, colocation=[0, -1, 1, 0, 2, -1, 1, 2, -1, 0, 3, 3, -1, 1]),
        "incompatible": layered(6, compute=holes),
        "pair": layered(7, channel=contention_matrix(3, "pair")),
        "source": layered(8, channel=contention_matrix(3, "source"), **two_links),
        "peak": layered(9, memory="peak", capacity=[80, 80, 80]),
        "everything": layered(
            10,
            compute=holes,
            capacity=[total // 2, total // 2, UNLIMITED],
            colocation=[-1] * 12 + [4, 4],
            channel=contention_matrix(3, "source"),
            **two_links,
        ),
    }


def make(name, kind="placement"):
    """Return the solver, single-threaded where it can be."""
    known = {field.name for field in dataclasses.fields(solver_class(name, kind))}
    return make_solver(name, kind, **{key: value for key, value in SMALL.items() if key in known})


def budget_for(name):
    """Return a budget that ends by evaluations; the seconds only guard against a solver that does
    not count.
    """
    return Budget(seconds=20, evaluations=EVALUATIONS) if specs()[name].search else Budget()


def skip_refusal(name, refusal):
    """Skip what a solver refuses, if it does so in one line; the skip is listed at the end of the
    run.
    """
    if "\n" in str(refusal):
        pytest.fail(f"{name} must refuse in one line: {refusal}")
    pytest.skip(f"{name}: {refusal}")


@functools.cache
def solved(name, instance, seed=0):
    """Solve once per (solver, instance, seed) and share the result among the tests."""
    problem = instances()[instance]
    try:
        return run(problem, make(name), budget_for(name), seed=seed)
    except InputError as refusal:
        return skip_refusal(name, refusal)


@functools.cache
def proven(instance):
    """Return the bound of an instance, computed once."""
    return bound(instances()[instance]).value


@pytest.fixture(params=SOLVERS)
def name(request):
    """Name of a registered solver."""
    if request.param in NEED_TORCH:
        pytest.importorskip("torch")
    return request.param


@pytest.fixture(
    params=[
        "single-op",
        "one-device",
        "independent",
        "zero-times",
        "unrelated",
        "identical",
        "memory",
        "colocation",
        "incompatible",
        "pair",
        "source",
        "peak",
        "everything",
    ]
)
def instance(request):
    """Name of an instance."""
    return request.param


def test_instances_have_placements(instance):
    """The contract's instances can be solved: their resident bytes can be packed."""
    assert pack(instances()[instance].units)[0] is not None


def test_valid_and_evaluated(name, instance):
    """The placement breaks no constraint, and executing it in the named queue gives the
    objective.
    """
    problem, result = instances()[instance], solved(name, instance)
    assert isinstance(result.solution, Placement), result.message
    assert result.status in ("feasible", "optimal")
    assert not placement_violations(problem, result.solution)
    assert result.queue in QUEUES
    evaluation = evaluate(problem, result.solution, result.queue)
    assert evaluation.makespan == result.objective
    assert not schedule_violations(problem, evaluation.schedule)


def test_not_below_a_lower_bound(name, instance):
    """The objective is at least every proven bound, the solver's own and those of
    placeopt.makespan.bounds.
    """
    result = solved(name, instance)
    assert result.lower_bound <= result.objective
    assert proven(instance) <= result.objective
    if result.status == "optimal":
        assert result.lower_bound == result.objective
    else:
        assert result.lower_bound < result.objective


def test_optimal_means_optimal(name, instance):
    """What one solver proves no other solver beats."""
    proved = [solved(other, instance) for other in ("cp-sat",) if other in SOLVERS]
    for certificate in proved:
        assert solved(name, instance).objective >= certificate.lower_bound


@pytest.mark.parametrize("instance", ["unrelated", "memory", "everything"], indirect=True)
def test_same_seed_same_answer(name, instance):
    """Solving again with the seed and the evaluations of the first run gives the same placement and
    trace.
    """
    first = solved(name, instance, 7)
    again = run(instances()[instance], make(name), budget_for(name), seed=7)
    assert again.solution == first.solution
    assert (again.objective, again.queue, again.evaluations) == (
        first.objective,
        first.queue,
        first.evaluations,
    )
    assert [point.incumbent for point in again.trace] == [point.incumbent for point in first.trace]


def test_evaluations_kept(name):
    """No solver evaluates more candidates than the budget allows, down to a single one."""
    problem = instances()["unrelated"]
    for evaluations in (1, 7, EVALUATIONS):
        result = run(problem, make(name), Budget(seconds=20, evaluations=evaluations), seed=1)
        assert result.evaluations <= evaluations
        assert result.solution is not None


def test_the_shortest_limit_gives_a_placement(name):
    """A time that is over as the search begins ends with a placement all the same."""
    problem = instances()["unrelated"]
    result = run(problem, make(name), Budget(seconds=1e-9), seed=1)
    assert result.solution is not None
    assert not placement_violations(problem, result.solution)


@pytest.mark.parametrize("contiguity", ["chain", "convex", "none"])
def test_so_does_the_period(contiguity):
    """The starts have their turn after all."""
    problem = instances()["unrelated"].replace(objective="period", contiguity=contiguity)
    result = run(problem, make("cp-sat"), Budget(seconds=1e-9), seed=1)
    assert result.solution is not None
    assert not placement_violations(problem, result.solution)


def test_target_ends_the_search(name):
    """A target that any placement meets ends the search with its first incumbent."""
    problem = instances()["unrelated"]
    generous = int(problem.compute.max(axis=1).sum() + problem.transfer.sum() * 3)
    result = run(problem, make(name), Budget(seconds=20, target=generous), seed=1)
    assert result.objective <= generous
    assert result.stop_reason in ("target", "converged", "proved")


def test_problem_and_solver_untouched(name):
    """Solving changes neither the arrays of the problem nor the solver."""
    problem = instances()["everything"].replace(name="untouched")
    solver, before = make(name), problem.hash
    copy = dataclasses.replace(solver)
    try:
        run(problem, solver, budget_for(name), seed=0)
    except InputError as refusal:
        skip_refusal(name, refusal)
    arrays = (
        "compute",
        "transfer",
        "producer",
        "consumer",
        "resident",
        "capacity",
        "colocation",
        "channel",
    )
    fresh = dataclasses.replace(problem, **{key: np.array(getattr(problem, key)) for key in arrays})
    assert fresh.hash == before
    assert solver == copy


@pytest.mark.parametrize("instance", ["unrelated", "memory", "source", "everything"], indirect=True)
def test_never_worse_than_initial(name, instance):
    """A placement to start from is an upper limit on the result."""
    problem = instances()[instance]
    start = solved("edge-zeroing", instance).solution
    value, _ = best_queue(problem, start)
    result = run(problem, make(name), budget_for(name), seed=0, initial=start)
    assert result.objective <= value


def test_progress_is_monotone(name):
    """Incumbents in the trace fall, bounds rise, and the callback sees the last incumbent."""
    seen = []
    problem = instances()["unrelated"]
    result = run(problem, make(name), budget_for(name), seed=0, on_progress=seen.append)
    incumbents = [point.incumbent for point in result.trace if point.incumbent is not None]
    assert incumbents == sorted(incumbents, reverse=True)
    bounds = [point.lower_bound for point in result.trace]
    assert bounds == sorted(bounds)
    assert seen
    assert seen[-1].incumbent is not None


def test_other_objectives_are_refused(name):
    """A problem with an objective that the registry does not list for the solver is refused in one
    line.
    """
    listed = specs("placement")[name].accepted
    for objective in {"makespan", "period", "latency"} - set(listed):
        problem = instances()["unrelated"].replace(objective=objective)
        with pytest.raises(InputError, match=name):
            run(problem, make(name), budget_for(name), seed=0)


@pytest.mark.parametrize(
    "problem",
    [
        PlacementProblem.from_edges([[1, 1]] * 3, [(0, 1, 1)], resident=[5, 5, 5], capacity=[7, 7]),
        PlacementProblem.from_edges(
            [[1, 1], [1, 1], [-1, 1]], [(0, 1, 1)], resident=[5, 5, 5], capacity=[20, 2]
        ),
    ],
    ids=["sum", "one-op"],
)
def test_impossible_memory_has_no_solution(name, problem):
    """Where the ops cannot fit, no solver returns a placement; it says why."""
    try:
        result = run(problem, make(name), budget_for(name), seed=0)
    except InputError as refusal:
        skip_refusal(name, refusal)
    assert result.solution is None
    assert result.status in ("infeasible", "unknown")
    assert result.message


# --- every other type of problem and objective
# ------------------------------------------------------------


@functools.cache
def other_results(kind, objective, name):
    """Return the problems that a solver takes, each with its result."""
    found = []
    for problem in other_problems(kind, objective):
        with contextlib.suppress(InputError):  # refused
            found.append((problem, run(problem, make(name, kind), budget_for(name), seed=3)))
    return found


@functools.cache
def other_bounds(kind, objective):
    """Return (problem, a bound of it) of the problems that solvers take."""
    problems = other_problems(kind, objective)
    return [(problem, objective_of(problem).bounds(problem, 1.0).value) for problem in problems]


def same_solution(first, second):
    """Whether two results have the same solution and value."""
    if first.solution is None or second.solution is None:
        return first.solution is second.solution
    return (solution_hash(first.solution), first.value) == (
        solution_hash(second.solution),
        second.value,
    )


@pytest.fixture(params=OTHERS, ids=lambda case: "-".join(case))
def case(request):
    """(kind, objective, name) of a registered solver."""
    return request.param


def test_others_are_judged_and_valued_again(case):
    """Every solution is judged valid, its value is found again, and no bound is above it."""
    results = other_results(*case)
    assert any(result.solution is not None for _, result in results), (
        "it takes none of the small problems"
    )
    for problem, result in results:
        objective = objective_of(problem)
        assert result.objective_name == objective.name
        if result.solution is None:
            assert result.message
            continue
        finished = objective.finish(problem, result.solution, result.queue or None)
        assert finished.violations == ()
        assert finished.value == result.value
        assert result.lower_bound <= result.value
        assert (result.status == "optimal") == (result.lower_bound == result.value)
        assert all(
            value <= result.value for other, value in other_bounds(*case[:2]) if other is problem
        )


def test_others_keep_the_budget_and_the_problem(case):
    """The number of evaluations is kept and the problem is left as it was."""
    kind, _, name = case
    for problem, result in other_results(*case):
        if specs()[name].search:
            assert result.evaluations <= EVALUATIONS
        copy = dataclasses.replace(problem, name="untouched")
        assert copy.hash == problem.hash
        assert make(name, kind) == make(name, kind)


def test_others_give_the_same_answer_for_the_same_seed(case):
    """Running again gives the same solution."""
    kind, _, name = case
    for problem, result in other_results(*case)[:2]:
        again = run(problem, make(name, kind), budget_for(name), seed=3)
        assert same_solution(again, result)


def test_others_are_never_worse_than_initial(case):
    """The best known solution to start from is an upper limit on the result."""
    kind, objective, name = case
    for problem, _ in other_results(*case)[:2]:
        default = objective_of(problem).default_solver
        known = [
            r
            for p, r in other_results(kind, objective, default)
            if p is problem and r.solution is not None
        ]
        for start in known:
            try:
                result = run(
                    problem, make(name, kind), budget_for(name), seed=3, initial=start.solution
                )
            except InputError:  # refused
                continue
            assert result.value <= start.value


# --- solvers of other packages
# ------------------------------------------------------------------------------


@register("contract-liar", objectives=("makespan", "period"))
@dataclasses.dataclass(frozen=True)
class Liar:
    """Puts everything on one device and makes up value, bound and proof."""

    name = "contract-liar"

    def solve(self, problem, budget, *, seed, initial=None, on_progress=None):
        """Claim one tick, proved."""
        solution = Placement(np.zeros(problem.num_ops, dtype=np.int64))
        return Result(
            problem.name, self.name, solution, 1, 1, "magic", "optimal", "proved", 1, 0.0, seed
        )


@register("contract-searching-liar")
@dataclasses.dataclass(frozen=True)
class SearchingLiar(SearchSolver):
    """The same on our base: it offers a made-up value and raises a made-up bound."""

    name = "contract-searching-liar"

    def search(self, problem, tracker):
        """Offer one device as if it took a tick."""
        tracker.count(1)
        tracker.raise_bound(1, "magic")
        tracker.offer(1, Placement(np.zeros(problem.num_ops, dtype=np.int64)))


@register("contract-breaker")
class Breaker:
    """No dataclass; does what `deed` says."""

    name = "contract-breaker"
    deed = "raise"

    def solve(self, problem, budget, *, seed, initial=None, on_progress=None):
        """Raise, exit, interrupt itself, or return nonsense."""
        if self.deed == "raise":
            raise RuntimeError("two\nlines")
        if self.deed == "exit":
            raise SystemExit(7)
        if self.deed == "interrupt":
            raise KeyboardInterrupt
        if self.deed == "invalid":
            solution = Placement(np.full(problem.num_ops, problem.num_devices, dtype=np.int64))
            return Result(
                problem.name,
                self.name,
                solution,
                5,
                0,
                "none",
                "feasible",
                "converged",
                1,
                0.0,
                seed,
            )
        solution = Placement([0]) if self.deed == "short" else "nothing"
        return SimpleNamespace(solution=solution, evaluations=-3)


@pytest.mark.parametrize("name", ["contract-liar", "contract-searching-liar"])
def test_a_made_up_value_is_replaced(name):
    """What a plug-in claims is not reported: its solution is valued here and its bound is no
    proof.
    """
    problem = instances()["unrelated"]
    result = run(problem, make(name), Budget(seconds=5), seed=0)
    assert result.value == best_queue(problem, result.solution)[0] > 1
    assert (result.lower_bound, result.status, result.bound_method) == (0, "feasible", "none")
    assert "claim" in result.message
    assert all(point.incumbent is None or point.incumbent >= result.value for point in result.trace)
    start = solved("edge-zeroing", "unrelated")
    assert run(problem, make(name), Budget(seconds=5), initial=start.solution).value <= start.value


@pytest.mark.parametrize("deed", ["raise", "exit", "invalid", "short", "text"])
def test_a_broken_solver_is_a_solver_error(deed, monkeypatch):
    """Whatever a plug-in does wrong is one line that names it, with what is known kept."""
    monkeypatch.setattr(Breaker, "deed", deed)
    start = solved("edge-zeroing", "unrelated")
    with pytest.raises(SolverError, match="contract-breaker") as failure:
        run(
            instances()["unrelated"],
            make_solver("contract-breaker"),
            Budget(seconds=5),
            initial=start.solution,
        )
    assert "\n" not in str(failure.value)
    assert failure.value.partial.value == start.value


def test_a_solver_that_interrupts_itself_keeps_what_is_known(monkeypatch):
    """KeyboardInterrupt from inside ends this solver alone."""
    monkeypatch.setattr(Breaker, "deed", "interrupt")
    start = solved("edge-zeroing", "unrelated")
    result = run(
        instances()["unrelated"],
        make_solver("contract-breaker"),
        Budget(seconds=5),
        initial=start.solution,
    )
    assert (result.stop_reason, result.value) == ("interrupted", start.value)


def test_a_false_bound_of_our_own_is_never_swallowed(monkeypatch):
    """A bound above the value of a valid solution is an error that names both, wherever it is
    proved.
    """
    problem = instances()["unrelated"]
    value = solved("heft", "unrelated").value
    with pytest.raises(SolverError, match=f"{value + 1}.*exceeds.*{value}"):
        run(problem, make_solver("heft"), Budget(seconds=5), bound=BoundReport(value + 1, "false"))
