"""`run` and the face that plug-ins meet, branch by branch: each test is of a line that could be
wrong without any other test telling (`tests/attack/mutants.py`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import placeopt as po
import placeopt.solving.run as run_module
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.model.bound import BoundReport
from placeopt.model.errors import InputError, Refused, SolverError
from placeopt.model.objective import Finished, objective_of
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget, TracePoint
from placeopt.solvers.search.evaluator import BudgetedEvaluator
from placeopt.solvers.stages import hot_kernels
from placeopt.solving import registry
from placeopt.solving.base import SearchSolver
from placeopt.solving.plugin import MOST_EVALUATIONS, PluginTracker, adopt, lent, restated
from placeopt.solving.registry import make_solver, register
from placeopt.solving.run import best_so_far, run, run_part, run_step
from placeopt.solving.tracker import Tracker

COMPUTE = [[5, 5], [5, 5], [4, 4]]


def problem_of(**options):
    """Three ops on two like devices, the first sends to both others within 3 ticks."""
    return PlacementProblem.from_edges(COMPUTE, [(0, 1, 3), (0, 2, 3)], **options)


@dataclass(frozen=True)
class Plugin(SearchSolver):
    """A search of another package that does `deed`."""

    name: ClassVar[str] = "plugin"
    watched_from: ClassVar[int] = 10**9

    deed: Any = None

    def search(self, problem, tracker):
        """Do it."""
        return self.deed(problem, tracker)


def face_of(problem=None, budget=None, objective=None):
    """Return a tracker and the face of it."""
    problem = problem_of() if problem is None else problem
    whole = Tracker("plugin", problem, budget or Budget(seconds=60))
    return whole, PluginTracker(whole, objective or objective_of(problem))


def finishing(finish):
    """Return an objective of placements that values solutions by a function."""
    return SimpleNamespace(kind="placement", name="stub", finish=finish)


GOOD, EQUAL, WORSE, BAD = ([0, 0, 1], [1, 1, 0], [0, 0, 0], [0, 1, 7])
VALUE = 12  # 5 + 3 + 4 beside 5 + 5


# --- the face
# --------------------------------------------------------------------------------------------


def test_values_of_the_placements():
    """By hand: the third op is read after its transfer, the others run one after the other."""
    finish = objective_of(problem_of()).finish
    values = [finish(problem_of(), Placement(d)).value for d in (GOOD, EQUAL, WORSE)]
    assert values == [VALUE, VALUE, 14]


def test_an_offer_that_is_no_better_is_left_aside():
    """By its own value a search may leave a solution aside before it is judged."""
    whole, face = face_of()
    assert face.offer(VALUE, Placement(GOOD))
    assert not face.offer(VALUE, Placement(EQUAL))
    assert not face.offer(VALUE + 1, Placement(BAD))  # not looked at
    with pytest.raises(SolverError, match="not valid"):
        face.offer(VALUE - 1, Placement(BAD))
    with pytest.raises(SolverError, match="not valid"):
        face.offer(Placement(BAD))
    assert not face.offer(Placement(WORSE))
    whole.close()
    assert not face.offer(0, Placement(BAD))
    assert list(whole.solution.device) == GOOD


def test_an_incumbent_is_replaced_by_one_as_good():
    """Not by a worse one, and by none when the search is over."""
    whole, face = face_of()
    face.solution = Placement(GOOD)
    assert (whole.value, list(whole.solution.device)) == (VALUE, GOOD)
    face.solution = Placement(EQUAL)
    assert list(whole.solution.device) == EQUAL
    assert whole.verdict[0] is whole.solution
    assert whole.verdict[1].value == VALUE
    face.solution = Placement(WORSE)
    assert (whole.value, list(whole.solution.device)) == (VALUE, EQUAL)
    whole.close()
    face.solution = Placement(GOOD)
    assert list(whole.solution.device) == EQUAL
    assert list(face.solution.device) == EQUAL
    assert face.solution is face.solution
    assert face.solution is not whole.solution


def test_what_is_judged_is_valued_and_valid():
    """No value, a violation, an error of the judge and of a solution that is none."""

    def offer(finish):
        whole, face = face_of(objective=finishing(finish))
        face.offer(Placement(GOOD))
        return whole

    assert offer(lambda p, s: Finished(9, "fifo", ())).value == 9
    for finished in (Finished(9, "", ("a", "b")), Finished(None, "", ("a", "b"))):
        with pytest.raises(SolverError, match=r"'plugin' found a solution that is not valid: a$"):
            offer(lambda p, s, finished=finished: finished)

    def fails(error):
        def finish(problem, solution):
            raise error

        return finish

    with pytest.raises(SolverError, match=r"^as it is$"):
        offer(fails(SolverError("as it is")))
    with pytest.raises(SolverError, match="no solution \\(TypeError: odd\\)") as caught:
        offer(fails(TypeError("odd")))
    with pytest.raises(SolverError) as caught:
        offer(fails(TypeError("ab " * 500)))
    assert len(str(caught.value).partition("(")[2]) == 161  # and the bracket


def test_claims_are_told_as_they_were_made():
    """A bound of one tick, a float, a method; no number is none; what is not above is not told."""
    whole, face = face_of()
    assert not face.raise_bound("many")
    assert not face.raise_bound(float("inf"))
    assert not face.raise_bound(0)
    assert whole.claims == {}
    assert face.raise_bound(1, "reason")
    assert whole.claims == {
        ("plugin", "bound"): "claims a bound of 1 ticks by 'reason', not proved here"
    }
    assert not face.raise_bound(1)
    assert face.raise_bound(2.5)
    assert face.raise_bound(Fraction(7, 2))
    assert face.raise_bound(np.int64(4), 3)
    assert whole.claims["plugin", "bound"] == "claims a bound of 4 ticks, not proved here"
    whole.raise_bound(6, "ours")
    assert not face.raise_bound(6)
    assert face.raise_bound(7)
    assert (face.lower_bound, face.bound_method, whole.lower_bound) == (6, "ours", 6)


def test_a_value_is_claimed_only_below_the_true_one():
    """The claim says both; a true value and one too high are none."""
    for value, claimed in ((VALUE - 1, True), (VALUE, False), (VALUE + 1, False)):
        whole, face = face_of()
        face.offer(value, Placement(GOOD))
        words = f"claims a value of {value} ticks for a solution of {VALUE}"
        assert whole.claims == ({("plugin", "value"): words} if claimed else {})


def test_a_search_ends_by_its_own_claims():
    """A claimed bound that meets the incumbent ends it, one below does not; so does infeasibility.
    What we believe of it stays.
    """
    whole, face = face_of()
    assert not face.stop()
    face.offer(VALUE, Placement(GOOD))
    face.raise_bound(VALUE - 1)
    assert not face.stop()
    face.raise_bound(VALUE)
    assert face.stop()
    assert not whole.stop()
    assert whole.lower_bound == 0
    whole, face = face_of()
    face.infeasible("I say so")
    assert face.stop()
    assert face.reason == "I say so"
    assert not whole.stop()
    assert whole.reason == ""
    whole, face = face_of(budget=Budget(evaluations=3))
    face.count(2)
    assert not face.stop()
    face.count(1)
    assert face.stop()
    assert whole.stop_reason == "evaluations"


def test_evaluations_are_counted_within_limits():
    """Never back, never past the budget, never past 2^62."""
    whole, face = face_of()
    face.count()
    face.count(-3)
    face.count(2)
    assert whole.evaluations == face.evaluations == 3
    for _ in range(3):
        face.count(10**30)
    assert whole.evaluations == MOST_EVALUATIONS == 4611686018427387904
    whole, face = face_of(budget=Budget(evaluations=5))
    face.count(3)
    assert face.evaluations_left == 2
    face.count(9)
    assert whole.evaluations == 5


def test_a_message_is_a_claim():
    """It is shown as what the solver says; none is shown where it says nothing."""
    whole, face = face_of()
    face.message = "odd\nwords"
    assert face.message == "odd words"
    assert "solver 'plugin' says 'odd words'" in whole.result().message
    face.message = ""
    assert whole.result().message == ""
    face.message = 7
    assert face.message == ""


def test_ctrl_c_in_a_face_ends_the_whole():
    """Also what runs beside it."""
    whole, face = face_of()
    beside = face.beside(problem_of(), Budget(seconds=60))
    assert not beside.stop()
    with face:
        raise KeyboardInterrupt
    assert (whole.stop_reason, whole.stopped) == ("interrupted", True)
    assert face.stop()
    assert beside.stop()
    whole, face = face_of()
    face.interrupt()
    assert (whole.stop_reason, face.stopped) == ("interrupted", True)


# --- what `solve` of another package returns
# -----------------------------------------------------------------


def test_nothing_returned_says_nothing():
    """No evaluations, no bound, no message, no solution."""
    whole, face = face_of()
    adopt(face, SimpleNamespace(solution=None))
    adopt(face, None)
    assert (whole.evaluations, whole.value, whole.result().message) == (0, None, "")
    assert whole.stop_reason == "converged"


@pytest.mark.parametrize("returned", [Placement([0, 0, 0]), [0, 0, 0], {"solution": [0, 0, 0]}])
def test_what_is_no_result_is_called_that(returned):
    """A placement that `solve` or `search` returns is not passed over in silence."""
    with pytest.raises(SolverError, match=r"'plugin': its solve returned a .*expected a Result"):
        adopt(face_of()[1], returned)
    searching = Plugin(lambda problem, tracker: returned)
    with pytest.raises(SolverError, match=r"'plugin': its search returned a .*tracker\.offer"):
        run(problem_of(), searching, Budget(seconds=1))


def test_evaluations_that_are_no_number_cost_no_solution():
    """What comes with them counts."""
    whole, face = face_of()
    adopt(face, SimpleNamespace(evaluations="many", solution=Placement(GOOD)))
    assert (whole.evaluations, whole.value) == (0, VALUE)


def test_what_is_returned_is_taken_once():
    """Each member by its own name."""
    whole, face = face_of()
    made = {"evaluations": 4, "message": "fine", "lower_bound": 3, "bound_method": "magic"}
    adopt(face, SimpleNamespace(**made, solution=Placement(GOOD), value=11))
    assert (whole.evaluations, whole.value, whole.stop_reason) == (4, VALUE, "converged")
    assert whole.result().message == (
        "solver 'plugin' says 'fine', claims a bound of 3 ticks by 'magic', not proved here, "
        f"claims a value of 11 ticks for a solution of {VALUE}"
    )
    whole, face = face_of()
    adopt(face, SimpleNamespace(status="infeasible", message="so", stop_reason="interrupted"))
    assert whole.stop_reason == "interrupted"
    assert "claims that there is no solution ('so')" in whole.result().message
    whole, face = face_of(budget=Budget(evaluations=4))
    adopt(face, SimpleNamespace(solution=None, evaluations=4))
    assert whole.stop_reason == "evaluations"


# --- copies
# ------------------------------------------------------------------------------------------------


def test_what_is_lent_is_a_copy_of_the_same_shape():
    """Parts that are one stay one; dictionaries of other classes keep what they hold; what cannot
    be copied is lent as it is.
    """
    array, lock = np.array([1, 2]), threading.Lock()
    given = {"a": [array, array], "b": (array, 3), "c": OrderedDict(x=1), "d": lock}
    point = TracePoint(1.0, 2, 3, 4)
    copied = lent({**given, "e": point})
    assert copied["a"][0] is copied["a"][1] is copied["b"][0]
    assert copied["a"][0] is not array
    copied["a"][0][0] = 9
    assert array[0] == 1
    assert copied["c"] == given["c"]
    assert copied["c"] is not given["c"]
    assert copied["d"] is lock
    assert copied["e"] == point
    assert copied["e"] is not point
    problem = problem_of()
    twin = lent(problem)
    assert twin is not problem
    assert np.array_equal(twin.compute, problem.compute)
    assert not twin.compute.flags.writeable
    first, second = lent((point, point))
    assert first is second


def test_only_plain_values_are_restated():
    """Arrays of numbers, lists, texts and numbers; anything else is refused."""
    objective = finishing(None)
    for value in (None, True, 3, 2.5, "x", Fraction(1, 3)):
        found = restated(value, None, objective)
        assert (found, type(found)) == (value, type(value))
    assert restated([1, (2, "x")], None, objective) == (1, (2, "x"))
    assert restated(np.int64(7), None, objective) == 7
    array = np.array([1, 2])
    found = restated(array, None, objective)
    assert np.array_equal(found, array)
    assert not found.flags.writeable
    array[0] = 5
    assert found[0] == 1
    for wrong in (np.array(["x"]), np.array([1j]), np.array([None]), {1: 2}, {1}, object()):
        with pytest.raises(TypeError):
            restated(wrong, None, objective)


# --- runs
# ---------------------------------------------------------------------------------------------


def test_a_solver_is_run_on_what_it_takes():
    """Another objective is refused by name, and so is a search without an end."""
    with pytest.raises(Refused, match=r"heft.*received 'period'"):
        run(problem_of(objective="period"), make_solver("heft"), Budget(seconds=1))
    with pytest.raises(InputError, match="never stops by itself"):
        run(problem_of(), make_solver("annealing"), Budget())


def test_a_bound_that_is_given_is_taken():
    """A number and its method, or that there is no solution; True proves one, False none."""
    given = BoundReport(3, "given", {"given": 3}, 0.0, "")
    result = run(problem_of(), make_solver("heft"), Budget(seconds=5), bound=given)
    assert (result.lower_bound, result.bound_method) == (3, "given")
    result = run(problem_of(), make_solver("heft"), Budget(seconds=5), bound=True)
    assert 9 <= result.lower_bound <= VALUE
    assert result.bound_method != "given"
    result = run(problem_of(), make_solver("heft"), Budget(seconds=5))
    assert (result.lower_bound, result.bound_method) == (0, "none")
    given = BoundReport(0, "none", {}, 0.0, "no way")
    result = run(problem_of(), make_solver("heft"), Budget(seconds=5), bound=given)
    assert (result.status, result.message, result.solution) == ("infeasible", "no way", None)


def test_a_bound_above_a_value_is_an_error():
    """Of one of ours: one of them is wrong; a bound that meets it proves it."""
    false = BoundReport(VALUE + 10, "wrong", {"wrong": VALUE + 10}, 0.0, "")
    with pytest.raises(SolverError, match=f"{VALUE + 10} \\(wrong\\) exceeds the value"):
        run(problem_of(), make_solver("heft"), Budget(seconds=5), bound=false)


def test_impossible_problems_are_not_searched():
    """An op that fits nowhere: infeasible, with the reason, whatever the solver would do."""
    problem = problem_of(resident=[9, 0, 0], capacity=[5, 5])
    seen = []
    result = run(problem, Plugin(lambda p, t: seen.append(1)), Budget(seconds=1))
    assert (result.status, seen) == ("infeasible", [])
    assert result.message
    with pytest.raises(InputError, match="initial solution is not valid"):
        run(problem, make_solver("heft"), Budget(seconds=1), initial=Placement(GOOD))


def test_the_initial_solution_counts():
    """It is valued and kept where nothing better is found; an invalid one is bad input."""
    nothing = Plugin(lambda problem, tracker: None)
    result = run(problem_of(), nothing, Budget(seconds=1), initial=Placement(WORSE))
    assert (result.value, list(result.solution.device)) == (14, WORSE)
    result = run(problem_of(), nothing, Budget(seconds=1))
    assert (result.value, result.status) == (None, "unknown")
    assert "no solution found satisfies every constraint" in result.message
    seen = []

    def look(problem, tracker):
        seen.append((tracker.initial[0], list(tracker.initial[1].device), tracker.value))

    run(problem_of(), Plugin(look), Budget(seconds=1), initial=Placement(GOOD))
    assert seen == [(VALUE, GOOD, VALUE)]
    with pytest.raises(InputError, match="initial solution is not valid"):
        run(problem_of(), nothing, Budget(seconds=1), initial=Placement(BAD))


def test_a_step_that_is_interrupted_ends_its_caller():
    """Ctrl-C inside it is Ctrl-C; otherwise it is a run."""
    solver = Plugin(lambda problem, tracker: tracker.offer(Placement(GOOD)))
    assert run_step(problem_of(), solver, Budget(seconds=1), seed=3).value == VALUE
    with pytest.raises(KeyboardInterrupt):
        run_step(problem_of(), Plugin(lambda p, t: t.interrupt()), Budget(seconds=1))


def test_what_a_search_raises_is_told_with_what_it_found():
    """Errors of ours and of others, Ctrl-C inside another error, bad input, and refusals."""

    def deed(error, cause=None):
        def raises(problem, tracker):
            tracker.offer(Placement(GOOD))
            raise error from cause

        return Plugin(raises)

    for error, words in (
        (ValueError("odd"), "solver 'plugin' raised ValueError: odd"),
        (SystemExit(3), "solver 'plugin' raised SystemExit: 3"),
        (InputError("yours"), "solver 'plugin' raised InputError: yours"),
        (SolverError("sorry"), "^sorry$"),
    ):
        with pytest.raises(SolverError, match=words) as caught:
            run(problem_of(), deed(error), Budget(seconds=1))
        assert caught.value.partial.value == VALUE
        assert caught.value.partial.stop_reason == "interrupted"
    with pytest.raises(Refused, match=r"^not mine$"):
        run(problem_of(), deed(Refused("not mine")), Budget(seconds=1))
    for error, cause in ((SystemError("x"), KeyboardInterrupt()), (KeyboardInterrupt(), None)):
        result = run(problem_of(), deed(error, cause), Budget(seconds=1))
        assert (result.value, result.stop_reason) == (VALUE, "interrupted")
    with pytest.raises(SolverError) as caught:
        run(problem_of(), Plugin(lambda p, t: 1 / 0), Budget(seconds=1))
    assert caught.value.partial is None


class Speechless(Exception):
    """An error whose text cannot be had."""

    def __str__(self):
        raise RuntimeError("no text")


def test_an_error_without_words_is_named():
    """What was found before it was lost: its text raised, too."""

    def deed(_, face):
        face.offer(Placement(GOOD))
        raise Speechless

    with pytest.raises(SolverError, match=r"^solver 'plugin' raised Speechless$") as caught:
        run(problem_of(), Plugin(deed), Budget(evaluations=9))
    assert caught.value.partial.value == VALUE


def test_what_the_process_shares_is_put_back(tmp_path, monkeypatch):
    """A search changes folder, outputs, the depth of calls, where modules are, what warnings are,
    variables, signals and rights of new files; results went to another folder.
    """
    monkeypatch.chdir(tmp_path)

    def deed(_, face):
        (tmp_path / "work").mkdir()
        os.chdir("work")
        sys.stdout = sys.stderr = None
        sys.setrecursionlimit(sys.getrecursionlimit() - 1)
        sys.path.clear()
        os.environ.clear()
        os.umask(0o777)
        warnings.simplefilter("error")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def state():
        shared = sys.getrecursionlimit(), sys.stdout, sys.stderr, Path.cwd(), list(sys.path)
        (new := tmp_path / f"new{len(list(tmp_path.iterdir()))}").touch()
        return *shared, dict(os.environ), new.stat().st_mode, *warnings.filters

    before, handler = state(), signal.getsignal(signal.SIGTERM)
    run(problem_of(), Plugin(deed), Budget(evaluations=9))
    assert state() == before
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_search_that_cannot_be_read_is_named():
    """A property that raises instead of giving a method."""

    class Unread(Plugin):
        search = property(lambda self: 1 / 0)

    with pytest.raises(SolverError, match=r"Unread': its search cannot be read \(ZeroDivision"):
        run(problem_of(), Unread(None), Budget(evaluations=9))


@pytest.mark.parametrize("offered", [[0, 0, 0], np.zeros(3, np.int64), (0, 0, 0)])
def test_a_list_of_devices_is_no_solution(offered):
    """The message says what is expected, not how many letters an attribute of arrays has."""
    with pytest.raises(SolverError, match=r"expected a Placement.*received (list|tuple|ndarray)"):
        run(problem_of(), Plugin(lambda p, t: t.offer(offered)), Budget(seconds=1))


@pytest.mark.parametrize(
    "solver",
    [Plugin(lambda p, t: (t.count(), t.offer(Placement(GOOD)))), make_solver("annealing")],
    ids=["theirs", "ours"],
)
def test_a_callback_that_raises_is_named(solver):
    """The caller's fault is not the solver's, and what was found is kept."""

    def tell(progress):
        if progress.evaluations:
            raise RuntimeError("no window")

    with pytest.raises(SolverError, match=r"^on_progress raised RuntimeError: no window") as caught:
        run(
            problem_of(),
            solver,
            Budget(evaluations=50),
            initial=Placement(WORSE),
            on_progress=tell,
        )
    assert caught.value.partial.value <= 14


# --- parts
# --------------------------------------------------------------------------------------------


def part(budget, deed, **options):
    """Run a plug-in as a part; return the whole tracker, the result, and what the part was given."""
    whole = Tracker("whole", problem_of(), budget)
    whole.count(2)
    given = []

    def search(problem, tracker):
        given.append(tracker.budget)
        deed(problem, tracker)

    return whole, run_part(whole, Plugin(search), **options), given[0]


def test_a_part_gets_what_is_left():
    """Or what it is given; evaluations are counted, and never beyond the budget."""
    nothing = lambda problem, tracker: None  # noqa: E731
    assert part(Budget(evaluations=10), nothing)[2].evaluations == 8
    assert part(Budget(evaluations=10), nothing, evaluations=3)[2].evaluations == 3
    assert part(Budget(evaluations=2), nothing)[2].evaluations == 1
    assert part(Budget(seconds=60), nothing)[2].evaluations is None
    assert part(Budget(evaluations=10), nothing)[2].seconds is None
    assert 0 < part(Budget(seconds=60), nothing)[2].seconds <= 60
    assert part(Budget(seconds=60), nothing, seconds=2.0)[2].seconds == 2.0
    assert part(Budget(seconds=60, target=7), nothing)[2].target == 7
    assert part(Budget(seconds=60, target=7), nothing, target=5)[2].target == 5
    count = lambda problem, tracker: tracker.count(50)  # noqa: E731
    assert part(Budget(evaluations=10), count, evaluations=50)[0].evaluations == 10
    assert part(Budget(seconds=60), count)[0].evaluations == 52


def test_what_a_part_finds_is_the_wholes():
    """Value, solution, verdict and trace; nothing of it where it is not adopted."""

    def deed(problem, tracker):
        tracker.count(3)
        tracker.offer(Placement(WORSE))
        tracker.count(1)
        tracker.offer(Placement(GOOD))

    whole, result, _ = part(Budget(seconds=60), deed)
    assert (whole.value, whole.evaluations) == (VALUE, 6)
    assert whole.solution is result.solution
    assert whole.verdict == (result.solution, Finished(VALUE, result.queue, ()))
    assert [(p.incumbent, p.evaluations) for p in whole.trace] == [(14, 5), (VALUE, 6), (VALUE, 6)]
    assert [p.seconds for p in whole.trace] == sorted(p.seconds for p in whole.trace)
    before = len(whole.trace)
    run_part(whole, Plugin(deed))
    assert len(whole.trace) == before  # nothing better
    whole, result, _ = part(Budget(seconds=60), deed, adopt=False)
    assert (whole.value, whole.evaluations, whole.trace) == (None, 2, [])
    assert result.value == VALUE


def test_ours_prove_in_parts():
    """A bound of one of ours, and its name, are the whole's; what is refused is None."""
    whole = Tracker("whole", problem_of(), Budget(seconds=60))
    result = run_part(whole, make_solver("cp-sat", num_workers=1))
    assert (whole.value, whole.lower_bound, whole.bound_method) == (
        result.value,
        result.value,
        result.bound_method,
    )
    period = Tracker("whole", problem_of(objective="period"), Budget(seconds=60))
    assert run_part(period, make_solver("heft")) is None


