"""The judge of episodes against the oracle: blocks, where ops lie, and random damage to episodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import stream_oracle as oracle
from stream_samples import stream, table

from placeopt.streams import DegreePolicy, simulate
from placeopt.streams.judge import _Layout, blocked_jobs, judge_episode

RULES = ["published", "uniform"]


def number(server, grid):
    """Return the number of a (group, rack, position)."""
    return (server[0] * grid[1] + server[1]) * grid[2] + server[2]


@pytest.mark.parametrize("grid", [(2, 2, 2), (1, 3, 2), (3, 2, 4), (4, 4, 1), (4, 4, 2)])
def test_blocks_are_those_of_the_definition(grid):
    """Every box of every shape that fits, in the order of first fit, once."""
    layout = _Layout(table(grid=grid))
    for size in range(1, 9):
        boxes = []
        for shape in oracle.shapes(size, grid):
            for origin in product(*(range(grid[k] - shape[k] + 1) for k in range(3))):
                steps = product(*map(range, shape))
                cells = [tuple(o + d for o, d in zip(origin, s, strict=True)) for s in steps]
                boxes.append(sum(1 << number(cell, grid) for cell in cells))
        assert layout.masks(size) == list(dict.fromkeys(boxes)), size


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("memory", [80_000_000_000, 500_000_000, 250_000_000])
def test_jobs_lie_where_the_oracle_puts_them(rule, memory):
    """Whatever is idle, the servers that first fit gives op by op, or none at all; a job is refused
    on any others.
    """
    rng, grid, found = np.random.default_rng(0), (2, 2, 3), {True: 0, False: 0}
    types = table(rule=rule, memory=memory, grid=grid, count=4)
    layout, every = _Layout(types), list(product(*map(range, grid)))
    for _ in range(150):
        model, degree = int(rng.integers(4)), int(rng.choice(types.degrees))
        idle = {server for server in every if rng.random() < 0.8}
        if rule == "uniform":
            block = oracle.first_block(degree, grid, lambda s, idle=idle: s in idle)
            idle = set(block or ())
        profile = types.profiles[model]
        counts = oracle.split_counts(profile, degree, rule, types.config.quantum)
        placed = oracle.place(profile, counts, degree, rule, grid, memory, idle)
        servers = None if placed is None else {s for spot in placed.values() for s in spot}
        free = sum(1 << number(server, grid) for server in idle)
        held = None if servers is None else sum(1 << number(server, grid) for server in servers)
        if rule == "published" or idle:
            assert layout.place(model, degree, free) == held
            given = free if rule == "uniform" else (held or 1)
            rows = [s for s in range(len(every)) if given >> s & 1]
            wrong = layout.check(model, degree, rows, free)
            assert (wrong == []) == (held is not None)
            other = rows[1:] if len(rows) > 1 else [*rows, (rows[0] + 1) % len(every)]
            assert layout.check(model, degree, other, free) or len(other) in types.degrees
        found[held is not None] += 1
    assert found[True] > 20
    assert memory > 10**9 or found[False] > 5


def right(problem, episode):
    """Whether an episode keeps every rule, and the jobs that it completes."""
    types, grid = problem.jobs, problem.jobs.topology
    shape = (grid.groups, grid.racks, grid.servers)
    every = list(product(*map(range, shape)))
    free_at, good, completed = dict.fromkeys(every, -1), True, 0
    for job in range(problem.num_jobs):
        held = {server for server in every if episode.servers[job, number(server, shape)]}
        cause, degree, jct = (int(getattr(episode, key)[job]) for key in ("cause", "degree", "jct"))
        now, model = int(problem.arrival[job]), int(problem.model[job])
        if not held:
            good = good and jct == 0 and cause in (1, 2, 3)
            continue
        if degree not in types.degrees:
            good = False
            continue
        length = int(types.arrays.jct[model, types.degrees.index(degree)])
        due, over = 0 <= length <= int(problem.deadline[job]), now + length > problem.horizon
        completed += due and not over
        idle = {server for server in every if free_at[server] <= now}
        rule, profile = types.config.rule, types.profiles[model]
        counts = oracle.split_counts(profile, degree, rule, types.config.quantum)
        boxes = [
            {
                tuple(o + d for o, d in zip(origin, step, strict=True))
                for step in product(*map(range, s))
            }
            for s in oracle.shapes(degree, shape)
            for origin in product(*(range(shape[k] - s[k] + 1) for k in range(3)))
        ]
        there = held if rule == "uniform" else idle
        placed = oracle.place(profile, counts, degree, rule, shape, grid.memory, there)
        fits = placed is not None and (
            held in boxes
            if rule == "uniform"
            else {s for spot in placed.values() for s in spot} == held
        )
        late = now + jct > problem.horizon
        good = good and jct == length and jct <= int(problem.deadline[job]) and held <= idle
        good = good and cause == (4 if late else 0) and fits
        for server in held:
            free_at[server] = now + jct
    return good, problem.num_jobs - completed


def damaged(rng, episode):
    """Return the episode with one thing changed, and its problem with it."""
    problem, job = episode.problem, int(rng.integers(episode.problem.num_jobs))
    what = rng.choice(["cause", "degree", "jct", "servers", "swap", "deadline", "horizon"])
    if what == "horizon":
        ends = problem.arrival + episode.jct
        return replace(
            episode,
            problem=replace(problem, horizon=max(1, int(rng.choice(ends) - rng.integers(0, 2)))),
        )
    if what == "deadline":
        deadline = problem.deadline.copy()
        deadline[job] = max(1, int(episode.jct[job]) - int(rng.integers(0, 2)))
        return replace(episode, problem=replace(problem, deadline=deadline))
    key = "servers" if what == "swap" else what
    array = getattr(episode, key).copy()
    if what == "cause":
        array[job] = rng.integers(0, 5)
    elif what == "degree":
        array[job] = rng.choice([0, 1, 2, 3, 4, 8])
    elif what == "jct":
        array[job] += rng.choice([-1, 1])
    elif what == "swap":
        array[job] = array[int(rng.integers(len(array)))]
    else:
        at = int(rng.integers(array.shape[1]))
        array[job, at] = not array[job, at]
    return replace(episode, **{key: array})


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("memory", [80_000_000_000, 500_000_000])
def test_random_damage_is_found_exactly_where_it_is_one(rule, memory):
    """One array of an episode, or one number of its problem, changed: the judge and the definition
    agree on whether it is still right, and on how many jobs are blocked.
    """
    rng, counts = np.random.default_rng(1), {True: 0, False: 0}
    problem = stream(14, beta="C", load=1.3, rule=rule, grid=(2, 2, 2), memory=memory)
    for policy in ("max-degree", "random-degree", "min-degree"):
        episode = simulate(problem, DegreePolicy(policy), seed=3, record_servers=True)
        assert right(problem, episode) == (True, episode.blocked)
        for _ in range(70):
            other = damaged(rng, episode)
            good, blocked = right(other.problem, other)
            assert (judge_episode(other.problem, other) == []) == good, policy
            assert blocked_jobs(other.problem, other) == blocked
            counts[good] += 1
    assert min(counts.values()) > 15


def test_no_more_words_than_twenty():
    """The first twenty violations are enough."""
    problem = stream(60, beta="C", load=1.2)
    episode = simulate(problem, DegreePolicy("max-degree"), record_servers=True)
    wrong = replace(episode, cause=np.full(60, 0, dtype=np.int8), jct=episode.jct + 1)
    assert len(judge_episode(problem, wrong)) == 20
    short = replace(episode, jct=episode.jct[:-1])
    assert judge_episode(problem, short) == ["the episode has 59 values of jct, expected 60"]
