"""Train the learned list scheduler of the package on generated graphs, and try it on others.

    python results/policy/train.py train [SECONDS]   # goes on where it ended; 480 s by default
    python results/policy/train.py heats             # temperatures of sampling
    python results/policy/train.py apply             # list_scheduler.csv and list_scheduler.md
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
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from families import DEVELOPMENT, TEST, drawn

import placeopt as po
from placeopt.experiments.studies import markdown_table, read_csv, write_csv
from placeopt.model.files import write_text
from placeopt.solvers.heuristics.context import Context
from placeopt.solvers.policy.adam import Adam
from placeopt.solvers.policy.list_kernels import ListFacts
from placeopt.solvers.policy.list_policy import TRAINED, ListPolicy, facts_of
from placeopt.solving.registry import make_solver

HERE = Path(__file__).resolve().parent
STATE = HERE / "train_state.npz"  # not committed
Row = dict[str, Any]

GRAPHS, FIRST = 3000, 1000
"""Graphs that are trained on, and the seed of the first of them."""

APART, FIRST_APART = 100, 100_000
"""Graphs of the same families by which the weights are chosen."""

BATCH, DRAWN = 8, 16
"""Graphs of a step, and schedules that are drawn of each."""

RATE, SETTLED = 0.02, 1500
"""Adam's first step, and the number of steps by which it has fallen to a tenth."""

TRY_EVERY = 50
"""Steps between two tries on the graphs set apart."""

HEURISTICS = (
    "heft",
    "cpop",
    "peft",
    "etf",
    "critical-path",
    "m-etf",
    "m-sct",
    "m-topo",
    "dsc",
    "edge-zeroing",
)
SAMPLES, TESTED, PORTFOLIO_SECONDS = 64, 120, 10.0


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


if __name__ == "__main__":
    numbers = [float(word) for word in sys.argv if word.replace(".", "").isdigit()]
    if "train" in sys.argv:
        train(numbers[0] if numbers else 480.0)
