"""Solvers of other packages that lie: whatever they say, and however they end, the Result is
true.
"""

from __future__ import annotations

import io
import itertools
import json
import sys
import threading
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import reference
from contract_problems import other_problems

import placeopt.model.objective as objectives
import placeopt.solvers
import placeopt.solving.run as run_module
from placeopt.cli import main
from placeopt.cli.comparison import chosen_solvers
from placeopt.model import threads
from placeopt.model.bound import BoundReport
from placeopt.model.errors import InfeasibleProblemError, InputError, SolverError
from placeopt.model.objective import Finished, objective_of
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget, Result, TracePoint
from placeopt.solving import registry
from placeopt.solving.base import SearchSolver
from placeopt.solving.registry import (
    accepted_objectives,
    make_solver,
    register,
    solver_class,
    specs,
)
from placeopt.solving.run import best_so_far, run, run_part
from placeopt.solving.tracker import Exchange, Progress, Tracker

COMPUTE = [[50, 20], [30, 80], [10, 70], [60, 40]]  # the quick bound is below the optimum
EDGES = [(0, 1, 20), (0, 2, 30), (1, 3, 5), (2, 3, 25)]
DEVICES = np.array([0, 0, 0, 1])
HUGE = 10**6


def problem_of():
    """Four ops on two devices; each test has its own, since plug-ins try to change it."""
    return PlacementProblem.from_edges(COMPUTE, EDGES)


def optimum():
    """Return the least makespan by the slow oracle: every placement, every order."""
    problem = problem_of()
    values = [
        (reference.run(problem, device, rank, queue) or [HUGE])[0]
        for device in itertools.product(range(2), repeat=4)
        for rank in itertools.permutations(range(4))
        for queue in ("fifo", "priority", "planned")
    ]
    return min(values)


OPTIMUM = optimum()
TRUE = objective_of(problem_of()).finish(problem_of(), Placement(DEVICES)).value


def honest(problem):
    """Return a placement that is valid, and not optimal."""
    return Placement(DEVICES[: problem.num_ops])


@dataclass(frozen=True)
class Liar(SearchSolver):
    """Offers a placement if `solves`, does `deed` to the problem and the tracker, and ends in some
    `way`.
    """

    name: ClassVar[str] = "liar"
    watched_from: ClassVar[int] = 0

    deed: Any = None
    way: str = "return"
    solves: bool = True
    release: threading.Event = field(default_factory=threading.Event, compare=False)

    def search(self, problem, tracker):
        """Lie."""
        if self.solves:
            tracker.offer(TRUE, honest(problem))
        self.deed(problem, tracker)
        if self.way == "raise":
            raise RuntimeError("out of order")
        if self.way == "interrupt":
            raise KeyboardInterrupt
        if self.way == "exit":
            raise SystemExit(0)
        if self.way == "base":
            raise type("Unheard", (BaseException,), {})("of")
        if self.way == "forge":
            raise SolverError("sorry", forged(problem))
        if self.way == "hang":
            self.release.wait(20)
            self.deed(problem, tracker)


def forged(problem, **fields):
    """Return a result that is not true."""
    known = {
        "problem": problem.name,
        "solver": "liar",
        "solution": honest(problem),
        "value": 1,
        "lower_bound": 1,
        "bound_method": "magic",
        "status": "optimal",
        "stop_reason": "proved",
        "evaluations": 1,
        "runtime": 0.0,
        "seed": 0,
    }
    return Result(**(known | fields))


def outcome(problem, solver, **fields):
    """Return the Result of a run, the partial one where it raises; None if that has none."""
    try:
        result = run(
            problem, solver, Budget(**({"seconds": 0.4} | fields.pop("budget", {}))), **fields
        )
    except SolverError as error:
        result = error.partial
    finally:
        if isinstance(solver, Liar):
            solver.release.set()
    return result


def check(result, problem, *, proved=0):
    """The value is that of the solution, valid on the problem as it was, and nothing is proved that
    is not.
    """
    known = problem_of()
    assert problem.hash == PlacementProblem.from_edges(COMPUTE, EDGES, name=problem.name).hash
    for key in ("compute", "transfer", "consumer", "producer"):
        assert np.array_equal(getattr(problem, key), getattr(known, key)), key
    if result is None:
        return
    assert result.lower_bound == proved
    assert result.bound_method != "magic"
    assert result.status == ("unknown" if result.solution is None else "feasible")
    assert result.stop_reason != "proved"
    assert result.objective_name == "makespan"
    assert 0 <= result.evaluations <= 2**62
    assert result.given is problem
    assert "\n" not in result.message
    for point in result.trace:
        assert point.incumbent is None or point.incumbent >= (result.value or 0)
        assert point.lower_bound <= proved
    if result.solution is not None:
        assert type(result.solution) is Placement
        assert result.value >= OPTIMUM
        assert objective_of(known).finish(known, result.solution) == Finished(
            result.value, result.queue, ()
        )


# --- what a search may say
# ------------------------------------------------------------------------------------


def infeasible(problem, tracker):
    """Say by an exception that there is no solution."""
    raise InfeasibleProblemError("I raise so: 5000")


