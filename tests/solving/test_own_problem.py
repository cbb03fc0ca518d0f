"""A problem type of somebody else's: every call takes it as it takes ours."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import placeopt as po
from placeopt.certify.certificate import prove
from placeopt.io import serialize
from placeopt.model import objective as objectives
from placeopt.model.objective import Finished, Objective
from placeopt.solving import registry

WAY = [[0, 2, 9], [2, 0, 4], [9, 4, 0]]


@dataclass(frozen=True)
class Towns:
    """Visit every town once, and come back."""

    way: Any
    name: str = "towns"
    tick_seconds: float = 1.0
    hash: str = "towns"

    problem_kind: ClassVar[str] = "tour"
    objective: ClassVar[str] = "length"


@dataclass(frozen=True)
class Tour:
    """The towns in their order."""

    towns: tuple[int, ...]


class Length(Objective):
    """Ticks of a tour; all numbers are of numpy."""

    name, kind, default_solver, bound_methods = "length", "tour", "all-tours", ("edges",)

    def judge(self, problem, solution, queue=None):
        """Return whether a town is left out."""
        return [] if sorted(solution.towns) == [0, 1, 2] else ["not every town once"]

    def finish(self, problem, solution, queue=None):
        """Judge, then add up."""
        found = self.judge(problem, solution)
        steps = itertools.pairwise([*solution.towns, solution.towns[0]])
        length = None if found else np.sum([problem.way[a, b] for a, b in steps])
        return Finished(length, "", tuple(found))

    def prove(self, problem, seconds, methods, upper):
        """Three times the shortest way."""
        yield "edges", 3 * problem.way[problem.way > 0].min()


class AllTours:
    """Offers all tours, or another `answer`."""

    name = "all-tours"
    answer: Any = None

    def search(self, problem, tracker):
        """Offer."""
        for towns in itertools.permutations(range(3)):
            tracker.offer(Tour(towns) if self.answer is None else self.answer)


@pytest.fixture
def towns(monkeypatch):
    """Return a problem whose kind is registered for this test only."""
    for module, name in (
        (objectives, "_targets"),
        (registry, "_registered"),
        (registry, "_classes"),
        (serialize, "_by_kind"),
        (serialize, "_by_class"),
    ):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    objectives.register_objective(Length())
    registry.register("all-tours", kind="tour", objectives=("length",))(AllTours)
    serialize.register(
        serialize.Codec(
            "tour",
            Tour,
            lambda tour: {"towns": list(tour.towns)},
            lambda body: Tour(tuple(body.integers("towns").tolist())),
        )
    )
    return Towns(np.array(WAY))


def test_a_problem_of_another_kind_is_solved_bounded_and_certified(towns, tmp_path):
    """The solution is of a class of its own, numbers are plain ones in every file."""
    result = po.solve(towns, seconds=5)
    assert (result.value, type(result.value), result.lower_bound) == (15, int, 6)
    assert po.bound(towns).bounds == {"edges": 6}
    path = serialize.save(result, tmp_path / "result.json")
    assert serialize.load(path).solution == result.solution
    for solution in (result, result.solution, path):
        certificate = po.verify(towns, solution, seconds=1)
        assert (certificate.value, certificate.lower_bound) == (15, 6)
        assert po.recheck(certificate.to_dict(), towns, solution, seconds=1) == []
    assert po.verify(towns, Tour((0, 0, 1)), seconds=1).violations == ("not every town once",)
    with pytest.raises(po.InputError, match="no witnesses of bounds on the length"):
        prove(towns, result.solution, certificate)


@pytest.mark.parametrize("answer", [Tour((0, 1, 1)), [0, 1, 2], 5])
def test_what_is_no_solution_of_it_is_named(towns, answer, monkeypatch):
    """As with problems of placeopt."""
    monkeypatch.setattr(AllTours, "answer", answer)
    with pytest.raises(po.SolverError, match=r"'all-tours' found (a solution|something) that is"):
        po.solve(towns, seconds=5)
