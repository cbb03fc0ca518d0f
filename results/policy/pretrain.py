"""Pretrain the policy of placing steps on families of generated graphs, and apply it to families and device counts it has not seen.

Run `python results/policy/pretrain.py train` to write the policy in the package (solvers/policy/pretrained_steps.json), `... apply
[GRAPHS]` for zero_shot.csv, from 100 graphs or from that many (`--keep`: with the heuristics' values that it has), and
`... portfolio [GRAPHS]` for zero_shot_portfolio.csv, which compares with a portfolio of 10 s on the first 20 of them. Both write
zero_shot.md. Times in these tables are of one thread.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import placeopt as po
from placeopt.experiments.studies import markdown_table, read_csv, write_csv
from placeopt.model.files import write_text
from placeopt.solvers.policy.step_policy import PRETRAINED, StepPolicyModel
from placeopt.solvers.policy.step_training import choose_heat, decoded, evolve, learn_steps
from placeopt.solvers.policy.zero_shot import ZeroShot
from placeopt.solving.registry import make_solver

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]

TRAINING = (
    "gen:layered?layers=10&width=10", "gen:layered?layers=16&width=12&degree=3", "gen:fork-join?stages=5&branches=12",
    "gen:series-parallel?ops=150", "gen:in-tree?depth=6", "gen:lu?tiles=6", "gen:lu?tiles=7",
)  # fmt: skip
"""Families, each with three seeds, cost ratios in [0.3, 4] and device counts."""

SHARDED = ("gen:ffnn?shards=2", "gen:chain-mm?shards=3", "gen:llama-block?shards=2")
"""Families of Doppler's graphs, in other sizes, each on every device count; transfers take four times their producer."""

DEVICES = (2, 3, 4, 6)

UNSEEN = (
    "gen:cholesky?tiles=9", "gen:fft?points=32", "gen:stencil?rows=5&columns=5&steps=8", "gen:out-tree?depth=6",
    "gen:planted?ops=200&degree=3",
)  # fmt: skip
"""Families of about 200 ops, none of which is trained on."""

UNSEEN_DEVICES = (5, 8, 12, 16)

LISTS = ("heft", "cpop", "peft", "etf", "critical-path", "m-etf", "m-sct", "m-topo", "dsc")
"""List heuristics and clusterings besides edge zeroing, each with its own defaults."""

GENERATIONS, ROUNDS = 60, 60
HEATS = (0.003, 0.006, 0.012, 0.024)
SAMPLES = 64
PORTFOLIO_GRAPHS, PORTFOLIO_SECONDS = 20, 10.0

BESIDE = " (other work beside it)"
"""What is said of the times: empty for a quiet machine."""

VERDICT = """\
Asked were 70 % in at most 50 ms: not reached. Most of the gain comes from the steps and their seeds, little from training, and
annealing with two kinds of moves is ahead of both policies; the pretrained greedy pass is worse than the untrained one on these
families. The best of 64 runs was not compared with a portfolio. The heuristics' values are from an earlier run."""
"""What is to be said of the recorded tables; change it with them."""

KNOWN = ("best_list", "edge_zeroing", "best_heuristic", "bound")
"""Columns of zero_shot.csv that no policy changes."""

ROWS = (
    ("untrained_decoded", "one greedy pass, untrained: ops by b-level, earliest finish"),
    ("pretrained_decoded", "one greedy pass, pretrained"),
    ("seed", "best of the seeds of the pretrained run: HEFT, PEFT, ETF, their orders and its own, decoded"),
    ("annealing", "annealing from that seed, as many evaluations"),
    ("critical_annealing", "the same, moves `critical` and `overtake` only, colder"),
    ("untrained", "untrained policy, as much work"),
    ("pretrained", "**pretrained policy, zero-shot**"),
    ("best_list", "best of the list heuristics"),
    ("edge_zeroing", "edge zeroing"),
    ("best_heuristic", "best heuristic"),
)  # fmt: skip
"""Columns of zero_shot.csv that are values, and what they are."""


def problems(count: int = 3, seed: int = 2000, *, sharded: bool = True) -> list[po.PlacementProblem]:
    """Return `count` graphs of each training family, and the sharded ones; by default those that are trained on."""
    rng, found = np.random.default_rng(seed), []
    for i in range(count * len(TRAINING)):
        source, ratio = TRAINING[i % len(TRAINING)], round(float(rng.uniform(0.3, 4)), 2)
        found.append(po.load(f"{source}&ccr={ratio}&seed={seed + i}", cluster=f"uniform:{rng.choice(DEVICES)}"))
    for source in SHARDED if sharded else ():
        for k in DEVICES:
            own = po.load(source, cluster=f"uniform:{k}")
            ticks = np.repeat(4 * own.min_compute[own.producer][:, None], own.transfer.shape[1], axis=1)
            found.append(own.replace(transfer=ticks))
    return found


