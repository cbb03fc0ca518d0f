"""How `run` ends, and what the face of plug-ins passes on, where the other tests would not tell: a
fresh share of mutants showed which.
"""

from __future__ import annotations

import pickle
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_run_edges import EQUAL, GOOD, VALUE, WORSE, Plugin, face_of, problem_of

from placeopt.cli.comparison import chosen_solvers
from placeopt.io.serialize import from_dict, to_dict
from placeopt.model.errors import InputError, MissingExtraError, SolverError
from placeopt.model.objective import Finished, objective_of
from placeopt.model.placement import Placement
from placeopt.model.result import Budget, TracePoint
from placeopt.solving import registry
from placeopt.solving.options import option
from placeopt.solving.plugin import declared, lent, restated, settled
from placeopt.solving.registry import make_solver, solver_class
from placeopt.solving.run import _conclude, run
from placeopt.solving.tracker import Tracker


def ended(value, devices, *, bound=0, start=None):
    """Return what `run` concludes of a tracker that says `value` of a placement."""
    problem = problem_of()
    tracker = Tracker("tried", problem, Budget(seconds=60))
    tracker.value, tracker.solution = value, None if devices is None else Placement(devices)
    tracker.lower_bound, tracker.bound_method = bound, "drawn"
    if start is not None:
        tracker.initial = start[0], Placement(start[1])
    tracker.trace = [
        TracePoint(0.1, 1, None, 2),
        TracePoint(0.2, 2, 3, 2),
        TracePoint(0.3, 3, 14, 2),
    ]
    return tracker, _conclude(tracker, objective_of(problem))


def test_a_value_that_meets_the_bound_is_optimal():
    """A bound that equals the value proves it; one tick more is a contradiction."""
    assert ended(VALUE, GOOD, bound=VALUE)[1].status == "optimal"
    with pytest.raises(SolverError, match="exceeds the value"):
        ended(VALUE, GOOD, bound=VALUE + 1)


def test_the_start_is_kept_where_the_end_is_worse():
    """A solution that is worse than the first one is replaced by it, one as good is not."""
    assert ended(3, WORSE, start=(VALUE, GOOD))[1].value == VALUE
    _, result = ended(VALUE, EQUAL, start=(VALUE, GOOD))
    assert list(result.solution.device) == EQUAL


@pytest.mark.parametrize(("value", "devices"), [(None, GOOD), (3, None)])
def test_half_an_incumbent_is_none(value, devices):
    """Without a value, or without a solution, nothing was found."""
    tracker, result = ended(value, devices)
    assert (result.solution, result.value, tracker.value) == (None, None, None)
    assert "no solution" in result.message


def test_points_without_an_incumbent_stay_in_the_trace():
    """Points before the first solution stay, those below the true value go."""
    _, result = ended(VALUE, GOOD)
    assert [point.incumbent for point in result.trace[:2]] == [None, 14]


def test_an_endless_search_runs_with_a_limit():
    """It is refused without one only."""

    @dataclass(frozen=True)
    class Endless(Plugin):
        endless: ClassVar[bool] = True

    found = run(
        problem_of(),
        Endless(lambda problem, tracker: tracker.offer(VALUE, Placement(GOOD))),
        Budget(evaluations=5),
    )
    assert found.value == VALUE


def test_what_a_search_begins_with_is_nobodys_gain(monkeypatch):
    """The gain of an initial solution and of quick bounds is taken back before the search."""
    seen, heft = [], type(make_solver("heft"))
    monkeypatch.setattr(heft, "search", lambda self, problem, tracker: seen.append(tracker.gained))
    run(problem_of(), make_solver("heft"), Budget(seconds=5), initial=Placement(WORSE))
    assert seen == [(0.0, 0.0)]


def test_progress_of_a_plug_in_is_no_evaluation():
    """A solver that only has `solve` reports progress, which counts nothing."""

    class Reporter:
        name, objectives, problem_kind = "reporter", ("makespan",), "placement"

        def solve(self, problem, budget, *, seed, initial=None, on_progress=None):
            for _ in range(4):
                on_progress(None)

    assert run(problem_of(), Reporter(), Budget(evaluations=50)).evaluations <= 1


def test_a_face_meets_the_other_side_where_it_looks():
    """Each look whether to stop is a meeting."""
    _, face = face_of()
    met = []
    face.exchange = SimpleNamespace(meet=met.append)
    face.stop()
    assert met == [face]


def test_a_name_without_words_is_that_of_the_class():
    """Where nothing is left of a name to show."""
    assert declared(type("Odd", (), {"name": "\n"})()).name == "Odd"


def test_fields_that_no_option_sets_are_left_alone():
    """`settled` makes a solver anew of its options only."""

    @dataclass(frozen=True)
    class WithCache(Plugin):
        option: int = 3
        cache: list[Any] = field(default_factory=list, init=False)

    assert settled(WithCache(option=True)).option == 1