def test_an_interrupted_part_ends_the_whole():
    """Whether it is adopted or not."""
    for adopt_it in (True, False):
        whole, result, _ = part(Budget(seconds=60), lambda p, t: t.interrupt(), adopt=adopt_it)
        assert (result.stop_reason, whole.stop_reason) == ("interrupted", "interrupted")


def test_progress_of_a_part_is_the_wholes():
    """What the whole knows counts: its evaluations, its better value and bound."""
    seen = []
    whole = Tracker("whole", problem_of(), Budget(seconds=60))
    whole.offer(13, Placement(GOOD))
    whole.raise_bound(4, "ours")
    whole.count(7)
    whole.on_progress = seen.append

    def deed(problem, tracker):
        tracker.count(2)
        tracker.offer(Placement(WORSE))
        told = seen[-1]
        assert (told.evaluations, told.incumbent, told.lower_bound) == (9, 13, 4)

    assert run_part(whole, Plugin(deed)).value == 14
    assert {p.incumbent for p in seen} <= {13, VALUE}


# --- the best so far
# ---------------------------------------------------------------------------------------


def test_the_best_so_far_is_that_of_all_parts():
    """Of the outermost problem: the best value of any search on it, judged; none outside a run."""
    assert best_so_far() is None
    seen = []

    def inner(problem, tracker):
        seen.append(best_so_far())
        tracker.offer(Placement(GOOD))
        seen.append(best_so_far())

    def outer(problem, tracker):
        seen.append(best_so_far())
        tracker.offer(Placement(WORSE))
        run_part(tracker, Plugin(inner))

    given = BoundReport(3, "given", {"given": 3}, 0.0, "")
    run(problem_of(), Plugin(outer), Budget(seconds=60), bound=given, seed=5)
    assert seen[0] is None
    assert [found.value for found in seen[1:]] == [14, VALUE]
    for found in seen[1:]:
        assert (found.lower_bound, found.bound_method, found.seed) == (3, "given", 5)
        assert (found.stop_reason, found.solver, found.status) == (
            "interrupted",
            "plugin",
            "feasible",
        )
    assert best_so_far() is None


