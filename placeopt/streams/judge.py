"""An independent judge of episodes: plain Python, nothing shared with the simulator's kernel.

A job that started holds servers of its own until it ends. Under the uniform rule they are one block
of `degree` servers; under the published rule they are those that first fit gives op by op among the
servers idle at its arrival (section "Placement" of the job-stream model). Sets of servers are bit
masks here.
"""

from __future__ import annotations

import functools
import operator
from itertools import chain, product
from typing import TYPE_CHECKING

from placeopt.model.arrays import true_places
from placeopt.streams.split import split_counts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.streams.problem import JobStreamProblem, JobTable
    from placeopt.streams.simulator import Episode


def judge_episode(problem: JobStreamProblem, episode: Episode, most: int = 20) -> list[str]:
    """Return what is wrong with an episode on this problem, in words; at most `most` lines."""
    wrong = _malformed(problem, episode)
    if wrong:
        return wrong
    table, layout = problem.jobs, _Layout(problem.jobs)
    free_at = [-1] * table.topology.num_servers
    for job, servers in enumerate(held_servers(episode)):
        if len(wrong) >= most:
            break
        model, degree = int(problem.model[job]), int(episode.degree[job])
        name, jct = f"job {job} ({table.models[model]})", int(episode.jct[job])
        if not servers:
            if jct or episode.cause[job] not in (1, 2, 3):
                wrong.append(f"{name} holds no server, but is called started or completed")
        elif degree not in table.degrees:
            wrong.append(f"{name} has the degree {degree}, which the topology lacks")
        else:
            end = int(problem.arrival[job]) + jct
            reasons = [
                *_wrong_times(problem, job, jct, _completion_time(table, model, degree), degree),
                *_wrong_end(problem, episode, job, end),
                *_wrong_servers(problem, episode, job, servers, free_at, layout),
            ]
            wrong += [name + reason for reason in reasons]
            for server in servers:
                free_at[server] = end
    return wrong[:most]


def _wrong_servers(
    problem: JobStreamProblem,
    episode: Episode,
    job: int,
    servers: list[int],
    free_at: list[int],
    layout: _Layout,
) -> Iterator[str]:
    now = int(problem.arrival[job])
    for server in servers:
        if free_at[server] > now:
            yield (
                f" starts at {now} on server {server}, which another job holds until "
                f"{free_at[server]}"
            )
    idle = sum(1 << server for server, end in enumerate(free_at) if end <= now)
    model, degree = int(problem.model[job]), int(episode.degree[job])
    for reason in layout.check(model, degree, servers, idle):
        yield f": {reason}"


def _wrong_times(
    problem: JobStreamProblem, job: int, jct: int, length: int, degree: int
) -> Iterator[str]:
    if jct != length:
        yield f" takes {jct} ticks, with degree {degree} it takes {length}"
    if jct > problem.deadline[job]:
        yield (
            f" started, although it takes {jct} ticks and its deadline is {problem.deadline[job]}"
        )


def _wrong_end(problem: JobStreamProblem, episode: Episode, job: int, end: int) -> Iterator[str]:
    done = end <= problem.horizon
    if episode.cause[job] != (0 if done else 4):
        yield (
            f" ends at {end}, the horizon is {problem.horizon}: it is{'' if done else ' not'} "
            "completed"
        )


def blocked_jobs(problem: JobStreamProblem, episode: Episode) -> int:
    """Return the blocked jobs that the decisions of an episode amount to, whatever it says of
    itself.

    A job is completed if it holds servers and ends, split with its degree, by its deadline and the
    horizon.
    """
    rows = zip(
        held_servers(episode),
        problem.model.tolist(),
        episode.degree.tolist(),
        problem.arrival.tolist(),
        problem.deadline.tolist(),
        strict=True,
    )
    completed = 0
    for servers, model, degree, now, deadline in rows:
        if servers and degree in problem.jobs.degrees:
            length = _completion_time(problem.jobs, model, degree)
            completed += 0 <= length <= deadline and now + length <= problem.horizon
    return problem.num_jobs - completed


def held_servers(episode: Episode) -> list[list[int]]:
    """Return the servers that each job holds."""
    return [true_places(row) for row in episode.servers]


def _completion_time(table: JobTable, model: int, degree: int) -> int:
    return int(table.arrays.jct[model, table.degrees.index(degree)])


def _malformed(problem: JobStreamProblem, episode: Episode) -> list[str]:
    """Say whether the arrays of an episode are not those of this problem."""
    size = problem.num_jobs
    if episode.servers.shape == (0, problem.num_servers):
        return [
            "the episode does not say which servers each job held: simulate(..., "
            "record_servers=True)"
        ]
    if episode.servers.shape != (size, problem.num_servers):
        return [
            f"the episode is of {episode.servers.shape[0]} jobs on {episode.servers.shape[1]} "
            f"servers, the problem of {size} jobs on {problem.num_servers}"
        ]
    for key in ("cause", "degree", "jct"):
        if len(getattr(episode, key)) != size:
            return [
                f"the episode has {len(getattr(episode, key))} values of {key}, expected {size}"
            ]
    return []


