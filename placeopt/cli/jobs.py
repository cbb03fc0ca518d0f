"""`placeopt jobs`: compare degree policies on a job stream."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeopt.cli import common
from placeopt.model.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from placeopt.solving.solver import Progress
    from placeopt.streams.bound import OfflineBound
    from placeopt.streams.problem import JobStreamProblem
    from placeopt.streams.simulator import DegreePolicy, Summary

BOUND_EPISODES = 20
"""Streams that --bound looks at; each takes about a second."""


def jobs_command(
    stream: Annotated[
        str, typer.Argument(help="stream:ramp?beta=A&rule=uniform, FILE.json, FILE.toml or a trace FILE.csv.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", help="NAME or NAME:PARAMETER, as constant-degree:4. Repeatable or separated by commas."
        ),
    ] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-n", min=1, help="Streams to draw.")] = 10,
    profiles: Annotated[Path | None, typer.Option("--profiles", help="Folder of the PipeDream profiles.")] = None,
    bound: Annotated[
        bool, typer.Option("--bound", help="Bound the blocking of any policy from below, on the first 20 streams.")
    ] = False,
    lookahead: Annotated[bool, typer.Option("--lookahead", help="Show the time of each model and degree.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Replaces the seed of the stream.")] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", "-t", min=0, help="Time limit of the tuning of each policy.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Threads; by default one per core.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for pictures, traces and results.")] = None,
    json: common.Json = False,
) -> None:
    """Compare policies that choose how far to split each job of a busy cluster.

    Example: `placeopt jobs "stream:ramp?beta=A&rule=uniform&units=published" --profiles DIR -p constant-degree:8 -n 20`
    """
    from placeopt.solvers.degree.select import DEFAULT_POLICIES, check_policy, tuned_policy
    from placeopt.streams.bound import offline_bound
    from placeopt.streams.simulator import Summary, simulate_many
    from placeopt.streams.sources import load_stream

    problem = load_stream(stream, profiles=profiles, seed=seed)
    named = [part.strip() for value in policy or () for part in value.split(",") if part.strip()]
    names = list(dict.fromkeys(named or DEFAULT_POLICIES))
    for name in names:
        check_policy(name, problem)  # refuse a misspelt name before tuning the others
    folder = common.out_folder(out)
    streams = [problem, *(problem.resample(problem.seed + i) for i in range(1, episodes))]
    summaries: list[Summary] = []
    messages: dict[str, str] = {}
    tuned: dict[str, DegreePolicy] = {}
    bounds: list[OfflineBound] = []
    interrupted = False
    with common.progress(json) as (announce, show):

        def on_progress(progress: Progress) -> None:
            show(f"{progress.evaluations} episodes of tuning")

        try:
            for name in names:
                announce(name)
                chosen, message = tuned_policy(
                    name, problem, seed=problem.seed, seconds=seconds, on_progress=on_progress
                )
                show(f"{episodes} episodes")
                runs = simulate_many(streams, chosen, seed=problem.seed, workers=workers)
                summaries.append(Summary.of(name, runs))
                tuned[name], messages[name] = chosen, message
            if bound:
                announce("bound")
                for one in streams[:BOUND_EPISODES]:
                    bounds.append(offline_bound(one))
                    show(f"{len(bounds)} episodes")
        except KeyboardInterrupt:
            interrupted = True
    if not summaries:
        raise InputError("interrupted before any result")
    data = _report(problem, summaries, messages)
    if bounds:
        data["offline_bound"] = sum(one.blocking_rate for one in bounds) / len(bounds)
        data["offline_bound_episodes"] = len(bounds)
    if lookahead:
        data["lookahead"] = problem.jobs.lookahead
    if folder is not None:
        data["files"] = [str(path) for path in _write(folder, problem, tuned, data)]
    if json:
        common.print_json(data)
    else:
        _print(problem, data)
    if interrupted:
        raise typer.Exit(130)


def _report(problem: JobStreamProblem, summaries: list[Summary], messages: dict[str, str]) -> dict[str, Any]:
    return {
        "problem": problem.name,
        "jobs": problem.num_jobs,
        "degrees": list(problem.jobs.degrees),
        "offered_load": problem.offered_load,
        "seed": problem.seed,
        "policies": [
            {
                "policy": summary.policy,
                "blocking_rate": summary.blocking_rate,
                "ci95": list(summary.ci95),
                "mean_jct": summary.mean_jct,
                "speedup": summary.mean_speedup,
                "throughput": summary.throughput,
                "mean_degree": summary.mean_degree,
                "utilisation": summary.utilisation,
                "causes": summary.causes,
                "episodes": summary.episodes,
                "message": messages[summary.policy],
            }
            for summary in summaries
        ],
    }


def _write(folder: Path, problem: JobStreamProblem, tuned: dict[str, DegreePolicy], data: dict[str, Any]) -> list[Path]:
    """Write the results, and a picture and a trace of the first episode of each policy."""
    from placeopt.model.files import write_text
    from placeopt.plotting.files import write_figure
    from placeopt.plotting.jobs import chrome_trace, plot_occupancy
    from placeopt.streams.simulator import simulate

    written = []
    for name, policy in tuned.items():
        episode = simulate(problem, policy, seed=problem.seed, record_servers=True)
        stem = name.replace(":", "-").replace("/", "-")
        written.append(write_text(folder / f"trace-{stem}.json", json_module.dumps(chrome_trace(episode)) + "\n"))
        try:
            written.append(write_figure(plot_occupancy(episode), folder / f"occupancy-{stem}.png"))
        except MissingExtraError:
            continue
    written.append(write_text(folder / "jobs.json", json_module.dumps(data, indent=2) + "\n"))
    return written


def _print(problem: JobStreamProblem, data: dict[str, Any]) -> None:
    from rich.table import Table

    from placeopt.streams.episode_loop import CAUSES

    console = common.console()
    console.print(
        f"{problem.name}: {problem.num_jobs} jobs, offered load {data['offered_load']:.3f}, "
        f"degrees {', '.join(map(str, data['degrees']))}"
    )
    table = Table(box=None, pad_edge=False)
    causes = Table(box=None, pad_edge=False)
    columns = "blocked", "95 % interval", "JCT", "speed-up", "degree", "load"
    for view, names in ((table, columns), (causes, [f"blocked: {name}" for name in CAUSES[1:]])):
        view.add_column("policy")
        for name in names:
            view.add_column(name, justify="right")
    for row in data["policies"]:
        table.add_row(
            row["policy"],
            f"{row['blocking_rate']:.4f}",
            f"{row['ci95'][0]:.4f}..{row['ci95'][1]:.4f}",
            f"{row['mean_jct']:.5g}",
            f"{row['speedup']:.2f}",
            f"{row['mean_degree']:.2f}",
            f"{row['utilisation']:.3f}",
        )
        causes.add_row(row["policy"], *(f"{row['causes'][name]:.4f}" for name in CAUSES[1:]))
    console.print(table)
    console.print()
    console.print(causes)
    if "offline_bound" in data:
        console.print(
            f"no policy blocks less than {data['offline_bound']:.4f}, even knowing all arrivals "
            f"(mean of {data['offline_bound_episodes']} streams)"
        )
    if "lookahead" in data:
        times = Table(title="completion time by degree", box=None, pad_edge=False)
        times.add_column("model")
        for degree in data["degrees"]:
            times.add_column(str(degree), justify="right")
        for model, row in data["lookahead"].items():
            times.add_row(model, *(f"{row[d]:.6g}" if d in row else "-" for d in data["degrees"]))
        console.print(times)
    for row in data["policies"]:
        if row["message"]:
            console.print(f"{row['policy']}: {row['message']}")
    for path in data.get("files", ()):
        console.print(f"wrote {path}")

