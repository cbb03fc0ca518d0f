"""JSON of every object: round trips, versions, and one line for what is wrong."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from placeopt.io import serialize
from placeopt.model.cluster import Cluster, Device, Link
from placeopt.model.errors import InputError
from placeopt.model.files import write_text
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement, Schedule
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget, Result, TracePoint


def same(a: Any, b: Any) -> bool:
    """Whether two objects have equal fields, arrays and nested objects included."""
    assert type(a) is type(b)
    for key in a.__dataclass_fields__:
        x, y = getattr(a, key), getattr(b, key)
        if isinstance(x, np.ndarray):
            if not (x.dtype == y.dtype and np.array_equal(x, y)):
                return False
        elif hasattr(x, "__dataclass_fields__"):
            if not same(x, y):
                return False
        elif x != y:
            return False
    return True


def full_graph() -> OpGraph:
    """Return a graph that uses every field."""
    return OpGraph.from_tensors(
        "full ☃",
        ["a", 'b "quoted"', "c\\d"],
        [(0, 8, [1, 2]), (1, 0, [2]), (2, 5, [])],
        op_types=("Conv", "", "Add"),
        layer=("x/1", "", "x/2"),
        flops=np.array([1, 2**60, 0]),
        bytes_moved=np.array([4, 5, 6]),
        resident=np.array([7, 0, 0]),
        parameters=np.array([1, 2, 3]),
        colocation=np.array([-1, 4, 4]),
        backward=np.array([False, True, False]),
        meta=np.array([0, -1, 0]),
        unshaped=np.array([False, False, True]),
        measured_kinds=("cpu", "*"),
        measured=np.array([[1, -1], [-2, 3], [0, 0]]),
        measured_transfer=np.array([-1, 4, 0]),
        shapes=((2, 4), (), (5,)),
        tick_seconds=1e-10,
    )


def full_cluster() -> Cluster:
    """Return a cluster of two different devices."""
    devices = (
        Device("g0", "A100", "gpu", 1.5e13, 1.6e12, 2**35, 5e-6),
        Device("c", "cpu", "cpu", 1e12, 1e11),
    )
    return Cluster(
        "mixed",
        devices,
        (Link("pcie", 1e-6, 16e9),),
        np.zeros((2, 2)),
        np.array([[-1, 0], [1, -1]]),
    )


def full_problem() -> PlacementProblem:
    """Return a problem that uses every field."""
    return PlacementProblem(
        name="p",
        compute=np.array([[1, 2], [3, -1], [4, 5]]),
        producer=np.array([0]),
        consumer_ptr=np.array([0, 2]),
        consumer=np.array([1, 2]),
        transfer=np.array([[7, 8]]),
        link_class=np.array([[0, 1], [0, 0]]),
        channel=np.array([[-1, 0], [1, -1]]),
        resident=np.array([1, 2, 3]),
        capacity=np.array([10, 20]),
        colocation=np.array([0, -1, 0]),
        tensor_bytes=np.array([64]),
        memory="peak",
        tick_seconds=1e-6,
        objective="period",
        contiguity="convex",
        pipeline="gpipe",
        backward=np.array([False, False, True]),
        io_class=np.array([0, -1]),
        slots=2,
        meta=np.array([0, 0, -1]),
        op_names=("a", "b", "c"),
        op_types=("A", "", "C"),
        device_names=("x", "y"),
    )


def full_result(solution: Any = None) -> Result[Any]:
    """Return a result with a trace, with or without a solution."""
    return Result(
        problem="p",
        solver="cp-sat",
        solution=solution,
        value=None if solution is None else 12,
        lower_bound=9,
        bound_method="load",
        status="unknown" if solution is None else "feasible",
        stop_reason="time",
        evaluations=17,
        runtime=0.25,
        seed=3,
        queue="" if solution is None else "planned",
        message="stopped early",
        tick_seconds=1e-6,
        trace=(TracePoint(0.1, 5, None, 0), TracePoint(0.2, 17, 12, 9)),
    )


PLACEMENT = Placement(np.array([0, 1, 0]), np.array([2, 0, 1]))
SCHEDULE = Schedule(*(np.array(x) for x in ([0, 1], [0, 5], [2, 9], [0], [1], [2], [5])))
OBJECTS = {
    "opgraph": full_graph(),
    "cluster": full_cluster(),
    "problem": full_problem(),
    "placement": PLACEMENT,
    "placement without ranks": Placement(np.array([1, 1])),
    "schedule": SCHEDULE,
    "budget": Budget(1.5, None, 7),
    "result": full_result(PLACEMENT),
    "result without solution": full_result(),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_round_trip_through_a_file_keeps_every_field(name, tmp_path):
    """What is saved is what is loaded, for every kind of object and every field of it."""
    path = serialize.save(OBJECTS[name], tmp_path / "sub" / "object.json")
    loaded = serialize.load(path)
    if name.startswith("placement"):
        assert loaded == OBJECTS[name]
    else:
        assert same(loaded, OBJECTS[name])
    assert json.loads(path.read_text())["version"] == (2 if name.startswith("result") else 1)


def test_result_carries_the_published_fields():
    """A result in JSON has the fields that scripts rely on, with the value in ticks and in
    seconds.
    """
    data = serialize.to_dict(full_result(PLACEMENT))
    expected = {
        "problem": "p",
        "solver": "cp-sat",
        "objective": "makespan",
        "value": 12,
        "lower_bound": 9,
        "bound_method": "load",
        "gap": 0.25,
        "status": "feasible",
        "stop_reason": "time",
        "evaluations": 17,
        "runtime": 0.25,
        "seed": 3,
        "queue": "planned",
        "message": "stopped early",
    }
    assert expected.items() <= data.items()
    assert data["seconds"] == pytest.approx(12e-6)
    assert data["solution"]["device"] == [0, 1, 0]


@given(data=st.data())
def test_random_graphs_round_trip(data):
    """Any graph survives to_dict, JSON text and from_dict unchanged."""
    n = data.draw(st.integers(1, 6))
    tensors = []
    for u in range(n - 1):
        consumers = data.draw(st.lists(st.integers(u + 1, n - 1), max_size=3, unique=True))
        tensors.append((u, data.draw(st.integers(0, 2**50)), consumers))
    names = data.draw(st.lists(st.text(max_size=5), min_size=n, max_size=n, unique=True))
    graph = OpGraph.from_tensors("g", names, tensors, flops=np.arange(n))
    text = json.dumps(serialize.to_dict(graph))
    assert same(serialize.from_dict(json.loads(text), "opgraph"), graph)


@pytest.mark.parametrize("classes", [0, 1, 2])
def test_a_problem_without_tensors_round_trips(classes):
    """The empty tables of a problem without edges keep their shape, however many classes of links
    there are, and so its hash.
    """
    problem = PlacementProblem.from_edges([[1, 2]], [])
    problem = problem.replace(transfer=np.zeros((0, classes), np.int64))
    found = serialize.from_dict(serialize.to_dict(problem))
    assert same(found, problem)
    assert found.hash == problem.hash


GRAPH = serialize.to_dict(full_graph())
PROBLEM = serialize.to_dict(full_problem())
RESULT = serialize.to_dict(full_result(PLACEMENT))


def changed(data: dict[str, Any], *path: Any, to: Any = None) -> dict[str, Any]:
    """Return a deep copy of `data` with one entry changed; removed where `to` is ...."""
    copy = json.loads(json.dumps(data))
    at = copy
    for key in path[:-1]:
        at = at[key]
    if to is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return copy


MALFORMED = {
    "no object": ([1], "expected a JSON object"),
    "no format": ({}, '"format": expected one of'),
    "foreign format": (changed(GRAPH, "format", to="other/graph"), '"format"'),
    "unknown kind": (changed(GRAPH, "format", to="placeopt/cake"), "is not known"),
    "newer version": (changed(GRAPH, "version", to=2), '"version": expected 1..1, received 2'),
    "version of wrong type": (changed(GRAPH, "version", to="1"), '"version"'),
    "missing part": (changed(GRAPH, "tensors", to=...), '"tensors" is missing'),
    "part of wrong type": (changed(GRAPH, "ops", to=[]), '"ops": expected an object'),
    "name of wrong type": (changed(GRAPH, "ops", "name", 0, to=5), '"name[0]": expected a string'),
    "text for a number": (
        changed(GRAPH, "ops", "flops", 1, to="x"),
        "[1]: expected a whole number",
    ),
    "real for a whole number": (changed(GRAPH, "ops", "flops", 1, to=1.5), "received 1.5"),
    "truth value for a number": (changed(GRAPH, "ops", "flops", 1, to=True), "received true"),
    "column too short": (changed(GRAPH, "ops", "flops", to=[1]), "flops: expected shape"),
    "huge number": (changed(GRAPH, "ops", "flops", 0, to=2**70), "64 bits"),
    "dangling consumer": (changed(GRAPH, "tensors", "consumers", 0, to=[9]), "op indices in 0..2"),
    "consumers no list": (
        changed(GRAPH, "tensors", "consumers", 0, to=1),
        "expected a list of op indices",
    ),
    "cycle": (changed(GRAPH, "tensors", "consumers", 2, to=[0]), "cycle"),
    "duplicate op": (changed(GRAPH, "ops", "name", 1, to="a"), "'a' occurs twice"),
    "negative bytes": (changed(GRAPH, "tensors", "bytes", 0, to=-1), "expected >= 0"),
    "bad shape": (changed(GRAPH, "tensors", "shape", 0, to=["x"]), '"shape[0]"'),
    "measured column": (
        changed(GRAPH, "measured", "ticks", to=[[1, 2, 3]]),
        "one list of ticks per kind",
    ),
    "bad flag": (changed(GRAPH, "ops", "backward", 0, to=7), "expected true or false"),
    "ragged table": (changed(PROBLEM, "compute", 0, to=[1]), "[1]: expected a row of 1 numbers"),
    "zero devices": (changed(PROBLEM, "compute", to=[[], [], []]), "at least one device"),
    "unknown objective": (changed(PROBLEM, "objective", to="speed"), "objective: expected one of"),
    "unknown status": (changed(RESULT, "status", to="great"), "status: expected one of"),
    "value missing": (changed(RESULT, "value", to=...), "both a solution and a value"),
    "false gap": (
        changed(RESULT, "gap", to=0.0),
        '"gap": expected 0.25, which value and bound give, received 0.0',
    ),
    "gap of wrong type": (changed(RESULT, "gap", to="0.25"), '"gap": expected 0.25'),
    "false seconds": (changed(RESULT, "seconds", to=1.0), '"seconds": expected 1.2e-05'),
    "false optimality": (changed(RESULT, "status", to="optimal"), '"status": expected feasible'),
    "infeasible with a solution": (
        changed(RESULT, "status", to="infeasible"),
        '"status": expected feasible',
    ),
    "bound above the value": (changed(RESULT, "lower_bound", to=13), "exceeds the value"),
    "hidden optimum": (changed(RESULT, "lower_bound", to=12), '"gap": expected 0.0'),
    "bad trace": (changed(RESULT, "trace", 0, to=[1, 2]), '"trace[0]"'),
    "solution of wrong format": (changed(RESULT, "solution", "format", to=3), '"solution"'),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_objects_give_one_line(case):
    """Wrong formats, versions, types, lengths and values are refused in one line that names the
    place.
    """
    data, part = MALFORMED[case]
    with pytest.raises(InputError) as error:
        serialize.from_dict(data, where="file 'x.json'")
    text = str(error.value)
    assert part in text
    assert "file 'x.json'" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "truncated JSON"),
        ('{"format": "placeopt/opg', "truncated JSON"),
        ('{"format": 1,}', "not valid JSON"),
        ('{"format": NaN}', "expected finite numbers"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 10_000 + "}", "not valid JSON"),
    ],
)
def test_damaged_files_give_one_line(text, part, tmp_path):
    """Truncated, invalid, non-finite, deeply nested and absurd JSON is refused in one line."""
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=part) as error:
        serialize.load(path)
    assert "\n" not in str(error.value)


def test_another_kind_than_expected_is_refused(tmp_path):
    """Loading a placement where a graph is expected says so."""
    path = serialize.save(PLACEMENT, tmp_path / "x.json")
    with pytest.raises(
        InputError, match='expected "placeopt/opgraph", received "placeopt/placement"'
    ):
        serialize.load(path, "opgraph")


def test_objects_without_a_form_are_refused():
    """An object of an unknown class has no JSON form."""
    with pytest.raises(InputError, match="no JSON form for int"):
        serialize.to_dict(3)


def test_writing_is_atomic(tmp_path, monkeypatch):
    """A write that fails half-way leaves the old file and no temporary one."""
    path = serialize.save(PLACEMENT, tmp_path / "x.json")
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="cannot be written: No space left"):
        serialize.save(Placement(np.zeros(5)), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_what_is_no_plain_file_stays_what_it_is(tmp_path):
    """A link goes on to show where it did, and a pipe does not become a file."""
    real, link, pipe = (tmp_path / name for name in ("real.json", "link.json", "pipe"))
    link.symlink_to(real)
    for text in ("old", "new"):
        write_text(link, text)
        assert (real.read_text(), link.is_symlink()) == (text, True)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    write_text(pipe, "text")
    assert (os.read(reader, 9), pipe.is_fifo()) == (b"text", True)
    os.close(reader)


def test_a_kind_belongs_to_one_class(monkeypatch):
    """Nobody's class takes the place of another one; a notebook's cell may run twice."""
    monkeypatch.setattr(serialize, "_by_kind", dict(serialize._by_kind))
    monkeypatch.setattr(serialize, "_by_class", dict(serialize._by_class))

    def tour():
        return type("Tour", (), {"__module__": "__main__"})

    for cls in (tour(), tour()):
        serialize.register(serialize.Codec("tour", cls, vars, vars))
        assert serialize.to_dict(cls())["format"] == "placeopt/tour"
    for kind in ("placement", "tour"):
        with pytest.raises(InputError, match=f"'{kind}' is (Placement|Tour)'s"):
            serialize.register(serialize.Codec(kind, Budget, vars, vars))


def test_too_large_files_are_not_read(tmp_path):
    """A file beyond the limit is refused by its size, before a byte is read."""
    path = tmp_path / "x.json"
    with path.open("wb") as file:
        file.truncate(2**33)  # a hole: takes no room
    with pytest.raises(InputError, match="more than the limit"):
        serialize.load(path)


@pytest.mark.parametrize(
    "key", ["value", "lower_bound", "bound_method", "solver", "problem_hash", "queue", "solution"]
)
def test_a_changed_result_is_refused(key):
    """Whatever a result claims is under its digest."""
    data = json.loads(json.dumps(serialize.to_dict(full_result(PLACEMENT))))
    assert serialize.from_dict(data).value == 12
    changed = {"value": 11, "lower_bound": 8, "solution": {**data["solution"], "device": [0, 0, 0]}}
    data[key] = changed.get(key, "other")
    data["gap"] = (data["value"] - data["lower_bound"]) / data["value"]
    data["seconds"] = data["value"] * 1e-6
    with pytest.raises(InputError, match="changed after it was written"):
        serialize.from_dict(data)
    with pytest.raises(InputError, match="digest"):
        serialize.from_dict({name: value for name, value in data.items() if name != "digest"})


def test_numbers_of_numpy_are_written():
    """A device whose bytes were reckoned with numpy has the JSON of one whose were not."""
    devices = [
        Device("d", "d", "gpu", 1e12, 1e11, memory=number(2**34)) for number in (int, np.int64)
    ]
    links = (Link("l", 0.0, 1e9),)
    plain, other = (serialize.to_text(Cluster("c", (device,), links)) for device in devices)
    assert plain == other
