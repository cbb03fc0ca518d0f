"""What the checker once accepted, or refused although it holds: one test for each, named for it."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "attack"))

import brute_force
import case as cases
import compare
from sharding_problems import draw, draw_huge, oracle
from tampering import load_checker, plain, verdict

import placeopt as po
from placeopt.certify.certificate import finished, prove
from placeopt.io.serialize import to_dict
from placeopt.model.errors import InputError
from placeopt.sharding.problem import ShardingProblem, ShardingSolution

checker = load_checker()


def proof_of(compute, device, start, bound, steps, **more):
    """Return a proof of a makespan of ops without edges, as a liar writes it."""
    problem = po.PlacementProblem.from_edges(compute, [], **more)
    value = max(s + compute[v][device[v]] for v, s in enumerate(start))
    return finished(
        {
            "format": "placeopt-proof",
            "version": 1,
            "objective": "makespan",
            "problem": plain(problem),
            "solution": {"device": device},
            "schedule": {"start": start, "transfers": []},
            "value": value,
            "lower_bound": bound,
            "witness": {"method": "front", "steps": steps},
            "believed": [],
        }
    )


def two_ops(bound, steps, start=(0, 5)):
    """Return a proof about two ops of 5 ticks on two devices, whose optimum is 5; the schedule
    takes 10.
    """
    return proof_of([[5, 5], [5, 5]], [0, 0], list(start), bound, steps)


def state_of(problem, most, **options):
    """Return the supposition that a problem has a solution of at most `most` ticks."""
    return checker.Supposition(checker.Placement(plain(problem)), most, [], **options)


# --- fronts
# ---------------------------------------------------------------------------------------------


def test_three_fronts_prove_nothing():
    """Ticks of a third front were taken out of the middle, and its energy was not: any bound was
    accepted.
    """
    for fronts in ([[0, 0], [0, 0], [9, 0]], [[0, 0]], [], [[9, 0, 0], [0, 0]], [[9], [0, 0]]):
        assert verdict(checker, two_ops(10, [["front", [1], *fronts]])) == "no proof", fronts


def test_fronts_that_overlap_prove_nothing():
    """The ticks between two fronts are not negative: both statements are true here, the bound is
    not.
    """
    data = two_ops(10, [["front", [1], [9, 10], [9, 10]]])
    words = (
        "9 ticks of a schedule of at most 9 hold at most 10 of energy, where devices of "
        "classes [0, 0] weigh [1]"
    )
    data["believed"] = [
        {"statement": f"the {side} {words}", "model": {}} for side in ("first", "last")
    ]
    with pytest.raises(checker.FalseStatementError, match="overlap"):
        checker.check(finished(data))


def test_fronts_say_nothing_of_loads():
    """Both statements are true of the schedules of a chain, whose two loads are 5 each."""
    problem = po.PlacementProblem.from_edges([[5, 5], [5, 5]], [(0, 1, 0)], objective="period")
    state = state_of(problem, 9, edges=False)
    with pytest.raises(checker.UnreadableError, match="expected a makespan"):
        checker.follow(state, ["front", [1], [5, 5], [4, 4]])


def test_two_fronts_prove_what_the_devices_cannot_deliver():
    """What remains of the step: its own windows, W no larger than what all devices deliver."""
    data = proof_of([[5, 5]] * 3, [0, 0, 1], [0, 5, 0], 8, [["front", [1], [2, 4], [1, 2]]])
    assert checker.check(data) == ("value 10, lower bound 8 by front", [])


def test_a_believed_statement_says_in_which_case_it_holds():
    """Within cases of a branch the statement is about these only, and it says so; in a segment
    there is none.
    """
    problem = po.PlacementProblem.from_edges([[5, 5], [5, 5]], [])
    state = state_of(problem, 9)
    front = [["front", [1], [9, 0], [0, 0]]]
    checker.follow(state, ["branch", "share", 0, 1, front, [["branch", "share", 1, 0, [], front]]])
    first, second = (said.partition(", in the case that ")[2] for said in state.believed)
    assert first == "ops 0 and 1 are on one device"
    assert second == "ops 0 and 1 are on two devices and ops 1 and 0 are on two devices"


# --- lemmas
# -----------------------------------------------------------------------------------------------


def test_a_lemma_counts_every_other_device():
    """Three ops of 5 ticks run on three devices at once: an op after them starts at 5, and no lemma
    says 6.
    """
    problem = po.PlacementProblem.from_edges(
        [[5] * 3] * 3 + [[1] * 3], [(v, 3, 0) for v in range(3)]
    )
    checker.follow(state_of(problem, 6), ["sweep", 0, [[3, 0, 5, [0, 1, 2]]]])
    with pytest.raises(checker.FalseStatementError):
        checker.follow(state_of(problem, 6), ["sweep", 0, [[3, 0, 6, [0, 1, 2]]]])


# --- words of steps
# ---------------------------------------------------------------------------------------

GOOD = [
    ["sweep", 0, []],
    ["sweep", 1, [[0, 0, 0, [1]]]],
    ["same", 0, 1],
    ["apart", 0, 1, [0, 1]],
    ["clique", [0, 1]],
    ["window", 0, 4, [1], [0]],
    ["ends", [0]],
    ["pigeons", [0, 1, 2], 1],
    ["front", [1], [0, 0], [0, 0]],
    ["branch", "class", 0, 0, [["sweep", 0, []]], [["sweep", 0, []]]],
    ["segment", [[0, 1]], 1, []],
    ["crossing", [0, 1], [5, 5, 5], [0, 0, 0], 1, [[], [], []]],
    ["leaving", [5, 5, 5], [0, 0, 0], 1, [[], [], []]],
]


@pytest.mark.parametrize("step", GOOD, ids=lambda step: step[0])
def test_words_of_every_step_are_counted_and_ranged(step):
    """One word too many or too few, an index out of range, true for 1, a text: the file is no
    proof.
    """
    problem = po.PlacementProblem.from_edges([[5, 5]] * 3, [])
    more = [None] * (2 if step[0] == "ends" else 0)
    for changed in ([*step, *more, 0], step[:1]):
        with pytest.raises(checker.UnreadableError):
            checker.follow(state_of(problem, 4), changed)
    for at in range(1, len(step)):
        for other in ("x", True, 2.5, {}, 2**130):
            with pytest.raises(checker.UnreadableError):
                checker.follow(state_of(problem, 4), [*step[:at], other, *step[at + 1 :]])


@pytest.mark.parametrize(
    "name", ["trust", "__init__", "copy", "narrow", "prove", "", None, 3, ["sweep"], "sweep "]
)
def test_names_of_steps_reach_nothing_else(name):
    """Only what the table of steps names is called."""
    assert verdict(checker, two_ops(5, [[name, 0, []]])) == "no proof"
    assert verdict(checker, two_ops(5, [[]])) == "no proof"


def test_indices_from_the_end_are_refused():
    """Python takes -1 for the last op; a proof does not."""
    for step in (
        ["same", 0, -1],
        ["ends", [0, 1], -1],
        ["branch", "share", 0, -1, [], []],
        ["sweep", 0, [[-1, 0, 1, [0]]]],
    ):
        assert verdict(checker, two_ops(5, [step])) == "no proof", step


def test_an_unread_witness_of_the_bound_zero_is_empty():
    """A bound of 0 needs no steps, and so has none."""
    assert verdict(checker, two_ops(0, [])) == "accepted"
    assert verdict(checker, two_ops(0, [["sweep", 0, []]])) == "no proof"


def test_a_unit_divides_all_times_and_bounds_end_at_its_multiples():
    """Three ops of 5 ticks on two devices end at 10: their work shows 8, and a multiple of 5. Other
    units are false of the times; islands are labels of devices.
    """
    steps = [["sweep", 0, []], ["window", 0, 5, [1], [0]]]

    def said(bound, **words):
        data = proof_of([[5, 5]] * 3, [0, 0, 1], [0, 5, 0], bound, steps)
        data["witness"].update(words)
        return verdict(checker, finished(data))

    assert said(10, unit=5) == "accepted"
    assert said(10) == said(10, unit=1) == "refused"  # of a schedule of 9 ticks the window needs 3
    assert said(11, unit=5) == "refused"
    assert said(10, unit=2) == said(10, unit=10) == "refused"
    for unit in (0, -5, 5.0, True, "5", None):
        assert said(10, unit=unit) == "no proof"
    assert said(10, unit=5, islands=[0, 1]) == "accepted"
    for islands in ([0], [0, 2], [0, -1], [0, 1, 1], None, 0):
        assert said(10, unit=5, islands=islands) == "no proof"


# --- the envelope
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["x\nfile: accepted; believed: nothing", "\x1b[2J", "", "a b", 3, None, "x" * 65]
)
def test_a_method_prints_no_lines_of_its_own(method):
    """A line break forged a second verdict, escape codes reached the terminal."""
    data = two_ops(0, [])
    data["witness"]["method"] = method
    assert verdict(checker, finished(data)) == "no proof"


def test_no_text_of_a_file_prints_lines_or_escape_codes(tmp_path, capsys):
    """Whatever text stands where something else is expected is printed as an ASCII literal."""
    bad = "\n\x1b[2Jx: accepted: \u202e"
    path = tmp_path / "proof.json"
    whole = two_ops(0, [])
    for key in sorted(set(whole) - {"digest"}):
        for data in (
            {**whole, key: bad},
            {**whole, key: [bad]},
            {**whole, key: {bad: bad}},
            {**whole, bad: 1},
        ):
            path.write_text(json.dumps(finished(data)))
            assert checker.main(str(path)) in (1, 2)
            said = capsys.readouterr().out
            assert said.count("\n") == 1
            assert said.isascii()
            assert said.strip().isprintable()


def test_a_problem_of_another_objective_is_refused():
    """The bound is derived for the objective that is claimed; the problem must have the same."""
    data = two_ops(0, [])
    data["problem"]["objective"] = "period"
    assert verdict(checker, finished(data)) == "no proof"


def test_a_proof_about_an_easier_problem_is_refused(tmp_path, capsys, monkeypatch):
    """Whoever changes the costs proves an optimum of something else under the same name: with
    --problem the checker sees it.
    """
    problem, solution = small_makespan()
    dearer = po.PlacementProblem.from_edges(
        [[3, 4], [2, 2], [5, 2]], [(0, 1, 2), (0, 2, 2), (1, 2, 3)], name=problem.name
    )
    pairs = [(problem, solution), (ShardingProblem(name="s", **ONE), ShardingSolution([0]))]
    for number, (some, chosen) in enumerate(pairs):
        proof, known = tmp_path / f"{number}.json", tmp_path / f"problem-{number}.json"
        claim = po.verify(some, chosen, seconds=0.05)
        proof.write_text(json.dumps(prove(some, chosen, claim, seconds=0.2)))
        known.write_text(json.dumps(to_dict(some)))
        assert checker.main(str(proof), about=str(known)) == 0
    known.write_text(json.dumps(to_dict(dearer)))
    assert checker.main(str(tmp_path / "0.json"), about=str(known)) == 1
    assert "about the problem" in capsys.readouterr().out
    for words in ("[]", "{}", '{"a": NaN}', ""):
        known.write_text(words)
        assert checker.main(str(tmp_path / "0.json"), about=str(known)) > 0
    words = ["check_proof", "--problem", str(tmp_path / "problem-0.json"), str(tmp_path / "1.json")]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as stop:
        checker.command()
    assert stop.value.code == 1


def test_unknown_and_missing_entries_of_a_problem_are_refused():
    """What the checker does not know might be a constraint."""
    for part in ("problem", "solution", "schedule", "witness"):
        for key in [*two_ops(0, [])[part], "extra"]:
            data = two_ops(0, [])
            if key == "extra":
                data[part][key] = 0
            elif key in ("priority", "slots", "meta", "op_names", "op_types", "device_names"):
                continue
            else:
                del data[part][key]
            assert verdict(checker, finished(data)) == "no proof", (part, key)


def test_every_list_of_a_problem_has_its_length():
    """One entry more or less, in any list of a problem, a solution or a schedule."""
    problem, solution = small_makespan()
    kept = prove(problem, solution, po.verify(problem, solution, seconds=0.05), seconds=0.2)
    assert verdict(checker, kept) == "accepted"
    for part, key in itertools.product(
        ("problem", "solution", "schedule"), (*kept["problem"], "device", "start")
    ):
        value = kept[part].get(key)
        if isinstance(value, list) and value:
            for other in ([*value, value[-1]], value[:-1]):
                data = copy.deepcopy(kept)
                data[part][key] = other
                assert verdict(checker, finished(data)) == "no proof", (part, key)


def small_makespan():
    """Return a problem with edges and a solution of it."""
    problem = po.PlacementProblem.from_edges(
        [[3, 4], [2, 2], [5, 1]], [(0, 1, 2), (0, 2, 2), (1, 2, 3)]
    )
    return problem, po.Placement([0, 0, 1])


def test_a_file_is_unpacked_up_to_a_limit(tmp_path, capsys):
    """A few kilobytes that unpack to a gigabyte do not fill the memory; an option allows more."""
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(8):
            file.write(b" " * 2**20)
    assert checker.main(str(path), 2**20) == 2
    assert "--max-bytes" in capsys.readouterr().out
    path.write_bytes(b" " * 2000)
    assert checker.main(str(path), 1000) == 2
    assert "at most 1000 bytes" in capsys.readouterr().out


# --- sharding
# ---------------------------------------------------------------------------------------------


def sharding_proof(bound_seconds=0.05, **fields):
    """Return the proof of a sharding problem's first choice."""
    problem = ShardingProblem(name="s", **fields)
    solution = ShardingSolution([0] * problem.num_nodes)
    return prove(
        problem, solution, po.verify(problem, solution, seconds=bound_seconds), seconds=0.2
    )