def test_a_solution_of_ours_that_is_wrong_is_an_error(monkeypatch):
    """Its judge rejects it, or it cannot be looked at; a value that is wrong is told rightly."""
    heft = type(make_solver("heft"))

    def run_with(offer, **options):
        monkeypatch.setattr(heft, "search", lambda self, problem, tracker: offer(tracker))
        return run(problem_of(), make_solver("heft"), Budget(seconds=5), **options)

    with pytest.raises(SolverError, match="not valid"):
        run_with(lambda tracker: tracker.offer(3, Placement(BAD)))
    with pytest.raises(SolverError, match="no solution"):
        run_with(lambda tracker: tracker.offer(3, "a text"))
    assert run_with(lambda tracker: tracker.offer(3, Placement(GOOD))).value == VALUE
    result = run_with(lambda tracker: tracker.offer(3, Placement(WORSE)), initial=Placement(GOOD))
    assert (result.value, list(result.solution.device)) == (VALUE, GOOD)

    def fails(tracker):
        tracker.offer(VALUE, Placement(GOOD))
        raise ValueError("odd")

    with pytest.raises(SolverError, match="solver 'heft' raised ValueError: odd") as caught:
        run_with(fails)
    assert caught.value.partial.value == VALUE

    def denies(tracker):
        tracker.infeasible("no way")

    with pytest.raises(SolverError, match="calls the problem infeasible \\(no way\\)"):
        run_with(denies, initial=Placement(GOOD))
    assert run_with(denies).status == "infeasible"

    class UnheardError(BaseException):
        pass

    def unheard(tracker):
        raise UnheardError

    with pytest.raises(UnheardError):
        run_with(unheard)


