"""The checker at its edges: what it accepts just so, and refuses one tick, byte or word further.

Each of these is a fault that somebody could make in one place of the checker and that no other
test would find: they come from mutants that survived (`tests/attack/mutants.py`).
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "attack"))

import brute_force
import compare
from case import NO_LIMIT, Case
from tampering import load_checker, plain, verdict
from test_checker_strict import finished, proof_of, state_of, two_ops

import placeopt as po

checker = load_checker()
FALSE, UNREADABLE = checker.FalseStatementError, checker.UnreadableError


def problem_of(compute, edges=(), **options):
    """Return a problem of a few ops."""
    return po.PlacementProblem.from_edges(compute, list(edges), **options)


def read(compute=((5, 5), (5, 5)), edges=(), change=None, **options):
    """Return what the checker reads of a problem after a change of its JSON."""
    data = plain(problem_of([list(row) for row in compute], edges, **options))
    (change or (lambda _: None))(data)
    return checker.Placement(data)


# --- reading
# ---------------------------------------------------------------------------------------------


def test_numbers_end_where_they_are_said_to_end():
    """The largest numbers of a problem and of a claim are read, one more is not."""
    proof_checker = sys.modules["proof_checker.reading"]
    assert proof_checker.whole(2**127 - 1) == 2**127 - 1
    with pytest.raises(UNREADABLE):
        proof_checker.whole(2**127)
    assert proof_checker.numbers([2**63 - 1], 1, 0, proof_checker.NUMBER) == [2**63 - 1]
    with pytest.raises(UNREADABLE):
        proof_checker.numbers([2**63], 1, 0, proof_checker.NUMBER)
    assert proof_checker.MAX_BYTES == 268435456


def test_links_of_what_is_not_sent_need_not_exist():
    """Where there are no tensors, as placeopt reads them."""
    links = [[0, -1], [-1, 0]]
    assert read(link_class=links).num_devices == 2
    with pytest.raises(UNREADABLE):
        read(edges=[(0, 1, 1)], change=lambda data: data.update(link_class=links))


def test_texts_of_a_file_are_cut():
    """A long text is shown up to 60 characters, the last three of them dots."""
    shown = sys.modules["proof_checker.reading"].shown
    assert shown("x" * 58) == f"'{'x' * 58}'"
    assert shown("x" * 59) == f"'{'x' * 56}..."
    assert shown("x" * 1000) == f"'{'x' * 56}..."


def test_indices_are_distinct_and_at_least_one():
    """No list of ops or nodes is empty or names one twice."""
    distinct = sys.modules["proof_checker.reading"].distinct
    assert distinct([2, 0], 3) == [2, 0]
    for wrong in ([], [1, 1], [3], [-1]):
        with pytest.raises(UNREADABLE):
            distinct(wrong, 3)


def test_a_name_is_a_text():
    """Nothing else is taken for one."""
    name = sys.modules["proof_checker.reading"].name
    assert name("a-B.9_+") == "a-B.9_+"
    for wrong in (3, None, ["a"], "", "-a", "a" * 65):
        with pytest.raises(UNREADABLE):
            name(wrong)


def test_a_problem_has_a_device():
    """Without one there is no solution, and no optimum to speak of."""

    def change(data):
        data.update(compute=[[], []], capacity=[], channel=[], link_class=[], io_class=[])
        data.update(device_names=[])

    with pytest.raises(UNREADABLE, match="at least one op and one device"):
        read(change=change)


def test_all_bytes_of_a_problem_stay_below_no_limit():
    """A capacity of 2^62 is none because nothing adds up to it: resident bytes, and every tensor on
    every device.
    """

    def of(resident, size):
        def change(data):
            data["resident"], data["tensor_bytes"] = resident, [size]

        return read(((1, 1), (1, 1)), [(0, 1, 1)], change)

    half = 2**61
    assert of([half, half - 1], 0).resident == [half, half - 1]
    assert of([0, 1], half - 1).size == [half - 1]
    for resident, size in (([half, half], 0), ([0, 0], half), ([0, 2], half - 1)):
        with pytest.raises(UNREADABLE, match="2\\^62"):
            of(resident, size)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compute", []),
        ("compute", [[], []]),
        ("backward", [0, 2]),
        ("backward", [0, -1]),
        ("name", 3),
        ("name", None),
        ("slots", 0),
        ("resident", [0, -1]),
        ("capacity", [0, -1]),
        ("compute", [[5, 5], [5, -2]]),
        ("channel", [[0, 0], [0, -2]]),
        ("io_class", [0, -2]),
        ("io_class", [0, 1]),
        ("link_class", [[0, 1], [0, 0]]),
        ("link_class", [[0, 0], [-1, 0]]),
        ("tensor_bytes", [-1]),
        ("transfer", [[-1]]),
        ("producer", [2]),
        ("producer", [-1]),
        ("consumers", [[2]]),
        ("consumers", [[1, 1]]),
        ("meta", [-2, 0]),
        ("op_names", ["a", 1]),
        ("op_types", ["a", 1]),
        ("device_names", [1, "b"]),
    ],
)
def test_every_number_of_a_problem_has_its_range(key, value):
    """What is out of range is no problem, and the reader says so itself."""

    def change(data):
        data[key] = value

    assert read(edges=[(0, 1, 1)], change=lambda data: None).num_ops == 2
    with pytest.raises(UNREADABLE):
        read(edges=[(0, 1, 1)], change=change)


def test_the_diagonal_of_links_means_nothing():
    """No tensor goes from a device to itself, whatever stands there."""

    def change(data):
        data["link_class"][1][1] = -7

    assert read(edges=[(0, 1, 1)], change=change).link == [[0, 0], [0, -7]]


def test_a_graph_has_no_cycle():
    """Edges that go round leave no order."""

    def change(data):
        data.update(producer=[0, 1], consumers=[[1], [0]], transfer=[[1], [1]], tensor_bytes=[0, 0])

    with pytest.raises(FALSE, match="cycle"):
        read(change=change)


# --- placements and values
# -------------------------------------------------------------------------------


def test_a_placement_keeps_every_rule():
    """Devices exist and run their ops, labels keep together, bytes fit just so; a priority is a
    list of numbers.
    """
    placement = read(
        ((5, -1), (5, 5), (5, 5)), colocation=[-1, 3, 3], resident=[1, 2, 2], capacity=[5, 4]
    )
    assert placement.devices({"device": [0, 1, 1]}) == [0, 1, 1]
    assert placement.devices({"device": [0, 0, 0], "priority": [2, 1, 0]}) == [0, 0, 0]
    for device in ([1, 1, 1], [0, 0, 1]):
        with pytest.raises(FALSE):
            placement.devices({"device": device})
    for solution in (
        {"device": [0, 1, 2]},
        {"device": [0, 1, -1]},
        {"device": [0, 1]},
        {"device": [0, 1, 1], "priority": ["x", 0, 0]},
        {"device": [0, 1, 1], "priority": [0, 0]},
    ):
        with pytest.raises(UNREADABLE):
            placement.devices(solution)
    tight = read(((5, 5),) * 2, resident=[2, 3], capacity=[4, 9])
    with pytest.raises(FALSE, match="capacity"):
        tight.devices({"device": [0, 0]})


def chain(channel=-1, **options):
    """Return two ops on two devices with a tensor of 3 ticks."""

    def change(data):
        data["channel"] = [[channel] * 2] * 2

    return read(((5, 5), (2, 2)), [(0, 1, 3)], change, **options)


def test_transfers_leave_when_they_can():
    """Without contention at once; on a channel at once or later; the reader starts after it."""

    def ends(placement, start, transfers, device=(0, 1)):
        schedule = {"start": start, "transfers": transfers}
        return checker.makespan(placement, {"device": list(device)}, schedule)

    assert ends(chain(), [0, 8], [[0, 1, 5]]) == 10
    assert ends(chain(0), [0, 9], [[0, 1, 6]]) == 11
    for channel, start, transfers in (
        (-1, [0, 9], [[0, 1, 6]]),  # later than at once
        (-1, [0, 7], [[0, 1, 4]]),
        (0, [0, 7], [[0, 1, 4]]),  # before its op ends
        (-1, [0, 7], [[0, 1, 5]]),  # the reader starts before it is there
        (-1, [0, 8], []),
        (-1, [0, 8], [[0, 1, 5], [0, 1, 5]]),
        (-1, [0, 8], [[0, 0, 5], [0, 1, 5]]),
    ):
        with pytest.raises(FALSE):
            ends(chain(channel), start, transfers)
    for row in ([1, 1, 5], [-1, 1, 5], [0, 2, 5], [0, -1, 5], [0, 1, -1], [0, 1], [0, 1, 5, 0]):
        with pytest.raises(UNREADABLE):
            ends(chain(), [0, 8], [row])
    with pytest.raises(FALSE, match="nothing needs"):
        ends(chain(), [0, 5], [[0, 1, 5]], (0, 0))


def test_a_channel_carries_one_tensor_at_a_time():
    """Two tensors of one channel that overlap are refused, one after the other they are not."""

    def change(data):
        data["channel"] = [[4] * 2] * 2

    placement = read(((5, 5), (5, 5), (1, 1)), [(0, 2, 3), (1, 2, 3)], change)
    solution = {"device": [0, 0, 1]}
    good = {"start": [0, 5, 13], "transfers": [[0, 1, 5], [1, 1, 10]]}
    assert checker.makespan(placement, solution, good) == 14
    good = {"start": [0, 5, 15], "transfers": [[0, 1, 9], [1, 1, 12]]}
    assert checker.makespan(placement, solution, good) == 16
    wrong = {"start": [0, 5, 14], "transfers": [[0, 1, 8], [1, 1, 10]]}
    with pytest.raises(FALSE, match="channel 4"):
        checker.makespan(placement, solution, wrong)


def test_memory_at_its_peak_fits_just_so():
    """A tensor lives on its own device until it has left and been read there, on the other one from
    its transfer's start until its last reader ends.
    """
    solution, schedule = {"device": [0, 1]}, {"start": [0, 8], "transfers": [[0, 1, 5]]}

    def value(capacity):
        placement = chain(memory="peak", resident=[1, 2], capacity=capacity)
        placement.size = [4]
        return checker.makespan(placement, solution, schedule)

    assert value([5, 6]) == 10
    for capacity in ([4, 6], [5, 5]):
        with pytest.raises(FALSE, match="holds"):
            value(capacity)


def test_a_period_has_no_schedule():
    """What the period does not read must not be there."""
    placement = read(((5, 5), (2, 2)), objective="period")
    assert checker.period(placement, {"device": [0, 1]}, {}) == 5
    peak = read(((5, 5), (2, 2)), objective="period", memory="peak")
    with pytest.raises(UNREADABLE, match="no single peak"):
        checker.period(peak, {"device": [0, 1]}, {})
    for schedule in ({"start": []}, []):
        with pytest.raises(UNREADABLE):
            checker.period(placement, {"device": [0, 1]}, schedule)


@pytest.mark.parametrize("labels", [[0, 1, 1, 0], [0, 1, 0, 1], [0, 1, -1, 0], [0, 1, -1, -1]])
@pytest.mark.parametrize("edge", [(2, 3), (3, 2)])
@pytest.mark.parametrize("contiguity", ["chain", "convex"])
def test_backward_ops_turn_round_only_without_a_forward_op(labels, edge, contiguity):
    """Of two forward and two backward ops, every placement against brute force."""
    case = Case(
        compute=[[1, 1, 1], [2, 2, 2], [3, 3, 3], [4, 4, 4]],
        producer=[0, edge[0]],
        consumers=[[1], [edge[1]]],
        transfer=[[1], [1]],
        link_class=[[0] * 3] * 3,
        channel=[[-1] * 3] * 3,
        resident=[0] * 4,
        capacity=[NO_LIMIT] * 3,
        tensor_bytes=[0, 0],
        colocation=labels,
        objective="period",
        contiguity=contiguity,
        backward=[False, False, True, True],
        io_class=[0, 0, 0],
    )
    placement = checker.Placement(plain(compare.problem_of(case)))
    for number in range(3**4):
        device = [number // 3**v % 3 for v in range(4)]
        try:
            found = checker.period(placement, {"device": device}, {})
        except FALSE:
            found = None
        assert found == brute_force.period(case, device), device


# --- the envelope
# -----------------------------------------------------------------------------------------


def test_the_digest_and_the_claim_are_checked():
    """A digest of something else, a bound above the value, a value that is not the schedule's."""
    good = two_ops(0, [])
    assert verdict(checker, good) == "accepted"
    assert verdict(checker, {**good, "digest": "0" * 64}) == "refused"
    for change in ({"value": 9}, {"value": 11}, {"lower_bound": 11}):
        assert verdict(checker, finished({**good, **change})) == "refused", change
    for change in (
        {"format": "placeopt-proofs"},
        {"version": 2},
        {"version": 0},
        {"objective": "latency"},
        {"believed": [{"statement": 3, "model": {}}]},
        {"believed": [{"statement": "x"}]},
        {"value": -1},
    ):
        assert verdict(checker, finished({**good, **change})) == "no proof", change
    more = {"believed": [{"statement": "x", "model": {}}]}
    assert verdict(checker, finished({**good, **more})) == "refused"