ONE = {
    "node_ptr": [0, 2],
    "cost": [3, 5],
    "usage": [4, 0],
    "interval": [[0, 1]],
    "edge": [],
    "edge_cost": [],
    "usage_limit": 9,
}


def test_an_interval_has_an_order():
    """A node that is live from 5 to 3 was never live: its usage did not count."""
    data = sharding_proof(**ONE)
    assert verdict(checker, data) == "accepted"
    data["problem"].update(interval=[[5, 3]], usage_limit=3)
    assert verdict(checker, finished(data)) == "no proof"


def test_costs_beyond_64_bits_are_accepted():
    """Sums of costs below 2^62 pass 2^63; what `--proof` writes of them is true."""
    count = 5
    data = sharding_proof(
        node_ptr=list(range(count + 1)),
        cost=[2**62 - 1] * count,
        usage=[0] * count,
        interval=[[0, 1]] * count,
        edge=[[0, 1]],
        edge_cost=[2**62 - 1],
        usage_limit=1,
    )
    assert data["value"] == data["lower_bound"] == 6 * (2**62 - 1) > 2**63
    assert verdict(checker, data) == "accepted"


def test_proofs_of_huge_problems_are_accepted():
    """Whatever `prove` writes of costs and usages up to 2^62."""
    accepted = 0
    for seed in range(40):
        problem, data = draw_huge(seed)
        feasible = oracle(data)
        if feasible:
            solution = ShardingSolution(min(feasible, key=feasible.get))
            proof = prove(
                problem, solution, po.verify(problem, solution, seconds=0.01), seconds=0.05
            )
            assert verdict(checker, proof) == "accepted", seed
            accepted += 1
    assert accepted > 15