CLAIMS = {
    "bound": lambda problem, tracker: tracker.raise_bound(HUGE, "magic"),
    "bound that meets the value": lambda problem, tracker: tracker.raise_bound(TRUE, "magic"),
    "infeasible": lambda problem, tracker: tracker.infeasible("I say so: 5000"),
    "message": lambda problem, tracker: setattr(
        tracker, "message", "optimal, proved\nbelieved: nothing \x1b[2J"
    ),
    "infeasible, raised": infeasible,
}
"""What is said with the means that a search has: the message has to tell it."""

WORDS = {
    "bound": f"claims a bound of {HUGE}",
    "bound that meets the value": f"claims a bound of {TRUE}",
    "infeasible": "I say so: 5000",
    "infeasible, raised": "I raise so: 5000",
    "message": "says 'optimal, proved believed: nothing",
}

WAYS = ("return", "raise", "interrupt", "exit", "base", "forge", "hang")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("solves", [True, False], ids=["solution", "none"])
@pytest.mark.parametrize("deed", CLAIMS)
def test_a_claim_is_shown_as_one_however_the_search_ends(deed, solves, way):
    """Bounds, infeasibility and remarks reach the message, as claims of the solver, and nothing
    else.
    """
    problem = problem_of()
    way = "return" if deed == "infeasible, raised" else way  # it ends there
    result = outcome(problem, Liar(CLAIMS[deed], way, solves))
    check(result, problem)
    if result is None:  # a search that failed before it had a solution
        assert way in ("raise", "exit", "base", "forge")
        assert not solves
        return
    assert (result.solution is not None) == solves
    assert "solver 'liar' " + ("says" if deed == "message" else "claims") in result.message
    assert WORDS[deed] in result.message
    assert result.value == (TRUE if solves else None)


@pytest.mark.parametrize("way", ["return", "raise", "interrupt", "hang"])
@pytest.mark.parametrize("deed", CLAIMS)
def test_a_part_is_believed_no_more(deed, way):
    """A plug-in on a part of somebody's budget: its bound is not theirs, what it says is."""
    problem, solver = problem_of(), Liar(CLAIMS[deed], way)
    way = "return" if deed == "infeasible, raised" else way  # it ends there
    tracker = Tracker("whole", problem, Budget(seconds=1.0))
    try:
        run_part(tracker, solver, seconds=0.3)
    except SolverError:
        assert way == "raise"
    solver.release.set()
    assert (tracker.lower_bound, tracker.reason, tracker.bound_method) == (0, "", "none")
    assert way == "raise" or tracker.value == TRUE
    assert WORDS[deed] in tracker.result().message


@pytest.mark.parametrize("deed", CLAIMS)
def test_what_is_rescued_is_true(deed):
    """The best so far, asked for in the midst of a search, tells the same."""
    found = []

    def lie(problem, tracker):
        try:
            CLAIMS[deed](problem, tracker)
        except InfeasibleProblemError as error:
            tracker.infeasible(str(error))
        found.append(best_so_far())

    problem = problem_of()
    run(problem, Liar(lie), Budget(evaluations=5))
    assert found[0].given is not problem
    check(replace(found[0], given=problem), problem)
    assert found[0].value == TRUE
    assert WORDS[deed] in found[0].message


# --- what a search may do to what it holds
# ----------------------------------------------------------------------


def free():
    """Return the problem with costs of nothing."""
    return PlacementProblem.from_edges(np.zeros((4, 2), dtype=np.int64), EDGES)


def swap_problem(problem, tracker):
    """Have the solution judged on another problem."""
    tracker.problem = free()
    tracker.offer(0, Placement([1, 0, 1, 0]))


def set_array(problem, tracker):
    """Put other costs into the problem, which is frozen."""
    object.__setattr__(problem, "compute", free().compute)
    object.__setattr__(tracker.problem, "transfer", free().transfer)
    tracker.offer(0, Placement([1, 0, 1, 0]))


def fill_cache(problem, tracker):
    """Put other costs where the kernels find them."""
    vars(problem)["costs"] = vars(tracker.problem)["costs"] = free().costs
    vars(problem)["hash"] = "0" * 64
    tracker.offer(0, Placement([1, 0, 1, 0]))


def write_array(problem, tracker):
    """Make the costs writeable, then nothing."""
    array = problem.compute
    while isinstance(array, np.ndarray):
        last, array = array, array.base
    last.setflags(write=True)
    problem.compute.setflags(write=True)
    problem.compute[:] = 0
    tracker.offer(0, Placement([1, 0, 1, 0]))


def overwrite_solution(problem, tracker):
    """Change the array of a solution that has been offered, and judged by a part."""
    solution = run_part(tracker, make_solver("heft")).solution
    for held in (solution, tracker.solution):
        held.device.setflags(write=True)
        held.device[:] = 9


