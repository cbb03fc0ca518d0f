"""`placeopt plan` of a transformer known by its shape: search, answer, launch files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from placeopt.cli import common

DEGREES = {"tp": "tensor", "pp": "pipeline", "dp": "data", "cp": "context", "ep": "expert"}
SEQUENCE = 4096


def plan_launch(
    model: str,
    cluster: str,
    batch: int,
    *,
    costs: Path | None,
    precision: str,
    sequence: int | None,
    fabric: float | None,
    given: dict[str, int | None],
    recompute: bool,
    memory_limit: str | None,
    seconds: float,
    folder: Path | None,
    json: bool,
) -> bool:
    """Plan a model by its shape; return False if model or devices are of another kind."""
    from placeopt.model.sizes import device_limits
    from placeopt.planning.launch_answer import to_json
    from placeopt.planning.launch_search import LaunchProblem, read_machine, read_shape, search
    from placeopt.planning.launchers import write_launchers
    from placeopt.plans.calibration import default_calibration, read_calibration

    shape = read_shape(model)
    machine = read_machine(cluster, None if fabric is None else fabric * 1e9)
    if shape is None or machine is None:
        return False
    fixed = {DEGREES.get(key, key): value for key, value in given.items() if value is not None}
    problem = LaunchProblem(
        shape,
        machine,
        batch,
        sequence or SEQUENCE,
        default_calibration() if costs is None else read_calibration(costs),
        precision,
        recompute,
        fixed=fixed,
        memory_limit=None if memory_limit is None else device_limits(memory_limit, 1)[0],
    )
    answer = search(problem, seconds)
    body = to_json(answer)
    shown = answer.given or answer.best
    if folder is not None and shown is not None and body["fits"]:
        folder.mkdir(parents=True, exist_ok=True)
        write_launchers(problem, shown.conf, folder)
    if json:
        common.print_json(body)
    else:
        _print(body, machine.said)
    if answer.best is None and answer.given is None:
        raise typer.Exit(1)
    return True


def _print(body: dict[str, Any], said: str) -> None:
    from rich.table import Table

    from placeopt.model.objective import time_text

    say: Any = common.console().print
    if body["step_seconds"] is None:
        say(body["message"])
        return
    say(f"{body['problem']}{f', {said}' if said else ''}: {body['plan']}")
    say(
        f"{time_text(body['step_seconds'])} per step of {body['batch']} sequences of "
        f"{body['sequence']} tokens: {body['tokens_per_second']:.4g} tokens/s, "
        f"{body['tokens_per_second_per_device']:.4g} a device, MFU {100 * body['mfu']:.1f} % of "
        f"{body['peak_flops'] / 1e12:.4g} TFLOP/s ({body['peak_precision']})"
    )
    if body["devices_left"]:
        say(f"{body['devices_left']} devices are left without work: no plan uses them evenly")
    if body["lower_bound_seconds"]:
        say(
            f"no plan of the space is below {time_text(body['lower_bound_seconds'])} under this "
            f"model; {body['plans_that_fit']} of {body['plans_looked_at']} plans fit"
        )
    if "measured_interval" in body:
        low, high = body["measured_interval_seconds"]
        say(
            f"measured steps lay between {time_text(low)} and {time_text(high)}: the middle of "
            f"{body['measured_interval']}"
        )
    if body.get("regret") is not None:
        say(
            f"regret: at most {100 * body['regret']:.1f} % over sampled calibrations (fitted to "
            "bootstraps of the runs), against all plans that fit; no bound over all constants"
        )
        safest = body["safest"]
        if safest["plan"] != body["plan"]:
            say(
                f"least regret ({safest['plan']}): at most {100 * safest['regret']:.1f} %, in "
                f"{time_text(safest['step_seconds'])} per step"
            )
    if body["message"]:
        say(body["message"])
    view = Table("part of the step", "time", "memory of a device", "", box=None, pad_edge=False)
    times, sizes = list(body["parts_seconds"].items()), list(body["memory_parts_bytes"].items())
    sizes.append(("all", body["peak_memory_bytes"]))
    for i in range(max(len(times), len(sizes))):
        left = (times[i][0], time_text(times[i][1])) if i < len(times) else ("", "")
        right = (
            (sizes[i][0], f"{common.gib_text(int(sizes[i][1]))} GiB")
            if i < len(sizes)
            else ("", "")
        )
        view.add_row(*left, *right)
    say(view)
    for name, link in body["links"].items():
        say(f"{name} ranks: {link}")
    for line in body["space"]:
        say(line)
    for item in body["sources"]:
        say(f"  {item['what']}: {item['source']}")
    for name, what in body.get("launch", {}).items():
        say(f"{name}: {what}")
    for runner in body["runner_ups"]:
        say(f"{runner['what']} ({runner['plan']}): {runner['reason']}")
