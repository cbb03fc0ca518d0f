"""Pictures and traces of an episode: which servers are held, by which models, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.arrays import true_places
from placeopt.model.errors import InputError
from placeopt.model.trace_events import named, slice_of
from placeopt.streams.episode_loop import CAUSES, COMPLETED

if TYPE_CHECKING:
    from placeopt.model.arrays import Floats
    from placeopt.streams.simulator import Episode


def occupancy(episode: Episode, bins: int = 250) -> tuple[Floats, Floats]:
    """Return (bin edges in time units, mean fraction of servers held by each model in each bin:
    (bins, models)).
    """
    problem = episode.problem
    edges = np.linspace(0, problem.horizon, bins + 1)
    # Server time used up to each edge: a job contributes its overlap with (0, edge), and bins are
    # differences.
    used = np.zeros((bins + 1, len(problem.jobs.models)))
    for job in true_places(episode.jct > 0):
        begin, length = int(problem.arrival[job]), int(episode.jct[job])
        used[:, problem.model[job]] += episode.held[job] * np.clip(edges - begin, 0, length)
    share = np.diff(used, axis=0) / (problem.horizon / bins * problem.jobs.topology.num_servers)
    return edges * problem.tick_seconds, share


def plot_occupancy(episode: Episode) -> Any:
    """Return a figure: occupancy by model over time, and the blocked jobs by cause below.

    Raises
    ------
    MissingExtraError
        If matplotlib is not installed.
    """
    from placeopt.plotting.style import COLOURS, new_figure

    problem = episode.problem
    times, held = occupancy(episode)
    bottom = np.zeros(len(held))
    figure = new_figure(9, 4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    models = problem.jobs.models
    for m, name in enumerate(models):
        top = bottom + held[:, m]
        colour = COLOURS[m % len(COLOURS)]
        upper.stairs(top, times, baseline=bottom, fill=True, label=name, color=colour, linewidth=0)
        bottom = top
    upper.set_ylim(0, 1)
    upper.set_ylabel("servers held")
    figure.suptitle(f"{problem.name}, {episode.policy.name}: {episode.blocking_rate:.1%} blocked")
    figure.legend(loc="outside lower center", fontsize="small", ncols=len(models))
    for cause in range(1, len(CAUSES)):
        jobs = np.flatnonzero(episode.cause == cause)
        moments = problem.arrival[jobs] * problem.tick_seconds
        lower.plot(moments, np.full(len(jobs), cause), "|", color=COLOURS[cause], markersize=5)
    lower.set_yticks(range(1, len(CAUSES)), CAUSES[1:])
    lower.set_ylim(len(CAUSES) - 0.5, 0.5)
    lower.set_xlabel("time")
    return figure


def chrome_trace(episode: Episode) -> dict[str, Any]:
    """Return the episode as a Chrome trace (Perfetto opens it): a track per server, and one for
    blocked jobs.

    Raises
    ------
    InputError
        If the episode was run without recording the servers.
    """
    problem = episode.problem
    if len(episode.servers) != problem.num_jobs:
        raise InputError(
            "a trace needs the servers of each job: simulate(..., record_servers=True)"
        )
    scale = problem.tick_seconds * 1e6
    models = problem.jobs.models
    events: list[dict[str, Any]] = [
        named("process_name", "servers", pid=1),
        named("process_name", "blocked jobs", pid=2),
    ]
    for server, (group, rack, position) in enumerate(problem.jobs.topology.coordinates.tolist()):
        name = f"group {group} rack {rack} server {position}"
        events.append(named("thread_name", name, pid=1, tid=server))
    for job in range(problem.num_jobs):
        name = models[problem.model[job]]
        start = int(problem.arrival[job])
        arguments = {
            "job": job,
            "degree": int(episode.degree[job]),
            "outcome": CAUSES[episode.cause[job]],
        }
        if episode.jct[job] > 0:
            for server in true_places(episode.servers[job]):
                ticks = int(episode.jct[job])
                events.append(slice_of(name, (1, server), start, ticks, scale, arguments))
        if episode.cause[job] != COMPLETED:
            events.append(
                {
                    "name": f"{name}: {CAUSES[episode.cause[job]]}",
                    "ph": "i",
                    "s": "p",
                    "pid": 2,
                    "tid": 0,
                    "ts": start * scale,
                    "args": arguments,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