def test_the_command_names_the_file_as_it_is(tmp_path, capsys):
    """The whole name stands before the verdict, and the exit code says which it is."""
    for text, code, said in (
        ("{", 2, "no proof: "),
        ('{"a": 1}', 2, "no proof: "),
        (json.dumps(two_ops(0, [])), 0, "accepted: value 10, lower bound 0 by "),
        (json.dumps({**two_ops(0, []), "digest": ""}), 1, "refused, this does not"),
    ):
        path = tmp_path / "a proof.json"
        path.write_text(text)
        assert checker.main(str(path)) == code
        assert capsys.readouterr().out.startswith(f"{path}: {said}")


# --- steps
# ------------------------------------------------------------------------------------------------


def follows(step, most, compute, edges=(), **options):
    """Follow one step of the supposition of a problem; return the state after it."""
    state = state_of(problem_of(compute, edges, **options), most)
    checker.follow(state, step)
    return state


def test_a_step_has_a_name():
    """An empty list is no step, and neither is a text."""
    state = state_of(problem_of([[5, 5]] * 2), 9)
    for step in ([], "sweep", {"sweep": 0}, None):
        with pytest.raises(UNREADABLE):
            checker.follow(state, step)


def test_steps_after_the_end_are_read_only():
    """What follows a contradiction changes nothing, but it has to be a step."""
    steps = [["pigeons", [0, 1, 2], 1], ["sweep", 0, []]]
    assert verdict(checker, proof_of([[5, 5]] * 3, [0, 0, 1], [0, 5, 0], 10, steps)) == "accepted"
    steps[1] = ["trust"]
    assert verdict(checker, proof_of([[5, 5]] * 3, [0, 0, 1], [0, 5, 0], 10, steps)) == "no proof"