def test_points_that_were_too_good_leave_the_trace(monkeypatch):
    """A value below the true one was never found."""
    heft = type(make_solver("heft"))

    def search(self, problem, tracker):
        tracker.offer(14, Placement(WORSE))
        tracker.offer(3, Placement(GOOD))

    monkeypatch.setattr(heft, "search", search)
    result = run(problem_of(), make_solver("heft"), Budget(seconds=5))
    assert result.value == VALUE
    assert [point.incumbent for point in result.trace] == [14]


def test_nothing_is_under_way_after_a_run():
    """Also where it raises."""
    with pytest.raises(SolverError):
        run(problem_of(), Plugin(lambda p, t: 1 / 0), Budget(seconds=1))
    assert run_module._running == []


def test_measured_values_are_the_callers(monkeypatch):
    """Seconds that a caller measures, in ticks; the initial solution is judged, its value is not
    asked of the problem.
    """

    def search(measure, initial=None):
        solver = make_solver("annealing", measure=measure, start="random", threads=1)
        return run(problem_of(), solver, Budget(evaluations=3), initial=initial, bound=True)

    result = search(lambda device: 77e-9)
    assert (result.value, result.objective_name, result.lower_bound) == (77, "measured", 0)
    assert search(lambda device: 77e-9, Placement(GOOD)).value == 77
    assert run(problem_of(), make_solver("heft"), Budget(1.0)).objective_name == "makespan"
    with pytest.raises(InputError, match="initial solution is not valid"):
        search(lambda device: 77e-9, Placement(BAD))
    seen, given = [], Placement(GOOD)
    annealing = type(make_solver("annealing"))
    monkeypatch.setattr(annealing, "search", lambda self, p, t: seen.append((t.value, t.solution)))
    assert search(lambda device: 77e-9, given).value is None
    assert seen == [(None, given)]


