"""Tables of the studies' own pages that are not written by their scripts as a whole."""

from __future__ import annotations

from statistics import mean, median
from typing import TYPE_CHECKING

from page_tables.front_page import LETTERS, SHAPES, by_seeds
from page_tables.own_systems import (
    benchmark_gaps,
    errors,
    gaps_by_seed,
    gaps_of_solve,
    limit,
    piper,
)
from page_tables.placement_systems import GRAPHS, OPEN, short
from page_tables.scheduling_systems import (
    MODELS,
    cpu_of,
    gaps_of_cuts,
    lower_latency,
    named,
    open_cells,
    period_cells,
    speed_up,
)
from page_tables.source import (
    Source,
    bullets,
    floats,
    listed,
    percent,
    seconds,
    span,
    table,
    times,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED_MEAN, NEAR = 1.02, 1.10
"""Measured time of the first choice over the best: the mean that is asked for, and what counts as
near."""


# --- exact
# ---------------------------------------------------------------------------------------------


def exact(source: Source) -> list[str]:
    """The claims of the study of exact methods."""
    optima, chain = source.rows("exact/optima.csv"), source.rows("exact/chain.csv")
    free, latency = source.rows("exact/pipeline.csv"), source.rows("exact/latency.csv")
    gap = {
        row["instance"]: percent(float(row["gap_percent"]) / 100)
        for row in source.rows("exact/doppler.csv")
    }
    gap |= {name: span(gaps, percent) for name, gaps in gaps_of_solve(source).items()}
    time = limit(source)
    spent = floats(optima, "seconds")
    seeds = source.numbers("exact/doppler-seeds.csv", "gap_percent")
    pair = [
        f"{name} on {size} {gap[f'{name} {size} devices pair']}"
        for name in ("chain_mm", "llama_block", "ffnn")
        for size in (4, 8)
    ]
    hard = [source.row("exact/pipeline.csv", instance=name) for name in OPEN]
    equal = sum(abs(float(row["value"]) - float(row["authors_program"])) <= 1.1e-5 for row in chain)
    return table(
        ["claim", "others (what, how obtained)", "here", "gap to the bound", "stage"],
        [
            [
                "published optimal makespans",
                f"{len(optima)} values, stored by their authors",
                f"{sum(row['status'] == 'optimal' for row in optima)} proved, "
                f"{seconds(sum(spent))} s together, longest "
                f"{seconds(max(spent))} s",
                "0",
                "`optima`",
            ],
            [
                "Doppler's graphs, 4 devices, no contention",
                "-",
                "; ".join(by_seeds(source, graph) for graph in GRAPHS),
                span([gap_percent / 100 for gap_percent in seeds], percent),
                "`doppler-seeds`",
            ],
            ["the same under `pair` contention", "-", "-", "; ".join(pair), "`doppler`"],
            *(
                [
                    f"generated Llama layer, {size} devices (own, Doppler's costs), {time}",
                    "-",
                    "-",
                    ", ".join(
                        gap[f"llama-layer, {size} devices, {costs} costs"]
                        for costs in ("own", "doppler")
                    ),
                    "`sixty.py`",
                ]
                for size in (4, 8)
            ),
            *(
                [
                    f"generated Llama {part} in 8 shards, 8 devices (own, Doppler's costs), {time}",
                    "-",
                    "-",
                    ", ".join(
                        gap[f"llama-{part} in 8 shards, 8 devices, {costs} costs"]
                        for costs in ("own", "doppler")
                    ),
                    "`sixty.py`",
                ]
                for part in ("block", "layer")
            ),
            [
                f"Doppler's Llama layer on 4 and 8 devices, its block for 8, {time}",
                "-",
                "-",
                ", ".join(
                    gap[f"{name} devices, none"]
                    for name in ("llama_layer, 4", "llama_layer, 8", "llama_block_8gpu, 8")
                ),
                "`sixty.py`",
            ],
            [
                f"random layered graphs, 60 ops, 4 devices, {time}, five seeds",
                "-",
                "-",
                ", ".join(gap[f"layered-60-{seed}, 4 devices"] for seed in range(5)),
                "`sixty.py`",
            ],
            [
                "best pipelines of ideals, ten graphs",
                "the authors' C++, run here (Inception-V3: a lean one of ours)",
                f"{equal} equal to 1e-5; CPU s {listed(floats(chain, 'cpu_seconds'), seconds)}",
                "0",
                "`chain`",
            ],
            [
                "splits without contiguity, ten graphs",
                "plain CP-SAT of ours: "
                + listed(floats(hard, "plain_cp_sat"))
                + " on the four that it leaves open",
                f"{sum(row['status'] == 'optimal' for row in free)} proved; "
                + listed(floats(hard, "value")),
                listed([float(row["gap_percent"]) / 100 for row in hard], percent),
                "`pipeline`",
            ],
            [
                "latency, one slot: " + ", ".join(short(row["instance"]) for row in latency),
                "the authors' greedy, run here: "
                + listed(floats(latency, "authors_greedy"))
                + "; an earlier search of ours: "
                + listed(floats(latency, "our_earlier")),
                listed(floats(latency, "value"))
                + " in "
                + span(floats(latency, "seconds"), seconds)
                + " s",
                listed([float(row["gap_percent"]) / 100 for row in latency], percent),
                "`latency`",
            ],
        ],
    )


def exact_misses(source: Source) -> list[str]:
    """What is left open."""
    hard = [source.row("exact/pipeline.csv", instance=name) for name in OPEN]
    bounds = [
        f"{row['instance']} {value(float(row['bound']))} "
        f"({value(float(row['plain_cp_sat_bound']))})"
        for row in hard
        if row["status"] != "optimal"
    ]
    return bullets(
        [
            "Splits without contiguity: not proved are, with our bounds (a plain model's): "
            f"{'; '.join(bounds)}."
        ]
    )


def minute(source: Source) -> list[str]:
    """The gap of `solve` in its limit, beside what an earlier version proves by `solve` and by
    `bound`, 60 s each.
    """
    rows = source.rows("exact/sixty.csv")

    def cells(row: dict[str, str], side: str) -> tuple[float | None, list[str]]:
        if not row[f"{side} value"]:
            return None, ["-", "-", "-"]
        found = float(row[f"{side} value"])
        proved = max(float(row[f"{side} bound"]), float(row.get(f"{side} bound alone") or 0))
        gaps = gaps_by_seed(row) if side == "after" else [1 - proved / found]
        return 1 - proved / found, [f"{found:.0f}", f"{proved:.0f}", span(gaps, percent)]

    both = {row["instance"]: (cells(row, "before"), cells(row, "after")) for row in rows}
    narrow = [gap for _, (gap, _) in both.values() if gap is not None and gap < 1e-4]
    left = {
        name: sides
        for name, sides in both.items()
        if sides[1][0] is not None and sides[1][0] >= 1e-4
    }
    known = {
        name: (old, new)
        for name, ((old, _), (new, _)) in left.items()
        if old is not None and new is not None
    }
    wider = [name for name, (old, new) in known.items() if new > old]
    compared = f"Of the other {len(left)}, {len(known)} were run with the earlier version, and "
    return [
        *bullets(
            [
                f"{len(rows)} instances; {narrow.count(0)} proved in {limit(source)}, "
                f"{len(narrow) - narrow.count(0)} more within {percent(1e-4)}.",
                compared
                + (
                    "the gap is wider now on: " + "; ".join(f"`{name}`" for name in wider) + "."
                    if wider
                    else "no gap is wider now."
                ),
            ]
        ),
        "",
        *table(
            ["the others", "before: value", "bound", "gap", "now: value", "bound", "gap by seeds"],
            [[name, *old, *new] for name, ((_, old), (_, new)) in left.items()],
        ),
    ]


# --- pipeline
# ------------------------------------------------------------------------------------------


def pipeline(source: Source) -> list[str]:
    """The claims of the study of pipelines."""
    several = [
        row
        for row in source.rows("pipeline/periods4.csv")
        if row["any_k"]
        and row["any_k"] != value(float(row["period"]))
        and float(row["any_k"]) < float(row["period"])
    ]
    makespans = [
        source.row("pipeline/makespans.csv", shape=shape, capacity="none") for shape in SHAPES
    ]
    return table(
        ["claim", "others (printed, or run here)", "ours", "bound"],
        [
            [
                "search without a memory cap, 4 devices, CPU seconds: " + ", ".join(SHAPES),
                "the authors' code in its fast mode, run here: "
                + listed(source.references("Tessel", "CPU seconds without a cap", SHAPES), seconds),
                listed(cpu_of(source, 4, "repetend"), seconds) + " (same periods)",
                "proved",
            ],
            [
                "the same on 8 devices",
                "run here: not within a minute",
                span(cpu_of(source, 8, "repetend"), seconds),
                "proved",
            ],
            *(
                [
                    f"minimum period, K = 1, {title}",
                    "none proved",
                    period_cells(source, sizes),
                    open_cells(source, sizes),
                ]
                for title, sizes in (
                    ("4 devices", (4,)),
                    ("6 and 8 devices", (6, 8)),
                    ("16, and V and X on 32 devices", (16, 32)),
                )
            ),
            [
                "several micro-batches per repetend, 4 devices",
                "-",
                "; ".join(
                    f"{row['shape']} at {row['capacity']}: {row['any_k']} with K = "
                    f"{row['any_k_size']} (K = 1: "
                    f"{value(float(row['period']))})"
                    for row in several
                ),
                "for every K: " + ", ".join(row["any_k_bound"] for row in several),
            ],
            [
                "makespan of 128 micro-batches: " + ", ".join(SHAPES),
                "run here: " + listed(floats(makespans, "best_known")),
                listed(floats(makespans, "makespan")),
                listed(floats(makespans, "bound")),
            ],
            [
                "training throughput over 1F1B (**simulated**)",
                "printed: up to "
                + times(
                    source.reference("Tessel", "training throughput over 1F1B", "4 to 32 devices")
                )
                + " times, measured on V100",
                "; ".join(f"{model} {span(speed_up(source, model), times)}" for model in MODELS),
                "for the cut that was found only: "
                f"{span([gap for gap, _ in gaps_of_cuts(source)], percent)}",
            ],
            [
                "inference latency against a plain pipeline (**simulated**)",
                "printed: up to "
                + percent(source.reference("Tessel", "inference latency below a plain pipeline"))
                + " lower",
                f"in a full pipeline lower: {named(lower_latency(source))}; others not",
                "-",
            ],
        ],
    )


# --- job streams
# ---------------------------------------------------------------------------------------


def rates(
    source: Source, rule: str, policy: str, best: dict[str, float] | None = None
) -> list[str]:
    """Return the blocking rates of a policy with half of their 95 % intervals; the best in bold."""
    cells = []
    for letter in LETTERS:
        row = next(iter(source.streams(rule, beta=letter, policy=policy)), None)
        if row is None:
            cells.append("not measured")
            continue
        text = f"{float(row['blocking']):.4f}"
        if row["high"]:
            text += f" ± {(float(row['high']) - float(row['low'])) / 2:.4f}"
        cells.append(f"**{text}**" if best and float(row["blocking"]) == best[letter] else text)
    return cells


def least(source: Source, rule: str, others: tuple[float, ...]) -> dict[str, float]:
    """Return the least blocking rate of each distribution: ours, or another's."""
    return {
        letter: min(
            [
                other,
                *(
                    float(row["blocking"])
                    for row in source.streams(rule, beta=letter)
                    if row["policy"] != "offline bound"
                ),
            ]
        )
        for letter, other in zip(LETTERS, others, strict=True)
    }


def streams_published(source: Source) -> list[str]:
    """Blocking rates under the published split rule."""
    printed = source.references("PAC-ML", "blocking of the best checkpoint", LETTERS)
    best = least(source, "published", tuple(printed))
    rows = []
    for title, policy in (
        ("maximum parallelisation", "max-degree"),
        ("smallest degree for the deadline", "min-degree"),
        ("random degree", "random-degree"),
    ):
        theirs = source.references("PAC-ML", f"blocking of {policy}", LETTERS)
        ours = [
            source.number("job_streams/published.csv", "blocking", beta=letter, policy=policy)
            for letter in LETTERS
        ]
        rows.append(
            [
                f"{title}, printed / ours",
                *(f"{x:.4f} / {y:.4f}" for x, y in zip(theirs, ours, strict=True)),
            ]
        )
    rows.append(
        [
            "PAC-ML, best checkpoint (printed, 3 seeds)",
            *(
                f"**{x:.4f}**" if x == best[letter] else f"{x:.4f}"
                for letter, x in zip(LETTERS, printed, strict=True)
            ),
        ]
    )
    return table(
        ["blocking rate, published split rule", *LETTERS],
        [*rows, *ours_of(source, "published", 4, best)],
    )


def streams_uniform(source: Source) -> list[str]:
    """Blocking rates under the uniform split rule."""
    best = least(source, "uniform", (1.0, 1.0, 1.0, 1.0))
    rows = [["maximum parallelisation", *rates(source, "uniform", "max-degree")]]
    return table(
        ["blocking rate, uniform split rule", *LETTERS],
        [*rows, *ours_of(source, "uniform", 8, best)],
    )


def ours_of(source: Source, rule: str, degree: int, best: dict[str, float]) -> list[list[str]]:
    """Return the lines that both tables share."""
    return [
        [f"constant degree {degree}", *rates(source, rule, f"constant-degree:{degree}")],
        *(
            [f"`{policy}`", *rates(source, rule, policy, best)]
            for policy in ("policy-degree", "rollout")
        ),
        ["no policy blocks less than", *rates(source, rule, "offline bound")],
    ]


def streams_times(source: Source) -> list[str]:
    """Completion times and throughputs under the published split rule."""
    rows = []
    for policy in (
        "max-degree",
        "min-degree",
        "constant-degree",
        "feasible-first",
        "policy-degree",
        "rollout",
    ):
        for column, title in (("jct", "mean completion time"), ("throughput", "throughput")):
            found = [source.streams("published", beta=letter, policy=policy) for letter in LETTERS]
            cells = [value(float(row[0][column])) if row else "not measured" for row in found]
            rows.append([f"`{policy}`, {title}", *cells])
    return table(["published split rule, units of the paper's simulator", *LETTERS], rows)


def across(source: Source, rule: str) -> list[str]:
    """Blocking rates of policies learned on one distribution and judged on another."""
    rows = []
    for home in LETTERS:
        where = {"rule": rule, "learned_on": home, "policy": "policy-degree"}
        found = source.rows("job_streams/learned.csv", **where)
        if not found:
            continue
        cells = [f"{float(row['blocking']):.4f}" for row in found]
        rows.append(
            [
                f"learned on {home}",
                *(f"**{x}**" if home == y else x for x, y in zip(cells, LETTERS, strict=True)),
            ]
        )
    return table([f"`policy-degree`, {rule} split rule, judged on", *LETTERS], rows)


def streams_across(source: Source) -> list[str]:
    """Under the published split rule."""
    return across(source, "published")


def streams_across_uniform(source: Source) -> list[str]:
    """Under the uniform one."""
    return across(source, "uniform")


def streams_more(source: Source) -> list[str]:
    """Blocking in consistent units, under Poisson arrivals, and on short streams."""

    def blocked(file: str, policy: str, **where: object) -> list[float]:
        return source.numbers(f"job_streams/{file}.csv", "blocking", policy=policy, **where)

    loads = sorted({float(row["offered_load"]) for row in source.rows("job_streams/poisson.csv")})
    lines = [
        "In consistent units, A to D: feasible-first "
        + listed(blocked("consistent", "feasible-first"))
        + ", bounds "
        + listed(blocked("consistent", "offline bound"))
        + ", maximum parallelisation "
        + listed(blocked("consistent", "max-degree"))
        + ".",
        f"Poisson arrivals at loads of {span(loads)}, distribution A: "
        + "; ".join(
            f"{units}: `rollout` {span(blocked(file, 'rollout'))}, maximum parallelisation "
            f"{span(blocked(file, 'max-degree'))}, bound {span(blocked(file, 'offline bound'))}"
            for units, file in (
                ("published units", "poisson"),
                ("consistent units", "poisson_consistent"),
            )
        )
        + ".",
    ]
    for letter in ("A", "B"):
        rows = [
            row
            for row in source.rows("job_streams/short.csv", beta=letter)
            if row["proved"] == "True"
        ]
        total = {
            key: sum(float(row[key]) for row in rows)
            for key in ("exact", "lp", "rollout", "max-degree")
        }
        lines.append(
            f"{len(rows)} streams of {rows[0]['jobs']} jobs, {letter}: the clairvoyant optimum is "
            f"{value(total['exact'])} blocked "
            f"jobs (proved), the linear bound {value(total['lp'])}, `rollout` "
            f"{value(total['rollout'])}, maximum parallelisation "
            f"{value(total['max-degree'])}."
        )
    return bullets(lines)


# --- plans, sharding, benchmark, scaling
# -----------------------------------------------------------------


def plan_errors(source: Source) -> list[str]:
    """The claims of the study of plans that are measured or priced."""
    met, beaten, nothing = piper(source)
    memory = [
        abs(float(row["predicted_memory"]) / float(row["memory"]) - 1)
        for row in source.rows("plans/measured.csv")
    ]
    same, mixed = (
        [
            row
            for row in source.rows("plans/opt350.csv")
            if ("V100, 60 s" in row["name"]) == wanted and not row["name"].endswith(", 5 s")
        ]
        for wanted in (False, True)
    )
    models = source.rows("plans/models.csv")
    wide, random = source.rows("plans/schedules.csv"), source.rows("plans/random.csv")
    large = [row for row in source.rows("plans/large.csv") if row["seconds"]]
    return table(
        ["claim", "others (printed, or run here)", "here", "stage"],
        [
            [
                f"step time of {len(errors(source))} measured plans, odd ones kept",
                "printed: median error "
                f"{percent(source.reference('measured plans', 'median error of the step time', '36 plans'))} on 36",
                f"median {percent(median(errors(source)))}, mean {percent(mean(errors(source)))}; "
                "on the "
                f"{len(errors(source, fitted=False))} not fitted "
                f"{percent(median(errors(source, fitted=False)))} and "
                f"{percent(mean(errors(source, fitted=False)))}",
                "`measured`",
            ],
            ["memory of the same", "-", f"median error {percent(median(memory))}", "`measured`"],
            [
                "the multidimensional planner's inputs",
                "the authors' program, run here",
                f"{met} values met, {beaten} beaten, {nothing} proved to fit nothing",
                "`piper`",
            ],
            *(
                [
                    "OPT-350M, the published step time, steps/s: "
                    f"{'; '.join(row['name'] for row in rows)}",
                    "run here: " + listed(floats(rows, "reference")),
                    listed(floats(rows, "steps_per_second"))
                    + f", gaps of {span(floats(rows, 'gap'), percent)}, "
                    f"{span(floats(rows, 'cpu'), seconds)} CPU s",
                    "`opt350`",
                ]
                for rows in (same, mixed)
            ),
            *(
                [
                    row["name"],
                    "-",
                    f"gap {percent(float(row['gap']))}, {seconds(float(row['cpu']))} CPU s",
                    "`large`",
                ]
                for row in large
            ),
            [
                "GPT, mT5, Flava on 4 to 32 V100",
                "-",
                f"{sum(row['status'] == 'optimal' for row in models)} of {len(models)} proved best "
                "of the space searched",
                "`models`",
            ],
            [
                "the same with interleaved, zero-bubble and repetend schedules, sharded states",
                "-",
                f"{sum(float(row['gap'] or 1) <= 0.001 for row in wide)} of {len(wide)} within 0.1 "
                "% of the bound, "
                f"{span(floats(wide, 'cpu'), seconds)} CPU s",
                "`schedules`",
            ],
            [
                "tiny random problems with some of everything",
                "brute force over all plans",
                f"{int(sum(floats(random, 'problems')))} problems, "
                f"{int(sum(floats(random, 'plans')))} plans: "
                f"{int(sum(floats(random, 'search_differs')))} values or bounds and "
                f"{int(sum(floats(random, 'judge_differs')))} prices "
                "differ",
                "`random`",
            ],
            [
                "GPT-2 exported, 2 stages x 2 replicas on gloo",
                "losses of one process",
                f"equal to {float(source.row('plans/gpt2.csv')['largest_difference']):.1e} in "
                "three steps",
                "`gpt2`",
            ],
        ],
    )


def benchmark(source: Source) -> list[str]:
    """What the generated benchmark shows."""
    gaps = benchmark_gaps(source)
    wide = sorted(gaps, key=lambda name: -gaps[name])[:3]
    solvers = ", ".join(
        f"{row['solver']} {row['mean gap to bound']}"
        for row in source.rows("benchmark/solvers.csv")
    )
    tight = [sum(gap <= limit for gap in gaps.values()) for limit in (0.0002, 0.001)]
    return bullets(
        [
            f"{tight[0]} of {len(gaps)} end within 0.02 % of the bound, {tight[1]} within 0.1 %; "
            f"mean gaps: {solvers}.",
            "The widest: " + ", ".join(f"`{name}` {percent(gaps[name])}" for name in wide) + ".",
        ]
    )


def scaling(source: Source) -> list[str]:
    """Mean gaps of every solver as graphs grow."""
    rows = source.rows("scaling/solvers.csv")
    return table(
        ["solver", "mean gap to the bound", "median runtime"],
        [[row["solver"], row["mean gap to bound"], row["median runtime"]] for row in rows],
    )


def execution(source: Source) -> list[str]:
    """Errors and rank correlations of what is simulated."""
    titles = {
        "none": "nominal costs (data sheet)",
        "fitted": "fitted constants",
        "measured": "measured op times",
    }
    taus = [
        "tau, all",
        "tau, chain of matrix products",
        "tau, feed-forward network",
        "tau, attention block",
        "tau, layered random DAG",
    ]
    return table(
        [
            "simulated with",
            "median error",
            "90 %",
            "Kendall tau",
            "chain",
            "feed-forward",
            "attention",
            "layered",
        ],
        [
            [
                titles[row["mode"]],
                percent(float(row["median error"])),
                percent(float(row["p90 error"])),
                *(times(float(row[key])) for key in taus),
            ]
            for row in source.rows("real_execution/agreement.csv")
        ],
    )


def simple_placements(source: Source) -> list[str]:
    """The best simulated placement of each workload beside the simple ones and the fastest."""
    measured: dict[str, dict[str, float]] = {}
    for row in source.rows("real_execution/comparison.csv"):
        measured.setdefault(row["workload"], {})[row["placement"]] = float(row["measured [s]"])
    named = ("single device", "round robin", "best simulated")
    lines = []
    for workload, taken in measured.items():
        fastest = min(taken, key=taken.__getitem__)
        shown = [taken[name] for name in named]
        lines.append(
            [
                workload,
                *(f"**{x:.3f}**" if x == min(shown) else f"{x:.3f}" for x in shown),
                f"{taken[fastest]:.3f} ({fastest})",
            ]
        )
    return table(["workload", *named, "fastest measured of all"], lines)


def _three(row: dict[str, str], key: str) -> str:
    return f"{float(row[key]):.3f}" if row[key] else "-"


def _interval(row: dict[str, str]) -> str:
    return f"{_three(row, 'low')} to {_three(row, 'high')}"


def third_stage(source: Source) -> list[str]:
    """What going on from the simulator on the real system kept."""
    return table(
        ["trained on", "search", "executions", "candidate / start", "pairs", "kept"],
        [
            [
                row["trained on"],
                row["stage III"],
                row["executions"],
                f"{_three(row, 'ratio')} ({_interval(row)})"
                if int(row["pairs"])
                else "none survived the race",
                row["pairs"],
                row["kept"],
            ]
            for row in source.rows("real_execution/stage3.csv")
        ],
    )


def own_models(source: Source) -> list[str]:
    """Errors, rank correlations and speed-ups of a user's own models."""

    def milliseconds(row: dict[str, str], key: str) -> str:
        return f"{1e3 * float(row[key]):.3g} ms" if row[key] else "-"

    return table(
        [
            "model",
            "placements",
            "median error",
            "tau",
            "one device",
            "best simulated",
            "speed-up, measured / simulated",
        ],
        [
            [
                row["model"],
                row["placements"],
                percent(float(row["median error"])),
                times(float(row["tau"])),
                milliseconds(row, "one device [s]"),
                milliseconds(row, "best simulated [s]"),
                f"{times(float(row['speed-up']))} / {times(float(row['simulated speed-up']))}"
                if row["speed-up"]
                else "-",
            ]
            for row in source.rows("real_execution/own_models_summary.csv")
        ],
    )


def tuning(source: Source) -> list[str]:
    """What a simulator whose constants were learned on the real system gives, in turn with every
    other placement.
    """
    rows = sorted(
        source.rows("real_execution/tuning.csv"), key=lambda row: float(row["measured [s]"])
    )
    return table(
        [
            "placement",
            "measured, median s",
            "simulated, s",
            "tuned simulator / this",
            "95 %",
            "tuned is faster",
        ],
        [
            [
                row["placement"] if row["faster"] else f"**{row['placement']}**",
                _three(row, "measured [s]"),
                _three(row, "simulated [s]"),
                _three(row, "tuned / this"),
                _interval(row) if row["faster"] else "-",
                row["faster"] or "-",
            ]
            for row in rows
        ],
    )


def measured_runs(source: Source) -> list[str]:
    """What predictions of measured runs show, each by the fit that did not see its model and number
    of devices.
    """
    apart = [row for row in source.rows("plans/runs.csv") if row["rows_are"] == "apart"]
    lines = []
    for what, name, hosts, asked in (
        ("one host, `vtrain_single`", "vtrain_single", "one", "mean 8 %, median 6 %"),
        ("one host, all sources", "all", "one", "mean 8 %, median 6 %"),
        ("many hosts, `vtrain_multi`", "vtrain_multi", "many", "mean 10 %, median 6 %"),
        ("many hosts, all sources", "all", "many", "mean 10 %, median 6 %"),
    ):
        row = next(
            row
            for row in apart
            if (row["source"], row["gpu"], row["hosts"]) == (name, "all", hosts)
        )
        lines.append(
            [
                f"step, {what}: {row['rows']} rows of {row['groups']} groups",
                asked,
                f"mean {row['mean']} %, median {row['median']} %; "
                f"{row['mean_without_layers']} % where no layer was measured in another model",
            ]
        )
    choices = floats(source.rows("plans/choices.csv"), "measured_by_best")
    plain = floats(source.rows("plans/choices.csv"), "without_layers")
    near, plainly = (mean(ratio <= NEAR for ratio in ratios) for ratios in (choices, plain))
    lines.append(
        [
            f"first choices in {len(choices)} groups of plans",
            f"mean {ASKED_MEAN:.2f}, 95 % within {NEAR:.2f}",
            f"mean {mean(choices):.4f}, {percent(near)} within {NEAR:.2f}, worst {max(choices):.3f}; "
            f"without such layers {mean(plain):.4f}, {percent(plainly)} within {NEAR:.2f}",
        ]
    )
    for kind in ("apart", "fitted"):
        row = source.row("plans/memory.csv", rows_are=kind, source="all")
        lines.append(
            [
                f"memory, rows {kind}: {row['peaks']} peaks, {row['said']} rows that say whether "
                "they fit",
                "median 10 %, 90 % called right",
                f"median {row['median_error']} %, {row['called_right']} right "
                f"({row['of_them_right']} by assumed offloading), {row['of_them_called']} of "
                f"{row['out_of_memory']} out of memory called",
            ]
        )
    return table(["rows apart", "asked", "here"], lines)


TABLES: dict[str, Callable[[Source], list[str]]] = {
    "plans-runs": measured_runs,
    "exact-claims": exact,
    "exact-misses": exact_misses,
    "exact-minute": minute,
    "pipeline-claims": pipeline,
    "streams-published": streams_published,
    "streams-uniform": streams_uniform,
    "streams-more": streams_more,
    "streams-times": streams_times,
    "streams-across": streams_across,
    "streams-across-uniform": streams_across_uniform,
    "plans-claims": plan_errors,
    "benchmark-gaps": benchmark,
    "scaling-gaps": scaling,
    "execution-agreement": execution,
    "execution-simple": simple_placements,
    "execution-third": third_stage,
    "execution-own": own_models,
    "execution-tuning": tuning,
}
