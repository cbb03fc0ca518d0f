"""`placeopt jobs`: compare degree policies on a job stream."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from placeopt.cli import common, interrupt
from placeopt.cli.common import say
from placeopt.model.errors import MissingExtraError, SolverError
from placeopt.model.files import Data, write_json
from placeopt.streams.bound import OfflineBound, offline_bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from placeopt.model.result import Result
    from placeopt.solving.tracker import OnProgress
    from placeopt.streams.problem import JobStreamProblem
    from placeopt.streams.simulator import Episode, Summary


def jobs_command(
    stream: Annotated[
        str,
        Argument(help="stream:ramp?beta=A&rule=uniform, FILE.json, FILE.toml or a trace FILE.csv."),
    ],
    policy: Annotated[
        list[str] | None,
        Option(
            "--policy",
            "-p",
            help="NAME or NAME:PARAMETER, as constant-degree:4. Repeatable or separated by commas.",
        ),
    ] = None,
    episodes: Annotated[int, Option(min=1, help="Number of streams to compare on.")] = 10,
    profiles: Annotated[Path | None, Option(help="Folder of the PipeDream profiles.")] = None,
    bound: Annotated[
        bool,
        Option(
            "--bound", help="Prove how many jobs any policy must block, on the first 20 streams."
        ),
    ] = False,
    lookahead: Annotated[
        bool, Option("--lookahead", help="Show the completion time of each model at each degree.")
    ] = False,
    seed: Annotated[
        int | None, Option(min=0, help="Seed of the stream, instead of its own.")
    ] = None,
    seconds: Annotated[
        float | None,
        Option("--seconds", "-t", min=0, help="Time limit of the tuning of each policy."),
    ] = None,
    threads: Annotated[int | None, Option(min=1, help="Threads; by default one per core.")] = None,
    out: common.OutFolder = None,
    json: common.Json = False,
) -> None:
    """Compare policies that choose how many servers each job of a busy cluster gets.

    Example: `placeopt jobs "stream:ramp?beta=A&rule=uniform&units=published" --profiles DIR -p
    constant-degree:8 --episodes 20`
    """
    from placeopt.solvers.degree.tuning import DEFAULT_POLICIES, check_policy
    from placeopt.streams.sources import load_stream

    problem = load_stream(stream, profiles=profiles, seed=seed)
    names = list(dict.fromkeys(common.words(policy) or DEFAULT_POLICIES))
    for name in names:
        with suppress(SolverError):  # a plug-in's, which is told when its turn comes
            check_policy(name, problem)  # refuse a misspelt name before tuning the others
    folder = common.out_folder(out)
    found, failed = _PolicyComparison(problem, episodes, threads), list[str]()

    def tell() -> None:
        if found.summaries:
            data = found.report(lookahead)
            try:
                if folder is not None:
                    data["files"] = _write(folder, found, data)
            finally:  # a full disk does not hide the outcome
                if interrupt.may_print():
                    common.print_json(data) if json else _print(problem, data)

    def compare() -> None:
        with common.progress(json) as (announce, show):
            report = common.progress_callback(problem, show)
            for name in names:
                announce(name)
                try:
                    found.add(name, seconds, show, report)
                except SolverError as error:  # a plug-in's; the others go on
                    failed.append(str(error))
            if bound:
                announce("bound")
                found.bound(show)

    interrupted = False
    with interrupt.rescued_by(tell):
        try:
            compare()
        except KeyboardInterrupt:
            interrupted = True
        tell()
    if interrupted and not found.summaries:
        raise KeyboardInterrupt
    if interrupted:
        raise Exit(interrupt.exit_code())
    if failed:
        raise SolverError("; ".join(failed))


@dataclass
class _PolicyComparison:
    """What is known of the policies so far, also where the command is interrupted."""

    problem: JobStreamProblem
    num_episodes: int
    threads: int | None
    summaries: list[Summary] = field(default_factory=list)
    results: dict[str, Result[Episode]] = field(default_factory=dict)
    bounds: list[OfflineBound] = field(default_factory=list)

    @cached_property
    def streams(self) -> list[JobStreamProblem]:
        """The streams that policies are judged on."""
        seed = self.problem.seed
        return [
            self.problem,
            *(self.problem.resample(seed + i) for i in range(1, self.num_episodes)),
        ]

    def add(
        self, name: str, seconds: float | None, show: Callable[[str], None], on_progress: OnProgress
    ) -> None:
        """Tune a policy and judge it on every stream; Ctrl-C keeps the episodes so far."""
        from placeopt.solvers.degree.tuning import tuned_result
        from placeopt.streams.simulator import Summary, simulate_each

        seed = self.problem.seed
        result = tuned_result(
            name, self.problem, seed=seed, seconds=seconds, on_progress=on_progress
        )
        if result.solution is None:
            raise SolverError(f"policy '{name}' gave no episode: {result.message}")
        runs = [result.solution]  # the episode on the first stream
        self.results[name] = result
        try:
            if result.stop_reason == "interrupted":
                raise KeyboardInterrupt
            for run in simulate_each(
                self.streams[1:], result.solution.policy, seed=seed + 1, threads=self.threads
            ):
                runs.append(run)
                show(f"{len(runs)} episodes")
        finally:
            self.summaries.append(Summary.of(name, runs))

    def bound(self, show: Callable[[str], None]) -> None:
        """Bound the jobs that any policy blocks on the first streams."""
        # Streams that --bound looks at; each takes about a second
        bound_episodes = 20
        for stream in self.streams[:bound_episodes]:
            self.bounds.append(offline_bound(stream))
            show(f"{len(self.bounds)} episodes")

    def report(self, lookahead: bool) -> Data:
        """Return what is known for JSON."""
        problem = self.problem
        data: Data = {
            "problem": problem.name,
            "jobs": problem.num_jobs,
            "degrees": list(problem.jobs.degrees),
            "offered_load": problem.offered_load,
            "seed": problem.seed,
            "policies": [
                {
                    **common.told(summary, "policy blocking_rate ci95 mean_jct"),
                    "speedup": summary.mean_speedup,
                    **common.told(summary, "throughput mean_degree utilisation causes episodes"),
                    "message": self.results[summary.policy].message,
                }
                for summary in self.summaries
            ],
        }
        if self.bounds:
            data["offline_bound"] = sum(one.blocking_rate for one in self.bounds) / len(self.bounds)
            data["offline_bound_episodes"] = len(self.bounds)
        if lookahead:
            data["lookahead"] = problem.jobs.lookahead
        return data


def _write(folder: Path, found: _PolicyComparison, data: Data) -> list[str]:
    """Write a trace and a picture of the first episode of each policy, and the results; return the
    paths.
    """
    from placeopt.plotting.jobs import chrome_trace, plot_occupancy
    from placeopt.plotting.style import write_figure

    written = []
    for name, result in found.results.items():
        if result.solution is None:
            continue
        stem = name.replace(":", "-").replace("/", "-")
        trace = folder / f"trace-{stem}.json"
        written.append(write_json(trace, chrome_trace(result.solution), None))
        if interrupt.received():  # pictures take longer than a signal leaves
            continue
        with suppress(MissingExtraError):
            written.append(
                write_figure(plot_occupancy(result.solution), folder / f"occupancy-{stem}.png")
            )
    files = [str(path) for path in (*written, folder / "jobs.json")]
    write_json(folder / "jobs.json", {**data, "files": files}, 2)
    return files


def _print(problem: JobStreamProblem, data: Data) -> None:
    say(
        f"{problem.name}: {problem.num_jobs} jobs, offered load {data['offered_load']:.3f}, "
        f"degrees {', '.join(map(str, data['degrees']))}"
    )
    rates, causes = _tables(data["policies"])
    say(rates)
    say()
    say(causes)
    if "offline_bound" in data:
        say(
            f"no policy blocks less than {data['offline_bound']:.4f}, even knowing all arrivals "
            f"(mean of {data['offline_bound_episodes']} streams)"
        )
    if "lookahead" in data:
        say(_times_table(data))
    for row in data["policies"]:
        if row["message"]:
            say(f"{row['policy']}: {row['message']}")
    for path in data.get("files", []):
        say(f"wrote {path}")


def _tables(policies: list[Data]) -> tuple[Table, Table]:
    """Return the figures of every policy, and its blocked jobs by cause."""
    from placeopt.streams.episode_loop import CAUSES

    rates, causes = common.table(), common.table()
    columns = "blocked", "95 % interval", "JCT", "speed-up", "degree", "load"
    for table, names in ((rates, columns), (causes, [f"blocked: {name}" for name in CAUSES[1:]])):
        table.add_column("policy")
        for name in names:
            table.add_column(name, justify="right")
    for row in policies:
        rates.add_row(
            row["policy"],
            f"{row['blocking_rate']:.4f}",
            "{:.4f}..{:.4f}".format(*row["ci95"]) if row["episodes"] > 1 else "-",
            f"{row['mean_jct']:.5g}",
            f"{row['speedup']:.2f}",
            f"{row['mean_degree']:.2f}",
            f"{row['utilisation']:.3f}",
        )
        causes.add_row(row["policy"], *(f"{row['causes'][name]:.4f}" for name in CAUSES[1:]))
    return rates, causes


def _times_table(data: Data) -> Table:
    times = common.table(title="completion time by degree")
    times.add_column("model")
    for degree in data["degrees"]:
        times.add_column(str(degree), justify="right")
    for model, row in data["lookahead"].items():
        times.add_row(model, *(f"{row[d]:.6g}" if d in row else "-" for d in data["degrees"]))
    return times