def test_orders_are_of_two_ops_of_one_device():
    """Ops that may run at once have no order, and an op has none with itself."""
    steps = ["branch", "order", 0, 1, [], []]
    with pytest.raises(FALSE, match="at once"):
        follows(steps, 9, [[5, 5]] * 2)
    for pair in ((0, 0), (0, 2), (-1, 0)):
        with pytest.raises(UNREADABLE):
            follows(["branch", "order", *pair, [], []], 9, [[5, 5]] * 2, colocation=[1, 1])


def test_an_order_against_an_edge_is_a_contradiction():
    """Of two colocated ops, 5 ticks each, an order the other way round needs no steps, the right
    one does: 9 ticks are too few, 10 are not.
    """
    sweep = [["sweep", 0, []]]
    given = [[5, 5]] * 2, [(0, 1, 7)]
    right, wrong = ["branch", "order", 1, 0, [], sweep], ["branch", "order", 0, 1, [], sweep]
    assert follows(right, 9, *given, colocation=[1, 1]).closed
    for step, most in ((right, 10), (wrong, 9)):
        with pytest.raises(FALSE):
            follows(step, most, *given, colocation=[1, 1])


def test_both_cases_are_refuted_each_in_its_own_state():
    """Sharing is too long and being apart pays the transfer: 9 ticks are too few for both."""
    sweep = [["sweep", 0, []]]
    step = ["branch", "share", 0, 1, sweep, sweep]
    given = [[5, 5]] * 2, [(0, 1, 3)]
    assert follows(step, 9, *given).closed
    with pytest.raises(FALSE):
        follows(step, 10, *given)
    assert follows(
        ["branch", "share", 0, 1, sweep, sweep], 12, [[9, 9], [4, 4]], [(0, 1, 3)]
    ).closed
    with pytest.raises(FALSE):  # apart, 13 + 3 ticks are enough
        follows(step, 16, [[9, 9], [4, 4]], [(0, 1, 3)])


