"""Placement files by name or index, JSON or CSV, and what is said about wrong ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

import placeopt as po
from placeopt.io import serialize
from placeopt.io.placement_file import placement_of, read_placement, read_queue, write_placement
from placeopt.model.errors import InputError
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Result


def problem() -> PlacementProblem:
    """Return three ops on two devices; one op is called like a number, one like a sentence."""
    return PlacementProblem.from_edges(
        [[1, 1], [2, 2], [3, 3]],
        [(0, 1, 5)],
        op_names=("conv/1", "2", 'a, "b"'),
        device_names=("gpu0", "gpu1"),
    )


def write(tmp_path, text, name="p.json"):
    """Write a file and return its path."""
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("suffix", [".json", ".csv"])
@pytest.mark.parametrize("priority", [None, np.array([2, 0, -1])])
def test_round_trip(suffix, priority, tmp_path):
    """What is written is what is read, with and without priorities, also for awkward names."""
    placement = Placement(np.array([1, 0, 1]), priority)
    path = write_placement(tmp_path / f"p{suffix}", problem(), placement, queue="planned")
    assert read_placement(path, problem()) == placement
    assert read_queue(path) == ("planned" if suffix == ".json" else None)


@pytest.mark.parametrize(
    "text",
    [
        '{"device": {"conv/1": "gpu1", "2": "gpu0", "a, \\"b\\"": "gpu1"}}',
        '{"device": {"0": 1, "2": 0, "a, \\"b\\"": "1"}}',
        '{"device": [1, 0, "gpu1"]}',
        'op,device\nconv/1,gpu1\n2,gpu0\n"a, ""b""",gpu1\n',
        'op,device\n\n0,1\n2,0\n"a, ""b""",1',
        'op;device\n0;1\n2;0\n"a, ""b""";1\n',
        ',op,device\n0,0,1\n1,2,0\n2,"a, ""b""",1\n',
        '﻿OP, Device\r\n0,1\r\n2,0\r\n"a, ""b""",1\r\n',
    ],
)
def test_names_and_indices_mix(text, tmp_path):
    """Ops and devices may be names or indices, in JSON and CSV alike."""
    assert read_placement(write(tmp_path, text), problem()).device.tolist() == [1, 0, 1]


def test_a_name_wins_over_an_index(tmp_path):
    """The op called "2" is meant by 2, although another op has that index."""
    text = 'op,device\nconv/1,0\n2,1\n"a, ""b""",0\n'
    assert read_placement(write(tmp_path, text), problem()).device.tolist() == [0, 1, 0]


def test_serialized_placements_and_results_are_read(tmp_path):
    """The JSON of a Result or a Placement is a placement file too."""
    placement = Placement(np.array([1, 0, 1]), np.array([0, 1, 2]))
    result = Result("problem", "s", placement, 9, 9, "load", "optimal", "proved", 1, 0.0, 0)
    for value in (placement, result):
        assert read_placement(serialize.save(value, tmp_path / "x.json"), problem()) == placement


GOOD = {"conv/1": 0, "2": 0, 'a, "b"': 0}