def train() -> None:
    """Learn to decode, then to take steps."""
    graphs = [ZeroShot(problem) for problem in problems()]
    model = evolve(StepPolicyModel.untrained(), graphs, decoded, generations=GENERATIONS, seed=0, some=14)
    print(f"decoding: {time.process_time():.0f} s of the processor", flush=True)
    model = learn_steps(model, graphs, rounds=ROUNDS, seed=0, rate=0.15, batch=11)
    other = [ZeroShot(problem) for problem in problems(2, 5000, sharded=False)]
    model = choose_heat(model, other, HEATS)
    notes = (
        f"results/policy/pretrain.py train: {len(graphs)} graphs",
        f"{GENERATIONS} generations of decoding, {ROUNDS} rounds of steps, temperature chosen on {len(other)} others",
    )
    model.with_vector(model.vector, *notes).save(PRETRAINED)
    print(f"steps: {time.process_time():.0f} s", flush=True)


def unseen(count: int) -> list[po.PlacementProblem]:
    """Return problems of families and device counts that were not trained on."""
    rng = np.random.default_rng(7)
    found = []
    for i in range(count):
        source = UNSEEN[i % len(UNSEEN)]
        ratio, k = round(float(rng.uniform(0.3, 4.0)), 2), int(rng.choice(UNSEEN_DEVICES))
        more = f"&devices={k}" if "planted" in source else ""
        found.append(po.load(f"{source}{more}&ccr={ratio}&seed={1000 + i}", cluster=f"uniform:{k}"))
    return found


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call gives, and its milliseconds."""
    began = time.perf_counter()
    found = work()
    return found, round(1000 * (time.perf_counter() - began), 1)


def heuristics(problem: po.PlacementProblem) -> Row:
    """Return the values of the heuristics, and the bound."""
    best = po.Budget(evaluations=10_000)
    lists = min(int(make_solver(name).solve(problem, best, seed=0).value) for name in LISTS)
    zeroed = int(make_solver("edge-zeroing").solve(problem, best, seed=0).value)
    bound = int(po.bound(problem, seconds=0.5).value)
    return {"best_list": lists, "edge_zeroing": zeroed, "best_heuristic": min(lists, zeroed), "bound": bound}


def compare(problem: po.PlacementProblem, known: Row) -> Row:
    """Return the values of every method on one graph; `known`: those of the heuristics, if they are."""
    row: Row = {"graph": problem.name, "ops": problem.num_ops, "devices": problem.num_devices}
    row |= {key: known[key] for key in KNOWN} if known else heuristics(problem)
    trained, untrained = StepPolicyModel.load(PRETRAINED), StepPolicyModel.untrained()
    found, row["ms"] = timed(lambda: ZeroShot(problem).run(trained))
    row |= {"pretrained": found.value, "pretrained_decoded": found.decoded, "seed": found.seeded, "steps": found.steps}
    again = ZeroShot(problem)
    other, row["untrained_ms"] = timed(lambda: again.run(untrained))
    row |= {"untrained": other.value, "untrained_decoded": other.decoded, "untrained_steps": other.steps}
    start = again.run(trained, work_per_op=0).placement
    for key, options in (("annealing", {}), ("critical_annealing", {"moves": "critical,overtake", "hot": 0.003})):
        solver, budget = make_solver("annealing", walks=1, **options), po.Budget(evaluations=found.steps)
        row[key] = int(solver.solve(problem, budget, seed=0, initial=start).value)
    return row


def apply(count: int) -> list[Row]:
    """Compare the pretrained policy with the heuristics, with itself untrained and with annealing, on unseen graphs."""
    known = unseen(count)
    ZeroShot(known[0]).run(StepPolicyModel.untrained(), work_per_op=100)  # load the kernels
    kept = {row["graph"]: row for row in read_csv(HERE / "zero_shot.csv", numbers=True)} if "--keep" in sys.argv else {}
    rows = []
    for problem in known:
        rows.append(compare(problem, kept.get(problem.name, {})))
        print(rows[-1], flush=True)
    return rows


def samples(graph: ZeroShot, model: StepPolicyModel) -> list[int]:
    """Return the values of SAMPLES runs."""
    return [graph.run(model, seed=i).value for i in range(SAMPLES)]


def against_portfolio(count: int) -> list[Row]:
    """Best of 64 samples of both policies against a portfolio."""
    trained, untrained = StepPolicyModel.load(PRETRAINED), StepPolicyModel.untrained()
    rows = []
    for problem in unseen(count):
        graph = ZeroShot(problem)
        row: Row = {"graph": problem.name, "ops": problem.num_ops, "devices": problem.num_devices}
        for name, model in (("pretrained", trained), ("untrained", untrained)):
            values, row[f"{name}_ms"] = timed(partial(samples, graph, model))
            row |= {f"{name}_1": values[0], f"{name}_64": min(values)}
        row["portfolio"] = int(make_solver("portfolio").solve(problem, po.Budget(seconds=PORTFOLIO_SECONDS), seed=0).value)
        rows.append(row)
        print(row, flush=True)
    return rows


def families(sources: tuple[str, ...]) -> str:
    """Return the names of families, each once."""
    return ", ".join(dict.fromkeys(source.removeprefix("gen:").split("?")[0] for source in sources))


def page(rows: list[Row], portfolio: list[Row]) -> str:
    """Say what the rows show."""
    def mean(key: str, over: str, some: list[Row] = rows) -> float:
        return float(np.mean([row[key] / row[over] for row in some]))

    def better(key: str) -> str:
        return f"{np.mean([row[key] < row['best_heuristic'] for row in rows]):.0%}"

    table = [[what, mean(key, "best_heuristic"), mean(key, "bound"), better(key)] for key, what in ROWS]
    closed = sum(row["best_heuristic"] <= row["bound"] for row in rows)
    gaps = [row["pretrained"] - row["untrained"] for row in rows]
    wins = sum(gap < 0 for gap in gaps), sum(gap > 0 for gap in gaps)
    times = sorted(row["ms"] for row in rows)
    lines = [
        "# The pretrained policy on graphs it has not seen", "",
        f"{len(rows)} graphs of the families {families(UNSEEN)} on {', '.join(map(str, UNSEEN_DEVICES))} devices, "
        f"{int(np.mean([row['ops'] for row in rows]))} ops on average; trained on {families(TRAINING + SHARDED)} with "
        f"{', '.join(map(str, DEVICES))} devices ({'; '.join(StepPolicyModel.load(PRETRAINED).provenance[1:])}). Nothing is "
        "learned on these graphs: the policy decodes several orders and takes steps from the best, as many as a fixed amount of "
        "work allows.", "",
        *markdown_table(["method", "mean / best heuristic", "mean / bound", "better than every heuristic"], table), "",
        f"The best heuristic is proved optimal, so that nothing can be better, on {closed}. From the same seeds and with as much "
        f"work, the pretrained policy ends below the untrained one on {wins[0]} graphs, above it on {wins[1]}.", "",
        f"Time of a zero-shot run with its preparation, after loading: median {np.median(times):.0f} ms, largest "
        f"{times[-1]:.0f} ms{BESIDE}; {np.median([row['steps'] for row in rows]):.0f} steps (median).", "", VERDICT, "",
    ]  # fmt: skip
    if portfolio:
        some = [f"{name} {mean(f'{name}_{count}', 'portfolio', portfolio):.3f}"
                for name in ("pretrained", "untrained") for count in (1, 64)]  # fmt: skip
        lines += [
            f"Against a portfolio of {PORTFOLIO_SECONDS:g} s on the first {len(portfolio)} graphs, times its value on average, one "
            f"run and the best of 64: {some[0]} and {some[1]}, {some[2]} and {some[3]}. 64 runs take "
            f"{np.median([row['pretrained_ms'] for row in portfolio]) / 1000:.1f} s (median).", "",
        ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv if word.isdigit()]
    if "train" in sys.argv:
        train()
    if "apply" in sys.argv:
        write_csv(HERE / "zero_shot.csv", apply(sizes[0] if sizes else 100))
    if "portfolio" in sys.argv:
        write_csv(HERE / "zero_shot_portfolio.csv", against_portfolio(sizes[0] if sizes else PORTFOLIO_GRAPHS))
    written = read_csv(HERE / "zero_shot.csv", numbers=True)
    if written and "pretrained_decoded" in written[0]:
        write_text(HERE / "zero_shot.md", page(written, read_csv(HERE / "zero_shot_portfolio.csv", numbers=True)))