def replace_solution(problem, tracker):
    """Change a solution that has been offered or judged, as a whole."""
    offered = Placement([1, 1, 1, 1])
    tracker.offer(1, offered)
    result = run_part(tracker, make_solver("heft"))
    for held in (
        offered,
        result.solution,
        tracker.solution,
        tracker.initial and tracker.initial[1],
    ):
        if held is not None:
            object.__setattr__(held, "device", np.array([1, 0, 1, 0]))
            object.__setattr__(held, "priority", np.array([3, 2, 1, 0]))


class Chameleon(Placement):
    """A placement whose devices change whenever they are looked at."""

    @property
    def device(self):
        """Good devices first, then others."""
        self.__dict__["looks"] = self.__dict__.get("looks", 0) + 1
        return np.array([0, 0, 0, 1] if self.__dict__["looks"] < 4 else [1, 0, 1, 0])


def offer_chameleon(problem, tracker):
    """Offer something that changes between judging and returning."""
    made = object.__new__(Chameleon)
    vars(made)["priority"] = None
    tracker.offer(1, made)


class Shifting(np.ndarray):
    """An array that shows other values once it has been looked at, and says that it is
    immutable.
    """

    base = b"immutable"
    looks = 0

    def __array__(self, *given, **named):
        """Return other values each time."""
        Shifting.looks += 1
        return np.array([0, 0, 0, 1] if Shifting.looks % 2 else [1, 0, 1, 0])


def offer_shifting(problem, tracker):
    """Offer an array that is not what it seems, then write to the memory below."""
    memory = np.array([0, 0, 0, 1])
    made = Placement([0, 0, 0, 0])
    object.__setattr__(made, "device", memory.view(Shifting))
    tracker.offer(1, made)
    memory[:] = [1, 0, 1, 0]


def offer_alias(problem, tracker):
    """Offer an array over bytes that another array can write to."""
    raw = np.array([0, 0, 0, 1]).tobytes() * 1000
    alias = np.zeros(0, dtype=np.int64)
    alias.__setstate__((1, (4000,), np.dtype(np.int64), False, raw))
    made = Placement(np.frombuffer(raw, dtype=np.int64)[:4])
    tracker.offer(1, made)
    if alias.flags.writeable:
        alias[:4] = [1, 0, 1, 0]


def write_verdict(problem, tracker):
    """Put a verdict of one's own where verdicts are kept."""
    solution = Placement([1, 0, 1, 0])
    verdict = Finished(0, "fifo", ())
    getattr(run_module, "_judged", {})[tracker] = solution, verdict
    tracker.verdict = solution, verdict
    tracker.offer(0, solution)


def set_attributes(problem, tracker):
    """Say everything by attributes."""
    for key, value in {
        "stop_reason": "proved",
        "bound_method": "magic",
        "lower_bound": TRUE,
        "value": 1,
        "evaluations": -7,
        "reason": "I say so",
        "claims": {},
        "solver": "optimal",
        "seed": 99,
        "stopped": True,
        "trace": [TracePoint(0.0, 0, 1, HUGE)],
        "initial": (1, Placement([1, 0, 1, 0])),
        "started": 0.0,
    }.items():
        try:
            setattr(tracker, key, value)
        except AttributeError:
            continue


def write_trace(problem, tracker):
    """Change what has been noted."""
    for point in tracker.trace:
        object.__setattr__(point, "incumbent", 1)
        object.__setattr__(point, "lower_bound", HUGE)
    tracker.trace.append(TracePoint(0.0, 0, 1, HUGE))


def give_exchange(problem, tracker):
    """Say it by an exchange, as if another side had proved it."""
    tracker.exchange = Exchange()
    other = Tracker("other", problem, Budget(1.0))
    other.raise_bound(TRUE, "magic")
    other.offer(1, Placement([1, 0, 1, 0]))
    tracker.exchange.meet(other)
    tracker.stop()
    run_part(tracker, make_solver("heft"))


def pretend_part(problem, tracker):
    """Hang a part of one's own into the tracker."""
    part = SimpleNamespace(
        value=0,
        solution=Placement([1, 0, 1, 0]),
        problem=problem,
        close=lambda: None,
        interrupt=lambda: None,
        claims={},
    )
    tracker.parts.append(part)


def take_the_best(problem, tracker):
    """Change the problem and the solution that the best so far holds."""
    best = best_so_far()
    object.__setattr__(best.given, "compute", free().compute)
    vars(best.given).pop("hash")
    object.__setattr__(best.solution, "device", np.array([1, 0, 1, 0]))
    tracker.offer(0, Placement([1, 0, 1, 0]))


def stretch_budget(problem, tracker):
    """Make the time endless and the target easy."""
    for budget in (tracker.budget,):
        object.__setattr__(budget, "seconds", 0.0)
        object.__setattr__(budget, "target", HUGE)
    tracker.stop()


def set_objective(problem, tracker):
    """Have all be valued, judged and bounded by functions of one's own: the objective is shared."""
    objective = objective_of(problem)
    report = BoundReport(1, "magic", {"magic": 1}, 0.0, "")
    liars = {
        "finish": lambda *given, **named: Finished(1, "fifo", ()),
        "bounds": lambda *given, **named: report,
        "impossible": lambda problem: "I say so",
        "name": "optimal",
    }
    for key, liar in liars.items():
        for write in (setattr, object.__setattr__):
            try:
                write(objective, key, liar)
            except AttributeError:
                continue
    tracker.offer(1, Placement([1, 0, 1, 0]))
    run_part(tracker, make_solver("heft"))