def test_a_failed_part_of_ours_keeps_what_it_had(monkeypatch):
    """The partial result of an error counts on the problem that was given, and only on it."""
    heft, problem = type(make_solver("heft")), problem_of()
    found = run(problem, Plugin(lambda p, t: t.offer(Placement(GOOD))), Budget(seconds=1))

    def run_with(partial, finds=False):
        def search(self, problem, tracker):
            if finds:
                tracker.offer(14, Placement(WORSE))
            raise SolverError("sorry", partial)

        monkeypatch.setattr(heft, "search", search)
        with pytest.raises(SolverError, match=r"^sorry$") as caught:
            run(problem, make_solver("heft"), Budget(seconds=1))
        return caught.value.partial

    assert run_with(found) is found
    assert run_with(None) is None
    other = run(problem_of(), Plugin(lambda p, t: t.offer(Placement(GOOD))), Budget(seconds=1))
    assert run_with(other) is None
    assert run_with(found, finds=True).value == 14


def test_a_partial_result_that_does_not_hold_is_none(monkeypatch):
    """What was found before the failure is judged, too."""
    heft = type(make_solver("heft"))

    def search(self, problem, tracker):
        tracker.offer(3, Placement(BAD))
        raise ValueError("odd")

    monkeypatch.setattr(heft, "search", search)
    with pytest.raises(SolverError, match="odd") as caught:
        run(problem_of(), make_solver("heft"), Budget(seconds=1))
    assert caught.value.partial is None


