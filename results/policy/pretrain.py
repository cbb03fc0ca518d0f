"""Pretrain the policy of moves on families of generated graphs, and apply it to families and device
counts it has not seen.

Run `python results/policy/pretrain.py train` to write the policy in the package
(solvers/policy/pretrained_moves.json), `... apply [GRAPHS]` for zero_shot.csv, from 100 graphs or
from that many (`--keep`: with the heuristics' values that it has), `... times` for
zero_shot_times.csv (on a quiet machine), and `... portfolio [GRAPHS]` for zero_shot_portfolio.csv,
which compares with a portfolio of 10 s on every fourth of them. All write zero_shot.md.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import placeopt as po
from placeopt.experiments.studies import markdown_table, read_csv, write_csv
from placeopt.model.files import write_text
from placeopt.solvers.policy.move_policy import PRETRAINED, MovePolicy
from placeopt.solvers.policy.move_training import drawn_around, fittest, race, walked
from placeopt.solvers.policy.zero_shot import WORK_PER_OP, ZeroShot
from placeopt.solvers.search.walk_kernels import MOVES
from placeopt.solving.registry import make_solver

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]

TRAINING = (
    "gen:layered?layers=10&width=10",
    "gen:layered?layers=16&width=12&degree=3",
    "gen:fork-join?stages=5&branches=12",
    "gen:series-parallel?ops=150",
    "gen:in-tree?depth=6",
    "gen:lu?tiles=6",
    "gen:lu?tiles=7",
)
"""Families, each with three seeds, cost ratios in [0.3, 4] and device counts."""

SHARDED = ("gen:ffnn?shards=2", "gen:chain-mm?shards=3", "gen:llama-block?shards=2")
"""Families of Doppler's graphs, in other sizes, each on up to six devices; transfers take four
times their producer."""

DEVICES = (2, 3, 4, 6, 10, 14)

APART = (
    "gen:layered?layers=14&width=14",
    "gen:series-parallel?ops=200",
    "gen:in-tree?depth=4&arity=3",
    "gen:lu?tiles=8",
    "gen:fork-join?stages=12&branches=5&length=3",
)
"""Other sizes of these families: the policy is kept that is best on eight graphs of each."""

UNSEEN = (
    "gen:cholesky?tiles=9",
    "gen:fft?points=32",
    "gen:stencil?rows=5&columns=5&steps=8",
    "gen:out-tree?depth=6",
    "gen:planted?ops=200&degree=3",
)
"""Families of about 200 ops, none of which is trained on."""

UNSEEN_DEVICES = (5, 8, 12, 16)

LISTS = ("heft", "cpop", "peft", "etf", "critical-path", "m-etf", "m-sct", "m-topo", "dsc")
"""List heuristics and clusterings besides edge zeroing, each with its own defaults."""

RACING = 96
SAMPLES = 64
PORTFOLIO_GRAPHS, PORTFOLIO_SECONDS = 25, 10.0

ASKED = 0.7, 50.0
"""Share of graphs on which the policy should be better than every heuristic, and the milliseconds
it may take."""

USUAL = 200
"""Ops of the graphs for which these milliseconds are meant."""

KNOWN = ("best_list", "edge_zeroing", "best_heuristic", "bound")
"""Columns of zero_shot.csv that no policy changes."""

LIKELY = ("critical", "overtake")
"""Moves that training starts from: ten times as often as the others."""

ROWS = (
    ("best_list", "best of the list heuristics and DSC"),
    ("edge_zeroing", "edge zeroing"),
    ("best_heuristic", "**best heuristic**"),
    ("seed", "seed of all walks below: the best of the cheap heuristics"),
    ("annealing", "annealing with its own temperatures, as many steps"),
    ("untrained", "walk, all moves alike"),
    ("only_likely", "walk, moves `critical` and `overtake` only"),
    ("pretrained", "**zero-shot walk, the package's policy of moves**"),
    ("longer", "the same with ten times as many steps"),
)
"""Columns of zero_shot.csv that are values, and what they are."""


def problems() -> list[po.PlacementProblem]:
    """Return the graphs that are trained on."""
    found = drawn(TRAINING, 3 * len(TRAINING), 2000)
    for source in SHARDED:
        for k in DEVICES[:4]:
            own = po.load(source, cluster=f"uniform:{k}")
            ticks = np.repeat(
                4 * own.min_compute[own.producer][:, None], own.transfer.shape[1], axis=1
            )
            found.append(own.replace(transfer=ticks))
    return found


def drawn(sources: tuple[str, ...], count: int, seed: int) -> list[po.PlacementProblem]:
    """Return graphs of some families in turn, with cost ratios and numbers of devices at random."""
    rng = np.random.default_rng(seed)
    return [
        po.load(
            f"{sources[i % len(sources)]}&ccr={round(float(rng.uniform(0.3, 4)), 2)}&seed={seed + i}",
            cluster=f"uniform:{rng.choice(DEVICES)}",
        )
        for i in range(count)
    ]


def train() -> None:
    """Learn which moves to take by a race; keep the policy only if it is better than the others on
    other graphs.
    """
    graphs, apart = (
        [ZeroShot(problem) for problem in some]
        for some in (problems(), drawn(APART, 8 * len(APART), 5000))
    )
    start = MovePolicy.untrained(*LIKELY)
    known = {"all moves alike": MovePolicy.untrained(), "where it began": start}
    racing = [start, *drawn_around(start, RACING - 1, np.random.default_rng(0))]
    known["what was learned"] = race(racing, graphs, walked, seed=0)
    print(f"learned: {time.process_time():.0f} s of the processor", flush=True)
    best = list(known)[fittest(list(known.values()), apart, walked)]
    notes = (
        f"results/policy/pretrain.py train: {len(graphs)} graphs",
        f"a race of {RACING} policies, around one that takes {' and '.join(LIKELY)} ten times as "
        "often as other moves; on "
        f"{len(apart)} graphs set apart the best was {best}",
    )
    known[best].with_vector(known[best].vector, *notes).save(PRETRAINED)
    print(f"{best}: {time.process_time():.0f} s", flush=True)


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


def heuristics(problem: po.PlacementProblem) -> Row:
    """Return the values of the heuristics, and the bound."""
    best = po.Budget(evaluations=10_000)
    lists = min(int(make_solver(name).solve(problem, best, seed=0).value) for name in LISTS)
    zeroed = int(make_solver("edge-zeroing").solve(problem, best, seed=0).value)
    bound = int(po.bound(problem, seconds=0.5).value)
    return {
        "best_list": lists,
        "edge_zeroing": zeroed,
        "best_heuristic": min(lists, zeroed),
        "bound": bound,
    }


def only(*names: str) -> MovePolicy:
    """Return a policy that takes hardly any moves but some."""
    policy = MovePolicy.untrained()
    kind = np.full_like(policy.tables["kind"], 0.0)
    kind[:, 0] = [6.0 if name in names else -6.0 for name in MOVES]
    return MovePolicy({**policy.tables, "kind": kind})


def compare(problem: po.PlacementProblem, known: Row) -> Row:
    """Return the values of every method on one graph; `known`: those of the heuristics, if they
    are.
    """
    row: Row = {"graph": problem.name, "ops": problem.num_ops, "devices": problem.num_devices}
    row |= {key: known[key] for key in KNOWN} if known else heuristics(problem)
    trained, graph = MovePolicy.load(PRETRAINED), ZeroShot(problem)
    found = graph.run(trained)
    row |= {
        "seed_heuristic": found.heuristic,
        "seed": found.seeded,
        "steps": found.steps,
        "pretrained": found.value,
    }
    others = {"untrained": MovePolicy.untrained(), "only_likely": only(*LIKELY)}
    row |= {name: graph.run(policy).value for name, policy in others.items()}
    row["longer"] = graph.run(trained, work_per_op=10 * WORK_PER_OP).value
    start = graph.run(trained, work_per_op=0).placement
    solver, budget = make_solver("annealing", walks=1), po.Budget(evaluations=found.steps)
    row["annealing"] = int(solver.solve(problem, budget, seed=0, initial=start).value)
    return row


def apply(count: int) -> list[Row]:
    """Compare the pretrained policy with the heuristics, with itself untrained and with annealing,
    on unseen graphs.
    """
    kept = (
        {row["graph"]: row for row in read_csv(HERE / "zero_shot.csv", numbers=True)}
        if "--keep" in sys.argv
        else {}
    )
    rows = []
    for problem in unseen(count):
        rows.append(compare(problem, kept.get(problem.name, {})))
        print(rows[-1], flush=True)
    return rows


def times(count: int) -> list[Row]:
    """Measure what a zero-shot run takes with its preparation: the fastest of three for each
    graph.
    """
    trained, rows = MovePolicy.load(PRETRAINED), []
    problems = unseen(count)
    ZeroShot(problems[0]).run(trained)  # loads the kernels
    for problem in problems:
        spent: tuple[list[float], list[float]] = [], []
        for _ in range(3):
            graph, began = ZeroShot(problem), time.perf_counter()
            ready = bool(graph.seeds), time.perf_counter()
            graph.run(trained)
            spent[0].append(ready[1] - began)
            spent[1].append(time.perf_counter() - began)
        ms = [round(1000 * min(some), 2) for some in spent]
        rows.append(
            {
                "graph": problem.name,
                "ops": problem.num_ops,
                "devices": problem.num_devices,
                "seeds_ms": ms[0],
                "ms": ms[1],
            }
        )
    return rows


def against_portfolio(count: int) -> list[Row]:
    """Best of 64 samples against a portfolio."""
    trained, rows = MovePolicy.load(PRETRAINED), []
    for problem in unseen(4 * count)[::4]:
        graph = ZeroShot(problem)
        row: Row = {"graph": problem.name, "ops": problem.num_ops, "devices": problem.num_devices}
        values = [graph.run(trained, sample=i).value for i in range(SAMPLES)]
        row |= {
            "seed": graph.seeds[0].value,
            "pretrained_1": values[0],
            "pretrained_64": min(values),
        }
        row["portfolio"] = int(
            make_solver("portfolio")
            .solve(problem, po.Budget(seconds=PORTFOLIO_SECONDS), seed=0)
            .value
        )
        rows.append(row)
        print(row, flush=True)
    return rows


def families(sources: tuple[str, ...]) -> str:
    """Return the names of families, each once."""
    return ", ".join(dict.fromkeys(source.removeprefix("gen:").split("?")[0] for source in sources))


def page(rows: list[Row], times: list[Row], portfolio: list[Row]) -> str:
    """Say what the rows show."""

    def mean(key: str, over: str, some: list[Row] = rows) -> float:
        return float(np.mean([row[key] / row[over] for row in some]))

    def better(key: str, some: list[Row] = rows) -> float:
        return float(np.mean([row[key] < row["best_heuristic"] for row in some]))

    table = [
        [what, mean(key, "best_heuristic"), mean(key, "bound"), f"{better(key):.0%}"]
        for key, what in ROWS
    ]
    closed = sum(row["best_heuristic"] <= row["bound"] for row in rows)
    steps = np.median([row["steps"] for row in rows])
    lines = [
        "# A policy of moves, zero-shot, on graphs that it was not chosen on",
        "",
        f"{len(rows)} graphs of the families {families(UNSEEN)} on "
        f"{', '.join(map(str, UNSEEN_DEVICES))} devices, "
        f"{int(np.mean([row['ops'] for row in rows]))} ops on average; trained on "
        f"{families(TRAINING + SHARDED)} with "
        f"{', '.join(map(str, DEVICES))} devices "
        f"({'; '.join(MovePolicy.load(PRETRAINED).provenance[1:])}). Nothing is "
        f"learned on these graphs: a walk of {steps:.0f} steps (median, by the size of the graph) "
        "goes from the best of the "
        "cheap heuristics, by moves that the policy draws. All walks begin from the same seed.",
        "",
        *kept(),
        "",
        *markdown_table(
            ["method", "mean / best heuristic", "mean / bound", "better than every heuristic"],
            table,
        ),
        "",
        f"The best heuristic is proved optimal, so that nothing can be better, on {closed}; its "
        "values are from an earlier run.",
        *against(rows),
        "",
        "## By family",
        "",
        *by_family(rows),
        "",
    ]
    if times:
        spent = sorted(row["ms"] for row in times)
        lines += [
            "Time of a zero-shot run with its preparation, after loading, on a quiet machine, one "
            "thread, the fastest of three "
            f"for each graph: median "
            f"{np.median(spent):.1f} ms, largest {spent[-1]:.1f} ms, of which the seeds take "
            f"{np.median([row['seeds_ms'] for row in times]):.1f} ms (median).",
            "",
        ]
    done = "reached" if better("pretrained") >= ASKED[0] else "not reached"
    slow = ""
    if times:
        usual = max(row["ms"] for row in times if row["ops"] <= USUAL)
        within = np.mean([row["ms"] <= ASKED[1] for row in times])
        slow = f": reached on {within:.0%} of all; of up to {USUAL} ops, {usual:.1f} ms at most"
    lines += [
        f"Asked were {ASKED[0]:.0%}: {done}; in at most {ASKED[1]:g} ms for {USUAL} ops{slow}.",
        "",
    ]
    if portfolio:
        some = [
            f"{mean(key, 'portfolio', portfolio):.3f}"
            for key in ("seed", "pretrained_1", f"pretrained_{SAMPLES}")
        ]
        lines += [
            f"Against a portfolio of {PORTFOLIO_SECONDS:g} s on {len(portfolio)} graphs, every "
            "fourth, times its value on average: "
            f"the seed {some[0]}, one run {some[1]}, the best of {SAMPLES} {some[2]}. Asked was "
            f"1.03 with {SAMPLES}. "
            "Other work ran beside the portfolio, on both of its cores.",
            "",
        ]
    return "\n".join(lines)


def kept() -> list[str]:
    """Say whether anything was learned."""
    if not any(
        line.endswith("best was where it began") for line in MovePolicy.load(PRETRAINED).provenance
    ):
        return []
    return [
        "The race, and evolution strategies before it, found no policy that is better on graphs "
        "set apart than the one that they "
        "began from, whose moves were chosen by hand. So that one is the package's, and what it "
        "gains comes from its seeds, moves "
        "and temperatures: nothing of it is learned."
    ]


def against(rows: list[Row]) -> list[str]:
    """Say how often the pretrained walk ends below and above the others."""
    names = {"untrained": "all moves alike", "only_likely": "two moves only"}
    counts = []
    for key, what in names.items():
        below, above = (
            sum(sign * (row["pretrained"] - row[key]) < 0 for row in rows) for sign in (1, -1)
        )
        counts.append(f"{what} ({below} below, {above} above)")
    return [f"From the same seeds, it ends, against {', '.join(counts)}."]


def by_family(rows: list[Row]) -> list[str]:
    """Return seed, learned value and best heuristic of each family."""
    table = []
    for source in UNSEEN:
        name = families((source,))
        mine = [row for row in rows if row["graph"].startswith(f"{name}?")]
        if mine:
            of = [
                float(np.mean([row[key] / row["bound"] for row in mine]))
                for key in ("seed", "pretrained", "best_heuristic")
            ]
            table.append(
                [
                    name,
                    len(mine),
                    *of,
                    f"{np.mean([row['pretrained'] < row['best_heuristic'] for row in mine]):.0%}",
                ]
            )
    heads = [
        "family",
        "graphs",
        "seed / bound",
        "policy / bound",
        "best heuristic / bound",
        "better than every heuristic",
    ]
    return markdown_table(heads, table)


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv if word.isdigit()]
    if "train" in sys.argv:
        train()
    for word, file, make, count in (
        ("apply", "zero_shot", apply, 100),
        ("times", "zero_shot_times", times, 100),
        ("portfolio", "zero_shot_portfolio", against_portfolio, PORTFOLIO_GRAPHS),
    ):
        if word in sys.argv:
            write_csv(HERE / f"{file}.csv", make(sizes[0] if sizes else count))
    tables = [
        read_csv(HERE / f"{name}.csv", numbers=True)
        for name in ("zero_shot", "zero_shot_times", "zero_shot_portfolio")
    ]
    if tables[0] and "only_likely" in tables[0][0]:
        write_text(HERE / "zero_shot.md", page(tables[0], tables[1], tables[2]))