def test_a_limit_that_is_none_limits_nothing():
    """2^62 stands for no limit: usage passes it freely, and prices on usage prove nothing."""
    problem = plain(ShardingProblem(name="s", **{**ONE, "usage_limit": 2**62}))
    problem["usage"] = [2**62 - 1, 0]
    double = {**problem, "node_ptr": [0, 2, 4], "interval": [[0, 1]] * 2}
    double.update(cost=problem["cost"] * 2, usage=problem["usage"] * 2)
    read = checker.Sharding(double)
    assert checker.sharding_cost(read, {"strategies": [0, 0]}, {}) == 6
    with pytest.raises(checker.UnreadableError):
        checker.sharding_bound(read, 1, {"bits": [0, 0], "prices": [[0, 1]], "messages": []}, [])


def test_messages_go_once_along_edges_that_exist():
    """Twice the same pair, a pair without edges, the larger node first, lists of other lengths."""
    fields = {
        "node_ptr": [0, 2, 4],
        "cost": [3, 5, 1, 2],
        "usage": [0] * 4,
        "interval": [[0, 1]] * 2,
        "edge": [[1, 0]],
        "edge_cost": [1, 2, 3, 4],
        "usage_limit": 9,
    }
    kept = sharding_proof(**fields)
    assert verdict(checker, kept) == "accepted"
    row = [0, 1, [0, 0], [0, 0]]
    for wrong in (
        [row, row],
        [[1, 0, [0, 0], [0, 0]]],
        [[0, 1, [0], [0, 0]]],
        [[0, 1, [0, 0]]],
        [[0, 0, [0, 0], [0, 0]]],
    ):
        data = copy.deepcopy(kept)
        data["witness"]["messages"] = wrong
        assert verdict(checker, finished(data)) == "no proof", wrong
    for more in ([], [1, 2, 3], [1, 2, 3, 4, 5]):
        data = copy.deepcopy(kept)
        data["problem"]["edge_cost"] = more
        assert verdict(checker, finished(data)) == "no proof", more


