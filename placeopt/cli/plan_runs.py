"""`placeopt plan --runs`: predict, or fit to, a table of training runs."""

from __future__ import annotations

from pathlib import Path

from placeopt.cli import common


def predict_runs(
    runs: Path, out: Path | None, costs: Path | None, *, calibrate: bool, json: bool
) -> None:
    """Write a table with predictions or, with `calibrate`, a calibration file."""
    from placeopt.model.errors import InputError
    from placeopt.planning.fit_runs import fit, usable
    from placeopt.planning.runs_table import predict_table, read_runs
    from placeopt.plans.calibration import default_calibration, read_calibration

    if out is None:
        raise InputError(
            "--runs: expected --out FILE, the table with predictions (predicted.csv) or, with "
            "--calibrate, the calibration (calibration.json)"
        )
    constants = default_calibration() if costs is None else read_calibration(costs)
    if calibrate:
        found = usable(read_runs(runs))
        fitted = fit(found, constants, f"fitted to {len(found)} runs of '{runs.name}'")
        fitted.save(out)
        if json:
            common.print_json(fitted.to_json())
        else:
            common.console().print(f"constants fitted to {len(found)} runs: {out}")
        return
    rows = predict_table(runs, out, constants)
    priced = sum(row["predicted_step_s"] != "" for row in rows)
    if json:
        common.print_json(
            {"rows": len(rows), "predicted": priced, "out": str(out), "constants": constants.source}
        )
    else:
        common.console().print(f"{priced} of {len(rows)} rows predicted: {out}")
