"""`placeopt plan` of a transformer known by its shape: search, answer, launch files."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import typer

from placeopt.cli import common
from placeopt.model.objective import time_text
from placeopt.model.sizes import device_limits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.table import Table

    from placeopt.planning.launch_search import LaunchAnswer
    from placeopt.plans.calibration import Calibration

DEGREES = {"tp": "tensor", "pp": "pipeline", "dp": "data", "cp": "context", "ep": "expert"}


def calibration_constants(costs: Path | None) -> Calibration:
    """Return the constants of a calibration file, by default those that placeopt brings."""
    from placeopt.plans.calibration import default_calibration, read_calibration

    return default_calibration() if costs is None else read_calibration(costs)


def plan_launch(
    model: str,
    cluster: str,
    batch: int,
    space: dict[str, Any],
    given: dict[str, int | None],
    *,
    sequence: int | None,
    fabric: float | None,
    seconds: float,
    folder: Path | None,
    json: bool,
) -> bool:
    """Plan a model by its shape; return False if model, devices or costs are of another kind.

    Of the `space` of plans that `placeopt plan` asks for it takes costs, precision, recomputation
    and the limit on memory; `given` are degrees. Samples have 4096 tokens where `sequence` does not
    say.
    """
    from placeopt.planning.launch_search import LaunchProblem, read_machine, read_shape, search
    from placeopt.plans.calibration import is_calibration

    costs, memory_limit = space["costs"], space["memory_limit"]
    if costs is not None and not is_calibration(costs):
        return False
    shape = read_shape(model)
    machine = read_machine(cluster, None if fabric is None else fabric * 1e9)
    if shape is None or machine is None:
        return False
    fixed = {DEGREES.get(key, key): value for key, value in given.items() if value is not None}
    problem = LaunchProblem(
        shape,
        machine,
        batch,
        sequence or 4096,
        calibration_constants(costs),
        space["precision"],
        space["recompute"],
        fixed=fixed,
        memory_limit=None if memory_limit is None else device_limits(memory_limit, 1)[0],
    )
    _report(search(problem, seconds), folder, json=json)
    return True


def _report(answer: LaunchAnswer, folder: Path | None, *, json: bool) -> None:
    """Write the launch files and print the plan; exit with 1 where there is none."""
    from placeopt.planning.launch_answer import to_json
    from placeopt.planning.launch_files import write_launchers

    body = to_json(answer)
    shown = answer.given or answer.best
    if folder is not None and shown is not None and body["fits"]:
        folder.mkdir(parents=True, exist_ok=True)
        write_launchers(answer.problem, shown.conf, folder)
    if json:
        common.print_json(body)
    else:
        _print(body, answer.problem.machine.said)
    if shown is None:
        raise typer.Exit(1)


def _print(body: dict[str, Any], said: str) -> None:
    say = common.say
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
        _print_regret(body)
    if body["message"]:
        say(body["message"])
    say(_parts_table(body))
    for line in _notes(body):
        say(line)


def _print_regret(body: dict[str, Any]) -> None:
    """Say what the plan may lose under other constants, and which plan may lose least."""
    say, safest = common.say, body["safest"]
    say(
        f"regret: at most {100 * body['regret']:.1f} % over sampled calibrations (fitted to "
        "bootstraps of the runs), against all plans that fit; no bound over all constants"
    )
    if safest["plan"] != body["plan"]:
        say(
            f"least regret ({safest['plan']}): at most {100 * safest['regret']:.1f} %, in "
            f"{time_text(safest['step_seconds'])} per step"
        )


def _parts_table(body: dict[str, Any]) -> Table:
    """Return the parts of the time of a step beside those of the memory of a device."""
    view = common.table("part of the step", "time", "memory of a device", "")
    times = [(part, time_text(seconds)) for part, seconds in body["parts_seconds"].items()]
    sizes = {**body["memory_parts_bytes"], "all": body["peak_memory_bytes"]}
    held = [(part, f"{common.gib_text(int(size))} GiB") for part, size in sizes.items()]
    for left, right in zip_longest(times, held, fillvalue=("", "")):
        view.add_row(*left, *right)
    return view


def _notes(body: dict[str, Any]) -> Iterator[str]:
    """Say what links the plan takes, what it was chosen from, and where its numbers come from."""
    for name, link in body["links"].items():
        yield f"{name} ranks: {link}"
    yield from body["space"]
    for item in body["sources"]:
        yield f"  {item['what']}: {item['source']}"
    for name, what in body.get("launch", {}).items():
        yield f"{name}: {what}"
    for runner in body["runner_ups"]:
        yield f"{runner['what']} ({runner['plan']}): {runner['reason']}"
