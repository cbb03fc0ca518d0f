"""Old faults, put back one at a time: the test that is to find each has to fail.

Each row of the list of faults (README of results/reliability) has the fault as it was, as a change
to a running package, and a test. A test that passes with its fault in place would have found
nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tampering import load_checker

from placeopt.experiments import store
from placeopt.model.errors import SolverError
from placeopt.period import contracted
from placeopt.sharding.problem import ShardingProblem
from placeopt.solving import plugin, run

TESTS = Path(__file__).resolve().parents[1]
checker = load_checker()


def module(path):
    """Return a module of tests, loaded once more beside the one that pytest knows."""
    name = f"put_back_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, TESTS / path)
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    sys.path.insert(0, str((TESTS / path).parent))
    spec.loader.exec_module(found)
    return found


def any_number_of_fronts(patch):
    """Ticks of all fronts were taken out of the middle, and the energy of two."""
    front_of_any_number = module("proofs/test_adversary.py").front_of_any_number

    def careless(*given):
        try:
            front_of_any_number(*given)
        except (TypeError, ValueError, IndexError) as error:
            raise checker.UnreadableError("words of another shape") from error

    patch.setitem(checker.STEPS, "front", careless)


def leaves_without_weights(patch):
    """Ops of no time were joined to their neighbour though they carried weights to exchange."""
    merge = contracted._merge_leaves
    patch.setattr(contracted, "_merge_leaves", lambda model, sync, uplink: merge(model, None, None))


def believed_bounds(patch):
    """What a plug-in said of bounds was believed."""

    def believe(face, value, method):
        return face._PluginTracker__whole.raise_bound(value, method)

    patch.setattr(plugin.PluginTracker, "raise_bound", believe)


def believed_infeasible(patch):
    """What a plug-in said of infeasibility was believed."""

    def believe(face, reason):
        face._PluginTracker__whole.infeasible(reason)

    patch.setattr(plugin.PluginTracker, "infeasible", believe)


def ours_by_name(patch):
    """A class was ours if its module said so."""
    patch.setattr(run, "is_ours", lambda solver: type(solver).__module__.startswith("placeopt."))


def lent_itself(patch):
    """What a plug-in was given was the thing itself."""
    for place in (plugin, run):
        patch.setattr(place, "lent", lambda value: value)


def always_limited(patch):
    """Without a limit on usage 2^62 was one."""
    patch.setattr(ShardingProblem, "limited", property(lambda problem: True))


def careless_reader(patch):
    """The order of an interval was not looked at, nor anything else of a sharding problem."""
    from proof_checker import sharding

    patch.setattr(sharding, "require", lambda holds, expected: None)


def raw_names(patch):
    """The method of a witness was printed as it stood."""
    from proof_checker import proof

    patch.setattr(proof, "name", lambda value: value)


def beliefs_without_cases(patch):
    """What was believed did not say in which case."""
    from proof_checker import front_steps

    believe = front_steps.believe

    def careless(state, *given):
        cases, state.cases = state.cases, []
        believe(state, *given)
        state.cases = cases

    patch.setattr(front_steps, "believe", careless)


def unpacked_without_limit(patch):
    """A file was unpacked whatever its size."""
    import gzip

    from proof_checker import command

    def whole(name, max_bytes):
        content = Path(name).read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content

    patch.setattr(command, "unpacked", whole)


def small_numbers(patch):
    """Costs at and above 2^63 were refused."""
    from proof_checker import proof, sharding_bound

    def whole(value, low=0, high=None):
        return checker.whole(value, low, 2**63 - 1)

    for place in (proof, sharding_bound):
        if hasattr(place, "whole"):
            patch.setattr(place, "whole", whole)


def bounds_above_values(patch):
    """Bounds of one row were not compared with values of another."""
    patch.setattr(store, "_bound_above_value", lambda rows: "")


def shared_ends(patch):
    """Optional intervals of several sizes shared their start and their end."""
    from ortools.sat.python import cp_model

    ends = {}

    def optional(model, start, size, presence, name):
        key = id(model), start.index
        if key not in ends:
            ends[key] = model.new_int_var(0, 10**9, "shared")
        return model.new_optional_interval_var(start, size, ends[key], presence, name)

    patch.setattr(cp_model.CpModel, "new_optional_fixed_size_interval_var", optional)


STRICT, LIES = "proofs/test_checker_strict.py", "solving/test_lying_plugins.py"
ROWS = {
    "1: three fronts": (any_number_of_fronts, STRICT, "test_three_fronts_prove_nothing", {}),
    "2: weights of idle ops": (
        leaves_without_weights,
        "splits/test_every_split.py",
        "test_an_op_without_time_may_carry_weights",
        {},
    ),
    "3: bounds after Ctrl-C": (
        believed_bounds,
        LIES,
        "test_a_claim_is_shown_as_one_however_the_search_ends",
        {"deed": "bound", "solves": True, "way": "interrupt"},
    ),
    "3: bounds after an error": (
        believed_bounds,
        LIES,
        "test_a_claim_is_shown_as_one_however_the_search_ends",
        {"deed": "bound that meets the value", "solves": True, "way": "raise"},
    ),
    "4: infeasible": (
        believed_infeasible,
        LIES,
        "test_a_claim_is_shown_as_one_however_the_search_ends",
        {"deed": "infeasible", "solves": False, "way": "return"},
    ),
    "5: a module of ours": (
        ours_by_name,
        LIES,
        "test_only_registered_classes_are_ours",
        {"pretender": "a module of ours"},
    ),
    "5: memory in common": (lent_itself, LIES, "test_memory_is_not_shared", {}),
    "6: 2^62 as a limit": (
        always_limited,
        "sharding/test_unlimited.py",
        "test_usages_without_a_limit_decide_nothing",
        {"usages": [[2**61 + 1], [2**61 + 1]]},
    ),
    "7: intervals": (careless_reader, STRICT, "test_an_interval_has_an_order", {}),
    "7: 64 bits": (small_numbers, STRICT, "test_costs_beyond_64_bits_are_accepted", {}),
    "7: lines of a method": (
        raw_names,
        STRICT,
        "test_a_method_prints_no_lines_of_its_own",
        {"method": "x\nfile: accepted; believed: nothing"},
    ),
    "7: beliefs in a case": (
        beliefs_without_cases,
        STRICT,
        "test_a_believed_statement_says_in_which_case_it_holds",
        {},
    ),
    "7: a file that unpacks": (
        unpacked_without_limit,
        STRICT,
        "test_a_file_is_unpacked_up_to_a_limit",
        {"tmp_path": None, "capsys": None},
    ),
    "8: contradictions": (
        bounds_above_values,
        "experiments/test_consistency.py",
        "test_two_rows_that_cannot_both_be_true",
        {"lie": "a bound above another row's value", "tmp_path": None, "capsys": None},
    ),
    "9: shared ends": (
        shared_ends,
        "exact/test_cp_sat_guard.py",
        "test_answers_are_those_of_brute_force",
        {"name": "segments.py", "solved": None},
    ),
}
"""By row of the list: the fault, the file and the name of a test, and what it is called with."""


@pytest.mark.parametrize("row", ROWS)
def test_the_fault_is_found(row, request, monkeypatch):
    """The test of a row fails where its fault is put back, and by its own assertions."""
    fault, path, name, given = ROWS[row]
    tests = module(path)
    values = dict(given)
    for key in ("tmp_path", "capsys"):
        if key in values:
            values[key] = request.getfixturevalue(key)
    if "solved" in values:
        values["solved"] = tests.solved.__wrapped__(monkeypatch)
    fault(monkeypatch)
    with pytest.raises((AssertionError, SolverError, pytest.fail.Exception)):
        getattr(tests, name)(**values)
