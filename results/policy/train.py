"""Train the learned list scheduler of the package on generated graphs, and try it on others.

    python results/policy/train.py train [SECONDS]   # goes on where it ended; 480 s by default
    python results/policy/train.py heats             # temperatures of the climb
    python results/policy/train.py samples           # share of them in tuned-list: list_samples.csv
    python results/policy/train.py heuristics apply  # list_scheduler.csv and list_scheduler.md
    python results/policy/train.py portfolio         # every fourth graph: a portfolio of 10 s

Rows that are there are kept, with `--again` those of this state of the package.

It starts as HEFT (`ListPolicy.heft`) and learns by policy gradient: schedules are drawn of each
graph of a batch, from the sources or from the sinks; the shortest become likelier and the longest
less likely, by how far they are from the mean of all. Applied, the first two passes are from each
end, and a climb (`climb`) goes on from the better one. Tried is the mean of the weights over the
last steps. Graphs are of TRAINING's families, more than half of them changed (`varied`); weights
and temperatures are chosen on those of CHOICE. The families of TEST are only read by `apply` and
`portfolio`. How the steps are cut into runs changes nothing.

References
----------
R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement
learning. Machine Learning 8, 1992.
B. T. Polyak, A. B. Juditsky. Acceleration of stochastic approximation by averaging. SIAM J. Control
Optim. 30, 1992.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tables are small
import sys
import time
from dataclasses import replace
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from graph_families import CHOICE, DEVELOPMENT, HEURISTICS, TEST, TRAINING, drawn, varied

import placeopt as po
from placeopt.experiments.runner import stays
from placeopt.experiments.studies import markdown_table, read_csv, write_csv
from placeopt.model.files import write_text
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.policy.advantages import Adam
from placeopt.solvers.policy.list_policy import (
    GREEDY,
    TRAINED,
    LearnedScheduler,
    ListPolicy,
    ListSight,
    Pass,
    climb,
    sights_of,
)
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from graph_families import Draw

HERE = Path(__file__).resolve().parent
STATE = HERE / "train_state.npz"  # not committed
TABLE, PORTFOLIO = HERE / "list_scheduler.csv", HERE / "list_portfolio.csv"
SHARES = HERE / "list_samples.csv"
Row = dict[str, Any]

GRAPHS, FIRST = 10_000, 1000
"""Graphs that are trained on, and the seed of the first of them."""

APART, FIRST_APART = 64, 100_000
"""Graphs by which the weights are chosen."""

BATCH, DRAWN, OUTER = 8, 16, 4
"""Graphs of a step, schedules that are drawn of each, and how many of the shortest, and of the
longest, are learned from: two thirds of the squares of what all 16 would weigh."""

RATE, STEPS = 0.01, 12_000
"""Adam's first step, and the number of steps by which it falls to 0 along a cosine."""

MEMORY = 0.99
"""Weight of the past in the mean of the weights."""

TRY_EVERY = 200
"""Steps between two tries on the graphs set apart."""

DRAWN_AT = (0.1, 0.1)
"""Temperatures at which schedules are drawn in training."""

OP_HEATS, DEVICE_HEATS = (0.4, 0.8, 1.6, 3.2), (0.02, 0.1, 0.4)
"""Temperatures of the climb that are tried."""

SAMPLES, TESTED, PORTFOLIO_SECONDS = 64, 100, 10.0

Seen = tuple[str, Context, tuple[ListSight, ListSight]]


def seen(name: str, problem: po.PlacementProblem) -> Seen:
    """Return the name of a graph, and what is seen of it."""
    context = Context(problem)
    return name, context, sights_of(context)


def graph(split: dict[str, Draw], seed: int) -> Seen:
    """Return the name of a graph of a split, and what is seen of it."""
    return seen(*drawn(split, seed))


@cache
def training(index: int) -> Seen:
    """Return a graph to train on."""
    return seen(*varied(TRAINING, FIRST + index))


def length(scheduler: LearnedScheduler, way: Pass = GREEDY) -> int:
    """Return the makespan of a pass in ticks."""
    return int(scheduler.schedule(way).finish.max())


def lengths(scheduler: LearnedScheduler, count: int = SAMPLES) -> list[int]:
    """Return the makespans of some passes; the first two, one from each end, take the best
    scores.
    """
    passes = islice(climb([scheduler], np.random.default_rng(0)), count)
    return [int(plan.finish.max()) for plan in passes]


