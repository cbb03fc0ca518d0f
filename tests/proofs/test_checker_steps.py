"""Every step of the checker: what it derives, tick for tick, against values that are enumerated or
worked out by hand.

Each step is tried where it just holds and one tick, byte or device beside it.
"""

from __future__ import annotations

import itertools
import random
import sys
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "attack"))

from tampering import load_checker, plain
from test_checker_edges import follows, problem_of
from test_checker_strict import ONE, state_of

from placeopt.sharding.problem import ShardingProblem

checker = load_checker()
FALSE, UNREADABLE = checker.FalseStatementError, checker.UnreadableError
INFINITE = float("inf")


def holds(step, most, compute, edges=(), **options):
    """Return whether a step contradicts the supposition; False if it does not hold."""
    try:
        return follows(step, most, compute, edges, **options).closed
    except FALSE:
        return False


def least(step, compute, edges=(), **options):
    """Return the largest T that a step refutes, -1 if it refutes none up to 60; none above it."""
    found = [holds(step, most, compute, edges, **options) for most in range(60)]
    assert found == sorted(found, reverse=True)
    return sum(found) - 1


# --- what is supposed
# -----------------------------------------------------------------------------------


def test_a_supposition_starts_with_what_the_problem_says():
    """Classes are equal columns; bytes and labels take devices away; links are the cheapest that
    two ops can use; ops whose bytes fit on no common device are on two.
    """
    problem = problem_of(
        [[3, 3, 4], [5, 5, -1], [6, 6, 6], [7, 7, 7]],
        [(0, 1, 4), (0, 2, 5), (2, 3, 6)],
        resident=[1, 2, 3, 3],
        capacity=[9, 5, 9],
        colocation=[-1, 8, -1, -1],
    )
    state = state_of(problem, 50)
    assert state.kind == [0, 0, 1]
    assert state.count == [2, 1]
    assert state.time == [[3, 4], [5, None], [6, 6], [7, 7]]
    assert [row[:] for row in state.group] == [[0], [1], [2], [3]]
    assert state.edges == {(0, 1): [0, 4], (0, 2): [0, 5], (2, 3): [0, 6]}
    tight = state_of(
        problem_of([[3, 3], [5, 5]], [(0, 1, 4)], resident=[2, 3], capacity=[4, 3]), 50
    )
    assert tight.edges == {(0, 1): [4, 4]}
    assert state_of(problem_of([[3, 3], [5, 5]], [(0, 1, 4)], colocation=[1, 1]), 9).edges == {
        (0, 1): [0, INFINITE]
    }
    heavy = state_of(problem_of([[3, 3], [5, 5]], resident=[2, 3], capacity=[4, 2]), 50)
    assert heavy.time == [[3, 3], [5, None]]
    assert state_of(problem_of([[3, 7], [9, 4]]), 50).fastest(1) == 4
    one_cannot = state_of(problem_of([[3, 3], [5, -1]], colocation=[1, 1]), 50)
    assert one_cannot.time == [[3, None], [5, None]]
    joint = problem_of([[3, 3], [5, 5]], resident=[2, 2], capacity=[4, 3], colocation=[1, 1])
    assert state_of(joint, 50).time == [[3, None], [5, None]]


def test_the_cheapest_link_between_two_devices_is_paid():
    """By the slowest of the tensors between two ops, and never the diagonal."""
    problem = problem_of([[3, 3, 3], [5, 5, 5]], [(0, 1, 4)])
    data = plain(problem)
    data.update(
        transfer=[[1, 7, 9]], link_class=[[0, 2, 1], [1, 0, 2], [2, 1, 0]], io_class=[-1] * 3
    )
    assert checker.Supposition(checker.Placement(data), 50, []).edges == {(0, 1): [0, 7]}
    data.update(producer=[0, 0], consumers=[[1], [1]], transfer=[[1, 7, 9], [1, 8, 8]])
    data.update(tensor_bytes=[0, 0])
    assert checker.Supposition(checker.Placement(data), 50, []).edges == {(0, 1): [0, 8]}
    data["compute"][1] = [-1, 5, -1]
    assert checker.Supposition(checker.Placement(data), 50, []).edges == {(0, 1): [0, 8]}
    data["compute"][0] = [3, -1, -1]
    found = checker.Supposition(checker.Placement(data), 50, []).edges
    assert found == {(0, 1): [9, 9]}  # no device that both can use


def test_joined_ops_share_classes_and_edges():
    """Ops that share a device share all that shares it with them; what says otherwise contradicts
    it.
    """
    given = [[3, 4, -1], [5, -1, 6], [1, 1, 1], [2, 2, 2]], [(0, 1, 7), (1, 2, 7), (2, 3, 7)]
    state = state_of(problem_of(*given), 50)
    state.join(0, 1)
    assert state.time[0] == [3, None, None]
    assert state.time[1] == [5, None, None]
    assert state.time[2] == [1, 1, 1]
    assert state.edges[0, 1] == [0, INFINITE]
    assert state.edges[1, 2] == [0, 7]
    state.join(2, 1)
    assert state.group[0] is state.group[1] is state.group[2]
    assert sorted(state.group[0]) == [0, 1, 2]
    assert state.edges[1, 2] == [0, INFINITE]
    assert not state.closed
    state.separate(3, 2)
    assert state.edges[2, 3] == [7, 7]
    assert state.splits() == {(3, state.group[0][0]), (state.group[0][0], 3)}
    assert not state.closed
    state.join(0, 3)
    assert state.closed


def test_ops_apart_pay_and_cannot_be_joined():
    """Every edge between the two groups is paid, others are not."""
    state = state_of(problem_of([[3, 3]] * 4, [(0, 1, 7), (1, 2, 6), (2, 3, 5)]), 50)
    state.join(0, 3)
    state.separate(0, 2)
    assert state.edges == {(0, 1): [0, 7], (1, 2): [0, 6], (2, 3): [5, 5]}
    assert not state.closed
    other = state.copy()
    other.separate(1, 1)
    assert (other.closed, state.closed) == (True, False)
    state.join(3, 2)
    assert state.closed


