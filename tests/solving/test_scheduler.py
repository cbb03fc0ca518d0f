"""The scheduler: nobody starves, everybody ends, and the same seed gives the same answer."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

import placeopt as po
from placeopt.model.errors import Refused
from placeopt.model.result import Budget
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run_part
from placeopt.solving.scheduler import Lane, Scheduler
from placeopt.solving.tactic import BOUND, FIRST_EVALUATIONS, VALUE, WAITING, Runs, Steps
from placeopt.solving.tracker import Tracker

PROBLEM = po.PlacementProblem.from_edges([[3, 4], [2, 2]], [(0, 1, 1)])
LARGE = 10**6


def tracker(evaluations=None, seconds=None):
    """A tracker with a value of LARGE and no bound; evaluations are its clock."""
    made = Tracker("toy", PROBLEM, Budget(seconds, evaluations), seed=3)
    made.offer(LARGE, po.Placement([0, 0]))
    return made


def toy(name, side=BOUND, *, piece=1, closes=None, ends=None, log=None, **options):
    """A tactic with pieces of `piece` evaluations, which closes the gap after `closes` of them and
    ends after `ends`.
    """

    def work(state):
        done = 0
        while ends is None or done < ends:
            state.tracker.count(piece)
            done += piece
            if log is not None:
                log.append(name)
            if closes is not None and done >= closes:
                state.raise_bound(state.value, name)
            yield

    return Steps(name, side, work, **options)


def run(tactics, made, **options):
    """Run the tactics in one lane."""
    Scheduler(tactics, None, made, **options).run()
    return made


@settings(max_examples=60, deadline=None)
@given(
    others=st.integers(0, 6),
    at=st.integers(0, 6),
    needed=st.integers(1, 3000),
    piece=st.integers(1, 30),
)
def test_at_most_a_constant_factor_behind_the_best(others, at, needed, piece):
    """A tactic that closes the gap alone after t does so within 2 m^2 t among m tactics."""
    tactics = [toy(f"idle{i}", piece=piece) for i in range(others)]
    tactics.insert(min(at, others), toy("closes", closes=needed))
    limit = 2 * len(tactics) ** 2 * max(needed, FIRST_EVALUATIONS, piece)
    made = run(tactics, tracker(evaluations=limit))
    assert made.lower_bound == made.value


@settings(max_examples=40, deadline=None)
@given(tactics=st.integers(1, 6), total=st.integers(2000, 20_000), gains=st.booleans())
def test_every_tactic_keeps_its_floor(tactics, total, gains):
    """No tactic of m has less than a 2 m^2-th of the time, whatever another one gains."""
    log = []

    def greedy(state):
        for bound in itertools.count(1):
            state.tracker.count()
            log.append("greedy")
            if gains:
                state.raise_bound(bound, "greedy")
            yield

    run(
        [Steps("greedy", BOUND, greedy), *(toy(f"t{i}", log=log) for i in range(tactics))],
        tracker(evaluations=total),
    )
    for i in range(tactics):
        assert log.count(f"t{i}") >= total / (2 * (tactics + 1) ** 2) - FIRST_EVALUATIONS


def test_who_gains_has_half_of_the_time():
    """A tactic that closes most of the gap with each doubling has half of all time, the others
    equal parts.
    """
    log = []

    def gains(state):
        for i in itertools.count(1):
            state.tracker.count()
            state.raise_bound(LARGE - LARGE // (1 + i // 100) ** 2, "gains")
            log.append("gains")
            yield

    idle = [toy(f"idle{i}", log=log) for i in range(4)]
    run([*idle, Steps("gains", BOUND, gains)], tracker(evaluations=20_000))
    assert log.count("gains") >= 9_900
    assert all(log.count(f"idle{i}") >= 1_600 for i in range(4))


def test_who_gains_no_more_gives_way():
    """A tactic that gained much and then nothing soon has no more time than the others."""
    log = []

    def gained(state):
        state.raise_bound(LARGE // 2, "gained")
        while True:
            state.tracker.count()
            log.append("gained")
            yield

    idle = [toy(f"idle{i}", log=log) for i in range(3)]
    late = toy("late", closes=3000, log=log)
    made = run([Steps("gained", BOUND, gained), *idle, late], tracker(evaluations=LARGE))
    assert made.lower_bound == made.value
    assert log.count("gained") <= 7 * 3000
    assert all(log.count(f"idle{i}") <= 3001 for i in range(3))


def test_gains_count_by_the_gap_that_there_was():
    """Four fifths of what is left outweigh half of the whole, although they are less."""
    log = []

    def gains(name, bounds):
        def work(state):
            for i in itertools.count():
                state.tracker.count(FIRST_EVALUATIONS)
                log.append(name)
                if i < len(bounds):
                    state.raise_bound(bounds[i], name)
                yield

        return Steps(name, BOUND, work)

    early, late = gains("early", [LARGE // 2]), gains("late", [LARGE * 9 // 10])
    run([early, late, toy("idle")], tracker(evaluations=20 * FIRST_EVALUATIONS))
    assert log.count("late") > log.count("early")


def test_a_gap_of_one_beside_huge_values_is_no_gap_of_nothing():
    """A bound one below a value of 2^62 is not rounded to the value: what it gained is finite."""
    made = Tracker("toy", PROBLEM, Budget(evaluations=500), seed=3)
    made.offer(2**62, po.Placement([0, 0]))

    def nearly(state):
        state.tracker.count()
        state.raise_bound(2**62 - 1, "nearly")
        yield

    assert run([Steps("nearly", BOUND, nearly)], made).lower_bound == 2**62 - 1


def test_exhausted_tactics_end_the_run():
    """Once every tactic has ended, the run ends, with what each did."""
    made = run([toy("a", ends=100), toy("b", VALUE, ends=7)], tracker(evaluations=LARGE))
    assert made.evaluations == 107
    assert made.stop_reason == "converged"
    assert {use.name: use.exhausted for use in made.tactics} == {"a": True, "b": True}


def test_what_does_not_apply_has_no_turn():
    """A tactic that does not apply, or refuses the problem, takes no time from the others."""

    def refuses(state):
        raise Refused("not this one")
        yield

    tactics = [
        toy("never", when=lambda facts: False),
        Steps("refuses", BOUND, refuses),
        toy("b", ends=500),
    ]
    made = run(tactics, tracker(evaluations=LARGE))
    assert [use.name for use in made.tactics] == ["refuses", "b"]
    assert made.evaluations <= 501


def test_a_failure_ends_the_run(monkeypatch):
    """An exception of a tactic reaches the caller, from either thread."""

    def fails(state):
        yield
        raise ZeroDivisionError

    for side in (VALUE, BOUND):
        other = toy("waits", BOUND if side == VALUE else VALUE, piece=0)
        for threads in (1, 2):
            with pytest.raises(ZeroDivisionError):
                run([Steps("fails", side, fails), other], tracker(seconds=60.0), threads=threads)


def test_an_interruption_ends_both_lanes():
    """Ctrl-C in one lane ends the other one, and what both found is kept."""

    def interrupted(state):
        while state.lower_bound < 7:
            yield
        state.offer(50, po.Placement([1, 1]))
        raise KeyboardInterrupt

    def proves(state):
        state.raise_bound(7, "proves")
        while True:
            yield

    made = tracker(seconds=60.0)
    tactics = [Steps("interrupted", VALUE, interrupted), Steps("proves", BOUND, proves)]
    with made:
        run(tactics, made, threads=2)
    assert (made.value, made.lower_bound, made.stop_reason) == (50, 7, "interrupted")
    assert not made.parts
    assert {use.name for use in made.tactics} == {"interrupted", "proves"}


def test_two_lanes_tell_each_other():
    """What one lane finds reaches the other, and only the one that found it has gained."""

    def falls(state):
        for value in range(100, 49, -1):
            state.offer(value, po.Placement([1, 1]))
            yield
        while state.lower_bound < 50:
            yield

    def rises(state):
        while state.value > 50:
            yield
        state.raise_bound(50, "rises")

    made = tracker(seconds=60.0)
    run([Steps("falls", VALUE, falls), Steps("rises", BOUND, rises)], made, threads=2)
    assert made.value == made.lower_bound == 50
    used = {use.name: use for use in made.tactics}
    assert used["falls"].value_gained > 0 == used["falls"].bound_gained
    assert used["rises"].bound_gained > 0 == used["rises"].value_gained


def test_the_same_turns_with_the_same_evaluations():
    """Where evaluations limit, the turns depend on nothing else."""

    def once():
        log = []
        draws = []

        def draw(state):
            while True:
                draws.append(int(state.rng.integers(1000)))
                yield

        tactics = [toy("a", log=log), toy("b", VALUE, piece=5, log=log), Steps("c", VALUE, draw)]
        run(tactics, tracker(evaluations=3000), threads=2)
        return log, draws

    assert once() == once()


def test_runs_double():
    """What cannot be resumed runs for twice as long each time, from what was found before."""
    lengths, seen = [], []

    def call(state, part):
        lengths.append(part.budget.evaluations)
        seen.append((part.value, part.lower_bound))
        part.count(part.budget.evaluations)
        part.raise_bound(part.lower_bound + 1, "run")
        return len(lengths) == 5

    made = run([Runs("runs", BOUND, call)], tracker(evaluations=LARGE))
    assert lengths == [FIRST_EVALUATIONS * 2 ** max(0, k - 1) for k in range(5)]
    assert seen == [(LARGE, k) for k in range(5)]
    assert made.lower_bound == 5
    assert made.tactics[0].turns == 6


def test_a_part_gives_what_it_has_at_once():
    """What a run has found counts although it ends with an exception."""

    def call(state, part):
        part.offer(10, po.Placement([1, 1]))
        assert state.value == 10
        raise ZeroDivisionError

    made = tracker(evaluations=100)
    with pytest.raises(ZeroDivisionError):
        run([Runs("runs", VALUE, call)], made)
    assert made.value == 10
    assert made.tactics[0].value_gained > 0


def test_a_long_start_waits_for_a_long_turn():
    """A tactic that offers nothing before some seconds begins in a round of that length."""
    made = tracker(seconds=60.0)
    time = itertools.count()
    begun = []

    def late(state):
        begun.append(state.tracker.evaluations)
        yield

    tactics = [toy("early", ends=40), Steps("late", BOUND, late, needs=lambda facts: 1.0)]
    Lane(tactics, None, made, clock=lambda: 0.05 * next(time)).run()
    assert begun
    assert begun[0] >= 10


def test_what_needs_more_than_is_left_has_no_turn():
    """Nor does the search wait for it: building a model of CP-SAT may take longer than all else."""
    begun = []

    def late(state):
        begun.append(state)
        yield

    for seconds in (1.0, 60.0):
        made = tracker(seconds=seconds)
        Lane([Steps("late", BOUND, late, needs=lambda facts: 5.0)], None, made).run()
        assert len(begun) == (seconds > 5)


def test_what_a_tactic_needs_is_asked_for_again():
    """One that cannot begin at first begins once what it needs is known; one that never can does
    not.
    """
    made, time, begun = tracker(seconds=60.0), itertools.count(), []

    def record(name):
        def work(state):
            begun.append(name)
            yield

        return work

    def later(facts):
        return 1.0 if next(time) > 50 else float("inf")

    tactics = [
        toy("early", ends=40),
        Steps("later", BOUND, record("later"), needs=later),
        Steps("never", BOUND, record("never"), needs=lambda facts: float("inf")),
    ]
    Lane(tactics, None, made, clock=lambda: 0.05 * next(time)).run()
    assert begun == ["later"]


def test_who_waits_gives_its_turns_up():
    """A tactic that waits looks seldom, and has no time to make up for when it goes on."""
    log = []

    def waits(state):
        while state.lower_bound < 5:
            log.append("look")
            yield WAITING
        while True:
            state.tracker.count()
            log.append("work")
            yield None

    def rises(state):
        for bound in range(100):
            for _ in range(200):
                state.tracker.count()
                yield None
            state.raise_bound(bound, "rises")
        while True:
            state.tracker.count()
            yield None

    run([Steps("waits", VALUE, waits), Steps("rises", BOUND, rises)], tracker(evaluations=6000))
    assert log.count("look") <= 8
    first = log.index("work")
    assert first == log.count("look")
    assert 300 < log.count("work") < 2700


def test_a_lane_in_which_all_wait_ends():
    """Where every tactic waits and no other lane is at work, nothing can come any more."""

    def waits(state):
        while True:
            yield WAITING

    for limit in ({"evaluations": LARGE}, {"seconds": 600.0}):
        made = run(
            [Steps("a", VALUE, waits), Steps("b", BOUND, waits)], tracker(**limit), threads=2
        )
        assert made.elapsed < 500
        assert made.evaluations < 100


def test_what_needs_long_begins_when_all_have_had_as_much():
    """A tactic whose start needs a second begins once each other has had its first piece, two."""
    made = tracker(seconds=60.0)
    clock, begun = [0.0], []

    def idle(state):
        while True:
            clock[0] += 0.05
            yield None

    def late(state):
        begun.append(clock[0])
        clock[0] += state.piece
        yield None

    tactics = [*(Steps(f"idle{i}", BOUND, idle) for i in range(4))]
    tactics.append(Steps("late", BOUND, late, needs=lambda facts: 1.0))
    lane = Lane(tactics, None, made, clock=lambda: clock[0])
    made.stop = lambda: bool(begun)
    lane.run()
    assert begun[0] == pytest.approx(4 * 2.0, abs=0.3)


def test_a_tactic_counts_as_many_as_it_gives_turns_to():
    """One that stands for six beside three others has two thirds of the time."""
    log = []

    def work(name, breadth):
        def steps(state):
            state.breadth = breadth
            while True:
                state.tracker.count()
                log.append(name)
                yield None

        return Steps(name, BOUND, steps)

    run([work("many", 6), *(work(f"one{i}", 1) for i in range(3))], tracker(evaluations=9000))
    assert 0.55 < log.count("many") / len(log) < 0.75
    assert min(log.count(f"one{i}") for i in range(3)) > 500


def test_what_a_part_begins_with_is_no_gain():
    """A solver that runs from the incumbent and finds nothing has gained nothing."""

    def call(state, part):
        run_part(part, make_solver("lns"), evaluations=1, initial=part.solution)
        return True

    problem = po.PlacementProblem.from_edges([[1, 1]] * 3, [(0, 1, 9), (1, 2, 9)])
    made = Tracker("toy", problem, Budget(evaluations=1000), seed=3)
    made.offer(3, po.Placement([0, 0, 0]))
    run([Runs("runs", VALUE, call)], made)
    assert made.tactics[0].value_gained == 0
