"""Train the learned list scheduler of the package on generated graphs, and try it on others.

    python results/policy/train.py train [SECONDS]   # goes on where it ended; 480 s by default
    python results/policy/train.py heats             # temperatures of sampling
    python results/policy/train.py heuristics apply  # list_scheduler.csv and list_scheduler.md
    python results/policy/train.py portfolio         # every fourth graph: a portfolio of 10 s

It starts as HEFT (`ListPolicy.heft`) and learns by policy gradient: schedules are drawn of each
graph of a batch, and those that are shorter than its others, by their standard deviation, become
likelier. Graphs are of DEVELOPMENT's families; what is kept is the best greedy pass on other graphs
of those. The families of TEST are only read by `apply` and `portfolio`.

References
----------
R. J. Williams. Simple statistical gradient-following algorithms for connectionist reinforcement
learning. Machine Learning 8, 1992.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from graph_families import DEVELOPMENT, HEURISTICS, TEST, drawn

import placeopt as po
from placeopt.experiments.studies import markdown_table, read_csv, write_csv
from placeopt.model.files import write_text
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.policy.advantages import Adam
from placeopt.solvers.policy.tuned_list import TRAINED, ListPolicy, facts_of
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from placeopt.solvers.policy.list_kernels import ListFacts

HERE = Path(__file__).resolve().parent
STATE = HERE / "train_state.npz"  # not committed
TABLE, PORTFOLIO = HERE / "list_scheduler.csv", HERE / "list_portfolio.csv"
Row = dict[str, Any]

GRAPHS, FIRST = 3000, 1000
"""Graphs that are trained on, and the seed of the first of them."""

APART, FIRST_APART = 100, 100_000
"""Graphs of the same families by which the weights are chosen."""

BATCH, DRAWN = 8, 16
"""Graphs of a step, and schedules that are drawn of each."""

RATE, SETTLED = 0.02, 700
"""Adam's first step, and the number of steps by which it has fallen to a tenth; from there it goes
on from the best weights so far."""

TRY_EVERY = 50
"""Steps between two tries on the graphs set apart."""

HEATS = (0.03, 0.1, 0.3)
"""Temperatures of sampling that are tried."""

SAMPLES, TESTED, PORTFOLIO_SECONDS = 64, 100, 10.0


class Graph(NamedTuple):
    """A graph with what the scores see of it."""

    name: str
    context: Context
    facts: ListFacts


def graphs(split: dict[str, Any], count: int, first: int) -> list[Graph]:
    """Return graphs of a split."""
    found = []
    for seed in range(first, first + count):
        name, problem = drawn(split, seed)
        context = Context(problem)
        found.append(Graph(name, context, facts_of(context)))
    return found


@cache
def training(index: int) -> Graph:
    """Return a graph to train on."""
    return graphs(DEVELOPMENT, 1, FIRST + index)[0]


def end(graph: Graph, policy: ListPolicy, random: int | None = None) -> float:
    """Return the logarithm of the makespan of a pass: of the best scores, or drawn."""
    return float(np.log(policy.schedule(graph.context, graph.facts, random=random).finish.max()))


def graph_gradient(policy: ListPolicy, seed: int) -> np.ndarray:
    """Return the policy gradient of a graph that is drawn."""
    rng = np.random.default_rng([seed, 3])
    graph = training(int(rng.integers(GRAPHS)))
    draws = rng.integers(1, 2**62, DRAWN).tolist()
    lengths = np.array([end(graph, policy, random) for random in draws])
    advantage = (lengths.mean() - lengths) / max(1e-9, lengths.std())
    ones = np.ones(graph.context.problem.num_ops)
    total = np.zeros(len(policy.vector))
    for random, weight in zip(draws, advantage.tolist(), strict=True):
        if weight != 0:
            total += weight * policy.gradient(graph.context, graph.facts, random, ones)
    return total / (DRAWN * len(ones))


def train(seconds: float) -> None:
    """Take steps until the time is over; keep the state."""
    start = ListPolicy.heft()
    apart = graphs(DEVELOPMENT, APART, FIRST_APART)
    base = np.array([end(graph, start) for graph in apart])
    policy, adam = start, Adam(len(start.vector), RATE)
    step, spent, best, kept = 0, 0.0, np.inf, start.vector
    if STATE.is_file():
        state = np.load(STATE)
        policy, kept = start.with_vector(state["vector"]), state["kept"]
        adam.first, adam.second, adam.steps = state["first"], state["second"], int(state["step"])
        step, spent, best = int(state["step"]), float(state["spent"]), float(state["best"])
    began, until = time.process_time(), time.perf_counter() + seconds
    with ThreadPoolExecutor(2) as pool:
        while time.perf_counter() < until:
            seeds = np.random.default_rng([step, 1]).integers(0, 2**62, BATCH).tolist()
            gradient = np.mean(list(pool.map(partial(graph_gradient, policy), seeds)), axis=0)
            adam.learning_rate = RATE * 0.1 ** min(1.0, step / SETTLED)
            policy = start.with_vector(policy.vector + adam.step(gradient))
            step += 1
            if step == SETTLED:
                policy, adam.first = start.with_vector(kept), 0 * adam.first
            if step % TRY_EVERY == 0:
                found = pool.map(partial(end, policy=policy), apart)
                now = float(np.mean(np.array(list(found)) - base))
                if now < best:
                    best, kept = now, policy.vector
                print(step, f"{np.exp(now):.4f} of HEFT, best {np.exp(best):.4f}", flush=True)
    spent += time.process_time() - began
    np.savez(
        STATE,
        vector=policy.vector,
        kept=kept,
        first=adam.first,
        second=adam.second,
        step=step,
        spent=spent,
        best=best,
    )
    note = (
        f"results/policy/train.py train: {step} steps of policy gradient, {BATCH} graphs each, "
        f"{DRAWN} schedules of a graph; {GRAPHS} graphs of the families {', '.join(DEVELOPMENT)}; "
        f"{spent / 3600:.2f} hours of a processor; on {APART} other graphs of these families one "
        f"pass takes {np.exp(best):.3f} of HEFT's makespan"
    )
    start.with_vector(kept, note).save(TRAINED)


def choose_heats() -> None:
    """Keep the temperatures at which the best of some samples is best, on development graphs."""
    policy, apart = ListPolicy.load(TRAINED), graphs(DEVELOPMENT, 40, FIRST_APART)
    found: dict[tuple[float, float], float] = {}
    for op_heat in HEATS:
        for heat in HEATS:
            warm = replace(policy, heats=(op_heat, heat))
            best = [
                min(end(graph, warm, random) for random in range(1, 33)) - end(graph, warm)
                for graph in apart
            ]
            found[op_heat, heat] = float(np.mean(best))
            print((op_heat, heat), f"{np.exp(found[op_heat, heat]):.4f}", flush=True)
    replace(policy, heats=min(found, key=lambda key: found[key])).save(TRAINED)


def heuristics() -> None:
    """Record every heuristic on TEST; goes on where it ended."""
    rows = read_csv(TABLE, numbers=True)
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
        graph = graphs(TEST, 1, index)[0]
        for label, policy in (("learned", trained), ("before", before)):
            row[f"{label}_1"] = value(graph, policy)
            samples = [value(graph, policy, random) for random in range(1, SAMPLES)]
            row[f"{label}_{SAMPLES}"] = min(row[f"{label}_1"], *samples)
        began = time.process_time()
        for _ in range(5):
            trained.schedule(graph.context, graph.facts)
        row["pass_ms"] = round(200 * (time.process_time() - began), 3)
        began = time.process_time()
        facts_of(Context(graph.context.problem))
        row["facts_ms"] = round(1000 * (time.process_time() - began), 3)
    write_csv(TABLE, rows)


def value(graph: Graph, policy: ListPolicy, random: int | None = None) -> int:
    """Return the makespan of a pass in ticks."""
    return int(policy.schedule(graph.context, graph.facts, random=random).finish.max())


def against_portfolio() -> None:
    """Solve every fourth graph of TEST by the portfolio; goes on where it ended."""
    rows = read_csv(PORTFOLIO, numbers=True)
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
        (f"before_{SAMPLES}", f"HEFT's weights, best of {SAMPLES}"),
        (f"learned_{SAMPLES}", f"**learned weights, best of {SAMPLES}**"),
    ]

    def against(key: str, over: str) -> str:
        logs = np.log([row[key] / row[over] for row in rows])
        half = 1.96 * logs.std(ddof=1) / len(logs) ** 0.5
        return f"{np.exp(logs.mean()):.3f} ± {half:.3f}"

    table = [
        [
            what,
            against(key, "heft"),
            against(key, "best"),
            f"{np.mean([row[key] < row['best'] for row in rows]):.0%}",
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
                for key in ("heft", "edge-zeroing", "learned_1", f"learned_{SAMPLES}")
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
        f"- sampled at temperatures {policy.heats} of ops and devices, chosen on development graphs",
        "",
        *markdown_table(heads, table),
        "",
        "## By family, over the best heuristic",
        "",
        *markdown_table(
            ["family", "graphs", "HEFT", "edge zeroing", "one pass", f"best of {SAMPLES}"],
            families,
        ),
        "",
        f"A pass takes {np.median([row['pass_ms'] for row in rows]):.2f} ms of the processor "
        f"(median; {max(row['pass_ms'] for row in rows):.2f} at most) with "
        f"{np.median([row['ops'] for row in rows]):.0f} ops (median), what is said of the graph "
        f"once {np.median([row['facts_ms'] for row in rows]):.2f} ms; other work ran beside it.",
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
            f"graphs, beside other work: {'; '.join(ratios).replace('**', '')}. Asked was 1.03.",
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv if word.replace(".", "").isdigit()]
    if "train" in sys.argv:
        train(numbers[0] if numbers else 480.0)
    if "heats" in sys.argv:
        choose_heats()
    if "heuristics" in sys.argv:
        heuristics()
    if "apply" in sys.argv:
        apply()
    if "portfolio" in sys.argv:
        against_portfolio()
    if {"apply", "page"} & set(sys.argv):
        write_text(HERE / "list_scheduler.md", page())