def test_what_is_apart_contradicts_sharing():
    """Pairs that are apart, and edges between ops whose bytes fit on no device together."""
    state = state_of(problem_of([[5, 5]] * 3), 50)
    state.separate(0, 2)
    state.join(0, 1)
    assert not state.closed
    state.join(0, 2)
    assert state.closed
    bytes_apart = {"resident": [2, 3], "capacity": [4, 3]}
    state = state_of(problem_of([[3, 3], [5, 5]], [(0, 1, 4)], **bytes_apart), 50)
    state.join(0, 1)
    assert state.closed


def test_a_period_supposes_independent_ops():
    """No edge delays anything, and every op is swept."""
    for most, closed in ((4, True), (5, False)):
        for compute in ([[5, 5], [3, 3]], [[3, 3], [5, 5]]):
            state = state_of(
                problem_of(compute, [(0, 1, 9)], objective="period"), most, edges=False
            )
            assert state.edges == {}
            checker.follow(state, ["sweep", 0, []])
            assert state.closed == closed


def test_copies_are_changed_alone():
    """What is found in a case holds in it alone."""
    state = state_of(problem_of([[3, 4]] * 3, [(0, 1, 7)]), 50)
    state.waits[0, 2] = 3
    before = [state.time, state.head, state.tail, state.edges, state.group, state.apart]
    before = [repr(part) for part in (*before, state.waits)]
    other = state.copy()
    other.join(0, 2)
    other.separate(0, 1)
    other.narrow(1, [0])
    other.head[0][0] = other.tail[0][0] = 9
    other.waits[1, 2] = 5
    after = [state.time, state.head, state.tail, state.edges, state.group, state.apart]
    assert [repr(part) for part in (*after, state.waits)] == before


# --- sweeps
# ----------------------------------------------------------------------------------------------


def far_of(compute, edges, order, most):
    """Return heads by op and device by the rule of `sweep`, devices of classes of their own."""
    far = {v: [0] * len(compute[v]) for v in order}
    for v in order:
        for d in range(len(compute[v])):
            for u, pay in [(u, pay) for u, w, pay in edges if w == v]:
                ways = [
                    far[u][e] + compute[u][e] + (0 if d == e else pay)
                    for e in range(len(compute[u]))
                ]
                far[v][d] = max(far[v][d], min(ways))
    return far


@pytest.mark.parametrize("seed", range(20))
def test_heads_and_tails_are_those_of_the_longest_paths(seed):
    """Forwards and backwards, on devices of classes of their own."""
    rng = random.Random(seed)
    compute = [[rng.randint(1, 9), rng.randint(10, 19)] for _ in range(5)]
    pairs = [(u, v) for u in range(5) for v in range(u + 1, 5) if rng.random() < 0.5]
    edges = [(u, v, rng.randint(0, 9)) for u, v in pairs]
    state = state_of(problem_of(compute, edges), 10**6)
    checker.follow(state, ["sweep", 0, []])
    checker.follow(state, ["sweep", 1, []])
    turned = [(v, u, pay) for u, v, pay in edges]
    assert state.head == list(far_of(compute, edges, range(5), 0).values())
    back = far_of(compute, turned, range(4, -1, -1), 0)
    assert state.tail == [back[v] for v in range(5)]


def test_a_sweep_drops_what_passes_the_end():
    """5 + 3 + 5 ticks on two devices, 10 on one, of which there are two: 9 are too few."""
    given = [[5, 5], [5, 5]], [(0, 1, 3)]
    assert least(["sweep", 0, []], *given) == 9
    assert least(["sweep", 1, []], *given) == 9
    assert least(["sweep", 0, []], [[5, 9], [6, 5]], [(0, 1, 4)]) == 10  # 11 on the first
    state = follows(["sweep", 0, []], 11, [[5, 9], [6, 5]], [(0, 1, 4)])
    assert state.time == [[5, 9], [6, None]]  # 5 + 4 + 5 ticks or 9 + 5 on the second


def test_a_lemma_of_ops_that_cannot_be_elsewhere():
    """Three ops of 4 ticks before one, 9 ticks by link: on one device 12 ticks, on two 8 and the
    link, of three devices.
    """
    edges = [(v, 3, 9) for v in range(3)]
    given = [[4] * 3] * 3 + [[1] * 3], edges
    for ticks, late in ((12, True), (13, False)):
        step = ["sweep", 0, [[3, 0, ticks, [0, 1, 2]]]]
        if late:
            assert follows(step, 50, *given).head[3] == [ticks]
        else:
            with pytest.raises(FALSE):
                follows(step, 50, *given)
    back = [[1] * 3] + [[4] * 3] * 3, [(0, v, 9) for v in range(1, 4)]
    assert follows(["sweep", 1, [[0, 0, 12, [1, 2, 3]]]], 50, *back).tail[0] == [12]
    with pytest.raises(FALSE):
        follows(["sweep", 1, [[0, 0, 13, [1, 2, 3]]]], 50, *back)
    for ops in ([0, 3], [0, 1, 2, 3]):  # an op is not before itself
        with pytest.raises(FALSE):
            follows(["sweep", 0, [[3, 0, 5, ops]]], 50, *given)
    assert follows(["sweep", 0, [[3, 0, 4, [0]]]], 50, *given).head[3] == [4]


def test_a_lemma_counts_the_devices_that_others_can_use():
    """Four ops of 4 ticks and links of 1: 16 ticks of work, 5 ticks on the reader's device and 4 on
    two others are 13; 6, 5 and 5 are enough.
    """
    edges = [(v, 4, 1) for v in range(4)]
    given = [[4] * 3] * 4 + [[1] * 3], edges
    assert follows(["sweep", 0, [[4, 0, 6, [0, 1, 2, 3]]]], 50, *given).head[4] == [6]
    with pytest.raises(FALSE):
        follows(["sweep", 0, [[4, 0, 7, [0, 1, 2, 3]]]], 50, *given)


def late_reader(times, more=(), most=21):
    """Return whether a reader on the first device is as late as `most` + 1: what it reads is
    fast there, but waits for 20 ticks, and runs as long as `times` on the second one.
    """
    compute = [[-1, 1], *[[1, ticks] for ticks in times], *more, [1, 1]]
    last = len(compute) - 1
    edges = [(0, v, 20) for v in range(1, last)] + [(v, last, 2) for v in range(1, last)]
    step = ["sweep", 0, [[last, 0, most + 1, list(range(1, last))]]]
    try:
        return follows(step, 90, compute, edges).head[last][0] == most + 1
    except FALSE:
        return False