def graph_gradient(policy: ListPolicy, seed: int) -> np.ndarray:
    """Return the policy gradient of a graph that is drawn."""
    rng = np.random.default_rng([seed, 3])
    _, context, sights = training(int(rng.integers(GRAPHS)))
    scheduler = LearnedScheduler(policy, context, sights)
    backward = bool(rng.random() < 0.5)
    ways = [Pass(random, backward) for random in rng.integers(1, 2**62, DRAWN).tolist()]
    logs = np.log([length(scheduler, way) for way in ways])
    advantage = (logs.mean() - logs) / max(1e-9, logs.std())
    order = np.argsort(logs, kind="stable").tolist()
    ones = np.ones(context.problem.num_ops)
    lessons = [(ways[i], advantage[i] * ones) for i in order[:OUTER] + order[-OUTER:]]
    return scheduler.gradient(lessons) / len(ones) ** 0.5


def from_each_end(policy: ListPolicy, graph: Seen) -> float:
    """Return the logarithm of the shorter of a pass from each end."""
    return float(np.log(min(lengths(LearnedScheduler(policy, *graph[1:]), 2))))


def tried(policy: ListPolicy, apart: list[Seen], over: np.ndarray) -> tuple[float, str]:
    """Return the mean logarithm of a pass from each end over `over`, and the ratio of each
    family.
    """
    logs = np.array([from_each_end(policy, graph) for graph in apart]) - over
    families = [name.rsplit("-", 1)[0] for name, _, _ in apart]
    said = (
        f"{family} {np.exp(logs[[f == family for f in families]].mean()):.3f}"
        for family in dict.fromkeys(families)
    )
    return float(logs.mean()), ", ".join(said)


def rate(step: int) -> float:
    """Return Adam's step."""
    return RATE * float(1 + np.cos(np.pi * step / STEPS)) / 2


def train(seconds: float) -> None:
    """Take steps until the time is over; keep the state."""
    start = replace(ListPolicy.heft(), heats=DRAWN_AT)
    apart = [graph(CHOICE, FIRST_APART + index) for index in range(APART)]
    base = np.array([from_each_end(start, graph) for graph in apart])
    adam = Adam(len(start.vector), RATE)
    now = {
        **{name: start.vector for name in ("vector", "mean", "kept")},
        **{name: 0 * start.vector for name in ("first", "second")},
        "step": 0,
        "spent": 0.0,
        "best": np.inf,
        "best_step": 0,
    }
    if STATE.is_file():
        now = dict(np.load(STATE))
    adam.first, adam.second, adam.steps = now["first"], now["second"], int(now["step"])
    vector, mean = now["vector"], now["mean"]
    began, until = time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < until and adam.steps < STEPS:
        seeds = np.random.default_rng([adam.steps, 1]).integers(0, 2**62, BATCH).tolist()
        policy = start.with_vector(vector)
        adam.learning_rate = rate(adam.steps)
        gradient = np.mean([graph_gradient(policy, seed) for seed in seeds], axis=0)
        vector = vector + adam.step(gradient)
        mean = MEMORY * mean + (1 - MEMORY) * vector
        if adam.steps % TRY_EVERY == 0 or adam.steps == STEPS:
            value, said = tried(start.with_vector(mean), apart, base)
            if value < now["best"]:
                now |= {"best": value, "kept": mean, "best_step": adam.steps}
            print(adam.steps, f"{np.exp(value):.4f} of HEFT: {said}", flush=True)
            spent = now["spent"] + time.process_time() - began
            keep(now, adam, vector, mean, spent)
    keep(now, adam, vector, mean, now["spent"] + time.process_time() - began)
    note = (
        f"results/policy/train.py train: {adam.steps} of {STEPS} steps of policy gradient, {BATCH} graphs each, "
        f"{DRAWN} schedules of a graph; {GRAPHS} graphs, changed or not, of the families {', '.join(TRAINING)}; "
        f"{(now['spent'] + time.process_time() - began) / 3600:.2f} hours of a processor; kept is "
        f"step {int(now['best_step'])}: on {APART} graphs of {', '.join(CHOICE)} the shorter of a pass "
        f"from each end takes {np.exp(float(now['best'])):.3f} of what it takes before training"
    )
    start.with_vector(now["kept"], note).save(TRAINED)


def keep(now: Row, adam: Adam, vector: np.ndarray, mean: np.ndarray, spent: float) -> None:
    """Write the state of training."""
    more = {"first": adam.first, "second": adam.second, "step": adam.steps, "spent": spent}
    np.savez(STATE, **(now | more | {"vector": vector, "mean": mean}))


