"""JSON of job streams and episodes; see `placeopt.io.serialize`.

A stream carries its job types, so that a file needs no profiles beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from placeopt.io.body import Body, plain
from placeopt.io.serialize import Codec, register
from placeopt.model.arrays import Flags, true_places
from placeopt.model.errors import InputError
from placeopt.streams.episode_loop import CAUSES
from placeopt.streams.lookahead import LookaheadConfig
from placeopt.streams.problem import JobStreamProblem, JobTable
from placeopt.streams.profiles import JobProfile
from placeopt.streams.simulator import DegreePolicy, Episode
from placeopt.streams.sources import StreamSpec
from placeopt.streams.topology import RampTopology

_STREAM = ("name", "seed", "horizon", "arrival", "model", "deadline")
_TABLE = ("steps", "contention", "tick_seconds")
_EPISODE_ARRAYS = ("cause", "degree", "jct")


def _encode_stream(problem: JobStreamProblem) -> dict[str, Any]:
    jobs = problem.jobs
    return {
        **plain(problem, *_STREAM),
        "topology": plain(jobs.topology),
        "lookahead": plain(jobs.config),
        **plain(jobs, *_TABLE),
        "profiles": [plain(profile) for profile in jobs.profiles],
        "drawn_from": plain(problem.spec) if isinstance(problem.spec, StreamSpec) else None,
    }


def _decode_stream(body: Body) -> JobStreamProblem:
    jobs = JobTable(
        tuple(part.made(JobProfile) for part in body.bodies("profiles")),
        body.body("topology").made(RampTopology),
        body.body("lookahead").made(LookaheadConfig),
        **body.fields(JobTable, *_TABLE),
    )
    spec = body.body("drawn_from").made(StreamSpec) if body.has("drawn_from") else None
    return JobStreamProblem(jobs=jobs, spec=spec, **body.fields(JobStreamProblem, *_STREAM))


def _encode_episode(episode: Episode) -> dict[str, Any]:
    return {
        "problem": _encode_stream(episode.problem),
        "policy": plain(episode.policy),
        **plain(episode, "seed", *_EPISODE_ARRAYS),
        "servers": [true_places(row) for row in episode.servers],
    }


def _decode_episode(body: Body) -> Episode:
    problem = _decode_stream(body.body("problem"))
    size = problem.num_jobs
    rows = body.items("servers")
    columns = {key: body.integers(key) for key in _EPISODE_ARRAYS}
    if len(rows) not in (0, size) or any(len(column) != size for column in columns.values()):
        raise InputError(
            f"{body.where}: expected {size} values of {', '.join(_EPISODE_ARRAYS)} and rows of "
            "servers"
        )
    for key, most in (("cause", len(CAUSES) - 1), ("degree", problem.num_servers)):
        if not all(0 <= number <= most for number in columns[key].tolist()):
            raise InputError(f"{body.where}: {key}: expected 0..{most}")
    servers = _decode_servers(body, rows, problem.num_servers)
    return Episode(
        problem,
        body.body("policy").made(DegreePolicy),
        body.integer("seed"),
        columns["cause"].astype(np.int8),
        columns["degree"].astype(np.int16),
        columns["jct"],
        servers.sum(axis=1).astype(np.int16) if len(rows) else np.zeros(size, np.int16),
        servers,
    )


def _decode_servers(body: Body, rows: list[Any], num_servers: int) -> Flags:
    """Return which servers each job holds, from the lists of their numbers."""
    servers = np.zeros((len(rows), num_servers), np.bool_)
    for job, row in enumerate(rows):
        if not isinstance(row, list) or any(
            type(s) is not int or not 0 <= s < num_servers for s in row
        ):
            raise body.wrong(f"servers[{job}]", f"servers in 0..{num_servers - 1}", row)
        servers[job, row] = True
    return servers


register(Codec("job-stream", JobStreamProblem, _encode_stream, _decode_stream))
register(Codec("episode", Episode, _encode_episode, _decode_episode))