def test_cases_of_a_class_split_its_devices():
    """An op of 9 ticks on one class and 4 on another: neither within 3, the second within 4."""
    sweep = [["sweep", 0, []]]
    for c in (0, 1):
        assert follows(["branch", "class", 0, c, sweep, sweep], 3, [[9, 4]]).closed
        with pytest.raises(FALSE):
            follows(["branch", "class", 0, c, sweep, sweep], 4, [[9, 4]])
    for u, c in ((0, 2), (1, 0), (0, -1), (-1, 0)):
        with pytest.raises(UNREADABLE):
            follows(["branch", "class", u, c, sweep, sweep], 3, [[9, 4]])


def test_a_bound_is_refuted_one_tick_below_it():
    """Two of three ops of 5 ticks share one of two devices: 10 is a bound, 11 is none."""
    steps = [["pigeons", [0, 1, 2], 1]]
    for bound, said in ((10, "accepted"), (11, "refused")):
        data = proof_of([[5, 5]] * 3, [0, 0, 1], [0, 6, 0], bound, steps)
        assert verdict(checker, data) == said


def test_memory_is_freed_after_it_is_allocated_in_every_order():
    """`never_below_zero` says what trying every set of blocks that may come first says."""
    from itertools import product

    from proof_checker.pipeline_memory import never_below_zero

    rng, answers = random.Random(7), []
    for _ in range(600):
        n = rng.choice([2, 4, 5, 6])
        changes = [rng.randint(-3, 3) for _ in range(n)]
        changes[-1] = -sum(changes[:-1])
        before = [set() for _ in range(n)]
        for v in range(n):
            for u in range(v):
                if rng.random() < 0.5:
                    before[v] |= {u} | before[u]
        order = rng.sample(range(n), n)  # blocks by any number
        changes = [changes[order.index(v)] for v in range(n)]
        before = [{order[u] for u in before[order.index(v)]} for v in range(n)]
        firsts = ({v for v in range(n) if chosen[v]} for chosen in product([False, True], repeat=n))
        expected = all(
            sum(changes[v] for v in first) >= 0
            for first in firsts
            if all(before[v] <= first for v in first)
        )
        bits = [sum(1 << u for u in some) for some in before]
        assert never_below_zero(changes, bits) == expected, (changes, before)
        answers.append(expected)
    assert 50 < sum(answers) < 550