def choose_heats() -> None:
    """Keep the temperatures at which the best of a climb is best, on graphs of CHOICE; print those
    of HEFT's weights, which `ListPolicy.heft` has.
    """
    apart = [graph(CHOICE, FIRST_APART + index) for index in range(APART)]
    trained = ListPolicy.load(TRAINED)
    for policy in (ListPolicy.heft(), trained):
        found: dict[tuple[float, float], float] = {}
        for heats in product(OP_HEATS, DEVICE_HEATS):
            warm, logs = replace(policy, heats=heats), []
            for _, context, sights in apart:
                passes = lengths(LearnedScheduler(warm, context, sights))
                logs.append(np.log(min(passes) / passes[0]))
            found[heats] = float(np.mean(logs))
            print(heats, f"{np.exp(found[heats]):.4f}", flush=True)
        best = min(found, key=lambda key: found[key])
        print("best:", best, flush=True)
    replace(trained, heats=best).save(TRAINED)


def kept(path: Path) -> list[Row]:
    """Return the rows of a table; with `--again` those of this state of the package."""
    again = "changed" if "--again" in sys.argv else ""
    return [row for row in read_csv(path, numbers=True) if stays(row, again)]


def choose_samples() -> None:
    """Record `tuned-list` by its share of samples, on development graphs; goes on where it
    ended.
    """
    rows = kept(SHARES)
    done = {(row["graph"], row["evaluations"], row["samples"]) for row in rows}
    for name, problem in (drawn(DEVELOPMENT, FIRST_APART + index) for index in range(20)):
        for evaluations, samples in product((4000, 16_000), (0.004, 0.016, 0.1)):
            if (name, evaluations, samples) in done:
                continue
            began = time.process_time()
            solver = make_solver("tuned-list", samples=samples)
            found = solver.solve(problem, po.Budget(evaluations=evaluations), seed=0)
            row = {"graph": name, "evaluations": evaluations, "samples": samples}
            spent = round(time.process_time() - began, 3)
            rows.append(row | {"value": found.value, "cpu_seconds": spent})
        write_csv(SHARES, rows)


def heuristics() -> None:
    """Record every heuristic on TEST; goes on where it ended."""
    rows = kept(TABLE)
    done = {row["graph"] for row in rows}
    for name, problem in (drawn(TEST, index) for index in range(TESTED)):
        if name in done:
            continue
        row: Row = {"graph": name, "ops": problem.num_ops, "devices": problem.num_devices}
        for solver in HEURISTICS:
            enough = po.Budget(evaluations=10_000)
            row[solver] = make_solver(solver).solve(problem, enough, seed=0).value
        rows.append(row)
        write_csv(TABLE, rows)


def apply() -> None:
    """Add the learned list scheduler and itself before training, one pass and samples."""
    rows = read_csv(TABLE, numbers=True)
    trained, before = ListPolicy.load(TRAINED), ListPolicy.heft()
    for index, row in enumerate(rows):
        _, context, sights = graph(TEST, index)
        for label, policy in (("before", before), ("learned", trained)):
            scheduler = LearnedScheduler(policy, context, sights)
            found = lengths(scheduler)
            row |= {f"{label}_{count}": min(found[:count]) for count in (1, 2, SAMPLES)}
        began = time.process_time()
        for _ in range(5):
            scheduler.schedule()
        row["pass_ms"] = round(200 * (time.process_time() - began), 3)
        began = time.process_time()
        trained.scheduler(Context(context.problem))
        row["facts_ms"] = round(1000 * (time.process_time() - began), 3)
    write_csv(TABLE, rows)