WRONG = {
    "truncated": ('{"device": {"conv/1": 0', "truncated JSON"),
    "empty": ("", "received an empty file"),
    "no device": ('{"ops": {}}', 'expected an object with "device"'),
    "a list": ("[1]", "received a list"),
    "device no object": ('{"device": 3}', '"device": expected an object'),
    "unknown op": (json.dumps({"device": {**GOOD, "conv/2": 0}}), "did you mean 'conv/1'?"),
    "unknown device": (json.dumps({"device": {**GOOD, "2": "gpu7"}}), "did you mean 'gpu1'?"),
    "two signs": (json.dumps({"device": {**GOOD, "2": "--1"}}), "device '--1' is not in problem"),
    "strange op": (json.dumps({"device": {**GOOD, "xyz": 0}}), "known: conv/1"),
    "device out of range": (json.dumps({"device": {**GOOD, "2": 2}}), "expected a device in 0..1"),
    "negative device": (json.dumps({"device": {**GOOD, "2": -1}}), "expected a device in 0..1"),
    "device null": (json.dumps({"device": {**GOOD, "2": None}}), "name or index of a device"),
    "device real": (json.dumps({"device": {**GOOD, "2": 0.5}}), "name or index of a device"),
    "missing op": ('{"device": {"conv/1": 0}}', "op '2' has no device, nor have 1 others"),
    "duplicate key": ('{"device": {"2": 0, "2": 1}}', "'2' occurs twice"),
    "same op twice": (json.dumps({"device": {**GOOD, "0": 0}}), "op 'conv/1' is placed twice"),
    "missing priority": (json.dumps({"device": GOOD, "priority": {"2": 1}}), "has no priority"),
    "bad priority": (
        json.dumps({"device": GOOD, "priority": {"2": "x"}}),
        "whole number as priority",
    ),
    "wrong header": ("name,device\na,0\n", "expected the header op,device"),
    "swapped header": ("device,op\n", "expected the header op,device"),
    "cells": ("op,device\nconv/1\n", "line 2: expected 2 cells, received 1"),
    "csv op twice": ("op,device\n2,0\n2,1\n", "line 3: op '2' is placed twice"),
    "csv missing op": ("op,device\n2,0\n", "op 'conv/1' has no device"),
    "csv unknown op": ("op,device\ncon/1,0\n", "line 2: op 'con/1' is not in problem"),
    "csv priority": (
        "op,device,priority\n2,0,1.5\n",
        "line 2: expected a whole number as priority",
    ),
    "csv quote": ('op,device\n"2,0\n', "not valid CSV"),
    "graph": (json.dumps({"format": "placeopt/opgraph", "version": 1}), '"ops" is missing'),
    "budget": (json.dumps({"format": "placeopt/budget", "version": 1}), "holds no placement"),
    "other size": (
        json.dumps({"format": "placeopt/placement", "version": 1, "device": [0]}),
        "expected 3 ops",
    ),
    "other devices": (
        json.dumps({"format": "placeopt/placement", "version": 1, "device": [0, 5, 0]}),
        "op '2'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_give_one_line(case, tmp_path):
    """Everything wrong with a placement file is one line that names the file and the fix."""
    text, part = WRONG[case]
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_placement(path, problem())
    message = str(error.value)
    assert part in message
    assert str(path) in message
    assert "\n" not in message


def test_arrays_that_numpy_saved_are_placements(tmp_path):
    """Devices by index or name; a cut file, pickled objects, two axes, fractions and masked entries
    are one line each.
    """
    path = tmp_path / "learned.npy"
    for devices in ([1, 0, 1], [1.0, 0.0, 1.0], ["gpu1", "gpu0", "gpu1"]):
        np.save(path, np.array(devices))
        assert read_placement(path, problem()).device.tolist() == [1, 0, 1]
    whole = path.read_bytes()
    for wrong, words in (
        (np.array([[1, 0, 1]]), r"one device per op, received shape \(1, 3\)"),
        (np.array([0.5, 0, 1]), "expected whole numbers"),
        (np.array([{}, 0, 1]), "not a whole .npy file"),
        (np.array([9, 0, 1]), "expected a device in 0..1"),
        (None, "not a whole .npy file"),
    ):
        path.write_bytes(whole[:-9])
        if wrong is not None:
            np.save(path, wrong)
        with pytest.raises(InputError, match=words):
            read_placement(path, problem())
    with pytest.raises(InputError, match=r"device: .*masked"):
        placement_of(np.ma.array([0, 1, 1], mask=[0, 1, 0]), problem())


def test_objects_of_a_script_stand_for_placements():
    """Columns as of a CSV file (a data frame), names of devices in order, and a Result are taken by
    `verify` and `evaluate`.
    """
    given, ops, names = problem(), ["2", "conv/1", 'a, "b"'], ["gpu0", "gpu1", "gpu1"]
    columns = {"op": ops, "device": names, "priority": range(3)}
    assert placement_of(columns, given) == Placement([1, 0, 1], [1, 0, 2])
    assert placement_of(names, given) == Placement([0, 1, 1])
    assert placement_of(np.array(names), given) == Placement([0, 1, 1])
    found = po.solve(given, "heft", evaluations=1)
    assert po.evaluate(given, found, found.queue).makespan == found.objective
    with pytest.raises(InputError, match="columns of one length"):
        placement_of({"op": ops, "device": names[1:]}, given)


def test_missing_files_and_folders(tmp_path):
    """A path that is no file is named."""
    with pytest.raises(InputError, match="no such file"):
        read_placement(tmp_path / "absent.json", problem())
    with pytest.raises(InputError, match="received a folder"):
        read_placement(tmp_path, problem())


def test_placements_that_do_not_fit_are_not_written(tmp_path):
    """A placement of another size, or with unknown devices, is refused before anything is
    written.
    """
    with pytest.raises(InputError, match="expected 3 ops"):
        write_placement(tmp_path / "p.csv", problem(), Placement([0]))
    with pytest.raises(InputError, match=r"expected a device in 0\.\.1"):
        write_placement(tmp_path / "p.csv", problem(), Placement([0, 2, 0]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ('"problem": "another"', "it is for problem 'another'"),
        ('"queue": "zz"', "expected fifo, priority, planned, received 'zz'"),
        ('"quue": "fifo"', "did you mean 'queue'"),
    ],
)
def test_a_placement_that_says_something_else_is_refused(extra, words, tmp_path):
    """A placement of another problem, an unknown execution and an unknown key are one line each."""
    path = write(tmp_path, f'{{"device": [1, 0, 1], {extra}}}')
    with pytest.raises(InputError, match=words):
        read_placement(path, problem())


def test_verify_reads_a_placement_once(tmp_path, monkeypatch):
    """What a file holds is asked for several times (split, queue, claim, proof); it is read and
    parsed once.
    """
    from placeopt.cli import main
    from placeopt.io import placement_file

    path, reads = tmp_path / "p.json", []
    problem = po.load("gen:fork-join", cluster="uniform:1")
    write_placement(path, problem, po.Placement(np.zeros(problem.num_ops, dtype=np.int64)))
    read_bytes = placement_file.read_bytes
    monkeypatch.setattr(
        placement_file, "read_bytes", lambda *a, **k: reads.append(a) or read_bytes(*a, **k)
    )
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "verify",
                "gen:fork-join",
                str(path),
                "-c",
                "uniform:1",
                "-t",
                "0.1",
                "--proof",
                str(tmp_path / "proof.json"),
            ]
        )
    assert (ended.value.code, len(reads)) == (0, 1)
