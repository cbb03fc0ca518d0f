"""Placement problems: what is refused, and which devices can be swapped."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from random_problems import random_problem

import placeopt as po
from placeopt.instances.clusters import hardware_channels, make_cluster
from placeopt.io.serialize import from_dict, to_dict
from placeopt.model.errors import InputError
from placeopt.model.problem import PlacementProblem
from placeopt.schedules.problem import Block, PipelineProblem


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"link_class": [[0, -3], [0, 0]]}, "link_class: expected 0..0, received -3"),
        ({"link_class": [[9, 1], [0, 9]]}, "link_class: expected 0..0, received 1"),
        ({"io_class": [0, 5]}, "io_class: expected -1..0, received 5"),
        ({"transfer": np.zeros((1, 0))}, "transfer: expected a column for each link class"),
        ({"transfer": []}, r"transfer: expected shape \(1, 1\), received \(0, 1\)"),
        ({"transfer": [3, 4]}, r"transfer: expected shape \(1, 1\), received \(2, 1\)"),
    ],
)
def test_links_that_do_not_exist(changes, says):
    """What is expected and what was received are said."""
    arrays = {
        "compute": [[1, 1], [2, 2]],
        "producer": [0],
        "consumer_ptr": [0, 1],
        "consumer": [1],
        "transfer": [[3]],
    }
    with pytest.raises(InputError, match=says):
        PlacementProblem.from_arrays(**arrays | changes)


def test_the_hash_of_a_problem_is_that_of_the_problem_read_again():
    """A number given as a whole one, or as one of numpy, is the same number; so are texts."""
    fine = PlacementProblem.from_edges([[1], [2]], [(0, 1, 3)], tick_seconds=1.0)
    for tick in (1, np.float64(1.0)):
        problem = PlacementProblem.from_edges(
            [[1], [2]], [(0, 1, 3)], tick_seconds=tick, memory=np.str_("static")
        )
        assert problem.hash == from_dict(to_dict(problem)).hash == fine.hash
    steps = [Block("F0", "F", (0,), 1), Block("B0", "B", (0,), 2, after=(("F0", 0),))]
    steps[0] = replace(steps[0], kind=np.str_("F"))
    pipeline = PipelineProblem.from_blocks(
        "p", steps, ["d"], tick_seconds=1, micro_batches=np.int64(3)
    )
    assert pipeline.hash == from_dict(json.loads(json.dumps(to_dict(pipeline)))).hash


def test_labels_below_none_are_refused():
    """No proof of such a problem could be read."""
    with pytest.raises(InputError, match=r"meta\[1\]: expected >= -1, received -2"):
        PlacementProblem.from_edges([[1], [2]], [], meta=[0, -2])
    with pytest.raises(InputError, match=r"stage\[0\]: expected >= -1, received -2"):
        PipelineProblem.from_blocks("p", [Block("F0", "F", (0,), 1, stage=-2)], ["d"])


def test_names_are_texts():
    """Others could not be read again, nor told from indices."""
    with pytest.raises(InputError, match="op_names: expected texts, received 10"):
        PlacementProblem.from_edges([[1], [2]], [(0, 1, 3)], op_names=(10, 20))


@pytest.mark.parametrize("own", [7, -5])
@pytest.mark.parametrize("objective", ["makespan", "period"])
def test_links_of_devices_to_themselves_decide_nothing(own, objective):
    """Nor do they have to exist: bounds and kernels that look them up find others."""
    problem = random_problem(np.random.default_rng(3)).replace(objective=objective)
    same = np.eye(problem.num_devices, dtype=np.bool_)
    changed = problem.replace(link_class=np.where(same, own, problem.link_class))
    assert po.bound(changed, seconds=0).bounds == po.bound(problem, seconds=0).bounds
    cluster = make_cluster("2x2xA100")
    links = np.where(np.eye(4, dtype=np.bool_), own, cluster.link_class)
    found = hardware_channels(replace(cluster, link_class=links))
    assert (found == hardware_channels(cluster)).all()


def swapped_by_definition(problem, a, b):
    """Return whether two devices can change places: all costs stay, and so does who shares a
    channel with whom.
    """
    to = np.arange(problem.num_devices)
    to[a], to[b] = b, a
    pairs = [(d, e) for d in to.tolist() for e in to.tolist() if d != e]
    name = {-1: -1}
    for d, e in pairs:
        old, new = int(problem.channel[d, e]), int(problem.channel[to[d], to[e]])
        if problem.link_class[d, e] != problem.link_class[to[d], to[e]]:
            return False
        if name.setdefault(old, new) != new:
            return False
    alike = all((x[a] == x[b]).all() for x in (problem.compute.T, problem.capacity))
    return alike and len(set(name.values())) == len(name)


def test_devices_that_can_be_swapped_are_those_of_the_definition():
    """With one link class or two, and channels of every kind and of huge numbers."""
    rng, kinds = np.random.default_rng(3), set()
    for turn in range(300):
        problem = random_problem(rng, max_ops=2, max_devices=4)
        if turn % 2:
            problem = problem.replace(link_class=np.zeros_like(problem.link_class))
        if turn % 3 == 0:
            huge = np.where(problem.channel < 0, -1, 2**61 - problem.channel)
            problem = problem.replace(channel=huge)
        for a in range(problem.num_devices):
            for b in range(a):
                expected = swapped_by_definition(problem, a, b)
                assert problem.interchangeable([a], [b]) == expected, turn
                kinds.add((expected, problem.num_channels > 0))
    assert len(kinds) == 4


def test_hundreds_of_devices_are_told_apart_at_once(monkeypatch):
    """Every one is compared with one of each class, and only by its own links; not at all where its
    times are unlike.
    """
    k = 512
    host = np.arange(k) // 8
    problem = PlacementProblem.from_edges([[1] * k, [2] * k], [(0, 1, 3)])
    assert problem.identical_devices == (tuple(range(k)),)
    far = (host[:, None] != host[None, :]).astype(np.int64)
    hosts = problem.replace(transfer=np.array([[3, 9]]), link_class=far)
    assert len(hosts.identical_devices) == k // 8

    def no_pairs(*_):
        raise AssertionError

    unlike = problem.replace(compute=np.arange(2 * k).reshape(2, k))
    monkeypatch.setattr(PlacementProblem, "interchangeable", no_pairs)
    assert len(unlike.identical_devices) == k