def against_portfolio() -> None:
    """Solve every fourth graph of TEST by the portfolio; goes on where it ended."""
    rows = kept(PORTFOLIO)
    done = {row["graph"] for row in rows}
    for index in range(0, TESTED, 4):
        name, problem = drawn(TEST, index + index // 12 % 4 if index < 96 else index)
        if name in done:
            continue
        began = time.process_time()
        budget = po.Budget(seconds=PORTFOLIO_SECONDS)
        found = make_solver("portfolio").solve(problem, budget, seed=0)
        spent = round(time.process_time() - began, 2)
        rows.append({"graph": name, "portfolio": found.value, "cpu_seconds": spent})
        write_csv(PORTFOLIO, rows)


def shares_table(rows: list[Row]) -> list[list[str]]:
    """Return a row for each budget and share of samples."""
    groups: dict[tuple[int, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["evaluations"], row["samples"]), []).append(row)
    base = np.log([row["value"] for row in groups[4000, 0.1]])
    return [
        [
            f"{evaluations:g}",
            f"{samples:g}",
            f"{np.exp((np.log([row['value'] for row in group]) - base).mean()):.4f}",
            f"{np.median([row['cpu_seconds'] for row in group]):.3f}",
        ]
        for (evaluations, samples), group in groups.items()
    ]


def page() -> str:
    """Say what the tables show."""
    rows, policy = read_csv(TABLE, numbers=True), ListPolicy.load(TRAINED)
    for row in rows:
        row["best"] = min(row[name] for name in HEURISTICS)
    ways = [
        *((name, name) for name in HEURISTICS),
        ("best", "**best of these**"),
        ("before_1", "HEFT's weights, one pass"),
        ("learned_1", "**learned weights, one pass**"),
        ("before_2", "HEFT's weights, a pass from each end"),
        ("learned_2", "**learned weights, a pass from each end**"),
        (f"before_{SAMPLES}", f"HEFT's weights, best of {SAMPLES}"),
        (f"learned_{SAMPLES}", f"**learned weights, best of {SAMPLES}**"),
    ]

    def against(key: str, over: str) -> str:
        logs = np.log([row[key] / row[over] for row in rows])
        half = 1.96 * logs.std(ddof=1) / len(logs) ** 0.5
        return f"{np.exp(logs.mean()):.3f} ± {half:.3f}"

    def share(key: str) -> str:
        return f"{np.mean([row[key] < row['best'] for row in rows]):.0%}"

    table = [
        [
            what,
            against(key, "heft"),
            against(key, "best"),
            share(key),
            f"{np.mean([row[key] <= row['best'] for row in rows]):.0%}",
        ]
        for key, what in ways
    ]
    heads = ["", "/ HEFT", "/ best heuristic", "below every heuristic", "at or below"]
    families = [
        [
            family,
            len(mine := [row for row in rows if row["graph"].rsplit("-", 1)[0] == family]),
            *(
                f"{np.exp(np.mean([np.log(row[key] / row['best']) for row in mine])):.3f}"
                for key in ("heft", "edge-zeroing", "learned_1", "learned_2", f"learned_{SAMPLES}")
            ),
        ]
        for family in TEST
        if any(row["graph"].rsplit("-", 1)[0] == family for row in rows)
    ]
    lines = [
        "# A learned list scheduler on families that it was not trained on",
        "",
        f"{len(rows)} graphs of {', '.join(TEST)}; geometric means of makespans, ± half of the "
        "95 % interval over graphs. Nothing is learned on these graphs. How the weights came about:",
        "",
        *(f"- {line}" for line in policy.provenance),
        f"- random keys of a climb at temperatures {policy.heats} of ops and devices, chosen on development graphs",
        "",
        *markdown_table(heads, table),
        "",
        f"Asked was to be below every heuristic on 70 %: one pass is on {share('learned_1')}, the "
        f"better of a pass from each end on {share('learned_2')}, the best of {SAMPLES} on {share(f'learned_{SAMPLES}')}.",
        "",
        "## By family, over the best heuristic",
        "",
        *markdown_table(
            [
                "family",
                "graphs",
                "HEFT",
                "edge zeroing",
                "one pass",
                "from each end",
                f"best of {SAMPLES}",
            ],
            families,
        ),
        "",
        f"A pass takes {np.median([row['pass_ms'] for row in rows]):.2f} ms of the processor "
        f"(median; {max(row['pass_ms'] for row in rows):.2f} at most) with "
        f"{np.median([row['ops'] for row in rows]):.0f} ops (median), what is said of the graph "
        f"once {np.median([row['facts_ms'] for row in rows]):.2f} ms; other work ran beside it.",
        "",
    ]
    shares = read_csv(SHARES, numbers=True)
    if shares:
        lines += [
            "## Share of samples in tuned-list",
            "",
            f"{len({row['graph'] for row in shares})} development graphs, values over those of "
            "4000 evaluations with a share of 0.1, median seconds of the processor, beside other "
            "work. The default is the share that is best for its seconds.",
            "",
            *markdown_table(["evaluations", "share", "value", "CPU s"], shares_table(shares)),
            "",
        ]
    solved = {row["graph"]: row["portfolio"] for row in read_csv(PORTFOLIO, numbers=True)}
    some = [row for row in rows if row["graph"] in solved]
    if some:
        ratios = [
            f"{what} {np.exp(np.mean([np.log(row[key] / solved[row['graph']]) for row in some])):.3f}"
            for key, what in ways[len(HEURISTICS) :]
        ]
        lines += [
            f"Over a portfolio of {PORTFOLIO_SECONDS:g} s of the clock on {len(some)} of these "
            f"graphs: {'; '.join(ratios).replace('**', '')}. Asked was 1.03.",
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv if word.replace(".", "").isdigit()]
    if "train" in sys.argv:
        train(numbers[0] if numbers else 480.0)
    if "heats" in sys.argv:
        choose_heats()
    if "samples" in sys.argv:
        choose_samples()
    if "heuristics" in sys.argv:
        heuristics()
    if "apply" in sys.argv:
        apply()
    if "portfolio" in sys.argv:
        against_portfolio()
    if {"apply", "page"} & set(sys.argv):
        write_text(HERE / "list_scheduler.md", page())
