"""`placeopt plan`: how to train a model on some devices; of a transformer known by its shape
search, answer and launch files.

`--runs` predicts a table of training runs, or fits the constants to it; `--offers` says which
devices to rent, and `--lose` how to go on without some hosts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, Exit, Option

from placeopt.cli import common
from placeopt.cli.common import bytes_text, gib_text, percent, print_json, say
from placeopt.model.errors import InputError, check_choice
from placeopt.model.files import Data
from placeopt.model.objective import time_text
from placeopt.model.sizes import device_limits
from placeopt.planning.elastic import (
    best_of,
    layer_parameters,
    moves,
    plan_after_loss,
    plan_clusters,
    plan_offers,
)
from placeopt.planning.launch_files import write_launch_files, write_launchers
from placeopt.planning.launch_search import (
    LaunchAnswer,
    LaunchProblem,
    read_machine,
    read_shape,
    search,
)
from placeopt.planning.plan_model import Planned, plan, plan_problem
from placeopt.planning.runs_table import not_read, predict_table, read_runs
from placeopt.plans.calibration import (
    Calibration,
    default_calibration,
    is_calibration,
    read_calibration,
)
from placeopt.plans.layer_tables import TabledStepCosts
from placeopt.plans.plan import TrainingPlan, read_measured_plan
from placeopt.plans.step_price import StepPrice, plan_load, step_price
from placeopt.plans.step_problem import KNOWN, StepPlanProblem, parse_pools

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

Hosts = dict[str, tuple[int, ...]]
"""Numbers of hosts by the kind of their devices."""


DEGREES = {"tp": "tensor", "pp": "pipeline", "dp": "data", "cp": "context", "ep": "expert"}


def plan_command(
    model: Annotated[
        str | None,
        Argument(
            help="Model: llama3-70b and other public names, config.json of Hugging Face, gen:NAME, "
            "a file; with a folder as --costs a name there.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        Option("--cluster", "-c", help="8xA100, or with --costs 32xA100-40+96xV100-16?price=2.5."),
    ] = None,
    batch: Annotated[int, Option("--batch", "-b", min=1, help="Samples per step.")] = 64,
    costs: Annotated[
        Path | None,
        Option(help="Folder with layer tables, a file of `placeopt profile`, or a calibration."),
    ] = None,
    formula: Annotated[str, Option(help="With --costs: predicted or published.")] = "predicted",
    recompute: Annotated[bool, Option(help="Whether stages may be recomputed.")] = True,
    mixed: Annotated[bool, Option(help="Whether replicas of a stage may be of two kinds.")] = False,
    schedules: Annotated[
        str | None,
        Option(help="Choices: 1f1b, repetend, interleaved-1f1b:2, zb-h1, zb-h2; commas between."),
    ] = None,
    sharded: Annotated[
        bool | None,
        Option(
            help="Whether replicas may share the optimizer's states out.",
            show_default="where known",
        ),
    ] = None,
    forms: Annotated[
        str | None,
        Option(
            help="Further splits of layers: sequence, expert; commas between; '' for none.",
            show_default="where known",
        ),
    ] = None,
    evaluate: Annotated[
        Path | None, Option(help="Predict the step of this plan (JSON) instead of searching.")
    ] = None,
    precision: Annotated[
        str, Option(help="Of matrix products: bf16, fp16, fp32, fp8 or fp4.")
    ] = "bf16",
    sequence: Annotated[
        int | None,
        Option(
            min=1,
            help="Tokens of a sample.",
            show_default="4096, or as many as config.json has positions",
        ),
    ] = None,
    fabric: Annotated[
        float | None, Option(help="GB/s of a device to other hosts.", show_default="as sold")
    ] = None,
    tp: Annotated[int | None, Option(min=1, help="Price this tensor degree.")] = None,
    pp: Annotated[int | None, Option(min=1, help="... number of stages.")] = None,
    dp: Annotated[int | None, Option(min=1, help="... data degree.")] = None,
    cp: Annotated[int | None, Option(min=1, help="... context degree.")] = None,
    ep: Annotated[int | None, Option(min=1, help="... expert degree.")] = None,
    micro_batch: Annotated[int | None, Option(min=1, help="... samples of a micro-batch.")] = None,
    runs: Annotated[
        Path | None,
        Option(help="Predict the rows of a CSV table of training runs into --out FILE.csv."),
    ] = None,
    calibrate: Annotated[
        bool, Option("--calibrate", help="With --runs: fit the constants, write --out.")
    ] = False,
    offers: Annotated[
        str | None,
        Option(help="Compare devices with prices: 32xA100-40?price=3.67,96xV100-16?price=2.86."),
    ] = None,
    lose: Annotated[
        str | None, Option(help="Plan again without hosts, as A100-40/0,A100-40/3.")
    ] = None,
    runner_ups: Annotated[int, Option(min=0, help="Number of runner-ups to look for.")] = 3,
    out: Annotated[
        Path | None,
        Option(
            "--out", "-o", help="Folder for exports and the picture; with --runs the file to write."
        ),
    ] = None,
    seconds: common.Seconds = 10.0,
    memory_limit: common.MemoryLimit = None,
    json: common.Json = False,
) -> None:
    """Plan the training of a model: stages, degrees, recomputation and schedule, with a bound over
    all plans.

    `schedule --joint` is for block placements that need no data or tensor degrees, with schedules
    found block by block.

    A transformer by name, sizes or config.json is planned as launchers know plans, on any number of
    devices.

    Example: `placeopt plan llama3-70b --cluster 256xH100 --batch 512`
    """
    from placeopt.instances.clusters.hardware import PRECISIONS

    given = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "micro_batch": micro_batch}
    by_shape = given | {"sequence": sequence, "fabric": fabric}
    check_choice("--precision", precision, PRECISIONS)
    if runs is not None:
        _refuse_beside("--runs", by_shape | {"offers": offers, "lose": lose, "evaluate": evaluate})
        predict_runs(runs, out, costs, calibrate=calibrate, json=json)
        return
    if calibrate:
        raise InputError("--calibrate: expected --runs FILE.csv, the runs to fit the constants to")
    if model is None:
        raise InputError("plan: expected a model, as llama3-70b or gen:gpt2, or --runs FILE.csv")
    if evaluate is not None:
        _refuse_beside("--evaluate", by_shape | {"offers": offers, "lose": lose, "out": out})
        _evaluate(model, evaluate, costs, formula, json=json)
        return
    space: Data = {
        "memory_limit": memory_limit,
        "costs": costs,
        "formula": formula,
        "precision": precision,
        "recompute": recompute,
        "mixed": mixed,
        "sharded": sharded,
        "schedules": None if schedules is None else tuple(schedules.split(",")),
        "forms": None if forms is None else tuple(filter(None, forms.split(","))),
    }
    _refuse_unknown(model, costs)
    if offers is not None:
        _refuse_shape(model, costs, f"--offers {offers}")
        _refuse_beside("--offers", by_shape | {"cluster": cluster, "lose": lose, "out": out})
        compare_offers(model, offers, batch, seconds, space, json=json)
        return
    folder = common.out_folder(out)
    if cluster is None:
        cluster = _devices_of_degrees(given)
    if lose is None and plan_launch(
        model,
        cluster,
        batch,
        space,
        given,
        sequence=sequence,
        fabric=fabric,
        seconds=seconds,
        folder=folder,
        json=json,
    ):
        return
    _refuse_shape(model, costs, f"--cluster {cluster}" + (f" --lose {lose}" if lose else ""))
    _refuse_degrees(by_shape, model, cluster)
    lost = None if lose is None else parse_hosts(lose)
    problem = plan_problem(model, cluster, batch, **space)
    check_lost(problem, lost or {})
    with common.search_progress(problem, json) as (announce, show):
        announce("plan")
        planned = plan(
            problem, cluster, batch, seconds=seconds, runner_ups=runner_ups, on_progress=show
        )
    _report(planned, plan_without(planned, lost, seconds), folder, json=json)


def _devices_of_degrees(given: dict[str, int | None]) -> str:
    """Return the cluster that a plan given by its degrees fills."""
    if not (given["tp"] and given["pp"] and given["dp"]):
        raise InputError("--cluster: expected the devices, as 8xA100; see 'placeopt clusters'")
    return f"{given['tp'] * given['pp'] * given['dp'] * (given['cp'] or 1)}xH100"


def _refuse_unknown(model: str, costs: Path | None) -> None:
    """Refuse a word that is no model of any kind, and say which kinds there are."""
    if not (costs is None or costs.is_file()) or not common.is_word(model) or read_shape(model):
        return  # a name of a folder of tables, a source with a prefix, or a path
    near = common.near_model(model)
    raise InputError(
        f"plan: model '{model}' is no file, no public model that is known and no generator"
        f"{f' (near: {near})' if near else ''}; expected a file (a graph or config.json), "
        "gen:NAME, a name as llama3-70b, or a shape, as layers=32,hidden=4096,heads=32"
    )


def _refuse_passed_over(model: str, space: Data) -> None:
    """Refuse what is asked of the plans of graphs where a model is known by its shape."""
    asked = [f"--{name}" for name in ("schedules", "sharded", "forms") if space[name] is not None]
    asked += ["--mixed"] if space["mixed"] else []
    asked += ["--formula"] if space["formula"] != "predicted" else []
    if asked:
        raise InputError(
            f"plan: {', '.join(asked)}: expected a graph (gen:gpt2) or a folder as --costs, "
            f"received '{model}', known by its shape, whose plans are searched with all schedules "
            "and shardings that launchers have; see --tp, --pp, --dp, --cp, --ep"
        )


def _refuse_shape(model: str, costs: Path | None, received: str) -> None:
    """Refuse a model that is known by its shape alone where only graphs and layers are planned."""
    if (costs is None or not costs.is_dir()) and not model.startswith("gen:") and read_shape(model):
        beside = "" if costs is None else f" --costs {costs}"
        raise InputError(
            f"plan: of '{model}', known by its shape, expected equal devices, as 8xH100, and as "
            f"--costs a calibration FILE.json, received {received}{beside}; graphs (gen:gpt2) take "
            "other devices, --offers and --lose"
        )


def _refuse_beside(option: str, others: Data) -> None:
    """Refuse what would be passed over in silence beside an option."""
    named = [f"--{key.replace('_', '-')}" for key, value in others.items() if value is not None]
    if named:
        raise InputError(f"plan: {', '.join(named)}: expected none of these beside {option}")


def _refuse_degrees(given: Data, model: str, cluster: str) -> None:
    """Refuse degrees, tokens and ports of a model or of devices whose plans have none to name."""
    named = [key for key, value in given.items() if value is not None]
    if named:
        raise InputError(
            f"plan: {', '.join(named)}: expected a model known by its shape, as llama3-70b or "
            f"layers=32,hidden=4096,heads=32, on equal devices, received '{model}' on '{cluster}'"
        )


def _write(planned: Planned, folder: Path) -> None:
    """Write the launch files and the picture."""
    from placeopt.plotting.plans import plan_figure
    from placeopt.plotting.style import write_figure

    write_launch_files(planned, folder)
    write_figure(plan_figure(planned), folder / "plan.png")


def _report(planned: Planned, after: Remainder | None, folder: Path | None, *, json: bool) -> None:
    """Write and print the plan, print that after a loss; exit with 1 where there is none."""
    try:
        if folder is not None and planned.plan is not None:
            _write(planned, folder)
    finally:  # a full disk does not hide the outcome
        if json:
            later = {} if after is None else {"after": after.to_json()}
            print_json(planned.to_json() | later)
        else:
            _print(planned)
            if after is not None:
                after.say()
    if planned.plan is None:
        raise Exit(1)


def _evaluate(model: str, path: Path, costs: Path | None, formula: str, *, json: bool) -> None:
    """Price a plan in the format of the measured ones."""
    if costs is None:
        raise InputError(
            "--evaluate: expected --costs, the folder with the layer tables of the plan's devices"
        )
    given = read_measured_plan(path)
    unknown = [kind for kind in given.kinds() if kind not in KNOWN]
    if unknown:
        raise InputError(f"'{path}': devices {', '.join(unknown)} are none of {', '.join(KNOWN)}")
    pools = parse_pools("+".join(f"{count}x{kind}" for kind, count in given.plan.devices().items()))
    problem = plan_problem(model, pools, given.batch, costs=costs, formula=formula)
    held = [layer for stage in given.plan.stages for layer in stage.layers]
    if held != list(range(problem.costs.num_layers)):
        raise InputError(
            f"'{path}': expected stages of the consecutive layers "
            f"0..{problem.costs.num_layers - 1} of '{model}', received {held}"
        )
    try:
        price = step_price(problem, given.plan)
    except LookupError as error:
        raise InputError(f"'{path}': {error}") from error
    seconds, memory = price.step * problem.tick_seconds, max(stage.memory for stage in price.stages)
    if json:
        print_json(
            {
                "problem": problem.name,
                "step_seconds": seconds,
                "peak_memory_bytes": memory,
                "micro_batches": price.rounds,
                "measured_seconds": given.seconds,
                "measured_memory_bytes": given.memory,
                "sources": [
                    {"what": what, "source": source} for what, source in problem.costs.sources
                ],
            }
        )
        return
    measured = "" if given.seconds is None else f" (measured {time_text(given.seconds)})"
    say(f"step {time_text(seconds)}{measured}, memory {bytes_text(memory)}")


def _print(planned: Planned) -> None:
    if planned.plan is None or planned.price is None:
        say(f"no plan: {_why_none(planned)}")
        return
    bound = planned.result.lower_bound * planned.problem.tick_seconds
    say(
        f"{planned.problem.name}: {time_text(planned.step_seconds)} per step of "
        f"{planned.problem.batch} samples, {planned.throughput or 0:.4g} samples/s"
    )
    say(
        f"no plan is below {time_text(bound)}: gap {percent(planned.result.gap)} "
        f"({planned.result.status})"
    )
    if planned.price_per_million is not None:
        say(
            f"price per hour {planned.price_per_hour:.4g}, per million samples "
            f"{planned.price_per_million:.4g}"
        )
    say(_stage_table(planned, planned.plan, planned.price))
    say("memory is that of the fullest device of a stage")
    states = ", sharded optimizer states" if planned.plan.sharded else ""
    say(
        f"micro-batch {planned.plan.micro_batch}, {planned.price.rounds} per replica, schedule "
        f"{planned.plan.schedule}{states}"
    )
    say("  of all plans with " + "\n  ".join(planned.problem.space))
    for what, source in planned.problem.costs.sources:
        say(f"  {what}: {source}")
    for runner in planned.runner_ups:
        say(f"with {runner.what}: {time_text(runner.step_seconds)}; {runner.reason}")


def _stage_table(planned: Planned, plan: TrainingPlan, price: StepPrice) -> Table:
    """Return the stages of a plan, one row each."""
    view = common.table(
        "layers",
        "replicas",
        "recompute",
        "period",
        "memory",
        "weights, gradients, optimizer",
        "activations, rest",
        "in flight",
    )
    for i, (stage, priced) in enumerate(zip(plan.stages, price.stages, strict=True)):
        state = _state(planned.problem.costs, plan, price, i)
        view.add_row(
            f"{stage.layers[0]}-{stage.layers[-1]}",
            " + ".join(group.text() for group in stage.replicas),
            "yes" if stage.recompute else "no",
            common.time_text(priced.period, planned.problem.tick_seconds),
            f"{gib_text(priced.memory)} GiB",
            "-" if state is None else f"{gib_text(state)} GiB",
            "-" if state is None else f"{gib_text(priced.memory - state)} GiB",
            str(priced.flight),
        )
    return view


def _why_none(planned: Planned) -> str:
    """Say why there is no plan, and what would give one."""
    if planned.result.status == "infeasible":
        return (
            f"{planned.result.message}; give more devices or devices with more memory (--cluster), "
            "or let stages be recomputed (--recompute)"
        )
    return f"{planned.result.message or 'none was found in time'}; give more --seconds"


def _state(costs: Any, plan: TrainingPlan, price: StepPrice, position: int) -> int | None:
    """Return the bytes of weights, gradients and optimizer state on the fullest device of a stage,
    where the costs tell.
    """
    if not hasattr(costs, "state_bytes"):
        return None
    stage = plan.stages[position]
    load = plan_load(plan, position, price.rounds)
    fullest = max(stage.replicas, key=lambda group: costs.memory_bytes(load, group))
    return int(costs.state_bytes(load, fullest))


def predict_runs(
    runs: Path, out: Path | None, costs: Path | None, *, calibrate: bool, json: bool
) -> None:
    """Write a table with predictions or, with `calibrate`, a calibration file."""
    if out is None:
        raise InputError(
            "--runs: expected --out FILE, the table with predictions (predicted.csv) or, with "
            "--calibrate, the calibration (calibration.json)"
        )
    common.out_file(out)
    constants = calibration_constants(costs)
    if calibrate:
        _calibrate(runs, out, constants, json=json)
        return
    rows = predict_table(runs, out, constants)
    priced, passed = sum(row["predicted_step_s"] != "" for row in rows), not_read(rows)
    if json:
        print_json(
            {
                "rows": len(rows),
                "predicted": priced,
                "not_read": passed,
                "out": str(out),
                "constants": constants.source,
            }
        )
    else:
        say(f"{priced} of {len(rows)} rows predicted: {out}")
        if passed:
            say(f"columns that are not read: {', '.join(passed)}")


def _calibrate(runs: Path, out: Path, start: Calibration, *, json: bool) -> None:
    """Write a calibration file, and say how well it fits."""
    import numpy as np

    from placeopt.planning.fit_runs import fit, ratios, usable

    rows = read_runs(runs)
    found = usable(rows)
    fitted = fit(found, start, f"fitted to {len(found)} runs of '{runs.name}'")
    fitted.save(out)
    apart = np.abs(np.log(ratios(found, fitted)))
    median, far = float(np.expm1(np.median(apart))), np.flatnonzero(apart > math.log(2))
    if json:
        fit_says = {"rows": len(rows), "runs": len(found), "median_error": median, "far": len(far)}
        print_json(fitted.to_json() | fit_says)
        return
    say(f"constants fitted to {len(found)} of {len(rows)} rows: {out}")
    say(f"half of the measured steps are within {100 * median:.3g} % of the fitted ones")
    if far.size:
        first = found[far[0]]
        say(
            f"{far.size} more than twice or less than half as long hardly counted (first: "
            f"{first.shape.name} on {first.conf.devices} {first.gpu.name}); is step_s in seconds?"
        )


def compare_offers(
    model: str, text: str, batch: int, seconds: float, space: Data, *, json: bool
) -> None:
    """Print the best plan of every offer and pair of offers, and which is the fastest and which the
    cheapest.
    """
    found = _plans_of_offers(model, text, batch, seconds, space)
    best = best_of(found)
    rows = [
        {
            "devices": one.problem.name,
            "step_seconds": one.step_seconds,
            "gap": one.result.gap,
            "throughput": one.throughput,
            "price_per_hour": one.price_per_hour,
            "price_per_million_samples": one.price_per_million,
            "plan": "" if one.plan is None else one.plan.text(),
        }
        for one in found
    ]
    if json:
        print_json({"offers": rows, **{key: value.problem.name for key, value in best.items()}})
        return
    for row, one in zip(rows, found, strict=True):
        what = ", ".join(key for key, value in best.items() if value is one)
        price = "-" if one.price_per_million is None else f"{one.price_per_million:.4g}"
        say(
            f"{row['devices']}: {one.throughput or 0:.4g} samples/s, "
            f"{one.price_per_hour:.4g} per hour, {price} per million samples, "
            f"gap {percent(one.result.gap)}" + (f" ({what})" if what else "") + f"\n  {row['plan']}"
        )


def _plans_of_offers(
    model: str, text: str, batch: int, seconds: float, space: Data
) -> list[Planned]:
    """Return the best plan of every offer and pair of offers that a plan fits."""
    offers = common.words([text])
    if not offers:
        raise InputError("--offers: expected devices with prices, as 8xA100?price=3.67")
    if space["costs"] is not None and space["costs"].is_dir():
        pools = tuple(pool for offer in offers for pool in parse_pools(offer))
        if len({pool.kind for pool in pools}) < len(pools):
            raise InputError(f"--offers: expected every kind of device once, received '{text}'")
        found = plan_offers(plan_problem(model, pools, batch, **space), pools, seconds=seconds)
    else:
        found = plan_clusters(model, offers, batch, seconds=seconds, **space)
    if not found:
        raise InputError("--offers: no plan fits the memory of any of them")
    return found


def parse_hosts(text: str) -> Hosts:
    """Return the numbers of hosts by kind of `KIND/HOST,KIND/HOST`."""
    found: Hosts = {}
    for part in text.split(","):
        match = re.fullmatch(r"(.+)/(\d+)", part.strip())
        if match is None:
            raise InputError(
                f"--lose: expected KIND/HOST, as A100-40/0 for its first host, received '{part}'"
            )
        found[match[1]] = (*found.get(match[1], ()), int(match[2]))
    return found


@dataclass(frozen=True)
class Remainder:
    """The plan after hosts are lost.

    Attributes
    ----------
    moved : bytes that devices have to be given. parts : which device takes the part of which, by
    name.
    """

    planned: Planned
    moved: float
    parts: dict[str, str]

    def to_json(self) -> Data:
        """Return it as JSON."""
        return {**self.planned.to_json(), "moved_bytes": self.moved, "takes_part_of": self.parts}

    def say(self) -> None:
        """Print it."""
        plan = "" if self.planned.plan is None else self.planned.plan.text()
        ticks = self.planned.problem.tick_seconds
        say(
            f"without these hosts: {common.time_text(self.planned.result.value or 0, ticks)} per "
            f"step, gap {percent(self.planned.result.gap)}, "
            f"{bytes_text(int(self.moved))} to move\n  {plan}"
        )


def check_lost(problem: StepPlanProblem, lost: Hosts) -> None:
    """Refuse hosts that are not there, and a loss of all, before anything is planned."""
    left = sum(pool.count for pool in problem.pools)
    for kind, numbers in lost.items():
        pool = problem.pool(kind)
        if max(numbers) * pool.per_host >= pool.count:
            raise InputError(
                f"--lose: '{kind}' has the hosts 0..{(pool.count - 1) // pool.per_host}, received "
                f"{max(numbers)}"
            )
        left -= sum(min(pool.per_host, pool.count - n * pool.per_host) for n in set(numbers))
    if not left:
        raise InputError("--lose: expected some devices to be left, received all hosts")
    if lost and not isinstance(problem.costs, TabledStepCosts):
        raise InputError(
            f"--lose: the cost model '{problem.costs.name}' does not say the parameters of layers"
        )


def plan_without(planned: Planned, lost: Hosts | None, seconds: float) -> Remainder | None:
    """Return the plan on the hosts that are left, of those near the best one that with the fewest
    bytes to move; None where no loss is asked about, or nothing was planned.
    """
    if lost is None or planned.plan is None:
        return None
    parameters = layer_parameters(cast("TabledStepCosts", planned.problem.costs))
    after, moved = plan_after_loss(planned, lost, parameters, seconds=seconds)
    return Remainder(after, moved, moves(planned, after, parameters, lost)[0])


def calibration_constants(costs: Path | None) -> Calibration:
    """Return the constants of a calibration file, by default those that placeopt brings."""
    return default_calibration() if costs is None else read_calibration(costs)


def plan_launch(
    model: str,
    cluster: str,
    batch: int,
    space: Data,
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
    say, or as many as the model has positions where these are fewer.
    """
    costs, memory_limit = space["costs"], space["memory_limit"]
    if fabric is not None and not 0 < fabric < math.inf:
        raise InputError(f"--fabric: expected GB/s above 0, received {fabric:g}")
    if costs is not None and not is_calibration(costs):
        return False
    shape = read_shape(model)
    machine = read_machine(cluster, None if fabric is None else fabric * 1e9)
    if shape is None or machine is None:
        return False
    _refuse_passed_over(model, space)
    fixed = {DEGREES.get(key, key): value for key, value in given.items() if value is not None}
    problem = LaunchProblem(
        shape,
        machine,
        batch,
        sequence or min(4096, shape.positions or 4096),
        calibration_constants(costs),
        space["precision"],
        space["recompute"],
        fixed=fixed,
        memory_limit=None if memory_limit is None else device_limits(memory_limit, 1)[0],
    )
    _report_launch(search(problem, seconds), folder, json=json)
    return True


