"""Certificates: validity, value, bound, and checking them again."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass, fields, replace

import networkx as nx
import numpy as np
import pytest
from exact_instances import doppler, random_layered

import placeopt as po
from placeopt.certify.certificate import DERIVED, Certificate, solution_hash
from placeopt.certify.verify import recheck, verify
from placeopt.cli import main
from placeopt.io.placement_file import write_placement
from placeopt.io.serialize import load, save
from placeopt.makespan.evaluate import evaluate
from placeopt.model.errors import InputError
from placeopt.model.files import digest
from placeopt.model.objective import objective_of
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.schedules.solution import PipelineSchedule, Repetend
from placeopt.schedules.sources import load_pipeline
from placeopt.sharding.problem import ShardingProblem
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run


@pytest.fixture
def problem():
    """Return a small problem that CP-SAT closes at once."""
    return random_layered(12, 2, 0)


def test_optimal_placement_is_certified(problem):
    """The word optimal appears exactly when value and bound meet."""
    best = make_solver("cp-sat", num_workers=1).solve(problem, Budget(seconds=20), seed=0)
    report = verify(problem, best.solution, seconds=20, queue=best.queue, num_workers=1)
    assert (report.status, report.gap, report.value) == ("optimal", 0.0, best.objective)
    assert report.to_dict()["feasible"] is True


def test_bad_placement_gets_a_gap(problem):
    """A single device is valid, but a better placement and a gap are reported."""
    report = verify(problem, Placement(np.zeros(12, dtype=np.int64)), seconds=20, num_workers=1)
    assert report.status == "feasible"
    assert report.value == problem.compute[:, 0].sum()
    assert report.lower_bound <= report.better < report.value
    assert 0 < report.gap < 1


def test_violations_are_listed():
    """Every broken constraint is named and no value is given."""
    problem = PlacementProblem.from_edges([[1, -1], [1, 1]], [(0, 1, 1)], op_names=("a", "b"))
    report = verify(problem, Placement(np.array([1, 1])), seconds=1)
    assert not report.feasible
    assert (report.status, report.value, report.gap) == ("infeasible", None, None)
    assert "op 'a' cannot run" in report.violations[0]


def test_deadlocked_order_is_a_violation():
    """A planned order that waits for itself is not valid."""
    problem = PlacementProblem.from_edges([[1], [1]], [(0, 1, 0)])
    report = verify(
        problem, Placement(np.array([0, 0]), np.array([1, 0])), seconds=1, queue="planned"
    )
    assert not report.feasible
    assert "planned" in report.violations[0]


def test_recheck(problem, tmp_path):
    """A certificate holds when checked again, from a file too, and tampering is noticed."""
    best = make_solver("heft").solve(problem, Budget(seconds=5), seed=0).solution
    report = verify(problem, best, seconds=10, num_workers=1)
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(report.to_dict()))
    assert recheck(path, problem, best, seconds=10) == []
    forged = {**report.to_dict(), "value": report.value - 1}
    assert any("value: certified" in line for line in recheck(forged, problem, best, seconds=1))
    forged = {**report.to_dict(), "lower_bound": report.value + 5}
    assert any("lower bound" in line for line in recheck(forged, problem, best, seconds=1))
    other = Placement(1 - best.device, best.priority)
    assert "another solution" in recheck(report, problem, other, seconds=1)[0]
    assert "another problem" in recheck(report, random_layered(12, 2, 1), best, seconds=1)[0]


def test_the_file_names_the_execution(tmp_path):
    """A placement file valued in planned execution is verified in it, unless the call says
    otherwise.
    """
    # Device 0 idles for op 2 rather than start op 1: only planned execution does that.
    problem = PlacementProblem.from_edges(
        [[1, 1], [9, 99], [1, 99], [20, 20]], [(0, 2, 1), (2, 3, 0)]
    )
    placement = Placement([1, 0, 0, 1], priority=[0, 2, 1, 3])
    write_placement(tmp_path / "p.json", problem, placement, "planned")
    found = verify(problem, tmp_path / "p.json", seconds=0)
    assert (found.queue, found.value) == (
        "planned",
        evaluate(problem, placement, "planned").makespan,
    )
    other = verify(problem, tmp_path / "p.json", seconds=0, queue="priority")
    assert other.value == evaluate(problem, placement, "priority").makespan > found.value


def test_a_period_has_no_execution():
    """A certificate of one names none, whatever file or caller does: one that does was forged."""
    problem = PlacementProblem.from_edges(
        [[5, 5], [4, 4]], [(0, 1, 1)], objective="period", contiguity="none"
    )
    found = verify(problem, [0, 1], seconds=0, queue="planned")
    assert (found.queue, found.feasible) == ("", True)
    forged = replace(found, queue="planned")
    assert recheck(forged, problem, [0, 1], seconds=0) == ["queue: certified 'planned', found ''"]


def test_bad_certificates_are_refused():
    """Files that are no certificate, or lack a field, give one line."""
    with pytest.raises(InputError, match="placeopt-certificate"):
        Certificate.from_dict({"value": 3})
    with pytest.raises(InputError, match="'problem' is missing"):
        Certificate.from_dict({"format": "placeopt-certificate", "version": 2})
    with pytest.raises(InputError, match="version"):
        Certificate.from_dict({"format": "placeopt-certificate", "version": 99})


def written(problem, placement):
    """Return a certificate as it is read from a file."""
    return json.loads(json.dumps(verify(problem, placement, seconds=0).to_dict()))


def tampered(value):
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return [*value, "another"]
    if isinstance(value, dict):
        return {**value, "another": "1.0" if "python" in value else 1}
    return 7  # None


def noticed(forged, problem, placement):
    """Whether a certificate is refused in one line, or differences are found."""
    try:
        return bool(recheck(forged, problem, placement, seconds=0))
    except InputError as refusal:
        return "\n" not in str(refusal)


FIELDS = sorted(
    ["format", "version", "digest", *DERIVED, *(item.name for item in fields(Certificate))]
)


def test_the_fields_are_those_that_are_written():
    """The tests below change every field there is."""
    assert (
        sorted(written(random_layered(6, 2, 0), Placement(np.zeros(6, dtype=np.int64)))) == FIELDS
    )


@pytest.mark.parametrize("key", FIELDS)
def test_every_changed_field_is_noticed(key):
    """Whatever is changed in a certificate, it is refused or reported; unchanged it holds."""
    problem, placement = random_layered(6, 2, 0), Placement(np.zeros(6, dtype=np.int64))
    data = written(problem, placement)
    assert recheck(data, problem, placement, seconds=0) == []
    assert noticed({**data, key: tampered(data[key])}, problem, placement)
    assert noticed({name: value for name, value in data.items() if name != key}, problem, placement)


@pytest.mark.parametrize(
    "key",
    [
        "problem",
        "problem_hash",
        "names_hash",
        "solution_hash",
        "objective",
        "violations",
        "value",
        "queue",
        "lower_bound",
        "bounds",
        "better",
        "problem_infeasible",
        "tick_seconds",
        "status",
        "gap",
        "seconds",
        "feasible",
    ],
)
def test_a_new_digest_does_not_hide_a_forgery(key):
    """Whoever forges a claim and its digest too is found out by what is computed again."""
    problem, placement = random_layered(6, 2, 0), Placement(np.zeros(6, dtype=np.int64))
    data = written(problem, placement)
    forged = {**data, key: tampered(data[key]) if key != "better" else data["value"] + 3}
    if key == "bounds":
        forged[key] = {**data["bounds"], data["bound_method"]: data["value"] + 1}
    forged["digest"] = digest({name: value for name, value in forged.items() if name != "digest"})
    assert noticed(forged, problem, placement)


def test_the_names_are_certified():
    """A certificate does not hold for a problem whose ops have swapped their names."""
    problem, placement = random_layered(6, 2, 0), Placement(np.zeros(6, dtype=np.int64))
    data = written(problem, placement)
    renamed = problem.replace(op_names=tuple(reversed(problem.op_names)))
    assert "another problem" in recheck(data, renamed, placement, seconds=0)[-1]


def test_a_result_is_verified_in_its_own_execution():
    """A value proved in planned execution is verified in it, from the Result and from its file."""
    problem = PlacementProblem.from_edges(
        [[1, 1], [9, 99], [1, 99], [20, 20]], [(0, 2, 1), (2, 3, 0)]
    )
    start = Placement([1, 0, 0, 1], priority=[0, 2, 1, 3])
    result = run(problem, make_solver("single-device"), Budget(seconds=20), initial=start)
    assert result.queue == "planned"
    found = verify(problem, result, seconds=0)
    assert (found.value, found.queue) == (result.value, result.queue)


def test_a_result_of_another_problem_is_refused():
    """A result says which problem it solves; verifying it for another one is a mistake."""
    first, second = random_layered(6, 2, 0), random_layered(6, 2, 1)
    result = run(first, make_solver("heft"), Budget(seconds=5))
    with pytest.raises(InputError, match="another problem"):
        verify(second, result, seconds=0)


@pytest.mark.parametrize("solver", ["1f1b", "repetend"])
def test_pipelines_are_verified(solver):
    """A schedule of a pipeline is judged, valued and bounded; a late block is a violation."""
    problem = load_pipeline("shape:V?devices=2&memory=2")
    result = run(problem, make_solver(solver, "pipeline"), Budget(seconds=20))
    report = verify(problem, result, seconds=1)
    assert report.feasible
    assert (report.value, report.status) == (
        result.value,
        "optimal" if result.value == report.lower_bound else "feasible",
    )
    assert recheck(json.loads(json.dumps(report.to_dict())), problem, result, seconds=1) == []


def test_a_solution_of_another_type_is_one_line():
    """A placement is no schedule of a pipeline."""
    with pytest.raises(InputError, match="expected a schedule of pipeline") as refusal:
        verify(load_pipeline("shape:V?devices=2"), Placement([0, 0]), seconds=0)
    assert "\n" not in str(refusal.value)


def test_known_optimum_without_search(data):
    """Where the combinatorial bound is tight no CP-SAT time is needed."""
    problem = doppler(data, "ffnn")
    best = make_solver("edge-zeroing").solve(problem, Budget(seconds=10), seed=0)
    report = verify(problem, best.solution, seconds=5, queue=best.queue)
    assert (report.status, report.bound_method) == ("optimal", "load")


def test_a_result_with_another_value_is_refused(problem, tmp_path):
    """A result whose solution has another value than it claims is no result, from a file either."""
    placement = Placement(np.zeros(problem.num_ops, dtype=np.int64))
    result = run(problem, make_solver("single-device"), Budget(seconds=5), initial=placement)
    assert verify(problem, result, seconds=0).value == result.value
    false = replace(result, value=result.lower_bound, status="optimal")
    with pytest.raises(
        InputError, match=f"claims {result.lower_bound} ticks .* has {result.value}"
    ):
        verify(problem, false, seconds=0)
    save(false, tmp_path / "false.json")
    with pytest.raises(InputError, match=f"claims {result.lower_bound} ticks"):
        verify(problem, tmp_path / "false.json", seconds=0)


def test_names_are_part_of_a_named_problem():
    """Ops or devices with other names make another problem; those without names have none to differ
    in.
    """
    plain = PlacementProblem.from_edges([[1, 2], [2, 1]], [(0, 1, 1)])
    named = plain.replace(op_names=("a", "b"))
    assert plain.hash == plain.replace(op_names=("op0", "op1")).hash
    assert (
        len(
            {
                plain.hash,
                named.hash,
                plain.replace(op_names=("b", "a")).hash,
                plain.replace(device_names=("a", "b")).hash,
            }
        )
        == 4
    )


def test_an_interruption_of_the_bounds_ends_the_proof(problem, monkeypatch):
    """After Ctrl-C the bounds that take milliseconds are certified, and no search begins."""
    objective = type(objective_of(problem))
    bounds = objective.bounds

    def interrupted(self, problem, seconds, *args, **named):
        if seconds > 0:
            raise KeyboardInterrupt
        return bounds(self, problem, seconds, *args, **named)

    monkeypatch.setattr(objective, "bounds", interrupted)
    monkeypatch.setattr(
        "placeopt.certify.verify.run", lambda *_, **__: pytest.fail("a search began")
    )
    report = verify(problem, Placement(np.zeros(problem.num_ops, dtype=np.int64)), seconds=20)
    assert report.value >= report.lower_bound > 0


@pytest.mark.parametrize(
    "given",
    [
        [0, 1, 0],
        np.array([0, 1, 0]),
        {"a": 0, "b": 1, "c": 0},
        {"a": "device0", "b": "device1", "c": "device0"},
        {0: 0, 1: 1, 2: 0},
        dict(zip("abc", np.array([0, 1, 0]), strict=True)),
        dict(zip(np.arange(3), np.array([0, 1, 0], np.uint8), strict=True)),
        {"device": [0, 1, 0]},
        {"device": (0, 1, 0), "priority": np.array([0, 1, 2])},
        {"device": {"a": 0, "b": 1, "c": 0}, "priority": {"a": 0, "b": 1, "c": 2}},
    ],
    ids=lambda given: f"{type(given).__name__}",
)
def test_a_placement_as_a_list_or_a_mapping(given):
    """What another program holds is verified, and started from, as it is."""
    graph = nx.DiGraph([("a", "b"), ("a", "c")])
    nx.set_node_attributes(graph, 5, "time")
    problem = po.load(graph, "uniform:2")
    assert po.verify(problem, given, seconds=0.1).value == 10
    assert po.solve(problem, "random", evaluations=2, initial=given).value == 10


def test_labels_of_a_series_win_over_its_order_and_a_tensor_is_a_list():
    """What pandas holds is taken by its index, by evaluate too, which took it by position; a tensor
    is an array.
    """
    graph = nx.DiGraph([("a", "b"), ("a", "c")])
    nx.set_node_attributes(graph, dict(zip("abc", (5, 7, 1), strict=True)), "time")
    problem = po.load(graph, "uniform:2")
    series = pytest.importorskip("pandas").Series([1, 0, 0], index=["c", "a", "b"])

    class Tensor:
        def __array__(self, *options, **more):
            return np.array([0, 0, 1])

    for given in (series, series.map("device{}".format), Tensor()):
        assert po.verify(problem, given, seconds=0.1).value == 12
        assert po.solve(problem, "random", evaluations=1, initial=given).value == 12
        assert po.evaluate(problem, given).makespan == 12
    assert po.evaluate(problem, dict(series)).makespan == 12


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([0, 1], "expected 3 ops of problem .*, received 2"),
        ([0, 1, 2], r"op 'c': expected a device in 0\.\.1, received 2"),
        ({"a": 0, "b": 1}, "op 'c' has no device"),
        ({"a": 0, "b": 1, "d": 0}, "op 'd' is not in problem"),
        (5, "expected a Placement, .* received int"),
        (None, "received NoneType"),
    ],
)
def test_what_is_no_placement_is_one_line(given, words):
    """A list of another length, an unknown op and another object say what is expected."""
    problem = po.load(nx.DiGraph([("a", "b"), ("a", "c")]), "uniform:2")
    with pytest.raises(InputError, match=words):
        po.verify(problem, given)


def test_what_a_forged_certificate_says_is_one_line(problem):
    """Texts of a certificate bring neither lines nor escape codes of their own to the terminal."""
    placement = Placement(np.zeros(12, dtype=np.int64))
    data = written(problem, placement)
    data["problem_hash"] = "x\naccepted\x1b[2J"
    found = recheck(data, problem, placement, seconds=0.0)
    assert "about another problem: hash x accepted" in found[-1]
    assert not any("\n" in line or "\x1b" in line for line in found)


@pytest.fixture(scope="module")
def fractional():
    """A pipeline whose period per micro-batch, and a bound on it, are no whole numbers of ticks."""
    problem = load_pipeline("shape:V?devices=4&memory=3")
    result = run(problem, make_solver("repetend", "pipeline", size=3), Budget(seconds=20))
    assert result.value.denominator == 3
    return problem, result


def test_fractions_are_certified(fractional):
    """Values and bounds that are no whole numbers of ticks are written and read exactly."""
    problem, result = fractional
    report = verify(problem, result, seconds=1)
    assert report.value == result.value
    assert any(bound.denominator > 1 for bound in report.bounds.values())
    data = json.loads(json.dumps(report.to_dict()))
    assert Certificate.from_dict(data) == report
    assert recheck(data, problem, result, seconds=1) == []
    assert "received '16'" in refusal({**data, "bounds": {"load": "16"}})


def refusal(data):
    """Return the words in which a certificate is refused."""
    with pytest.raises(InputError) as error:
        Certificate.from_dict(data)
    return str(error.value)


@pytest.mark.parametrize("value", [1, 4.0])
def test_a_number_beside_its_exact_value_is_that_value(fractional, value):
    """Whoever reads only the plain number of a certificate reads no other one."""
    problem, result = fractional
    data = verify(problem, result, seconds=0).to_dict()
    forged = {key: x for key, x in {**data, "value": value}.items() if key != "digest"}
    forged["digest"] = digest(forged)
    found = recheck(json.loads(json.dumps(forged)), problem, result, seconds=0)
    assert any(f"value: certified {value}" in line for line in found)


@pytest.mark.parametrize("key", ["value", "lower_bound", "better", "tick_seconds", "runtime"])
def test_numbers_of_a_certificate_have_an_end(problem, key):
    """A number that no problem has is refused, not reckoned with."""
    data = written(problem, Placement(np.zeros(12, dtype=np.int64)))
    assert f"'{key}' has the wrong type" in refusal({**data, key: 10**400})


def test_a_proof_of_a_pattern_says_of_how_much_its_bound_is(fractional, tmp_path, capsys):
    """The bound of a whole pattern is told beside its value, not beside one of a micro-batch."""
    problem, result = fractional
    save(result, tmp_path / "r.json")
    proof = ["--proof", str(tmp_path / "p.json")]
    with pytest.raises(SystemExit):
        main(["verify", "shape:V?devices=4&memory=3", str(tmp_path / "r.json"), "-t", "1", *proof])
    bound = problem.work.max() * result.solution.pattern.size
    said = f"shows the bound {bound} ns of {result.solution.pattern.period} ns for a whole pattern"
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_bound_is_not_credited_to_a_weaker_method(problem):
    """What another method proves is no excuse for a false number beside one that needs no time."""
    placement = make_solver("heft").solve(problem, Budget(seconds=5), seed=0).solution
    honest = verify(problem, placement, seconds=0)
    assert honest.bounds["critical-path"] < honest.lower_bound
    false = {**honest.bounds, "critical-path": honest.lower_bound}
    forged = replace(honest, bounds=false, bound_method="critical-path")
    (said,) = recheck(forged, problem, placement, seconds=0)
    assert said.startswith(f"bound critical-path: certified {honest.lower_bound}")


class Plain:
    """A solution that is no dataclass."""

    def __init__(self, order):
        self.order = order


@pytest.mark.parametrize("kind", [list, tuple, np.array, Plain, lambda x: Plain(np.array(x))])
def test_solutions_of_any_class_are_told_apart(kind):
    """A certificate of one does not hold for another one of the same class and value."""
    first, again, other = kind([1, 2]), kind([1, 2]), kind([2, 1])
    assert solution_hash(first) == solution_hash(again) != solution_hash(other)


@dataclass
class Mixed:
    """A solution of another package: arrays beside numbers, texts and objects."""

    content: object
    more: object = 0


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (Mixed(np.array([1]), 1), Mixed(np.array([1]), 2)),
        (Mixed(np.array([0.3])), Mixed(np.array([0.7]))),
        (Mixed(np.array(["a"])), Mixed(np.array(["b"]))),
        (Mixed(np.array([2**70], object)), Mixed(np.array([2**71], object))),
        (Mixed([np.arange(5000)]), Mixed([np.arange(5000) % 2500])),
        (Mixed([Plain(1)]), Mixed([Plain(2)])),
        (Mixed({"a": {1}}), Mixed({"a": {2}})),
        (Mixed([1, 23]), Mixed([12, 3])),
    ],
)
def test_all_of_a_solution_is_hashed(first, other):
    """Of a solution with an array nothing else counted, and of an array whole numbers alone."""
    assert solution_hash(first) == solution_hash(deepcopy(first)) != solution_hash(other)


def test_what_holds_itself_is_hashed_once():
    """A solution that knows its list, which knows the solution."""
    one, other = Mixed([1]), Mixed([2])
    for each in (one, other):
        each.content.append(each)
    assert solution_hash(one) == solution_hash(deepcopy(one)) != solution_hash(other)


def test_numbers_of_numpy_are_numbers():
    """A solution that was written and read is the same one."""
    written = Mixed(np.int32(3), (np.float32(0.5), np.array([1], np.uint8)))
    assert solution_hash(written) == solution_hash(Mixed(3, (0.5, np.array([1]))))


def test_the_pattern_of_a_schedule_is_hashed():
    """What a schedule of a pipeline repeats decides its value."""
    problem = load_pipeline("shape:V?devices=2&memory=2")
    schedule = run(problem, make_solver("1f1b", "pipeline"), Budget(seconds=5)).solution
    pattern = schedule.pattern
    one = PipelineSchedule(problem, schedule.start, pattern)
    slower = PipelineSchedule(problem, schedule.start, Repetend(pattern.period + 5, pattern.start))
    assert solution_hash(one) == solution_hash(replace(one, makespan_bound=10**6))
    assert solution_hash(one) != solution_hash(slower)


def test_costs_beyond_64_bits_are_written_and_read(tmp_path):
    """Costs of sharding are added up in Python's integers; a result and a certificate of more than
    2^63 are read again.
    """
    none = np.zeros(0, np.int64)
    problem = ShardingProblem(
        name="huge",
        node_ptr=np.arange(4),
        cost=np.full(3, 2**62 - 1),
        usage=np.zeros(3, np.int64),
        interval=np.zeros((3, 2), np.int64),
        edge=none.reshape(0, 2),
        edge_cost=none,
    )
    result = po.solve(problem, evaluations=1)
    save(result, tmp_path / "result.json")
    assert load(tmp_path / "result.json").value == result.value == 3 * (2**62 - 1)
    report = verify(problem, result, seconds=0)
    data = json.loads(json.dumps(report.to_dict()))
    assert Certificate.from_dict(data) == report
    assert recheck(data, problem, result, seconds=0) == []
