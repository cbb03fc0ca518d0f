"""`placeopt solve`: run solvers, compare them, save the best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeopt.cli import common, interrupt
from placeopt.cli.model_notes import is_own_model
from placeopt.cli.problem import ProblemOptions, takes_problem
from placeopt.model.errors import InputError
from placeopt.model.files import parse_json, read_text

if TYPE_CHECKING:
    from placeopt.cli.comparison import SolverComparison

MOST_BOUND_SECONDS, BOUND_SHARE = 5.0, 0.1
"""Time for the bound before the searches: seconds at most, and the share of a search's time; the
searches prove more."""


@takes_problem
def solve_command(
    options: ProblemOptions,
    solver: Annotated[
        list[str] | None,
        typer.Option(
            "--solver",
            "-s",
            help="Solver to run; repeatable or separated by commas.",
            autocompletion=common.solver_completions,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", "-t", min=0, help="Time limit of each search, in seconds."),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option("--evaluations", min=1, help="Limit of each search, in evaluations."),
    ] = None,
    target: Annotated[
        int | None, typer.Option("--target", help="Stop when the value is at most this (ticks).")
    ] = None,
    seed: common.Seed = 0,
    initial: Annotated[
        Path | None, typer.Option("--initial", help="Placement file to start from.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy-file", help="Trained policy to place with.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", help="Option of the solver, KEY=VALUE; needs a single solver. Repeatable."
        ),
    ] = None,
    out: common.OutFolder = None,
    bound_seconds: Annotated[
        float | None,
        typer.Option(
            "--bound-seconds",
            min=0,
            help="Time for the lower bound before the searches; a tenth of theirs, at most 5; none "
            "where one proves bounds.",
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show what each tactic of a search did.")
    ] = False,
    json: common.Json = False,
) -> None:
    """Place a model on a cluster: compare solvers, and prove a lower bound.

    Example: `placeopt solve onnx:inception_v1 --cluster 4xA100 --out out/`
    """
    from placeopt.api import DEFAULT_SECONDS
    from placeopt.certify.verify import read_solution
    from placeopt.cli.comparison import SolverComparison, chosen_solvers, compare
    from placeopt.cli.outcome import SolveReport, first_table
    from placeopt.model.budget import Budget

    folder = common.out_folder(out)
    problem = options.load()
    names = [part.strip() for value in solver or [] for part in value.split(",") if part.strip()]
    settings = common.options(option)
    if policy is not None:
        parse_json(read_text(policy, what="policy"), f"policy '{policy}'")  # before kernels compile
        settings["policy"] = str(policy)
        names = names or ["dual-policy"]
    solvers, broken = chosen_solvers(problem, names, settings)
    start = None if initial is None else read_solution(problem, initial).solution
    if seconds is None and evaluations is None:
        seconds = DEFAULT_SECONDS
    proved_later = seconds is not None and any(
        getattr(solver, "proves", False) for _, solver in solvers
    )
    if bound_seconds is None and not proved_later:
        bound_seconds = (
            MOST_BOUND_SECONDS
            if seconds is None
            else min(MOST_BOUND_SECONDS, BOUND_SHARE * seconds)
        )
    comparison = SolverComparison(problem, failures=broken)
    report = SolveReport(
        folder, single=len(names) == 1, json=json, own=is_own_model(options.source), explain=explain
    )
    with (
        interrupt.rescued_by(lambda: report.write_and_print(comparison.snapshot(), pictures=False)),
        common.search_progress(problem, json) as (announce, show),
    ):

        def announce_stage(stage: str) -> None:
            if solvers and stage == solvers[-1][0]:
                report.preload_plotting()
            announce(stage)

        compare(
            comparison,
            solvers,
            Budget(seconds, evaluations, target),
            seed=seed,
            initial=start,
            bound_seconds=bound_seconds,
            announce=announce_stage,
            on_progress=show,
            keep=report.save_result,
            meanwhile=lambda found: first_table(found, solvers, quiet=json),
        )
    with interrupt.rescued_by(lambda: report.write_and_print(comparison, pictures=False)):
        report.write_and_print(
            comparison, pictures=not comparison.interrupted
        )  # they take longer than a signal leaves
    code = _exit_code(comparison)
    raise typer.Exit(1 if report.unwritten and code == 0 else code)


def _exit_code(comparison: SolverComparison) -> int:
    """0 with a solution, 1 without, 3 where a solver contradicts itself or all failed, 130 or 143
    interrupted.
    """
    if comparison.interrupted:
        if not comparison.results:
            raise KeyboardInterrupt
        return interrupt.exit_code()
    failed = {failure.solver for failure in comparison.failures if not failure.refused}
    if comparison.contradiction or (
        failed and all(result.solver in failed for result in comparison.results)
    ):
        return 3
    if not comparison.results:
        raise InputError(f"no solver ran: {comparison.failures[0].message}")
    return 0 if comparison.best is not None else 1
