"""What holds of solutions: `placeopt bound`, what no solution of a problem can beat; and of one
that was made anywhere `placeopt verify`, a certificate of it or of one checked again, `placeopt
evaluate`, its value and what its devices do, and `placeopt plot`, its pictures.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Exit, Option

from placeopt.certify.certificate import Certificate, prove, write_proof
from placeopt.certify.verify import read_solution, recheck, verify
from placeopt.cli import common, interrupt
from placeopt.cli.common import print_json, say, time_text
from placeopt.cli.model_notes import over_limit
from placeopt.cli.problem import ProblemOptions, takes_options
from placeopt.model.bound import BoundReport
from placeopt.model.errors import InfeasiblePlacementError, InputError
from placeopt.model.files import Data, write_json
from placeopt.model.objective import objective_of
from placeopt.plotting.gantt import chrome_trace, gantt_figure, write_pictures
from placeopt.solving.bound import bound

SUFFIXES = (".png", ".svg", ".pdf", ".json")
"""Of the files that `placeopt plot` writes."""


@takes_options
def bound_command(
    options: ProblemOptions, seconds: common.Seconds = 10.0, json: common.Json = False
) -> None:
    """Prove a lower bound: no placement on this cluster is faster.

    Example: `placeopt bound gen:llama-block --cluster uniform:4 --seconds 30`
    """
    problem = options.load()
    found: list[BoundReport] = []

    def rescue() -> None:
        if found and interrupt.claim_output():
            _print_bound(problem, found[-1], json=json)

    with interrupt.rescued_by(rescue):
        try:
            for limit in (0.0, seconds):
                found.append(bound(problem, seconds=limit))
        except KeyboardInterrupt:
            if not found:
                raise
        if interrupt.may_print():
            _print_bound(problem, found[-1], json=json)
    if interrupt.received():
        raise Exit(interrupt.exit_code())


def _print_bound(problem: Any, report: BoundReport, *, json: bool) -> None:
    objective = objective_of(problem)
    if json:
        print_json(
            {
                "problem": problem.name,
                "objective": objective.name,
                "seconds": float(report.value) * problem.tick_seconds,
                **common.told(report, "value method bounds infeasible"),
                "runtime": report.seconds,
            }
        )
        return
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


@takes_options
def verify_command(
    options: ProblemOptions,
    placement: Annotated[
        Path | None, Argument(help="Placement (JSON or CSV: op,device[,priority]) or saved result.")
    ] = None,
    seconds: common.Seconds = 10.0,
    queue: common.Queue = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="File for the certificate (JSON).")
    ] = None,
    proof: Annotated[
        Path | None,
        Option(help="File for a proof that tools/check_proof.py checks (JSON, .gz: compressed)."),
    ] = None,
    recheck: Annotated[Path | None, Option(help="Certificate to check again.")] = None,
    json: common.Json = False,
) -> None:
    """Check a placement made elsewhere: list its violations, or prove how far it is from the
    optimum.

    Exit code 1 if the placement is not valid. Example:
    `placeopt verify onnx:inception_v1 learned.csv --cluster 4xA100 --seconds 60 --out
    certificate.json`
    """
    if placement is None:
        raise InputError(
            "verify: expected a placement file after the source (JSON or CSV with "
            "op,device[,priority])"
        )
    _check_files(out, proof, recheck, (options.source, options.cluster, options.costs, placement))
    problem = options.load()
    if recheck is not None:
        raise Exit(_check_again(problem, placement, recheck, seconds, json=json))

    given = read_solution(problem, options.given(problem, placement))

    def rescue() -> None:
        _report(problem, verify(problem, given, seconds=0.0, queue=queue), out, json=json)

    with interrupt.rescued_by(rescue):
        certificate = verify(problem, given, seconds=seconds, queue=queue)
        unwritten = None
        try:
            _report(problem, certificate, out, json=json)
        except InputError as error:  # the proof may lie where there is room
            unwritten = error
        warning = over_limit(problem, given.solution, certificate.queue)
        if warning and certificate.feasible and not json:
            say(warning)
        if proof is not None and certificate.feasible:
            _write_proof(problem, given.solution, certificate, proof, seconds, json=json)
        if unwritten is not None:
            raise unwritten
    if interrupt.received():
        raise Exit(interrupt.exit_code())
    raise Exit(int(not certificate.feasible))


def _check_files(
    out: Path | None,
    proof: Path | None,
    recheck: Path | None,
    read: Iterable[Path | str | None],
) -> None:
    """Refuse files that cannot be written, one for two things, and any beside what only checks."""
    for option, path in (("--out", out), ("--proof", proof)):
        if path is not None and recheck is not None:
            raise InputError(f"{option} '{path}': --recheck writes nothing; leave it out")
        common.out_file(path, option, *read)
    if out is None or proof is None or out.resolve() != proof.resolve():
        return
    if out.is_file() or not out.exists():  # devices and pipes take both
        raise InputError(f"--proof '{proof}': the certificate goes there; name another file")


def _check_again(
    problem: Any, placement: Path, certificate: Path, seconds: float, *, json: bool
) -> int:
    """Print what a certificate says differently from what is found now; return the exit code."""
    differences = recheck(certificate, problem, placement, seconds=seconds)
    if json:
        print_json(
            {"certificate": str(certificate), "holds": not differences, "differences": differences}
        )
    else:
        say("the certificate holds" if not differences else "the certificate does not hold:")
        for line in differences:
            say(f"  {line}")
    return 1 if differences else 0


def _report(problem: Any, certificate: Certificate, out: Path | None, *, json: bool) -> None:
    """Print a certificate, then write it: a full disk does not hide the outcome."""
    if not interrupt.may_print():
        return
    data = certificate.to_dict()
    if json:
        print_json(data)
    else:
        _print_certificate(problem, certificate)
    if out is not None:
        write_json(out, data)
        if not json:
            say(f"certificate: {out}")


def _write_proof(
    problem: Any, solution: Any, certificate: Certificate, path: Path, seconds: float, *, json: bool
) -> None:
    """Write a proof and say what it shows."""
    data = prove(problem, solution, certificate, seconds)
    write_proof(path, data)
    if json:
        return
    text = partial(objective_of(problem).text, problem)
    shown = text(data["lower_bound"])
    if data["value"] != certificate.value:  # of all micro-batches of a pattern
        shown += f" of {text(data['value'])} for a whole pattern"
    believed = "; ".join(belief["statement"] for belief in data["believed"]) or "nothing"
    say(f"proof: {path} shows the bound {shown}; to be believed: {believed}")


def _print_certificate(problem: Any, certificate: Certificate) -> None:
    objective = objective_of(problem)
    if certificate.feasible:
        word = "optimal" if certificate.status == "optimal" else "valid"
        how = f" ({certificate.queue} execution)" if certificate.queue else ""
        say(f"{word}: {objective.name} {objective.text(problem, certificate.value)}{how}")
        say(
            f"proven lower bound {objective.text(problem, certificate.lower_bound)} by "
            f"{certificate.bound_method}; gap {common.percent(certificate.gap)}"
        )
        return
    say(f"not valid: {len(certificate.violations)} violation(s)")
    max_lines = 20
    for line in certificate.violations[:max_lines]:
        say(f"  {line}")
    if len(certificate.violations) > max_lines:
        say(f"  ... and {len(certificate.violations) - max_lines} more")


@takes_options
def evaluate_command(
    options: ProblemOptions,
    placement: common.SolutionFile,
    queue: common.Queue = None,
    out: common.OutFolder = None,
    json: common.Json = False,
) -> None:
    """Simulate a placement: makespan, busy time and peak memory of every device.

    Example: `placeopt evaluate onnx:inception_v1 placement.csv --cluster 4xA100`
    """
    folder = common.out_folder(out)
    problem = options.load()
    objective = objective_of(problem)
    given, named, _ = read_solution(problem, options.given(problem, placement))
    queue = queue or named
    finished = objective.finish(problem, given, queue or objective.default_queue(given) or None)
    if finished.value is None:
        raise InfeasiblePlacementError(f"the solution is not valid: {finished.violations[0]}")
    data: Data = {
        "problem": problem.name,
        "objective": objective.name,
        "value": finished.value,
        "seconds": float(finished.value) * problem.tick_seconds,
        "queue": finished.queue,
    }
    execution = _execution(problem, given, queue)
    if execution is not None:
        data |= {
            **common.told(execution, "makespan queue busy peak_memory"),
            "transfers": len(execution.transfers),
        }
    data[objective.name] = data["value"]
    data["warning"] = over_limit(problem, given, queue)
    try:
        if execution is not None and folder is not None:
            paths = write_pictures(folder, problem, given, execution.queue)
            data["files"] = list(map(str, paths))
    finally:  # a full disk does not hide the outcome
        if json:
            print_json(data)
        else:
            _print_value(data, objective.text(problem, finished.value), execution)


def _print_value(data: Data, text: str, execution: Any) -> None:
    say(f"{data['objective']} {text}  ({data['value']} ticks)")
    if execution is not None:
        _print_execution(execution)
    if data["warning"]:
        say(data["warning"])


def _execution(problem: Any, placement: Any, queue: str | None) -> Any:
    """Return one run of a placement, None of a solution that is none."""
    from placeopt.makespan.evaluate import evaluate

    if not hasattr(placement, "device"):
        return None
    return evaluate(problem, placement, queue or None, check=False)


def _print_execution(run: Any) -> None:
    problem = run.problem
    tick = problem.tick_seconds
    say(
        f"one run takes {time_text(run.makespan, tick)}  ({run.makespan} ticks, {run.queue} "
        f"execution, {len(run.transfers)} transfers)"
    )
    view = common.table("device", "ops", "busy", "utilisation", "peak memory")
    for d, name in enumerate(problem.device_names):
        view.add_row(
            name,
            str(int((run.placement.device == d).sum())),
            time_text(int(run.busy[d]), tick),
            f"{100 * run.busy[d] / max(1, run.makespan):.1f} %",
            common.bytes_text(int(run.peak_memory[d])),
        )
    say(view)


@takes_options
def plot_command(
    options: ProblemOptions,
    placement: common.SolutionFile,
    out: Annotated[
        Path, Option("--out", "-o", help="PNG, SVG or PDF of the Gantt picture, or trace .json.")
    ] = Path("gantt.png"),
    queue: common.Queue = None,
    json: common.Json = False,
) -> None:
    """Draw the Gantt picture of a placement, or write its Chrome trace.

    Example: `placeopt plot onnx:inception_v1 out/placement.json --cluster 4xA100 --out gantt.svg`
    """
    from placeopt.makespan.evaluate import evaluate
    from placeopt.model.placement import Placement

    common.check_suffix(out, SUFFIXES)
    common.out_file(out, "--out", options.source, options.cluster, options.costs, placement)
    problem = options.load()
    given, named, _ = read_solution(problem, placement)
    if not isinstance(given, Placement):
        raise InputError(
            f"'{placement}' is no placement; draw a pipeline with placeopt schedule --out FOLDER"
        )
    run = evaluate(problem, given, queue or named or None, check=False)
    if out.suffix.lower() == ".json":
        write_json(out, chrome_trace(run), None)
    else:
        from placeopt.plotting.style import write_figure

        lower = bound(problem.replace(objective="makespan"), seconds=0.0).value
        write_figure(gantt_figure(run, lower_bound=lower), out)
    if json:
        print_json({"file": str(out), "makespan": run.makespan})
    else:
        say(f"wrote {out}")