def _servers_of(mask: int) -> list[int]:
    """Return the servers of a bit mask, ascending."""
    return [server for server in range(mask.bit_length()) if mask >> server & 1]


class _Layout:
    """Where jobs may lie on the grid."""

    def __init__(self, table: JobTable) -> None:
        self.table = table
        grid = table.topology
        self.grid = (grid.groups, grid.racks, grid.servers)
        self.uniform = table.config.rule == "uniform"  # whether a job takes one block
        self.masks = functools.cache(self._masks)
        self.split = functools.cache(self._split)
        self.fresh_sizes = functools.cache(self._fresh_sizes)

    def check(self, model: int, degree: int, servers: list[int], idle: int) -> list[str]:
        """Say why a job split with `degree` cannot hold these servers while those of `idle` are
        free.
        """
        held = sum(1 << server for server in servers)
        if self.uniform and held not in self.masks(degree):
            return [f"its {len(servers)} servers are no block of {degree}"]
        placed = self.place(model, degree, held if self.uniform else idle)
        if placed is None:
            return ["an op does not find the servers or the memory that it needs"]
        if not self.uniform and placed != held:
            return [f"first fit gives it {placed.bit_count()} servers that are not those it holds"]
        return []

    def place(self, model: int, degree: int, idle: int) -> int | None:
        """Return the servers that the ops of a job get among the idle ones, None if one does not
        fit.
        """
        if self.table.profiles[model].memory.sum() <= self.table.topology.memory:
            # Whatever a server holds of the job, there is room for more: an op is on a parent's
            # servers if there is
            # a parent with as many, else on the first idle block of its size.
            found = [
                next(self._idle_blocks(size, idle), None)
                for size in self.fresh_sizes(model, degree)
            ]
            if None in found:
                return None
            return functools.reduce(operator.or_, found)  # type: ignore[arg-type]
        return self._place_by_memory(model, degree, idle)

    def _place_by_memory(self, model: int, degree: int, idle: int) -> int | None:
        profile = self.table.profiles[model]
        left = [float(self.table.topology.memory)] * self.table.topology.num_servers
        of_op: dict[int, list[int]] = {}
        held = 0
        splits = self.split(model, degree)
        for op in profile.order:
            count, need = splits[op], float(profile.memory[op])
            known = (of_op[parent] for parent in profile.parents[op] if len(of_op[parent]) == count)
            roomy = (servers for servers in known if sum(left[s] for s in servers) >= need)
            idle_blocks = map(_servers_of, self._idle_blocks(count, idle))
            fresh = (block for block in idle_blocks if all(left[s] >= need / count for s in block))
            found = next(chain(roomy, fresh), None)
            if found is None:
                return None
            for server in found:
                left[server] -= need / count
                held |= 1 << server
            of_op[op] = found
        return held

    def _idle_blocks(self, size: int, idle: int) -> Iterator[int]:
        """Yield the blocks of a size that lie among the idle servers, in the order of first fit."""
        return (block for block in self.masks(size) if block & idle == block)

    def _split(self, model: int, degree: int) -> tuple[int, ...]:
        """Return how many ways each op of a job is split."""
        config, forward = self.table.config, self.table.profiles[model].forward * 1e3
        return split_counts(forward, degree, config.rule, config.quantum)

    def _fresh_sizes(self, model: int, degree: int) -> tuple[int, ...]:
        """Return the sizes of the blocks that a job needs beside the servers its ops take over from
        parents.
        """
        profile, splits = self.table.profiles[model], self.split(model, degree)
        return tuple(
            dict.fromkeys(
                splits[op]
                for op in profile.order
                if all(splits[parent] != splits[op] for parent in profile.parents[op])
            )
        )

    def _masks(self, size: int) -> list[int]:
        """Return the blocks of a size in the order of first fit."""
        return list(dict.fromkeys(self._boxes(size)))

    def _boxes(self, size: int) -> Iterator[int]:
        _, racks, positions = self.grid
        for shape in self._shapes(size):
            for origin in product(
                *(range(room - side + 1) for room, side in zip(self.grid, shape, strict=True))
            ):
                cells = product(
                    *(range(o, o + side) for o, side in zip(origin, shape, strict=True))
                )
                yield sum(1 << ((c * racks + r) * positions + s) for c, r, s in cells)

    def _shapes(self, size: int) -> Iterator[tuple[int, int, int]]:
        groups, racks, positions = self.grid
        for a in range(size, 0, -1):
            b, rest = divmod(size, a)
            if rest:
                continue
            root = round(a**0.5)
            if root * root == a and root <= min(groups, racks) and b <= positions:
                yield (root, root, b)
            if a <= min(groups, racks) and b <= positions:
                yield from ((a, 1, b), (a, b, 1)) if b <= racks else ((a, 1, b),)
        if size <= groups:
            yield (size, 1, 1)
