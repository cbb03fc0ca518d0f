"""`--memory-limit`: bytes with a unit, per device, of what lives at the peak."""

from __future__ import annotations

import json

import numpy as np
import pytest

import placeopt as po
from placeopt.cli import main
from placeopt.makespan.evaluate import evaluate
from placeopt.model.errors import InputError
from placeopt.model.objective import objective_of
from placeopt.model.sizes import device_limits, parse_bytes

SOURCE = "gen:llama-block"


@pytest.fixture
def command(capsys):
    """Return how to run a command: exit code and what it printed, lines joined."""

    def run(*words):
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return stop.value.code, " ".join((said.out + said.err).split())

    return run


def pair(resident, tensor, capacity, memory="static"):
    """Return two ops in a row on one device."""
    return po.PlacementProblem.from_arrays(
        compute=np.ones((2, 1), dtype=np.int64),
        producer=[0],
        consumer_ptr=[0, 1],
        consumer=[1],
        transfer=[[1]],
        resident=resident,
        tensor_bytes=[tensor],
        capacity=[capacity],
        memory=memory,
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GiB", 2**34), ("1.5KiB", 1536), ("800MB", 800 * 10**6), ("7B", 7), ("2e3KB", 2 * 10**6)],
)
def test_sizes_have_units(text, size):
    """Binary and decimal units mean what they say."""
    assert parse_bytes(text, "--memory-limit") == [size]


@pytest.mark.parametrize(
    "text", ["16", "16G", "GiB", "-4GiB", "0GiB", "16 gib", "1e30GiB", "4GiB,"]
)
def test_a_size_without_a_unit_is_refused(text):
    """A bare number could be GiB or bytes: the message shows how to write it."""
    with pytest.raises(
        InputError, match=r"--memory-limit: expected bytes per device such as 16GiB"
    ):
        parse_bytes(text, "--memory-limit")


def test_one_size_for_all_or_one_each():
    """Every other number of sizes is refused."""
    assert device_limits("1GiB", 3) == (2**30,) * 3
    assert device_limits("1GiB,2GiB", 2) == (2**30, 2**31)
    assert device_limits([5, 6], 2) == (5, 6)
    assert device_limits(np.array([5, 6]), 2) == (5, 6)
    assert device_limits(["1GiB", "2GiB"], 2) == (2**30, 2**31)
    with pytest.raises(InputError, match="one for each of 3 devices, received 2"):
        device_limits("1GiB,2GiB", 3)


def test_a_limit_counts_live_tensors():
    """`load` replaces the cluster's memory and bounds the peak; solutions keep to it."""
    free = po.load(SOURCE, "4xA100")
    alone = po.solve(free, "single-device", evaluations=1)
    peak = int(evaluate(free, alone.solution).peak_memory.max())
    problem = po.load(SOURCE, "4xA100", memory_limit=peak - 1)
    assert problem.memory == "peak"
    assert (problem.capacity == peak - 1).all()
    result = po.solve(problem, evaluations=300)
    assert result.solution is not None
    assert (evaluate(problem, result.solution, result.queue).peak_memory < peak).all()


@pytest.mark.parametrize("objective", ["period", "latency"])
def test_pipelines_count_weights(objective):
    """A pipeline has no single peak: its limit bounds what stays."""
    problem = po.load(SOURCE, "4xA100", memory_limit="1GiB", objective=objective)
    assert problem.memory == "static"
    assert (problem.capacity == 2**30).all()


def test_a_saved_problem_takes_a_limit():
    """The limit replaces the capacities of the problem."""
    problem = po.load(po.load(SOURCE, "4xA100"), memory_limit="2GiB,1GiB,1GiB,1GiB")
    assert problem.capacity.tolist() == [2**31, 2**30, 2**30, 2**30]


@pytest.mark.parametrize("name", ["solve", "evaluate", "verify"])
def test_a_device_over_its_limit_is_never_silent(command, name, tmp_path):
    """Static memory that is feasible warns where the peak passes the limit."""
    path, file = tmp_path / "problem.json", tmp_path / "placement.json"
    from placeopt.io.serialize import save

    save(pair([5 * 2**30, 5 * 2**30], 2**30, 10 * 2**30), path)
    file.write_text(json.dumps({"device": {"0": 0, "1": 0}}))
    words = (name, path) if name == "solve" else (name, path, file)
    code, said = command(*words, *(("-t", "1", "-s", "heft") if name == "solve" else ()))
    assert code == 0
    assert "warning: does not fit: " in said
    assert "peaks at 11 GiB, 1 GiB over its 10 GiB (weights 10 GiB + live tensors 1 GiB)" in said


def test_what_does_not_fit_is_one_sentence(command, tmp_path):
    """How much is missing, where, and what helps; for weights alone and for live tensors."""
    from placeopt.io.serialize import save

    path = tmp_path / "problem.json"
    save(pair([6 * 2**30, 6 * 2**30], 1, 10 * 2**30), path)
    code, said = command("solve", path, "-t", "1", "-s", "heft")
    assert code == 1
    assert "2 GiB are missing; give more devices, or raise --memory-limit" in said
    save(pair([4 * 2**30, 4 * 2**30], 3 * 2**30, 10 * 2**30, "peak"), path)
    code, said = command("solve", path, "-t", "1", "-s", "heft")
    assert code == 1
    assert "peaks at 11 GiB, 1 GiB over its 10 GiB" in said
    assert "raise --memory-limit, add devices, or use smaller inputs" in said


@pytest.mark.parametrize(
    "words",
    [
        ("solve", SOURCE, "-c", "4xA100"),
        ("bound", SOURCE, "-c", "4xA100"),
        ("evaluate", SOURCE, "placement.json", "-c", "4xA100"),
        ("verify", SOURCE, "placement.json", "-c", "4xA100"),
        ("schedule", "gen:gpt2?layers=2", "-c", "4xA100"),
        ("shard", "gen:llama?layers=1"),
        ("plan", "gen:gpt2?layers=2", "-c", "4xA100"),
        ("run", SOURCE, "solver:heft", "-c", "4xA100"),
    ],
)
def test_every_command_with_a_cluster_takes_it(command, words):
    """A number without a unit is refused by each, in the same words."""
    code, said = command(*words, "--memory-limit", "16")
    assert code == 2
    assert "expected bytes per device such as 16GiB" in said


@pytest.mark.parametrize(("limit", "possible"), [(10, True), (9, False)])
@pytest.mark.parametrize("ticks", [5, 0])
def test_an_op_whose_tensors_have_no_room_is_named(limit, possible, ticks):
    """An op of 1 byte with inputs of 2 and 3 and an output of 4 needs 10 while it runs; the message
    says what is missing. An op that takes no time holds nothing for any time.
    """
    problem = po.PlacementProblem(
        name="wide",
        compute=np.array([[5, 5], [5, 5], [ticks, ticks], [5, 5]]),
        producer=np.array([0, 1, 2]),
        consumer_ptr=np.array([0, 1, 2, 3]),
        consumer=np.array([2, 2, 3]),
        transfer=np.ones((3, 1), dtype=np.int64),
        resident=np.array([0, 0, 1, 0]),
        tensor_bytes=np.array([2, 3, 4]),
        capacity=np.array([limit, limit]),
        memory="peak",
    )
    reason = objective_of(problem).impossible(problem)
    if possible or not ticks:
        assert reason == ""
    else:
        assert "op 'op2' holds 10 B while it runs" in reason
        assert "1 B more than any compatible device has" in reason
        assert po.solve(problem, "cp-sat", seconds=5).status == "infeasible"