def prove_elsewhere(problem, tracker):
    """Have one of our solvers prove a bound of another problem in the name of this one."""
    tracker.problem = PlacementProblem.from_edges(np.array(COMPUTE) * 100, [])
    object.__setattr__(problem, "compute", np.array(COMPUTE) * 100)
    run_part(tracker, make_solver("etf"))


def run_elsewhere(problem, tracker):
    """Run one of our solvers with a false bound, as a part of this search."""
    other = PlacementProblem.from_edges(COMPUTE, EDGES)
    run(
        other,
        make_solver("heft"),
        Budget(1.0),
        bound=BoundReport(1, "magic", {"magic": 1}, 0.0, ""),
        part_of=tracker,
    )


DEEDS = {
    "swap the problem": swap_problem,
    "set an array": set_array,
    "fill a cache": fill_cache,
    "write an array": write_array,
    "overwrite a solution": overwrite_solution,
    "replace a solution": replace_solution,
    "offer a chameleon": offer_chameleon,
    "offer a shifting array": offer_shifting,
    "offer an alias": offer_alias,
    "write the verdict": write_verdict,
    "set attributes": set_attributes,
    "write the trace": write_trace,
    "give an exchange": give_exchange,
    "pretend a part": pretend_part,
    "take the best": take_the_best,
    "stretch the budget": stretch_budget,
    "set the objective": set_objective,
    "prove elsewhere": prove_elsewhere,
    "run elsewhere": run_elsewhere,
    "a value too low": lambda problem, tracker: tracker.offer(1, Placement([1, 0, 1, 0])),
    "a negative value": lambda problem, tracker: tracker.offer(-5, Placement([1, 0, 1, 0])),
    "another incumbent": lambda problem, tracker: setattr(
        tracker, "solution", Placement([1, 0, 1, 0])
    ),
    "no incumbent": lambda problem, tracker: setattr(tracker, "solution", "nothing"),
    "no number": lambda problem, tracker: tracker.offer(float("nan"), Placement([1, 0, 1, 0])),
    "no value": lambda problem, tracker: tracker.offer(None, Placement([1, 0, 1, 0])),
    "a value in words": lambda problem, tracker: tracker.offer("1", Placement([1, 0, 1, 0])),
    "no solution": lambda problem, tracker: tracker.offer(1, "nothing"),
    "half a solution": lambda problem, tracker: tracker.offer(
        1, SimpleNamespace(device=DEVICES, priority=None)
    ),
    "a short solution": lambda problem, tracker: tracker.offer(1, Placement([0])),
    "an invalid solution": lambda problem, tracker: tracker.offer(1, Placement([0, 0, 0, 7])),
    "less than no evaluations": lambda problem, tracker: tracker.count(-5),
    "evaluations without end": lambda problem, tracker: tracker.count(10**30),
    "an odd bound": lambda problem, tracker: tracker.raise_bound(float("inf"), SimpleNamespace()),
}


@pytest.mark.parametrize("bound", [False, True], ids=["plain", "bounded"])
@pytest.mark.parametrize("deed", DEEDS)
def test_what_it_does_to_what_it_holds_changes_nothing(deed, bound):
    """Problem, incumbent, trace, budget, verdicts: the Result is judged on what was given."""
    problem = problem_of()
    quick = objective_of(problem).bounds(problem_of(), 0.0).value if bound else 0
    given = Placement([1, 1, 1, 1])
    result = outcome(problem, Liar(DEEDS[deed]), initial=given, bound=bound, seed=3)
    assert quick < OPTIMUM
    check(result, problem, proved=quick)
    assert result is None or (result.value <= TRUE and result.seed == 3 and result.solver == "liar")
    assert np.array_equal(given.device, [1, 1, 1, 1])


@pytest.mark.parametrize("deed", DEEDS)
def test_nor_does_it_without_anything_to_start_from(deed):
    """The same where the lie is all there is."""
    problem = problem_of()
    result = outcome(problem, Liar(DEEDS[deed], solves=False))
    if result is not None:
        assert result.value is None or result.value >= OPTIMUM
    check(result, problem)


def test_nothing_can_be_set_on_an_objective_of_ours():
    """One object values all problems of an objective: it holds nothing that could be replaced."""
    seen = 0
    for kind, name in list(objectives._targets):
        objective = objectives.named_objective(kind, name)
        if type(objective).__module__.startswith("placeopt."):
            assert not hasattr(objective, "__dict__"), name
            with pytest.raises(AttributeError):
                objective.finish = None
            seen += 1
    assert seen >= 9