def test_costs_of_choices_are_those_of_the_oracle():
    """Every choice of small problems: its cost, or that it passes the limit."""
    for seed in range(30):
        problem, data = draw(seed)
        read, feasible = checker.Sharding(plain(problem)), oracle(data)
        for choice in itertools.product(
            *(range(len(row)) for row in data["problem"]["nodes"]["costs"])
        ):
            try:
                found = checker.sharding_cost(read, {"strategies": list(choice)}, {})
            except checker.FalseStatementError:
                found = None
            assert found == feasible.get(choice), (seed, choice)


# --- values of placements
# ---------------------------------------------------------------------------------


def test_periods_are_those_of_brute_force():
    """Every placement of small problems of every option: its period, or that it is not valid."""
    valid = wrong = 0
    for seed in range(150):
        case = cases.draw(random.Random(seed), "period")
        if case.num_devices**case.num_ops > 100:
            continue
        try:
            read = checker.Placement(plain(compare.problem_of(case)))
        except InputError:
            continue
        for device in itertools.product(range(case.num_devices), repeat=case.num_ops):
            try:
                found = checker.period(read, {"device": list(device)}, {})
            except checker.FalseStatementError:
                found = None
            assert found == brute_force.period(case, device), (seed, device)
            valid, wrong = valid + (found is not None), wrong + (found is None)
    assert min(valid, wrong) > 100


def test_makespans_are_those_of_brute_force():
    """Random placements and orders of small problems, executed by brute force: their ends and their
    peak memory.
    """
    valid = wrong = 0
    for seed in range(300):
        rng = random.Random(seed)
        case = cases.draw(rng, "makespan")
        try:
            read = checker.Placement(plain(compare.problem_of(case)))
        except InputError:
            continue
        for _ in range(5):
            device = [rng.randrange(case.num_devices) for _ in range(case.num_ops)]
            rank, queue = (
                rng.sample(range(case.num_ops), case.num_ops),
                rng.choice(["fifo", "priority"]),
            )
            if any(case.compute[v][d] < 0 for v, d in enumerate(device)):
                continue
            run = brute_force.Execution(case, device, rank, queue)
            run.run()
            schedule = {
                "start": [run.start[v] for v in range(case.num_ops)],
                "transfers": [[t, d, start] for (t, d), (start, _) in run.sent.items()],
            }
            try:
                found = checker.makespan(read, {"device": device}, schedule)
            except checker.FalseStatementError:
                found = None
            assert found == brute_force.makespan(case, device, rank, queue), (seed, device)
            valid, wrong = valid + (found is not None), wrong + (found is None)
    assert min(valid, wrong) > 100
