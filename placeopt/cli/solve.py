"""`placeopt solve`: run solvers, compare them, print and save the best."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from typer import Exit, Option

from placeopt.cli import common, interrupt
from placeopt.cli.common import percent, say
from placeopt.cli.comparison import (
    INTERPRETED_SECONDS,
    SolverComparison,
    chosen_solvers,
    compare,
    devices_used,
    interpretable,
)
from placeopt.cli.model_notes import is_own_model, link_note, memory_note, over_limit, why_none
from placeopt.cli.problem import ProblemOptions, takes_options
from placeopt.io.serialize import save, to_dict
from placeopt.model.errors import InputError, SolverError
from placeopt.model.files import Data, parse_json, read_text
from placeopt.model.objective import objective_of
from placeopt.model.result import Budget, Result
from placeopt.model.threads import start_thread
from placeopt.solving.run import run


@takes_options
def solve_command(
    options: ProblemOptions,
    solver: Annotated[
        list[str] | None,
        Option(
            "--solver",
            "-s",
            help="Solver to run; repeatable or separated by commas.",
            autocompletion=common.solver_completions,
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        Option("--seconds", "-t", min=0, help="Time limit of each search, in seconds."),
    ] = None,
    evaluations: Annotated[
        int | None, Option(min=1, help="Limit of each search, in evaluations.")
    ] = None,
    target: Annotated[
        int | None, Option(help="Stop when the value is at most this (ticks).")
    ] = None,
    seed: common.Seed = 0,
    initial: Annotated[Path | None, Option(help="Placement file to start from.")] = None,
    policy: Annotated[
        Path | None, Option("--policy-file", help="Trained policy to place with.")
    ] = None,
    option: common.SolverOptions = None,
    out: common.OutFolder = None,
    bound_seconds: Annotated[
        float | None,
        Option(
            min=0,
            help="Time for the lower bound before the searches; a tenth of theirs, at most 5; none "
            "where one proves bounds.",
        ),
    ] = None,
    explain: Annotated[
        bool, Option("--explain", help="Also show what each tactic of a search did.")
    ] = False,
    json: common.Json = False,
) -> None:
    """Place a model on a cluster: compare solvers, and prove a lower bound.

    Example: `placeopt solve onnx:inception_v1 --cluster 4xA100 --out out/`
    """
    from placeopt.api import DEFAULT_SECONDS
    from placeopt.certify.verify import read_solution

    folder = common.out_folder(out)
    problem = options.load()
    names = common.words(solver)
    settings = common.options(option)
    if policy is not None:
        parse_json(read_text(policy, what="policy"), f"policy '{policy}'")  # before kernels compile
        settings["policy"] = str(policy)
        names = names or ["dual-policy"]
    solvers, broken = chosen_solvers(problem, names, settings)
    start = None if initial is None else read_solution(problem, initial).solution
    if seconds is None and evaluations is None:
        seconds = DEFAULT_SECONDS
    if bound_seconds is None:
        bound_seconds = _bound_seconds(seconds, solvers)
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
    raise Exit(1 if report.unwritten and code == 0 else code)


def _bound_seconds(seconds: float | None, solvers: Sequence[tuple[str, Any]]) -> float | None:
    """Return the time for the lower bound before the searches, None where one proves bounds.

    It is a tenth of the time of a search, which proves more.
    """
    most = 5.0  # seconds for it
    if seconds is None:
        return most
    if any(getattr(solver, "proves", False) for _, solver in solvers):
        return None
    return min(most, 0.1 * seconds)


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


def _load_pictures() -> None:
    with contextlib.suppress(ImportError):  # whoever draws says so
        importlib.import_module("matplotlib.pyplot")


@dataclass
class SolveReport:
    """Where the outcome of a comparison goes.

    Attributes
    ----------
    folder : for the files, None for none. single : whether one solver was named: its JSON is the
    object itself.
    own : whether the model is the user's own: the report then says what is assumed of links, and
    what memory holds.
    explain : whether to show what each tactic of a search did.
    files : what was written. unwritten : why a file could not be written, "" if all could.
    """

    folder: Path | None
    single: bool
    json: bool
    own: bool
    explain: bool
    files: list[str] = field(default_factory=list)
    unwritten: str = ""

    def preload_plotting(self) -> None:
        """Load what draws the pictures while a search runs, not after it."""
        if self.folder is not None:
            start_thread(_load_pictures)

    def save_result(self, result: Result[Any]) -> None:
        """Save a result as soon as there is one; a full disk does not end the search."""
        if self.folder is None:
            return
        try:
            name = result.solver.replace("/", "-")  # a plug-in's may be any text
            save(result, self.folder / "results" / f"{name}.json")
        except InputError as error:
            self.unwritten = str(error)

    def write_and_print(self, comparison: SolverComparison, *, pictures: bool) -> None:
        """Write the files, then print the outcome, once."""
        if comparison.results:
            self._write(comparison, pictures=pictures)
            if interrupt.may_print():
                self._show(comparison)
        if self.json or not comparison.results:
            for failure in comparison.failures:
                message = " ".join(failure.message.split())
                print(f"placeopt: {failure.solver}: {message}", file=sys.stderr)
        if self.unwritten:
            print(f"placeopt: error: {self.unwritten}", file=sys.stderr)

    def _show(self, comparison: SolverComparison) -> None:
        if self.json:
            common.print_json(_json(comparison, self.files, single=self.single))
            return
        _print(comparison, self.files, own=self.own)
        for result in comparison.results if self.explain else ():
            if result.tactics:
                say(_tactics(result))

    def _write(self, comparison: SolverComparison, *, pictures: bool) -> None:
        """Save every result and the best solution; pictures last, for they take longest."""
        for result in comparison.results:
            self.save_result(result)
        winner = comparison.winner
        if self.folder is not None and winner is not None:
            try:
                self._write_best(comparison.problem, winner, self.folder, pictures=pictures)
            except InputError as error:
                self.unwritten = str(error)

    def _write_best(
        self, problem: Any, winner: Result[Any], folder: Path, *, pictures: bool
    ) -> None:
        from placeopt.io.placement_file import write_placement
        from placeopt.model.placement import Placement

        written, queue = [save(winner, folder / "result.json")], winner.queue or None
        placed = winner.solution if isinstance(winner.solution, Placement) else None
        if placed is not None:
            file = folder / "placement.json"
            written.insert(0, write_placement(file, problem, placed, queue))
        self.files = [str(path) for path in written]
        if pictures and placed is not None and objective_of(problem).drawn:
            from placeopt.plotting.gantt import write_pictures

            drawn = write_pictures(folder, problem, placed, queue, winner.lower_bound)
            self.files += [str(path) for path in drawn]


def _json(comparison: SolverComparison, files: list[str], *, single: bool) -> Data:
    """One result object for one named solver; for several, the list and the best one's fields
    beside it.
    """
    rows = [
        {
            **to_dict(result),
            "devices_used": devices_used(result),
            "single_device": comparison.alone,
            **_details(comparison.problem, result),
            "warning": over_limit(comparison.problem, result.solution, result.queue),
        }
        for result in comparison.results
    ]
    extra = {
        "bounds": {} if comparison.report is None else comparison.report.bounds,
        "files": files,
    }
    if single and len(rows) + len(comparison.failures) == 1:
        return {**rows[0], **extra}
    failed = [
        {"solver": f.solver, "error": f.message, "refused": f.refused} for f in comparison.failures
    ]
    return {
        **rows[comparison.best or 0],
        **extra,
        "results": rows,
        "best": comparison.best,
        "failures": failed,
        "note": comparison.note,
    }


def _details(problem: Any, result: Result[Any]) -> Data:
    """Return what the objective of a problem tells about a solution beside its value."""
    tell = getattr(objective_of(problem), "details", None)
    return {} if tell is None or result.solution is None else tell(problem, result.solution)


def _print(comparison: SolverComparison, files: list[str], *, own: bool) -> None:
    """Print the table of solvers and what follows from it."""
    problem = comparison.problem
    if hasattr(problem, "num_ops"):
        say(
            f"{problem.name}: {problem.num_ops} ops, {problem.num_edges} edges, "
            f"{problem.num_devices} devices"
        )
    if comparison.report is not None and comparison.report.infeasible:
        say(f"infeasible: {comparison.report.infeasible}")
    say(table(comparison))
    for note in _remarks(comparison):
        say(note)
    winner = comparison.winner
    if winner is not None:
        _print_best(comparison, winner, own=own)
        for path in files:
            say(f"wrote {path}")
    elif all(result.status == "unknown" for result in comparison.results):
        say(why_none(problem))


def _remarks(comparison: SolverComparison) -> Iterator[str]:
    """Yield what is to be said of single solvers."""
    if comparison.note:
        yield comparison.note
    for result in comparison.results:
        if result.message:
            yield f"{result.solver}: {result.message}"
    for failure in comparison.failures:
        what = "not run" if failure.refused else "failed"
        yield f"{failure.solver}: {what}: {failure.message}"


def _print_best(comparison: SolverComparison, winner: Result[Any], *, own: bool) -> None:
    """Print the best solution, what is proved of it, and what to know before it is used."""
    problem, objective = comparison.problem, objective_of(comparison.problem)
    how = f", {winner.queue} execution" if winner.queue else ""
    say(
        f"\nbest: {winner.solver}, {objective.name} {objective.text(problem, winner.value)} "
        f"({winner.value} ticks{how})"
    )
    optimal = winner.status == "optimal"
    proof = "the solution is optimal" if optimal else f"gap {percent(winner.gap)}"
    say(
        f"proven lower bound: {objective.text(problem, winner.lower_bound)} by "
        f"{winner.bound_method}; {proof}"
    )
    if objective.baseline and not comparison.interrupted:
        say(_alone(comparison, winner))
    warning = over_limit(problem, winner.solution, winner.queue)
    if warning:
        say(warning)
    for line in _notes(problem, winner, own=own) if not comparison.interrupted else ():
        say(line, soft_wrap=True)  # holds a command to copy


def _notes(problem: Any, winner: Result[Any], *, own: bool) -> list[str]:
    """Return what is assumed of links (for models of the user's own), and what memory holds (for
    these and for training).
    """
    from placeopt.model.problem import PlacementProblem

    if not isinstance(problem, PlacementProblem) or not (own or problem.backward.any()):
        return []
    notes = [memory_note(problem, winner), link_note(problem, winner) if own else ""]
    return [note for note in notes if note]


def table(comparison: SolverComparison) -> Any:
    """Return the table of solvers for people."""
    problem = comparison.problem
    objective = objective_of(problem)
    heads = ("solver", objective.name, "gap", "devices", "status", "evaluations", "runtime")
    view = common.table(*heads)
    for column in view.columns[1:4] + view.columns[5:]:
        column.justify = "right"
    for i, result in enumerate(comparison.results):
        gap = result.gap if result.lower_bound else None
        star = " *" if i == comparison.best and len(comparison.results) > 1 else ""
        view.add_row(
            f"{result.solver}{star}",
            objective.text(problem, result.value),
            percent(gap),
            str(devices_used(result) or "-"),
            result.status,
            str(result.evaluations),
            f"{result.runtime:.2f} s",
        )
    return view


def _tactics(result: Result[Any]) -> Any:
    """Return the table of what each tactic of a search did."""
    heads = ("tactic", "side", "seconds", "turns", "value gained", "bound gained", "state")
    view = common.table(*heads, title=f"tactics of {result.solver}")
    for column in view.columns[2:6]:
        column.justify = "right"
    for use in result.tactics:
        gained = (f"{100 * part:.2f} %" for part in (use.value_gained, use.bound_gained))
        state = "exhausted" if use.exhausted else "open"
        view.add_row(use.name, use.side, f"{use.seconds:.2f}", str(use.turns), *gained, state)
    return view


def _alone(comparison: SolverComparison, winner: Result[Any]) -> str:
    """Compare the best solution with the plainest: everything on one device."""
    problem, alone = comparison.problem, comparison.alone
    if alone is None:
        return "no single device can hold the whole model"
    used = devices_used(winner)
    if used == 1:
        return "one device is fastest here: sending tensors costs more than a second device saves"
    times = f"{alone / max(1, winner.value or 0):.2f} x slower than {used} devices"
    return f"one device alone: {objective_of(problem).text(problem, alone)}, {times}"


def first_table(
    comparison: SolverComparison, solvers: Sequence[tuple[str, Any]], *, quiet: bool
) -> None:
    """Fill `comparison.first` with what the heuristics among the solvers find, and print it on the
    error stream.
    """
    patience = 5.0  # seconds after which no other heuristic begins
    largest = 2000  # ops above which interpreted heuristics would not be quick
    problem, end = comparison.problem, time.monotonic() + patience
    if getattr(problem, "num_ops", largest + 1) > largest:
        return
    for _, solver in solvers:
        if not interpretable(solver, problem) or time.monotonic() > end:
            continue
        try:
            result: Any = run(problem, solver, Budget(INTERPRETED_SECONDS))
        except (InputError, SolverError):  # what a solver refuses it says when its turn comes
            continue
        interrupted = result.stop_reason == "interrupted"
        if result.value is not None or not interrupted:
            comparison.first.append(result)
        if interrupted:
            raise KeyboardInterrupt
    if comparison.first and not quiet:
        say = common.console(stderr=True).print
        say("first results, by interpreted heuristics:")
        say(table(SolverComparison(problem, comparison.first)))
