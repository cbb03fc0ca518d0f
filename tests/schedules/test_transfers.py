"""Transfers that occupy channels or devices, against an event-driven simulation that shares no code
with them.
"""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from random_pipelines import random_blocks

import placeopt as po
from placeopt.cli import main
from placeopt.model.errors import InputError
from placeopt.schedules import schedule
from placeopt.schedules.evaluate import dispatch
from placeopt.schedules.judge import pipeline_violations
from placeopt.schedules.problem import Block
from placeopt.schedules.solution import PipelineSchedule
from placeopt.schedules.transfers import executed, transfers_of, with_transfers


def jobs_of(problem, start, mode):
    """Return (micro-batch, block or edge) -> (wanted time, ticks, resources, jobs waited for with
    ticks after their end).
    """
    places = [tuple(problem.devices_of(i).tolist()) for i in range(problem.num_blocks)]
    moved = (
        {}
        if mode == "lag"
        else {(u, v): lag for u, v, lag in problem.edges if lag and places[u] != places[v]}
    )
    jobs = {}
    for j, row in enumerate(start.tolist()):
        for b in range(problem.num_blocks):
            waits = [
                ((j, (u, b)), 0) if (u, b) in moved else ((j, u), lag)
                for u, lag in problem.predecessors_of(b)
            ]
            jobs[j, b] = row[b], int(problem.span[b]), set(places[b]), waits
        for (u, v), lag in moved.items():
            taken = {(places[u], places[v])} if mode == "channel" else {*places[u], *places[v]}
            jobs[j, (u, v)] = row[u] + int(problem.span[u]), lag, taken, [((j, u), 0)]
    return jobs


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("mode", ["lag", "channel", "blocking"])
def test_an_order_runs_as_early_as_it_can(seed, mode):
    """Everything starts the moment its inputs are there and its resources have done what comes
    first in the order.
    """
    problem = random_blocks(seed)
    made = dispatch(problem, problem.heads[None, :] + 5 * np.arange(4)[:, None])
    if made is None:
        pytest.skip("memory admits no such order")
    found = executed(PipelineSchedule(problem, made), mode)
    assert pipeline_violations(found.problem, found.start) == []
    assert found.peak_memory[: problem.num_devices] == PipelineSchedule(problem, made).peak_memory
    jobs = jobs_of(problem, made, mode)
    column = {
        **{b: b for b in range(problem.num_blocks)},
        **{edge: problem.num_blocks + i for i, edge in enumerate(transfers_of(problem))},
    }
    begin = {key: int(found.start[key[0], column[key[1]]]) for key in jobs}
    early = {
        key: max([0] + [begin[other] + jobs[other][1] + lag for other, lag in job[3]])
        for key, job in jobs.items()
    }
    for resource in set().union(*(job[2] for job in jobs.values())):
        line = sorted(
            (key for key, job in jobs.items() if resource in job[2]), key=lambda key: begin[key]
        )
        for first, second in itertools.pairwise(line):
            assert jobs[first][0] <= jobs[second][0], "the order of a resource was changed"
            early[second] = max(early[second], begin[first] + jobs[first][1])
    assert early == begin


@pytest.mark.parametrize("name", ["V", "X", "M", "NN", "K"])
def test_blocking_takes_longest(name):
    """Lags alone are fastest, channels no faster, blocking no faster than the work that it adds
    says.
    """
    problem = po.load_pipeline(
        f"shape:{name}?devices=4&forward=4&backward=12&tensor=4&lag=1", micro_batches=12
    )
    made = schedule(problem, seconds=3)
    spans = [executed(made, mode).makespan for mode in ("lag", "channel", "blocking")]
    assert spans[0] <= made.makespan
    assert spans == sorted(spans)
    there = with_transfers(problem, "blocking")
    assert spans[2] >= 12 * int(there.work.max())
    if transfers_of(problem):
        assert there.work.sum() == problem.work.sum() + sum(
            lag * len({*problem.devices_of(u).tolist(), *problem.devices_of(v).tolist()})
            for u, v, lag in problem.edges
            if lag
        )
        # A search that knows of it does no worse than the order that was found without.
        assert schedule(there, seconds=1, initial=executed(made, "blocking")).makespan <= spans[2]


def test_nothing_moves_without_lags():
    """A problem without lags is its own problem with transfers; a word that is not known is
    refused.
    """
    problem = po.load_pipeline("shape:V?devices=3")
    assert with_transfers(problem, "blocking") is problem
    with pytest.raises(
        InputError, match="expected one of lag, channel, blocking, received 'async'"
    ):
        with_transfers(problem, "async")


def test_the_command_tells_it(capsys):
    """`--transfers` adds what the order takes under it; a wrong word is refused in one line."""
    source = "shape:V?devices=3&forward=2&backward=4&lag=1"

    def run(*words):
        with pytest.raises(SystemExit) as stop:
            main(["schedule", source, "-s", "1f1b", "-n", "6", *words])
        return stop.value.code, capsys.readouterr()

    code, told = run("--transfers", "blocking", "--json")
    data = json.loads(told.out)
    problem = po.load_pipeline(source, micro_batches=6)
    assert code == 0
    assert (
        data["transfers"]["makespan"]
        == executed(schedule(problem, "1f1b"), "blocking").makespan
        > data["makespan"]
    )
    assert "with blocking transfers the makespan is" in run("--transfers", "blocking")[1].out
    code, told = run("--transfers", "async")
    assert code == 2
    assert "expected one of lag, channel, blocking, received 'async'" in told.err


def test_a_transfer_lasts_as_long_as_the_longest_wait():
    """Of two waits for one block the longer one counts, whichever stands first."""
    after = (("A", 3), ("A", 1))
    blocks = [Block("A", "F", (0,), 1), Block("B", "F", (1,), 1, after=after)]
    problem = po.PipelineProblem.from_blocks("twice", blocks, ["a", "b"])
    for mode in ("channel", "blocking"):
        assert with_transfers(problem, mode).critical_path == problem.critical_path == 5
