"""`placeopt verify`: certify a solution made anywhere, or check a certificate again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeopt.cli import common, interrupt
from placeopt.cli.model_notes import over_limit
from placeopt.cli.problem import ProblemOptions, takes_problem
from placeopt.model.errors import InputError
from placeopt.model.files import write_text
from placeopt.model.objective import objective_of

if TYPE_CHECKING:
    from placeopt.certify.certificate import Certificate


@takes_problem
def verify_command(
    options: ProblemOptions,
    placement: Annotated[
        Path | None,
        typer.Argument(help="Placement (JSON or CSV: op,device[,priority]) or saved result."),
    ] = None,
    seconds: common.Seconds = 10.0,
    queue: common.Queue = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the certificate (JSON).")
    ] = None,
    proof: Annotated[
        Path | None,
        typer.Option(
            "--proof",
            help="File for a proof that tools/check_proof.py checks (JSON, .gz: compressed).",
        ),
    ] = None,
    recheck: Annotated[
        Path | None, typer.Option("--recheck", help="Certificate to check again.")
    ] = None,
    json: common.Json = False,
) -> None:
    """Check a placement made elsewhere: list its violations, or prove how far it is from the
    optimum.

    Exit code 1 if the placement is not valid. Example:
    `placeopt verify onnx:inception_v1 learned.csv --cluster 4xA100 --seconds 60 --out
    certificate.json`
    """
    from placeopt.certify.verify import read_solution, verify

    if placement is None:
        raise InputError(
            "verify: expected a placement file after the source (JSON or CSV with "
            "op,device[,priority])"
        )
    common.out_file(out)
    common.out_file(proof, "--proof")
    problem = options.load()
    if recheck is not None:
        raise typer.Exit(_check_again(problem, placement, recheck, seconds, json=json))

    given = read_solution(problem, options.given(problem, placement))

    def rescue() -> None:
        _report(problem, verify(problem, given, seconds=0.0, queue=queue), out, json=json)

    with interrupt.rescued_by(rescue):
        certificate = verify(problem, given, seconds=seconds, queue=queue)
        _report(problem, certificate, out, json=json)
        warning = over_limit(problem, given.solution, certificate.queue)
        if warning and certificate.feasible and not json:
            common.say(warning, markup=False)
        if proof is not None and certificate.feasible:
            _write_proof(problem, given.solution, certificate, proof, seconds, json=json)
    if interrupt.received():
        raise typer.Exit(interrupt.exit_code())
    raise typer.Exit(int(not certificate.feasible))


def _check_again(
    problem: Any, placement: Path, certificate: Path, seconds: float, *, json: bool
) -> int:
    """Print what a certificate says differently from what is found now; return the exit code."""
    from placeopt.certify.verify import recheck

    differences = recheck(certificate, problem, placement, seconds=seconds)
    if json:
        common.print_json(
            {"certificate": str(certificate), "holds": not differences, "differences": differences}
        )
    else:
        say = common.say
        say("the certificate holds" if not differences else "the certificate does not hold:")
        for line in differences:
            say(f"  {line}", markup=False)
    return 1 if differences else 0


def _report(problem: Any, certificate: Certificate, out: Path | None, *, json: bool) -> None:
    """Print a certificate, then write it: a full disk does not hide the outcome."""
    if not interrupt.claim_output() and interrupt.received():
        return
    data = certificate.to_dict()
    if json:
        common.print_json(data)
    else:
        _print(problem, certificate)
    if out is not None:
        import json as json_module

        write_text(out, json_module.dumps(data, indent=1) + "\n")
        if not json:
            common.say(f"certificate: {out}")


def _write_proof(
    problem: Any, solution: Any, certificate: Certificate, path: Path, seconds: float, *, json: bool
) -> None:
    """Write a proof and say what it shows."""
    from placeopt.certify.certificate import prove, write_proof

    data = prove(problem, solution, certificate, seconds)
    write_proof(path, data)
    if json:
        return
    shown = objective_of(problem).text(problem, data["lower_bound"])
    believed = "; ".join(belief["statement"] for belief in data["believed"]) or "nothing"
    common.say(f"proof: {path} shows the bound {shown}; to be believed: {believed}", markup=False)


def _print(problem: Any, certificate: Certificate) -> None:
    say, objective = common.say, objective_of(problem)
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
        say(f"  {line}", markup=False)
    if len(certificate.violations) > max_lines:
        say(f"  ... and {len(certificate.violations) - max_lines} more")
