"""`placeopt bound`: what no solution of a problem can beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from placeopt.cli import common, interrupt
from placeopt.cli.problem import ProblemOptions, takes_problem
from placeopt.model.objective import objective_of

if TYPE_CHECKING:
    from placeopt.model.bound import BoundReport


@takes_problem
def bound_command(
    options: ProblemOptions, seconds: common.Seconds = 10.0, json: common.Json = False
) -> None:
    """Prove a lower bound: no placement on this cluster is faster.

    Example: `placeopt bound gen:llama-block --cluster uniform:4 --seconds 30`
    """
    from placeopt.solving.bound import bound

    problem = options.load()
    quick: list[BoundReport] = []

    def rescue() -> None:
        if quick and interrupt.claim_output():
            _print(problem, quick[0], json=json)

    with interrupt.rescued_by(rescue):
        try:
            quick.append(bound(problem, seconds=0.0))
            report = bound(problem, seconds=seconds)
        except KeyboardInterrupt:
            if not quick:
                raise
            report = quick[0]
        if interrupt.claim_output() or not interrupt.received():
            _print(problem, report, json=json)
    if interrupt.received():
        raise typer.Exit(interrupt.exit_code())


def _print(problem: Any, report: BoundReport, *, json: bool) -> None:
    objective = objective_of(problem)
    if json:
        common.print_json(
            {
                "problem": problem.name,
                "objective": objective.name,
                "value": report.value,
                "seconds": float(report.value) * problem.tick_seconds,
                "method": report.method,
                "bounds": report.bounds,
                "infeasible": report.infeasible,
                "runtime": report.seconds,
            }
        )
        return
    say = common.say
    if report.infeasible:
        say(f"infeasible: {report.infeasible}")
        return
    say(
        f"{objective.name} >= {objective.text(problem, report.value)}  ({report.value} ticks, "
        f"proved by {report.method})"
    )
    view = common.table("method", "ticks", "value")
    for method, value in report.bounds.items():
        view.add_row(method, str(value), objective.text(problem, value))
    say(view)