def test_a_lemma_counts_where_an_op_is_in_time():
    """On the first device from 21 + 1 on; on the second one 20 ticks do not fit between 1 and
    21 - 2.
    """
    assert late_reader([10, 10])
    assert late_reader([10, 9])
    assert not late_reader([9, 9])
    assert not late_reader([10, 10], most=22)
    assert late_reader([10, 9], [[0, -1]])  # an op without length on the first device
    assert not late_reader([9, 9], [[0, -1]])


def test_a_lemma_takes_the_earliest_of_each_class():
    """Three ops of 4 ticks start at 2 on the second device or at 7 on the third one, and are sent
    within 3: from 14 on they fit.
    """
    compute = [[-1, 2, -1], *[[-1, 4, 4]] * 3, [1, 1, 1]]
    edges = [(0, v, 5) for v in (1, 2, 3)] + [(v, 4, 3) for v in (1, 2, 3)]
    for ticks, late in ((14, True), (15, False)):
        step = ["sweep", 0, [[4, 0, ticks, [1, 2, 3]]]]
        if late:
            assert follows(step, 90, compute, edges).head[4][0] == ticks
        else:
            with pytest.raises(FALSE):
                follows(step, 90, compute, edges)


def test_a_lemma_weighs_classes():
    """Six ops take 2 ticks on the first device, 4 on the second one: both need 8 ticks, of which
    the first one counts twice; equal weights show 6.
    """
    given = [[2, 4]] * 6 + [[1, 1]], [(v, 6, 0) for v in range(6)]
    for ticks, *weights in ((6,), (8, [2, 1]), (8, [6, 3])):
        state = follows(["sweep", 0, [[6, 0, ticks, list(range(6)), *weights]]], 50, *given)
        assert state.head[6] == [ticks, 2]
    for ticks, *weights in ((8,), (9, [2, 1]), (8, [1, 1]), (8, [1, 2]), (8, [0, 0])):
        with pytest.raises(FALSE):
            follows(["sweep", 0, [[6, 0, ticks, list(range(6)), *weights]]], 50, *given)
    for weights in ([2], [2, 1, 1], [2, -1], [2.0, 1.0], 2):
        with pytest.raises(UNREADABLE):
            follows(["sweep", 0, [[6, 0, 8, list(range(6)), weights]]], 50, *given)


def test_lemmas_raise_heads_of_their_class():
    """Three ops that only the first device runs: 12 ticks there, where edges say 4; the second one
    waits 13 ticks for a link already.
    """
    compute = [*[[4, -1]] * 3, [1, 1]]
    edges = [(0, 3, 9), (1, 3, 0), (2, 3, 0)]
    assert follows(["sweep", 0, []], 90, compute, edges).head[3] == [4, 13]
    state = follows(["sweep", 0, [[3, 0, 12, [0, 1, 2]]]], 90, compute, edges)
    assert state.head[3] == [12, 13]
    with pytest.raises(FALSE):
        follows(["sweep", 0, [[3, 0, 13, [0, 1, 2]]]], 90, compute, edges)
    turned = [row[::-1] for row in compute]
    state = follows(["sweep", 0, [[3, 1, 12, [0, 1, 2]]]], 90, turned, edges)
    assert state.head[3] == [13, 12]


def test_a_lemma_that_says_nothing_new_is_not_looked_at():
    """Of a head that is as late already."""
    assert follows(["sweep", 0, [[1, 0, 0, [0]]]], 50, [[5, 5]] * 2).head[1] == [0]


def test_a_lemma_looks_as_far_back_as_its_ops():
    """A chain of three and one more op before another, on one device: 16 ticks, where edges say
    12.
    """
    given = [[4]] * 5, [(0, 1, 0), (1, 2, 0), (2, 3, 0), (4, 3, 0)]
    for ticks, late in ((16, True), (17, False)):
        step = ["sweep", 0, [[3, 0, ticks, [0, 1, 2, 4]]]]
        if late:
            assert follows(step, 90, *given).head[3] == [16]
        else:
            with pytest.raises(FALSE):
                follows(step, 90, *given)


def test_a_lemma_takes_the_least_delay_of_all():
    """One op of 5 ticks comes just before, another one 3 ticks earlier: together 10 ticks are shown
    on one device, not 11.
    """
    given = [[5], [5], [3], [1]], [(0, 3, 0), (1, 2, 0), (2, 3, 0)]
    assert follows(["sweep", 0, [[3, 0, 10, [0, 1]]]], 90, *given).head[3] == [10]
    with pytest.raises(FALSE):
        follows(["sweep", 0, [[3, 0, 11, [0, 1]]]], 90, *given)


def test_a_lemma_counts_the_second_device_of_a_class():
    """Two ops on two like devices end at 5."""
    given = [[5, 5], [5, 5], [1, 1]], [(0, 2, 0), (1, 2, 0)]
    with pytest.raises(FALSE):
        follows(["sweep", 0, [[2, 0, 6, [0, 1]]]], 90, *given)


def test_a_lemma_is_of_ops_before_another():
    """What no path leads from says nothing of the op, and does not end the reading."""
    with pytest.raises(FALSE):
        follows(["sweep", 0, [[2, 0, 9, [0, 1]]]], 50, [[5, 5]] * 3, [(0, 2, 1)])


def delays(compute, edges, v, share=(), split=()):
    """Return the least delays from every op to v: in any case, and on two devices."""
    state = state_of(problem_of(compute, edges), 10**6)
    for pair in share:
        state.join(*pair)
    for pair in split:
        state.separate(*pair)
    module = sys.modules["proof_checker.delays"]
    order, into = module.before(state, False)
    return module.least_delays(state, v, order[: order.index(v) + 1], into)[:2]