def test_parts_of_what_cannot_be_copied_are_copied():
    """A holder of a lock is made anew with the same lock and arrays of its own."""

    @dataclass
    class Holder:
        lock: Any
        ticks: Any

    given = Holder(threading.Lock(), np.zeros(3))
    copy = lent(given)
    copy.ticks[0] = 1.0
    assert given.ticks[0] == 0.0
    assert copy.lock is given.lock


def test_solutions_of_objectives_without_a_class_are_made_plain():
    """An objective need not name the class of its solutions."""
    found = restated([np.int64(3)], problem_of(), SimpleNamespace(kind="other"))
    assert found == (3,)
    assert type(found[0]) is int


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None])
def test_a_seed_is_a_whole_number(seed):
    """The caller is told, whichever solver would have stumbled over it."""
    with pytest.raises(InputError, match="seed: expected a whole number >= 0"):
        run(problem_of(), make_solver("annealing"), Budget(evaluations=5), seed=seed)


@pytest.mark.parametrize("initial", [{"a": 0}, np.zeros(3, np.int64), "x"])
def test_what_is_no_solution_is_none_to_start_from(initial):
    """A start of another kind is bad input."""
    with pytest.raises(InputError, match="the initial solution is not valid"):
        run(problem_of(), make_solver("heft"), Budget(evaluations=5), initial=initial)


def test_a_class_is_no_solver():
    """Whoever forgets to call it is told so, whosever class it is."""
    for cls in (solver_class("heft"), Plugin):
        with pytest.raises(InputError, match=f"received the class {cls.__name__}; call it"):
            run(problem_of(), cls, Budget(evaluations=5))


@pytest.mark.parametrize(
    "limit",
    [
        {"seconds": "1"},
        {"evaluations": 1.5},
        {"evaluations": "3"},
        {"target": "x"},
        {"target": float("nan")},
    ],
)
def test_limits_are_numbers(limit):
    """A budget names the limit that is none."""
    with pytest.raises(InputError, match=f"budget {next(iter(limit))}: expected a .*number"):
        Budget(**limit)


def test_errors_come_back_from_other_processes():
    """Each is unpickled with its words; one that is not leaves a pool waiting."""
    for error in (InputError("x"), SolverError("x"), MissingExtraError("onnx", "onnx", "reading")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))


@pytest.mark.parametrize("value", [float("nan"), 3.5, -1, np.float64(3)])
def test_what_an_objective_finds_is_whole_ticks(value):
    """Somebody's objective that finds anything else is named: nothing could be compared with it."""
    tracker = Tracker("tried", problem_of(), Budget(seconds=60))
    tracker.value, tracker.solution = VALUE, Placement(GOOD)
    stub = SimpleNamespace(name="stub", finish=lambda problem, solution: Finished(value, "", ()))
    with pytest.raises(SolverError, match=r"a value of .*: expected whole ticks"):
        _conclude(tracker, stub)


def test_an_option_may_be_called_search():
    """A solver that keeps to the protocol is called by its `solve`, whatever its options are."""

    class Tabu:
        name, search = "tabu", "tabu"

        def solve(self, problem, budget, *, seed, initial=None, on_progress=None):
            return SimpleNamespace(solution=Placement(GOOD))

    assert run(problem_of(), Tabu(), Budget(seconds=5)).value == VALUE


@pytest.mark.parametrize(
    "odd",
    [
        {"kernels": 5},
        {"kernels": None},
        {"endless": property(int)},
        {"objectives": property(int)},
    ],
)
def test_what_cannot_be_read_is_told_when_a_solver_is_made(odd, monkeypatch):
    """A comparison and a grid name it, and go on with the others."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_classes", {})
    registry.register("odd")(type("Odd", (), {"name": "odd", **odd}))
    solvers, broken = chosen_solvers(problem_of(), ["odd", "heft"], {})
    assert ([name for name, _ in solvers], broken[0].solver) == (["heft"], "odd")
    assert "kernels cannot be read" in broken[0].message


def test_numbers_of_numpy_keep_their_range():
    """As options of somebody's solver they are checked like others."""

    @dataclass(frozen=True)
    class Limited(Plugin):
        share: float = option(0.5, low=0.0, high=1.0, meaning="share")

    assert Limited(share=np.float32(1)).share == 1
    for share in (np.float32(7), np.int64(-1)):
        with pytest.raises(InputError, match="option share: expected at least 0 and at most 1"):
            Limited(share=share)


def test_a_class_that_is_no_dataclass_has_no_options():
    """Its author is told, where options were told to be no numbers."""

    class Forgotten(Plugin):
        share: float = option(0.5, meaning="share")

    with pytest.raises(SolverError, match=r"Forgotten': write @dataclass\(frozen=True\) above it"):
        Forgotten()


def test_seeds_and_limits_of_numpy_are_plain_numbers():
    """A result of them can be written, whoever counts."""
    budget = Budget(np.float32(5), np.int64(9), np.int32(1))
    assert [*map(type, vars(budget).values())] == [float, int, int]
    result = run(problem_of(), make_solver("annealing"), budget, seed=np.int64(3))
    assert from_dict(to_dict(result)).seed == 3