def test_nothing_found_says_why():
    """In the time that there was, or at all; a message of the search stands instead."""

    def late(problem, tracker):
        while not tracker.stop():
            pass

    result = run(problem_of(), Plugin(late), Budget(seconds=0.05))
    assert (result.stop_reason, result.value) == ("time", None)
    assert result.message == "no solution was found in time; none was proved impossible"
    result = run(problem_of(), Plugin(lambda p, t: None), Budget(seconds=5))
    assert result.message == (
        "no solution found satisfies every constraint; none was proved impossible"
    )


def test_messages_of_ours_stand_alone(monkeypatch):
    """Where nothing was found, what the search says of it is the message."""

    def search(self, problem, tracker):
        tracker.message = "too many ideals"

    monkeypatch.setattr(type(make_solver("heft")), "search", search)
    result = run(problem_of(), make_solver("heft"), Budget(seconds=5))
    assert (result.value, result.message) == (None, "too many ideals")


def test_the_best_so_far_is_of_the_same_problem():
    """A search of another problem inside it is none of it; what is not valid is none."""
    seen = []

    def other(problem, tracker):
        tracker.offer(Placement(GOOD))
        seen.append(best_so_far())

    def outer(problem, tracker):
        run(problem_of(name="another"), Plugin(other), Budget(seconds=60))
        tracker.offer(Placement(WORSE))
        seen.append(best_so_far())

    run(problem_of(), Plugin(outer), Budget(seconds=60))
    assert [None if found is None else found.value for found in seen] == [None, 14]