def test_delays_pay_one_link_unless_the_ends_share_a_device():
    """A chain of 2, 3, 4 ticks with links of 10 and 20: the cheaper link is paid if the ends are on
    two devices.
    """
    chain = [[2, 2], [3, 3], [4, 4]], [(0, 1, 10), (1, 2, 20)]
    assert delays(*chain, 2) == ({2: 0, 1: 0, 0: 3}, {2: INFINITE, 1: 20, 0: 13})
    assert delays(*chain, 2, share=[(0, 1)]) == ({2: 0, 1: 0, 0: 3}, {2: INFINITE, 1: 20, 0: 23})
    assert delays(*chain, 2, share=[(1, 2)]) == (
        {2: 0, 1: 0, 0: 3},
        {2: INFINITE, 1: INFINITE, 0: 13},
    )
    assert delays(*chain, 2, split=[(1, 2)]) == ({2: 0, 1: 20, 0: 23}, {2: INFINITE, 1: 20, 0: 23})
    assert delays(*chain, 2, split=[(0, 1)]) == ({2: 0, 1: 0, 0: 13}, {2: INFINITE, 1: 20, 0: 13})
    assert delays(*chain, 2, share=[(0, 2)])[1] == {2: INFINITE, 1: 20, 0: INFINITE}
    assert delays(*chain, 2, split=[(0, 2)])[0] == {2: 0, 1: 0, 0: 13}
    two = [[2, 2], [3, 3], [5, 5], [4, 4]], [(0, 1, 1), (1, 3, 9), (0, 2, 2), (2, 3, 1)]
    near, apart = delays(*two, 3)
    assert (near[0], apart[0]) == (5, 6)
    assert 4 not in near


# --- sharing
# ---------------------------------------------------------------------------------------------


def test_ops_share_a_device_if_every_other_way_is_too_long():
    """5 + 3 + 5 ticks by link: they share it if 12 are allowed, and need not if 13 are."""
    given = [[5, 5], [5, 5]], [(0, 1, 3)]
    state = follows(["same", 0, 1], 12, *given)
    assert state.group[0] is state.group[1]
    assert not state.closed
    with pytest.raises(FALSE):
        follows(["same", 0, 1], 13, *given)
    with pytest.raises(FALSE):  # no edge from 1 to 0
        follows(["same", 1, 0], 12, *given)
    own = [[5, 6], [5, 7]], [(0, 1, 3)]  # classes of one device each: 6 + 3 + 5 and 5 + 3 + 7
    assert follows(["same", 0, 1], 13, *own).group[0] == [0, 1]
    with pytest.raises(FALSE):
        follows(["same", 0, 1], 14, *own)
    with pytest.raises(FALSE):
        follows(["same", 0, 1], 3, [[5, 5], [5, 5]])
    uneven = [[2, 9], [3, 8]], [(0, 1, 1)]  # 2 + 1 + 8 and 9 + 1 + 3
    assert follows(["same", 0, 1], 10, *uneven).group[0] == [0, 1]
    with pytest.raises(FALSE):
        follows(["same", 0, 1], 11, *uneven)
    only = {0: [5, -1, -1], 1: [-1, 5, 5]}  # the first device alone, or either of two like ones
    assert follows(["same", 0, 1], 50, [only[0], only[0]]).group[0] == [0, 1]
    with pytest.raises(FALSE):
        follows(["same", 0, 1], 50, [only[1], only[1]])
    assert follows(["same", 0, 1], 50, [[5], [5]]).group[0] == [0, 1]  # one device


def test_ops_share_a_device_counts_heads_and_tails():
    """What comes before the first and after the second one counts."""
    chain = [[1, 1], [5, 5], [5, 5], [2, 2]], [(0, 1, 0), (1, 2, 3), (2, 3, 0)]
    for most, together in ((15, True), (16, False)):
        state = state_of(problem_of(*chain), most)
        checker.follow(state, ["sweep", 0, []])
        checker.follow(state, ["sweep", 1, []])
        if together:
            checker.follow(state, ["same", 1, 2])
            assert state.group[1] is state.group[2]
        else:
            with pytest.raises(FALSE):
                checker.follow(state, ["same", 1, 2])


def test_ops_share_a_device_counts_the_head_of_each_class():
    """The first of two ops waits for a third one, 4 ticks beside it or 10 elsewhere: 10 + 2 + 1 + 8
    and 4 + 9 + 1 + 3.
    """
    given = [[-1, 4], [2, 9], [3, 8]], [(0, 1, 6), (1, 2, 1)]
    for most, together in ((16, True), (17, False)):
        state = follows(["sweep", 0, []], most, *given)
        assert state.head[1] == [10, 4]
        if together:
            checker.follow(state, ["same", 1, 2])
        else:
            with pytest.raises(FALSE):
                checker.follow(state, ["same", 1, 2])


def test_ops_are_apart_if_one_device_is_too_small_or_too_slow():
    """Two of 5 ticks within 9, not within 10; 3 and 3 bytes on 5, not on 6."""
    step = ["apart", 0, 1, [0, 1]]
    assert follows(step, 9, [[5, 5]] * 2).apart == [(0, 1)]
    with pytest.raises(FALSE):
        follows(step, 10, [[5, 5]] * 2)
    room = {"resident": [3, 3]}
    assert follows(step, 50, [[5, 5]] * 2, capacity=[5, 4], **room).apart == [(0, 1)]
    with pytest.raises(FALSE):
        follows(step, 50, [[5, 5]] * 2, capacity=[4, 6], **room)
    with pytest.raises(FALSE):  # on the second class
        follows(step, 9, [[5, 4]] * 2)
    assert follows(step, 50, [[5, -1], [-1, 5]]).apart == [(0, 1)]
    with pytest.raises(FALSE):  # op 2 is not of their groups
        follows(["apart", 0, 1, [0, 1, 2]], 12, [[5, 5]] * 3)
    with pytest.raises(FALSE):
        follows(["apart", 0, 1, [0]], 9, [[5, 5]] * 2)
    assert follows(step, 9, [[5, 5]] * 2, colocation=[1, 1]).closed
    for pair in ((0, 0), (0, 2), (-1, 0)):
        with pytest.raises(UNREADABLE):
            follows(["apart", *pair, [0, 1]], 9, [[5, 5]] * 2)