def test_a_problem_that_frees_too_early_is_refused():
    """Memory that is freed by a block which does not wait for what allocates it."""
    rows = [
        {
            "name": name,
            "kind": "F",
            "devices": ["x"],
            "span": 1,
            "memory": [change],
            "after": [],
            "stage": -1,
        }
        for name, change in (("a", 1), ("b", -1))
    ]
    data = {"name": "two", "devices": ["x"], "micro_batches": 1, "capacity": [4], "blocks": rows}
    with pytest.raises(checker.FalseStatementError, match="frees what was allocated"):
        checker.Pipeline(data)
    rows[1]["after"] = ["a"]
    assert checker.Pipeline(data).order == [0, 1]


def test_times_of_a_segment_and_of_one_device_are_those_of_the_class():
    """The ends of a segment take no time where they can run, and ops on one device of a class
    take the times of that class.
    """
    from types import SimpleNamespace

    from proof_checker.segment_steps import no_time
    from proof_checker.sharing_steps import time_on_one

    assert no_time([3, None, 0]) == [0, None, 0]
    state = SimpleNamespace(
        time=[[3, 50], [4, 60]], head=[[1, 200], [2, 300]], tail=[[5, 7000], [6, 8000]]
    )
    assert time_on_one(state, [0, 1], 0) == 1 + 7 + 5
    assert time_on_one(state, [0, 1], 1) == 200 + 110 + 7000