def test_the_best_so_far_that_does_not_hold_is_none(monkeypatch):
    """It is judged like any other."""
    seen = []

    def search(self, problem, tracker):
        tracker.offer(3, Placement(BAD))
        seen.append(best_so_far())
        tracker.solution = Placement(GOOD)
        seen.append(best_so_far().value)

    monkeypatch.setattr(type(make_solver("heft")), "search", search)
    assert run(problem_of(), make_solver("heft"), Budget(seconds=5)).value == VALUE
    assert seen == [None, VALUE]


def test_a_judge_is_asked_again_unless_it_has_judged_this(monkeypatch):
    """A verdict holds for the very solution that it was of."""
    objective = objective_of(problem_of())
    tracker = Tracker("x", problem_of(), Budget(seconds=60))
    tracker.offer(3, Placement(GOOD))
    finish = run_module._finish
    assert finish(tracker, objective, tracker.solution).value == VALUE
    tracker.verdict = tracker.solution, Finished(99, "fifo", ())
    assert finish(tracker, objective, tracker.solution).value == 99
    assert finish(tracker, objective, Placement(WORSE)).value == 14


@pytest.mark.parametrize("name", [int, None, ""])
def test_a_solver_is_registered_by_a_name(name):
    """`@register` without its name is one line, and registers nothing."""
    with pytest.raises(InputError, match=r'@placeopt\.register\("mine"\)'):
        register(name)