@pytest.mark.parametrize("solves", [True, False], ids=["solution", "none"])
def test_no_part_is_measured_by_a_plug_in(solves):
    """What a caller's clock says is not the value of a problem that has one."""

    def measure(problem, tracker):
        part = make_solver("dual-policy", measure=lambda *given: 1e-12, batch=2)
        with pytest.raises(InputError, match="measures its values"):
            run_part(tracker, part, evaluations=4)
        found = run_part(tracker, part, evaluations=4, adopt=False)
        assert found.objective_name == "measured"

    problem = problem_of()
    result = outcome(problem, Liar(measure, solves=solves), budget={"seconds": 60.0})
    check(result, problem)
    assert result.value == (TRUE if solves else None)


def test_memory_is_not_shared():
    """Arrays that are unpickled on top of the bytes of others change nothing but copies."""

    def overwrite(problem, tracker):
        for array in filter(lambda x: isinstance(x, np.ndarray), vars(problem).values()):
            whole = array
            while isinstance(whole, np.ndarray):
                whole = whole.base
            alias = np.zeros(0, dtype=np.int64)
            alias.__setstate__((1, (len(whole) // 8,), np.dtype(np.int64), False, whole))
            alias[:] = 0

    compute = [[100 + v % 7, 50] for v in range(200)]
    problem = PlacementProblem.from_edges(compute, [(v, v + 1, 5) for v in range(199)])
    again = PlacementProblem.from_edges(compute, [(v, v + 1, 5) for v in range(199)])
    start = Placement(np.zeros(200, dtype=np.int64))
    result = outcome(problem, Liar(overwrite, solves=False), initial=start)
    assert np.array_equal(problem.compute, again.compute)
    assert np.array_equal(start.device, np.zeros(200))
    assert result.value == sum(row[0] for row in compute)


def test_nothing_is_told_after_the_end():
    """A tracker that a search has kept takes nothing, and tells nobody anything."""
    kept, seen = [], []
    run(
        problem_of(),
        Liar(lambda problem, tracker: kept.append(tracker)),
        Budget(evaluations=5),
        on_progress=seen.append,
    )
    known = len(seen)
    assert not kept[0].offer(Placement([0, 0, 0, 1], [0, 2, 1, 3]))
    kept[0].raise_bound(HUGE, "magic")
    assert (kept[0].closed, kept[0].value, len(seen)) == (True, TRUE, known)


ODD = {
    "kernels": {"kernels": 5},
    "watched_from": {"watched_from": "soon"},
    "endless": {"endless": property(lambda self: 1 / 0)},
    "objectives": {"objectives": 5},
}


@pytest.mark.parametrize("odd", ODD)
def test_what_a_class_says_of_itself_is_readable(odd):
    """Or else the solver has failed, in one line."""
    solver = type("Odd", (Returner,), ODD[odd])()
    with pytest.raises(SolverError, match=rf"solver class 'Odd'.*{odd}"):
        run(problem_of(), solver, Budget(seconds=1.0))


def test_a_name_is_one_line():
    """Whatever it is, no second line and no escape codes are shown."""
    for name, shown in (("x'\nproved: all\x1b[2J", "x' proved: all [2J"), (7, "Odd"), ("", "Odd")):
        solver = type("Odd", (Returner,), {"name": name})(fields={"value": 1})
        result = run(problem_of(), solver, Budget(seconds=1.0))
        assert result.solver == shown
        check(result, result.given)


def test_progress_tells_the_truth():
    """Neither a search nor a `solve` tells the caller's callback values and bounds of its own."""

    def tell(problem, tracker):
        report = tracker if callable(tracker) else tracker.on_progress
        if report is not None:
            report(Progress(0.0, 0, 1, HUGE))

    seen: list[Progress] = []
    run(problem_of(), Liar(tell), Budget(evaluations=5), on_progress=seen.append)
    run(problem_of(), Returner(deed=tell), Budget(evaluations=5), on_progress=seen.append)
    assert seen
    assert all(
        progress.lower_bound == 0 and progress.incumbent in (None, TRUE) for progress in seen
    )


# --- who is ours
# --------------------------------------------------------------------------------------------------


def boast(self, problem, tracker):
    """Claim that what it offers is optimal."""
    tracker.offer(TRUE, honest(problem))
    tracker.raise_bound(TRUE, "magic")


def dressed(**attributes):
    """Return a solver whose class says that it is of this package."""
    cls = dataclass(frozen=True)(
        type("Heft", (SearchSolver,), {"name": "heft", "search": boast, **attributes})
    )
    cls.__module__ = attributes.get("__module__", cls.__module__)
    cls.__qualname__ = "Heft"
    return cls()


def patched(name, function):
    """Return an instance of our HEFT with something else in place of a function."""
    solver = make_solver("heft")
    object.__setattr__(solver, name, function)
    return solver


def derived():
    """Return a solver of a class derived from ours."""
    return dataclass(frozen=True)(type("Better", (solver_class("heft"),), {"search": boast}))()


PRETENDERS = {
    "a module of ours": lambda: dressed(__module__="placeopt.x"),
    "the module of the real one": lambda: dressed(__module__=solver_class("heft").__module__),
    "an instance that says so": lambda: patched("__module__", "placeopt.solving"),
    "a class derived from ours": derived,
    "a search put on an instance": lambda: patched("search", lambda p, t: boast(None, p, t)),
    "a measure of its own": lambda: dressed(measure=staticmethod(lambda device: 0.0)),
}


@pytest.mark.parametrize("pretender", PRETENDERS)
def test_only_registered_classes_are_ours(pretender):
    """What a class or an instance says of itself does not make it one of this package."""
    problem = problem_of()
    solver = PRETENDERS[pretender]()
    assert solver.name == "heft"
    check(outcome(problem, solver), problem)


def test_our_names_are_not_given_away():
    """A class that calls itself ours cannot take the place of the real one."""
    real = solver_class("heft")
    fake = type(dressed(__module__=real.__module__))
    fake.__qualname__ = real.__qualname__
    with pytest.raises(InputError, match="is taken"):
        register("heft")(fake)
    assert solver_class("heft") is real


def test_packages_that_cannot_be_used_do_not_stop_the_others(tmp_path, monkeypatch):
    """One that ends the process as it is imported, one that fails as libraries of Rust do, and one
    whose objectives are a text, are listed as broken.
    """
    site = tmp_path / "odd-1.0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text(
        "[placeopt.solvers]\nexits = odd_exits:Solver\nspelled = odd_spelled:Solver\n"
        "panics = odd_panics:Solver\n"
    )
    (tmp_path / "odd_exits.py").write_text("raise SystemExit(3)\n")
    panic = "class PanicException(BaseException):\n    pass\n\nraise PanicException('no bytes')\n"
    (tmp_path / "odd_panics.py").write_text(panic)
    (tmp_path / "odd_spelled.py").write_text("class Solver:\n    objectives = 'makespan'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = specs()
    assert "SystemExit: 3" in found["exits"].broken
    assert "PanicException: no bytes" in found["panics"].broken
    assert "expected objectives as a tuple of names" in found["spelled"].broken


def test_a_class_that_registers_itself_is_what_it_says(tmp_path, monkeypatch):
    """An entry point names a class whose module registers it for pipelines: it is found at once."""
    site = tmp_path / "piped-1.0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: piped\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text("[placeopt.solvers]\npiped = piped_solver:Solver\n")
    (tmp_path / "piped_solver.py").write_text(
        "import placeopt as po\n"
        "@po.register('piped', kind='pipeline', objectives=('period',))\n"
        "class Solver:\n"
        "    name = 'piped'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_classes", {})
    assert make_solver("piped", "pipeline").name == "piped"
    assert specs("pipeline")["piped"].objectives == ("period",)


def test_packages_of_others_are_imported_where_they_are_named(tmp_path, monkeypatch):
    """What they do then, and how long it takes, is not on the clock of those who do not ask."""
    site = tmp_path / "heavy-1.0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: heavy\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text(
        "[placeopt.solvers]\nheavy = heavy_solver:Solver\nother = other_solver:Solver\n"
    )
    for name in ("heavy", "other"):
        (tmp_path / f"{name}_solver.py").write_text(f"class Solver:\n    name = '{name}'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    solvers, _ = chosen_solvers(problem_of(), [], {})
    run(problem_of(), dict(solvers)["portfolio"], Budget(evaluations=20))
    assert not hasattr(placeopt.solvers, "nobody")
    assert "heavy_solver" not in sys.modules
    assert make_solver("heavy").name == "heavy"
    assert "other_solver" not in sys.modules
    assert {"heavy", "other"} <= specs().keys()
    assert "other_solver" in sys.modules


def test_a_package_with_one_of_our_names_is_told(tmp_path, monkeypatch):
    """Ours is what runs; whoever lists the solvers learns of the other one."""
    site = tmp_path / "same-1.0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: same\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text("[placeopt.solvers]\nheft = same_solver:Solver\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(UserWarning, match="'heft' of same_solver:Solver is left out"):
        assert specs()["heft"].target.startswith("placeopt.")


def test_objectives_are_a_tuple():
    """A text is not taken for the names that its letters are."""
    with pytest.raises(InputError, match=r"received 'makespan'; write \('makespan',\)"):
        register("spelled", objectives="makespan")


def test_ours_are_not_registered_for_more_than_they_take():
    """A class of this package under another name, for an objective that its bounds are not of, or
    a class of its name under a name that is free.
    """
    real = solver_class("ideal-dp")
    for name in ("mine", "ideal-dp"):
        with pytest.raises(InputError, match=r"is taken|a class of placeopt"):
            register(name, objectives=("latency",))(real)
    fake = type(dressed(__module__=real.__module__))
    fake.__qualname__ = real.__qualname__
    with pytest.raises(InputError, match="a class of placeopt"):
        register("free")(fake)
    assert solver_class("ideal-dp") is real
    assert "latency" not in accepted_objectives(real(), "placement")


class Fickle(int):
    """A number that is checked as one and used as another."""

    def __index__(self):
        """The number used."""
        return 5

    def __ge__(self, other):
        """No limit is passed."""
        return True

    __lt__ = __gt__ = lambda self, other: False


def test_options_of_ours_are_checked_where_they_are_used():
    """Options that were set past their check, or that change, are seen as what they are."""
    solver = make_solver("cp-sat")
    object.__setattr__(solver, "num_workers", -5)
    with pytest.raises(InputError, match="num_workers"):
        run(problem_of(), solver, Budget(seconds=5.0))
    object.__setattr__(solver, "num_workers", Fickle(-5))
    with pytest.raises(InputError, match="num_workers"):
        run(problem_of(), solver, Budget(seconds=5.0))


def test_what_ours_prove_inside_counts():
    """One of our solvers, run by a plug-in on a part, proves; what the plug-in has made of its own
    problem is no matter.
    """

    def delegate(problem, tracker):
        tracker.problem = free()
        run_part(tracker, make_solver("cp-sat", num_workers=1))

    problem = problem_of()
    result = run(problem, Liar(delegate), Budget(seconds=20))
    assert (result.value, result.lower_bound, result.status) == (OPTIMUM, OPTIMUM, "optimal")
    assert result.message == ""


# --- the protocol alone
# -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Returner:
    """Keeps to the protocol: `solve` returns a Result with `fields`, or what `deed` makes."""

    name: ClassVar[str] = "liar"
    fields: Any = None
    deed: Any = None
    make: Any = None

    def solve(self, problem, budget, *, seed, initial=None, on_progress=None):
        """Return something."""
        if self.deed is not None:
            self.deed(problem, on_progress)
        if self.make is not None:
            return self.make(problem)
        return forged(
            problem, **(self.fields or {"value": TRUE, "lower_bound": 0, "status": "feasible"})
        )


class Moody:
    """A result whose members change whenever they are looked at."""

    def __init__(self, problem):
        self._looks, self._problem = 0, problem

    @property
    def solution(self):
        """The good one first."""
        self._looks += 1
        return Placement(DEVICES) if self._looks == 1 else Placement([1, 0, 1, 0])

    @property
    def value(self):
        """Ever less."""
        self._looks += 1
        return TRUE - self._looks

    objective = value
    lower_bound = value
    evaluations = -1
    status = "infeasible"
    stop_reason = "proved"


def fail(problem):
    """Raise with a forged partial result."""
    raise SolverError("sorry", forged(problem))


def mutate(problem, on_progress):
    """Change the problem."""
    object.__setattr__(problem, "compute", free().compute)


RETURNS = {
    "optimal": (Returner({"value": 1}), "claims a value of 1"),
    "optimal, in words": (Returner({"message": "optimal\nproved"}), "says 'optimal proved'"),
    "a bound": (Returner({"value": TRUE, "lower_bound": TRUE}), f"claims a bound of {TRUE}"),
    "a bound too high": (
        Returner(make=lambda p: SimpleNamespace(lower_bound=HUGE, solution=honest(p))),
        "claims a bound",
    ),
    "infeasible": (
        Returner(
            {
                "status": "infeasible",
                "solution": None,
                "value": None,
                "lower_bound": 0,
                "message": "I say so",
            }
        ),
        "claims that there is no solution ('I say so')",
    ),
    "infeasible, with a solution": (
        Returner({"status": "infeasible"}),
        "claims that there is no solution",
    ),
    "a negative value": (
        Returner(make=lambda p: SimpleNamespace(value=-3, solution=honest(p))),
        "claims a value of -3",
    ),
    "negative evaluations": (Returner({"evaluations": -3}), ""),
    "evaluations without end": (Returner({"evaluations": 10**40}), ""),
    "proved": (
        Returner({"value": TRUE, "lower_bound": 0, "status": "feasible", "stop_reason": "proved"}),
        "",
    ),
    "moods": (Returner(make=Moody), "claims"),
    "an invalid solution": (Returner({"solution": Placement([0, 0, 0, 7])}), ""),
    "no solution": (Returner({"solution": "nothing"}), ""),
    "a chameleon": (
        Returner(make=lambda p: SimpleNamespace(solution=object.__new__(Chameleon))),
        "",
    ),
    "a forged partial": (Returner(make=fail), ""),
    "another problem": (
        Returner({"value": 0, "lower_bound": 0}, deed=mutate),
        "claims a value of 0",
    ),
    "an unknown bound": (
        Returner(make=lambda p: SimpleNamespace(lower_bound="all", status=7, solution=None)),
        "",
    ),
}


@pytest.mark.parametrize("start", [None, Placement([1, 1, 1, 1])], ids=["alone", "initial"])
@pytest.mark.parametrize("case", RETURNS)
def test_what_solve_returns_is_taken_for_a_claim(case, start):
    """The solution is valued and judged; bound, status, reason and evaluations are what they are
    here.
    """
    solver, words = RETURNS[case]
    problem = problem_of()
    result = outcome(problem, solver, initial=start)
    check(result, problem)
    if result is not None:
        assert words in result.message
        assert start is None or result.value <= 220
    assert start is None or np.array_equal(start.device, [1, 1, 1, 1])


# --- honest ones, of every kind, and the command line
# -----------------------------------------------------------------


def test_an_honest_plug_in_finds_what_it_finds():
    """Offering without a value, and claims that are true, cost nothing but the word "claims"."""

    def search(problem, tracker):
        assert tracker.value == TRUE
        assert not tracker.stop()
        assert tracker.offer(Placement([0, 0, 0, 1], [0, 2, 1, 3]))
        assert not tracker.offer(tracker.value + 5, Placement([1, 1, 1, 1]))
        tracker.count(3)
        assert tracker.evaluations == 3
        assert tracker.rng().integers(9) == np.random.default_rng(tracker.seed).integers(9)
        assert tracker.seconds_left <= tracker.budget.seconds
        tracker.raise_bound(tracker.value, "mine")
        assert tracker.stop()

    problem = problem_of()
    start = Liar(lambda problem, tracker: None)
    assert outcome(problem, start).message == ""
    result = run(problem, Liar(search), Budget(seconds=5), seed=4)
    check(result, problem)
    assert (result.stop_reason, result.evaluations) == ("converged", 3)
    assert "claims" in result.message


KINDS = {
    ("placement", "makespan"): "heft",
    ("placement", "period"): "linear-dp",
    ("placement", "latency"): "max-load-dp",
    ("split", "period"): "split-ideals",
    ("pipeline", "period"): "repetend",
    ("jobs", "blocking"): "feasible-first",
    ("sharding", "cost"): "sharding-portfolio",
    ("plan", "step-time"): "plan-stages",
    ("plan", "sample-time"): "plan-ideals",
}


@pytest.mark.parametrize(("kind", "objective"), KINDS)
def test_solutions_of_every_kind_are_taken(kind, objective):
    """A class derived from one of ours, which changes nothing, finds the same, and proves
    nothing.
    """
    real = make_solver(KINDS[kind, objective], kind)
    other = type("Other", (type(real),), {"objectives": (objective,), "kind": kind})()
    problem = other_problems(kind, objective)[0]
    budget = Budget(seconds=30.0, evaluations=200)
    ours, theirs = run(problem, real, budget), run(problem, other, budget)
    assert theirs.value == ours.value is not None
    assert objective_of(problem).finish(problem, theirs.solution).value == theirs.value
    assert theirs.lower_bound == 0
    assert ("claims a bound" in theirs.message) == (ours.lower_bound > 0)
    again = run(problem, real, budget, initial=theirs.solution)
    assert again.value == ours.value
    assert theirs.given is problem


PLUG_IN = '''
from dataclasses import dataclass
from typing import ClassVar
import numpy as np
import placeopt as po

@dataclass(frozen=True)
class Boaster(po.SearchSolver):
    """Says that everything on the first device is optimal."""

    name: ClassVar[str] = "boaster"

    def search(self, problem, tracker):
        tracker.offer(1, po.Placement(np.zeros(problem.num_ops, dtype=np.int64)))
        tracker.raise_bound(int(problem.compute[:, 0].sum()), "magic")
        tracker.stop_reason, tracker.message = "proved", "optimal, proved"
        %s
'''


@pytest.mark.parametrize(
    "end",
    [
        "return",
        "raise RuntimeError('out of order')",
        "raise KeyboardInterrupt",
        "raise SystemExit(0)",
    ],
)
def test_the_command_line_believes_no_more(tmp_path, monkeypatch, capsys, end):
    """A plug-in that an entry point names, run by `placeopt solve --solver`: its lies are shown as
    claims.
    """
    site = tmp_path / "site" / "boast-1.0.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: boast\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text("[placeopt.solvers]\nboaster = boastsolver:Boaster\n")
    (site.parent / "boastsolver.py").write_text(PLUG_IN % end)
    monkeypatch.syspath_prepend(str(site.parent))
    monkeypatch.delitem(sys.modules, "boastsolver", raising=False)
    monkeypatch.setattr(threads, "_left_behind", [])  # by other tests: the process would end
    command = "solve gen:fork-join --cluster uniform:2 --solver boaster --seconds 2 --json"
    with pytest.raises(SystemExit):
        main(command.split())
    ran = capsys.readouterr()
    assert "Traceback" not in ran.err, ran.err
    told = json.loads(ran.out)
    assert (told["status"], told["bound_method"]) == ("feasible", "fork-join")
    assert told["lower_bound"] < told["value"]
    assert told["stop_reason"] != "proved"
    assert f"claims a bound of {told['value']} ticks by 'magic', not proved here" in told["message"]
    assert "says 'optimal, proved'" in told["message"]


@dataclass(frozen=True)
class Closer(SearchSolver):
    """Closes the output."""

    name: ClassVar[str] = "closer"

    def search(self, problem, tracker):
        """Offer a solution first."""
        tracker.offer(Placement(np.zeros(problem.num_ops, np.int64)))
        sys.stdout.close()


def test_an_output_that_a_plug_in_closes_is_told_in_one_line(monkeypatch, capsys):
    """Nothing can be printed there any more."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    for names in ("_registered", "_classes"):
        monkeypatch.setattr(registry, names, dict(getattr(registry, names)))
    register("closer")(Closer)
    with pytest.raises(SystemExit) as stop:
        main(["solve", "gen:fork-join", "--cluster", "uniform:2", "--solver", "closer"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said == "placeopt: error: output: a solver or an objective of yours has closed it\n"