def test_ops_are_apart_counts_heads_and_tails():
    """The least head, the times and the least tail on one device: 1 + 5 + 5 + 2."""
    given = [[1, 1], [5, 5], [5, 5], [2, 2]], [(0, 1, 0), (0, 2, 0), (1, 3, 0), (2, 3, 0)]
    for most in (12, 13):
        state = state_of(problem_of(*given), most)
        checker.follow(state, ["sweep", 0, []])
        checker.follow(state, ["sweep", 1, []])
        if most == 12:
            checker.follow(state, ["apart", 1, 2, [1, 2]])
        else:
            with pytest.raises(FALSE):
                checker.follow(state, ["apart", 1, 2, [1, 2]])


def test_more_ops_than_devices_cannot_all_be_apart():
    """Three ops on two devices, every pair apart."""
    steps = [["apart", u, v, [u, v]] for u, v in ((0, 1), (2, 0), (1, 2))]
    for devices, left_out, closed in ((2, None, True), (3, None, False), (2, 1, False)):
        state = state_of(problem_of([[5] * devices] * 3), 9)
        for i, step in enumerate(steps):
            if i != left_out:
                checker.follow(state, step)
        if closed:
            checker.follow(state, ["clique", [0, 1, 2]])
            assert state.closed
        else:
            with pytest.raises(FALSE):
                checker.follow(state, ["clique", [0, 1, 2]])
    with pytest.raises(FALSE):
        checker.follow(state, ["clique", [0, 2]])


# --- work
# ------------------------------------------------------------------------------------------------


def test_ticks_in_a_window_are_the_least_of_all_starts():
    """Against every start of an op of up to 4 ticks, every window, head and tail, within 7."""
    state = state_of(problem_of([[1, 2], [3, 4]]), 7)
    inside = sys.modules["proof_checker.work_steps"].inside
    for ticks, head, tail in itertools.product(range(5), range(4), range(4)):
        starts = range(head, 7 - tail - ticks + 1)
        if not starts:
            continue
        parts = (ticks, head, tail)  # of the second op on the second class; others say other things
        state.time, state.head, state.tail = ([[9, 8], [7, part]] for part in parts)
        for begin, end in itertools.combinations_with_replacement(range(8), 2):
            seen = [max(0, min(s + ticks, end) - max(s, begin)) for s in starts]
            assert inside(state, 1, 1, begin, end) == min(seen), (ticks, head, tail, begin, end)


def test_a_window_offers_weights_and_bytes():
    """Three ops of 5 ticks on two devices: 7 ticks are too few; bytes count at their prices."""
    step = ["window", 0, 7, [1], [0]]
    assert follows(step, 7, [[5, 5]] * 3).closed
    with pytest.raises(FALSE):
        follows(["window", 0, 8, [1], [0]], 8, [[5, 5]] * 3)
    bytes_only = ["window", 0, 0, [0], [2]]
    for capacity, closed in (([3, 2], True), ([3, 3], False)):
        given = {"resident": [2, 2, 2], "capacity": capacity}
        assert holds(bytes_only, 50, [[5, 5]] * 3, **given) == closed
    for room, closed in ((4, True), (5, False)):  # 2 + 15 + 15 of room + 27
        given = {"resident": [2, 5, 5], "capacity": [room, 9]}
        step = ["window", 0, 0, [0, 0], [1, 3]]
        assert holds(step, 50, [[5, 5], [-1, 5], [-1, 5]], **given) == closed
    both = ["window", 0, 8, [3, 2], [0, 0]]  # 8 * 5 offered; 15 or 14 an op
    assert holds(both, 8, [[5, 7]] * 2) is False
    assert holds(both, 8, [[5, 7]] * 3) is True
    assert holds(["window", 0, 9, [3, 2], [0, 0]], 9, [[5, 7]] * 3) is False
    joint = {"colocation": [1, 1, -1]}  # 10 ticks of the first or 14 of the second device
    assert holds(["window", 0, 10, [1, 1], [0, 0]], 10, [[5, 7], [7, 5], [9, 9]], **joint) is True
    assert holds(["window", 0, 10, [1, 1], [0, 0]], 10, [[5, 7], [7, 5], [8, 8]], **joint) is False
    for begin, end in ((3, 2), (0, 8), (-1, 3)):
        with pytest.raises(UNREADABLE):
            follows(["window", begin, end, [1], [0]], 7, [[5, 5]] * 3)
    for weights, prices in (([1, 1], [0]), ([1], [0, 0]), ([-1], [0]), ([1], [-1])):
        with pytest.raises(UNREADABLE):
            follows(["window", 0, 7, weights, prices], 7, [[5, 5]] * 3)


def test_devices_idle_before_and_after_what_they_run():
    """A fork of three ops of 6 ticks, 3 before and 2 after them; another device than the fork's
    waits 4 ticks for its link.
    """
    compute = [[3] * 2, [6] * 2, [6] * 2, [6] * 2, [2] * 2]
    edges = [(0, v, 4) for v in (1, 2, 3)] + [(v, 4, 4) for v in (1, 2, 3)]

    def closed(step, most):
        state = state_of(problem_of(compute, edges), most)
        checker.follow(state, ["sweep", 0, []])
        checker.follow(state, ["sweep", 1, []])
        try:
            checker.follow(state, step)
        except FALSE:
            return False
        return state.closed

    # both devices: 3 + 3 ticks before, 18 of work, 2 + 2 after, of 2 T; one: 3 + 18 + 2
    assert [closed(["ends", [1, 2, 3]], most) for most in (13, 14)] == [True, False]
    # of the second device 4 ticks before and, with a join, 4 after: 29 or 31 of 2 T
    assert [closed(["ends", [1, 2, 3], 0, None], most) for most in (14, 15)] == [True, False]
    assert [closed(["ends", [1, 2, 3], 0, 4], most) for most in (15, 16)] == [True, False]


FAN = [(0, v, 1) for v in range(1, 7)] + [(v, 7, 1) for v in range(1, 7)]