def _report_launch(answer: LaunchAnswer, folder: Path | None, *, json: bool) -> None:
    """Write the launch files and print the plan; exit with 1 where there is none."""
    from placeopt.planning.launch_answer import to_json

    body = to_json(answer)
    shown = answer.given or answer.best
    try:
        if folder is not None and shown is not None and body["fits"]:
            write_launchers(answer.problem, shown.conf, folder)
    finally:  # a full disk does not hide the outcome
        if json:
            print_json(body)
        else:
            _print_launch(body, answer.problem.machine.said)
    if shown is None:
        raise Exit(1)


def _print_launch(body: Data, said: str) -> None:
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
        why = f": {body['why_left']}" if body["why_left"] else ""
        say(f"{body['devices_left']} devices are left without work{why}")
    if body["lower_bound_seconds"]:
        say(
            f"no plan of the space that fits is below {time_text(body['lower_bound_seconds'])} "
            f"under this model; {body['plans_that_fit']} of {body['plans_looked_at']} plans fit"
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


def _print_regret(body: Data) -> None:
    """Say what the plan may lose under other constants, and which plan may lose least."""
    safest = body["safest"]
    compared = (
        "plans that fit on as many devices"
        if body["lower_bound_seconds"]
        else "that were looked at in time"
    )
    say(
        f"regret: at most {100 * body['regret']:.1f} % over sampled calibrations (fitted to "
        f"bootstraps of the runs), against all {compared}; no bound over all constants"
    )
    if safest["plan"] != body["plan"]:
        say(
            f"least regret ({safest['plan']}): at most {100 * safest['regret']:.1f} %, in "
            f"{time_text(safest['step_seconds'])} per step"
        )


def _parts_table(body: Data) -> Table:
    """Return the parts of the time of a step beside those of the memory of a device."""
    view = common.table("part of the step", "time", "memory of a device", "")
    times = [(part, time_text(seconds)) for part, seconds in body["parts_seconds"].items()]
    sizes = {**body["memory_parts_bytes"], "all": body["peak_memory_bytes"]}
    held = [(part, f"{gib_text(int(size))} GiB") for part, size in sizes.items()]
    for left, right in zip_longest(times, held, fillvalue=("", "")):
        view.add_row(*left, *right)
    return view


def _notes(body: Data) -> Iterator[str]:
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