def test_a_class_without_a_name_gets_the_registered_one(monkeypatch):
    """With `search` and with `solve`; an option is checked under it."""
    for table in ("_registered", "_classes"):
        monkeypatch.setattr(registry, table, {})

    @register("mine-search")
    @dataclass(frozen=True)
    class Mine(SearchSolver):
        steps: int = po.option(1, low=1, meaning="steps")

        def search(self, problem, tracker):
            tracker.offer(Placement(GOOD))

    @register("mine-solve")
    class Yours:
        def solve(self, problem, budget, *, seed, initial, on_progress):
            return SimpleNamespace(solution=Placement(GOOD))

    for name in ("mine-search", "mine-solve"):
        result = po.solve(problem_of(), name, seconds=1)
        assert (result.solver, result.value) == (name, VALUE)
    with pytest.raises(InputError, match=r"mine-search.*steps"):
        Mine(steps=0)


@pytest.mark.parametrize(
    ("name", "kind", "key", "value", "expected"),
    [
        ("round-robin", "placement", "chunks", "x", "a whole number"),
        ("annealing", "placement", "walks", True, "a whole number"),
        ("annealing", "placement", "threads", 1.5, "a whole number"),
        ("feasible-first", "jobs", "fragmentation", "x", "a number"),
    ],
)
def test_options_are_of_the_type_that_they_are_declared_with(name, kind, key, value, expected):
    """What has no default is checked, too."""
    with pytest.raises(InputError, match=f"{name} option {key}: expected {expected}, received"):
        make_solver(name, kind, **{key: value})


@pytest.mark.parametrize("solver", [None, "heft"])
def test_quick_bounds_end_with_their_time(monkeypatch, solver):
    """Where seconds are the limit, bounds before a search look at the clock: by their work alone
    those of 3200 ops took five seconds of one.
    """
    timed = []

    def noted(self, chosen, *, optional):
        timed.append(self.timed)

    monkeypatch.setattr(Analysis, "run_all", noted)
    problem = po.load("gen:layered?layers=3&width=3", cluster="uniform:2")
    po.solve(problem, solver, seconds=0.1)
    assert timed
    assert all(timed)


@pytest.mark.parametrize("contention", ["none", "source"])
@pytest.mark.parametrize("memory", ["static", "peak"])
def test_a_first_run_waits_for_the_kernels_of_its_walk(contention, memory):
    """Annealing is compiled where memory is static, channels or not, and nowhere else."""
    problem = po.load("gen:ffnn", cluster=f"2xA100?contention={contention}").replace(memory=memory)
    walkable = BudgetedEvaluator(Tracker("walk", problem, Budget(evaluations=1))).walkable
    assert hot_kernels(problem, "annealing") == (("walks",) if walkable else ("populations",))