def test_devices_of_a_fork_wait_for_its_link():
    """No heads are known: the fork's device waits 0 ticks, another one its link."""
    compute, edges = [[0] * 2] + [[6] * 2] * 2, [(0, 1, 4), (0, 2, 4)]
    # one device: 12; two: 4 + 12 of 2 T
    assert least(["ends", [1, 2], 0], compute, edges) == 7
    assert least(["ends", [1, 2]], compute, edges) == 5
    turned = [[6] * 2] * 2 + [[0] * 2], [(0, 2, 4), (1, 2, 4)]
    assert least(["ends", [0, 1], None, 2], *turned) == 7
    assert least(["ends", [0, 1], 2], *turned) == 5
    assert least(["ends", [0]], [[7]]) == 6
    assert least(["ends", [0, 1, 2]], [[7, 7]] * 3) == 10
    for words in ([[1, 2], 3], [[1, 2], -1], [[1, 2], None, 3], [[1, 1]]):
        with pytest.raises(UNREADABLE):
            follows(["ends", *words], 5, compute, edges)


def test_devices_of_other_islands_wait_for_a_link_between_islands():
    """Two hosts of two devices, 1 tick inside and 5 between them: of four devices that run the
    branches one waits 0 ticks, one 1 and two 5, before and after; of three, one less of the last.
    """
    data = plain(problem_of([[0] * 4] + [[6] * 4] * 6 + [[0] * 4], FAN))
    link = [[int(d // 2 != e // 2) for e in range(4)] for d in range(4)]
    data.update(transfer=[[1, 5]] * len(data["transfer"]), link_class=link)
    placement = checker.Placement(data)

    def longest(islands, *words):
        most = 0
        while True:
            state = checker.Supposition(placement, most, None, True, islands)
            try:
                checker.follow(state, ["ends", [1, 2, 3, 4, 5, 6], *words])
            except FALSE:
                return most - 1
            most += 1

    # work of 36; (36 + 2 * 11) / 4 = 14.5, (36 + 2 * 6) / 3 = 16, (36 + 2) / 2 = 19
    assert longest([0, 0, 1, 1], 0, 7) == 14
    assert longest([0, 0, 1, 1], 0) == 11  # (36 + 11) / 4 = 11.75
    assert longest([0, 0, 0, 0], 0, 7) == longest((), 0, 7) == 10  # (36 + 2 * 3) / 4 = 10.5
    # any partition will do: single devices are no islands that a link of 5 joins to all others
    assert longest([0, 1, 2, 3], 0, 7) == 10
    assert longest([0, 1, 0, 1], 0, 7) == 10
    assert longest([0, 0, 0, 1], 0, 7) == 10


def test_delays_between_islands_are_of_the_cheapest_link_by_the_slowest_tensor():
    """Devices 0 and 1 on one island, 2 on another one: what an op cannot use does not count."""
    data = plain(problem_of([[3, 3, 3], [5, 5, 5], [4, 4, -1]], [(0, 1, 4), (0, 1, 4), (1, 2, 4)]))
    data.update(transfer=[[1, 7, 9], [1, 8, 8], [2, 3, 4]])
    data.update(link_class=[[0, 0, 1], [0, 0, 2], [1, 2, 0]], io_class=[-1] * 3)

    def far(islands, **more):
        return checker.Supposition(checker.Placement(data | more), 50, [], True, islands).far

    assert far([0, 0, 2]) == {(0, 1): 8, (1, 2): 3}
    assert far([0, 0, 2], compute=[[3, -1, -1], [5, 5, 5], [-1, 4, -1]]) == {(0, 1): 8, (1, 2): 4}
    assert far([0, 0, 0]) == {(0, 1): INFINITE, (1, 2): INFINITE}
    assert far(()) == {}


def test_pigeons_share_devices():
    """Of five ops on two devices three share one: the shortest take 2 + 3 + 4 ticks."""
    compute = [[v + 2] * 2 for v in range(5)]
    assert least(["pigeons", [4, 3, 2, 1, 0], 2], compute) == 8
    assert least(["pigeons", [0, 1, 2], 1], compute) == 4
    assert least(["pigeons", [0, 1, 2, 3], 2], compute) == -1
    with pytest.raises(UNREADABLE):
        follows(["pigeons", [0, 1, 2], 0], 4, compute)


def test_fronts_take_their_ticks_and_energy_out():
    """Three ops of weight 5 on two devices: 15 in all, of which the fronts hold 4 and 2 in 2 ticks
    and 1; 4 ticks in between hold 8 at most.
    """
    step = ["front", [1], [2, 4], [1, 2]]
    assert least(["front", [1], [0, 0], [0, 0]], [[5, 5]] * 3) == 7
    assert [holds(step, most, [[5, 5]] * 3) for most in (6, 7, 8)] == [True, True, False]
    with pytest.raises(FALSE):  # the fronts would overlap
        follows(step, 2, [[5, 5]] * 3)
    assert follows(step, 3, [[5, 5]] * 3).closed
    state = follows(["front", [1], [2, 3], [1, 2]], 7, [[5, 5]] * 3)
    assert [said.partition(" hold at most ")[0] for said in state.believed] == [
        "the first 2 ticks of a schedule of at most 7"
    ]
    state = follows(["front", [1], [2, 4], [1, 1]], 7, [[5, 5]] * 3)
    assert [said[:16] for said in state.believed] == ["the last 1 ticks"]
    more = follows(["front", [1], [2, 9], [1, 2]], 7, [[5, 5]] * 3)  # counted up to what they hold
    assert more.closed
    weighed = ["front", [3, 2], [0, 0], [0, 0]]  # 14 or 15 an op; 5 a tick
    assert least(weighed, [[5, 7]] * 3) == 8
    for words in (([1], [1], [0, 0]), ([1, 1], [0, 0], [0, 0]), ([1], [0, 0], [0, -1])):
        with pytest.raises(UNREADABLE):
            follows(["front", *words], 7, [[5, 5]] * 3)


# --- segments
# --------------------------------------------------------------------------------------------

FORK = (
    [[5, 5]] + [[4, 4]] * 3 + [[2, 2]],
    [(0, v, 0) for v in (1, 2, 3)] + [(v, 4, 0) for v in (1, 2, 3)],
)


def after_segment(most, ticks, ops=(0, 1, 2, 3, 4), steps=(["pigeons", [1, 2, 3], 1],), more=()):
    """Return the state of a fork after a segment."""
    state = state_of(problem_of(*FORK), most)
    checker.follow(state, ["segment", [list(ops), *map(list, more)], ticks, list(steps)])
    return state


def test_a_segment_passes_as_many_ticks_as_its_steps_refute():
    """Two of three ops of 4 ticks share one of two devices: 8 ticks pass between fork and join."""
    assert after_segment(50, 8).waits == {(0, 4): 8}
    assert after_segment(50, 1).waits == {(0, 4): 1}
    for steps, ticks in (((["pigeons", [1, 2, 3], 1],), 9), ((), 1)):
        with pytest.raises(FALSE):
            after_segment(50, ticks, steps=steps)
    for ticks in (0, -1):
        with pytest.raises(UNREADABLE):
            after_segment(50, ticks)
    with pytest.raises(UNREADABLE):
        checker.follow(state_of(problem_of(*FORK), 50), ["segment", [], 1, []])


def test_what_passes_in_a_segment_counts_in_sweeps():
    """5 + 8 + 2 ticks: 14 are too few, forwards and backwards."""
    for backwards in (0, 1):
        for most, closed in ((14, True), (15, False)):
            state = after_segment(most, 8)
            checker.follow(state, ["sweep", backwards, []])
            assert state.closed == closed


def test_a_segment_runs_between_its_first_and_its_last_op():
    """Ops without an edge from one before them, or to one after them, are not between, although
    the steps refute what is left of them.
    """
    sweep = [["sweep", 0, []]]
    assert after_segment(50, 1, steps=sweep).waits == {(0, 4): 1}
    for ops in (
        (0, 1, 2, 3),
        (1, 2, 3, 4),
        (4, 1, 2, 3, 0),
        (0, 1, 2, 4, 3),
        (1, 0, 2, 3, 4),
        (0, 2, 1),
        (0, 4),
        (0,),
    ):
        with pytest.raises(FALSE):
            after_segment(50, 1, ops, sweep)
    edges = [(0, 1, 0), (0, 2, 0), (2, 1, 0), (1, 3, 0), (2, 3, 0)]
    for ops, between in (((0, 2, 1, 3), True), ((0, 1, 2, 3), False)):
        state = state_of(problem_of([[4, 4]] * 4, edges), 50)
        try:
            checker.follow(state, ["segment", [list(ops)], 1, sweep])
        except FALSE:
            assert not between
        else:
            assert between
    with pytest.raises(FALSE):  # the second op has an edge from the first, and none to the last
        checker.follow(
            state_of(problem_of([[4, 4]] * 3, [(0, 1, 0), (0, 2, 0)]), 50),
            ["segment", [[0, 1, 2]], 1, sweep],
        )
    with pytest.raises(FALSE):
        checker.follow(
            state_of(problem_of([[4, 4]] * 3, [(0, 2, 0), (1, 2, 0)]), 50),
            ["segment", [[0, 1, 2]], 1, sweep],
        )


def test_in_a_segment_the_ends_take_no_time_and_nothing_else_is_known():
    """Ops keep their classes, groups and edges; heads, tails, waits and pairs apart start anew."""
    cut_out = sys.modules["proof_checker.segment_steps"].cut_out
    compute = [[5, 6], [4, -1], [3, 3], [2, 1], [9, 9]]
    edges = [(0, 1, 7), (1, 3, 6), (0, 2, 5), (2, 3, 4), (3, 4, 1)]
    state = state_of(problem_of(compute, edges, resident=[1, 2, 3, 4, 5]), 40)
    state.join(1, 2)
    state.separate(0, 4)
    state.waits[0, 3] = 2
    state.head[1][0] = state.tail[1][0] = 3
    part = cut_out(state, [0, 2, 1, 3], 20)
    assert (part.most, part.believed, part.apart, part.waits) == (20, None, [], {})
    assert part.time == [[0, 0], [3, None], [4, None], [0, 0]]
    assert part.head == part.tail == [[0, 0]] * 4
    assert part.edges == {(0, 2): [0, 7], (2, 3): [0, 6], (0, 1): [0, 5], (1, 3): [0, 4]}
    assert [sorted(row) for row in part.group] == [[0], [1, 2], [1, 2], [3]]
    assert part.group[1] is part.group[2]
    assert (part.order, part.resident) == ([0, 1, 2, 3], [1, 3, 2, 4])
    assert (state.waits, state.head[1][0], len(state.time)) == ({(0, 3): 2}, 3, 5)


def test_alike_segments_need_their_steps_once():
    """A second list of ops that look alike is not refuted again; one that is shorter is."""

    def two(last):
        compute = [[5, 5], *[[4, 4]] * 3, [0, 0], *[[4, 4]] * 2, [last, last], [2, 2]]
        edges = [(0, v, 0) for v in (1, 2, 3)] + [(v, 4, 0) for v in (1, 2, 3)]
        edges += [(4, v, 0) for v in (5, 6, 7)] + [(v, 8, 0) for v in (5, 6, 7)]
        state = state_of(problem_of(compute, edges), 50)
        lists = [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
        checker.follow(state, ["segment", lists, 8, [["pigeons", [1, 2, 3], 1]]])
        return state.waits

    assert two(4) == {(0, 4): 8, (4, 8): 8}
    with pytest.raises(FALSE):
        two(3)


# --- sharding
# --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3},
        {"node_ptr": [0], "cost": [], "usage": [], "interval": []},
        {"node_ptr": []},
        {"node_ptr": [1, 2]},
        {"node_ptr": [0, 2, 2]},
        {"node_ptr": [0, 3]},
        {"cost": [3, -1]},
        {"usage": [3]},
        {"interval": [[1, 0]]},
        {"interval": [[-1, 0]]},
        {"usage_limit": 2**62 + 1},
        {"usage_limit": -1},
        {"node_names": [3]},
        {"strategy_names": ["a"]},
        {"strategy_names": ["a", 3]},
        {"edge": [[0, 0]], "edge_cost": [1] * 4},
        {"edge": [[0, 1]], "edge_cost": [1] * 4},
        {"edge_cost": [1]},
    ],
)
def test_every_number_of_a_sharding_problem_has_its_range(change):
    """What is out of range is no problem, and the reader says so itself."""
    data = plain(ShardingProblem(name="s", **ONE))
    assert checker.Sharding(data).cost == [[3, 5]]
    with pytest.raises(UNREADABLE):
        checker.Sharding({**data, **change})


def test_tables_of_edges_are_whole():
    """One cost too few or too many, also where the second node comes first."""
    data = plain(
        ShardingProblem(
            name="s",
            node_ptr=[0, 2, 4],
            cost=[3, 5] * 2,
            usage=[4, 0] * 2,
            interval=[[0, 1]] * 2,
            edge=[[1, 0]],
            edge_cost=[1, 2, 3, 4],
            usage_limit=9,
        )
    )
    assert checker.Sharding(data).tables == {(0, 1): [[1, 3], [2, 4]]}
    for costs in ([1, 2, 3], [1], [], [1, 2, 3, 4, 5]):
        with pytest.raises(UNREADABLE):
            checker.Sharding({**data, "edge_cost": costs})


def test_a_choice_is_of_strategies_that_exist_within_the_limit():
    """The usage at every moment, nodes that end there left out; edges between two nodes add up."""
    fields = {"node_ptr": [0, 2, 4], "cost": [3, 5, 1, 2], "usage": [4, 3, 5, 6]}
    fields.update(edge=[[1, 0], [0, 1]], edge_cost=[1, 2, 3, 4, 10, 20, 30, 40])

    def cost(limit, choice, interval):
        problem = ShardingProblem(name="s", interval=interval, usage_limit=limit, **fields)
        read = checker.Sharding(plain(problem))
        return checker.sharding_cost(read, {"strategies": choice}, {})

    beside, after = [[0, 2], [1, 3]], [[0, 1], [1, 3]]
    # node 1 in the rows of the first table, node 0 in those of the second
    assert cost(9, [0, 0], beside) == 3 + 1 + 1 + 10
    assert cost(9, [1, 0], beside) == 5 + 1 + 2 + 30
    assert cost(10, [0, 1], beside) == 3 + 2 + 3 + 20
    assert cost(6, [0, 1], after) == 3 + 2 + 3 + 20
    assert cost(6, [0, 1], [[0, 1], [2, 2]]) == 3 + 2 + 3 + 20
    for limit, choice, interval in ((8, [0, 0], beside), (9, [0, 1], beside), (4, [0, 0], after)):
        with pytest.raises(FALSE):
            cost(limit, choice, interval)
    for choice in ([0, 2], [2, 0], [-1, 0], [0], [0, 0, 0]):
        with pytest.raises(UNREADABLE):
            cost(99, choice, beside)


def proved_bound(data, content):
    """Return what prices and messages prove, by the formula in fractions."""
    (k, q), limit = content["bits"], data["usage_limit"]
    pointer, unit = data["node_ptr"], Fraction(1, 2**q)
    sent = {(u, v): (to_u, to_v) for u, v, to_u, to_v in content["messages"]}
    total = -ceil(sum(level * limit for _, level in content["prices"]) * unit)
    for v, (start, end) in enumerate(data["interval"]):
        paid = sum(level for time, level in content["prices"] if start <= time < end)
        values = []
        for x in range(pointer[v + 1] - pointer[v]):
            usage = data["usage"][pointer[v] + x]
            value = 2**k * data["cost"][pointer[v] + x] + floor(paid * usage * unit)
            value += sum(to[w == v][x] for (u, w), to in sent.items() if v in (u, w))
            if not (start < end and usage > limit):
                values.append(value)
        total += min(values, default=INFINITE)
    tables = {}
    flat = iter(data["edge_cost"])
    for u, v in data["edge"]:
        for x in range(pointer[u + 1] - pointer[u]):
            for y in range(pointer[v + 1] - pointer[v]):
                key = (u, x, v, y) if u < v else (v, y, u, x)
                tables[key] = tables.get(key, 0) + next(flat)
    for u, v in {(u, v) for u, _, v, _ in tables}:
        to_u, to_v = sent.get((u, v), ([0] * 9, [0] * 9))
        total += min(
            2**k * cost - to_u[x] - to_v[y]
            for (a, x, b, y), cost in tables.items()
            if (a, b) == (u, v)
        )
    return ceil(total / Fraction(2**k)) if total < INFINITE else None


@pytest.mark.parametrize("seed", range(60))
def test_prices_and_messages_prove_what_the_formula_says(seed):
    """Random ones, over random problems: that bound and not one more."""
    rng = random.Random(seed)
    sizes = [rng.randint(1, 3) for _ in range(3)]
    pairs = [(u, v) for u in range(3) for v in range(3) if u != v and rng.random() < 0.4]
    data = {
        "name": "s",
        "usage_limit": rng.randint(0, 9),
        "node_ptr": [0, *itertools.accumulate(sizes)],
        "cost": [rng.randint(50, 99) for _ in range(sum(sizes))],
        "usage": [rng.randint(0, 9) for _ in range(sum(sizes))],
        "interval": [sorted(rng.sample(range(4), 2)) for _ in range(3)],
        "edge": [list(pair) for pair in pairs],
        "edge_cost": [rng.randint(0, 9) for u, v in pairs for _ in range(sizes[u] * sizes[v])],
    }
    if rng.random() < 0.3:
        data["interval"][0] = [2, 2]
    linked = sorted({(min(pair), max(pair)) for pair in pairs})
    content = {
        "bits": [rng.randint(0, 3), rng.randint(0, 3)],
        "prices": [[rng.randrange(4), rng.randint(0, 5)] for _ in range(rng.randrange(3))],
        "messages": [
            [u, v, *([rng.randint(-9, 9) for _ in range(sizes[w])] for w in (u, v))]
            for u, v in linked
            if rng.random() < 0.8
        ],
    }
    read = checker.Sharding(data)
    proved = proved_bound(data, content)
    if proved is None:
        with pytest.raises(FALSE):
            checker.sharding_bound(read, 0, content, [])
        return
    checker.sharding_bound(read, proved, content, [])
    with pytest.raises(FALSE):
        checker.sharding_bound(read, proved + 1, content, [])
    with pytest.raises(UNREADABLE):
        checker.sharding_bound(read, -1, content, [])
    for bits in ([0, 65], [65, 0], [-1, 0], [0], [0, 0, 0]):
        with pytest.raises(UNREADABLE):
            checker.sharding_bound(read, 0, {**content, "bits": bits}, [])
