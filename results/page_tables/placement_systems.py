"""Tables of results/README.md about placements: Doppler, Post, Liu et al., HSDAG, Tarnawski et
al.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from page_tables.front_page import by_seeds
from page_tables.source import Source, bullets, floats, listed, percent, seconds, span, table, value

if TYPE_CHECKING:
    from collections.abc import Callable

HEADS = ("claim", "printed or stored", "run here", "placeopt", "proven bound", "command")
GRAPHS = ("chain_mm", "ffnn", "llama_block")
OPEN = (
    "layer_resnet50_inference",
    "layer_inceptionv3_inference",
    "layer_inceptionv3_training",
    "operator_bert_l-12_inference",
)


def learned(source: Source, method: str) -> float:
    """Return by how much a method's mean is below the critical path's on the Llama block."""
    best = source.number(
        "policy/doppler.csv", "mean", graph="llama_block", method="critical path, best of 50"
    )
    return (
        1 - source.number("policy/doppler.csv", "mean", graph="llama_block", method=method) / best
    )


def part(source: Source, name: str) -> float:
    """Return by how much a part's mean on other seeds is below the critical path's on the Llama
    block.
    """
    file = "policy/other_seeds.csv"
    best = source.number(file, "mean", part="seed alone")
    return 1 - source.number(file, "mean", part=name) / best


def possible(source: Source) -> float:
    """Return by how much the proved optimum is below the critical path's mean on the Llama
    block.
    """
    row = source.row("policy/doppler.csv", graph="llama_block", method="critical path, best of 50")
    return 1 - float(row["bound"]) / float(row["mean"])


def doppler_misses(source: Source) -> list[str]:
    """What the policies miss on Doppler's graphs."""
    mean = source.number(
        "policy/doppler.csv", "mean", graph="llama_block", method="dual-policy, edge-zeroing seed"
    )
    alone = medians(source)["llama_block on devices: 4", "best heuristic"] / 1e10
    return bullets(
        [
            "On the Llama block the whole episodes of the policy, which learn by policy gradient, "
            f"end {percent(part(source, 'dual-policy, episodes only'))} below the critical path "
            f"({percent(part(source, 'dual-policy, episodes only, nothing learns'))} if nothing "
            "learns), where the authors print "
            f"{percent(source.reference('Doppler', 'improvement over critical path', 'llama_block'))}; "
            "with groups, windows and a walk after them "
            f"{percent(part(source, 'dual-policy'))}, which annealing alone comes to as well: "
            f"{percent(part(source, 'annealing from the seed'))}. The "
            f"optimum is {percent(possible(source))}; from edge zeroing it ends at {value(mean)}, "
            "the best "
            f"heuristic alone at {value(alone)}.",
        ]
    )


def doppler(source: Source) -> list[str]:
    """Doppler's graphs."""
    gaps = source.numbers("exact/doppler-seeds.csv", "gap_percent")
    other = [
        listed([source.doppler_mean(graph, method) for graph in GRAPHS])
        for method in ("critical path, best of 50", "cross-entropy")
    ]
    return table(
        HEADS,
        [
            [
                "makespans of the chain, the FFNN, the Llama block, 4 devices",
                "-",
                f"means of five: critical path, best of 50: {other[0]}; `cross-entropy`, 4000 "
                f"evaluations: {other[1]}",
                "; ".join(by_seeds(source, graph) for graph in GRAPHS),
                "met" if not any(gaps) else f"gaps of up to {percent(max(gaps) / 100)}",
                "`python results/exact/study.py doppler-seeds`",
            ],
            [
                "Llama block in 4000 evaluations, below critical path",
                percent(
                    source.reference("Doppler", "improvement over critical path", "llama_block")
                )
                + " (measured on GPUs)",
                f"cross-entropy {percent(learned(source, 'cross-entropy, scratch'))}; annealing "
                f"from the critical path {percent(part(source, 'annealing from the seed'))}",
                "`dual-policy` from the critical path "
                f"{percent(part(source, 'dual-policy'))}: its episodes alone "
                f"{percent(part(source, 'dual-policy, episodes only'))}, the same if nothing "
                f"learns {percent(part(source, 'dual-policy, episodes only, nothing learns'))}, "
                "without episodes "
                f"{percent(part(source, 'dual-policy, without episodes'))}",
                percent(possible(source)),
                "`python results/policy/study.py`",
            ],
        ],
    )


def medians(source: Source) -> dict[tuple[str, str], float]:
    """Return the median makespan of every (problem, method), the method without what stands in
    brackets.
    """
    return {
        (row["problem"], row["method"].split(" (")[0]): float(row["median"])
        for row in source.rows("search/table.csv")
    }


def post_misses(source: Source) -> list[str]:
    """What the joint method misses."""
    ratios = source.numbers("search/post.csv", "ratio")
    median = medians(source)
    lower = sum(
        median[problem, "best heuristic"] <= median[problem, "Post"]
        for problem, method in median
        if method == "Post"
    )
    return bullets(
        [
            "The joint method needs at most half of the samples on only "
            f"{sum(x <= 0.5 for x in ratios)} of {len(ratios)} "
            f"workloads; the best heuristic, without a sample, ends as low or lower on {lower}."
        ]
    )


def post(source: Source) -> list[str]:
    """Post: samples of the joint method."""
    ratios = source.numbers("search/post.csv", "ratio")
    return table(
        HEADS,
        [
            [
                "joint cross-entropy and PPO against PPO alone",
                "fewer samples",
                "-",
                f"fewer on {sum(x < 1 for x in ratios)} of {len(ratios)} workloads, at most half "
                f"on {sum(x <= 0.5 for x in ratios)}",
                "-",
                "`python results/search/study.py`",
            ],
        ],
    )


def models(source: Source) -> list[str]:
    """HSDAG's and Liu's workloads."""
    file = "policy/published.csv"
    small = [row for row in source.rows(file) if row["cluster"] == "cpu+gpu"]
    nmt = [row for row in source.rows(file) if "nmt" in row["graph"]]
    gain = {
        key: [
            [1 - float(row[key]) / float(row[base]) for row in rows]
            for rows, base in ((small, "first_device"), (nmt, "expert"))
        ]
        for key in ("dual-policy", "grouper-placer", "best_heuristic", "bound")
    }
    return table(
        HEADS,
        [
            [
                "HSDAG: models on CPU and accelerator, over the CPU",
                f"up to {percent(source.reference('HSDAG', 'improvement over the CPU'))} "
                "(measured)",
                "-",
                f"{span(gain['dual-policy'][0], percent)} (simulated, other hardware; the best "
                "heuristic alone "
                f"{span(gain['best_heuristic'][0], percent)})",
                span(gain["bound"][0], percent),
                "`python results/policy/study.py`",
            ],
            [
                "Liu et al.: NMT on 2 and 4 GPUs, over the expert",
                percent(source.reference("Liu et al.", "improvement over the expert", "NMT")),
                "-",
                f"`dual-policy` {listed(gain['dual-policy'][1], percent)}; `grouper-placer` "
                f"{listed(gain['grouper-placer'][1], percent)} "
                "(simulated; both start from edge zeroing; the best heuristic alone "
                f"{listed(gain['best_heuristic'][1], percent)})",
                listed(gain["bound"][1], percent),
                "`python results/policy/study.py`",
            ],
        ],
    )


def splits_misses(source: Source) -> list[str]:
    """What is left open of the splits."""
    rows = source.rows("exact/pipeline.csv")
    worse = [
        row
        for row in rows
        if row["status"] != "optimal" and float(row["bound"]) < float(row["plain_cp_sat_bound"])
    ]
    below = [1 - float(row["bound"]) / float(row["plain_cp_sat_bound"]) for row in worse]
    where = ", ".join(row["instance"] for row in worse)
    beside = f"; on {where} the bound is {listed(below, percent)} below a plain model's"
    return bullets(
        [
            f"Splits without contiguity: {sum(row['status'] != 'optimal' for row in rows)} of "
            f"{len(rows)} are not proved{beside if worse else ''}.",
        ]
    )


def splits(source: Source) -> list[str]:
    """Tarnawski et al.: chains, splits, latency."""
    chain = {
        name: source.row("exact/chain.csv", instance=f"layer_{name}_inference")
        for name in ("gnmt", "inceptionv3")
    }
    program = {
        name: [
            source.reference("Tarnawski et al.", f"chain {what}", f"layer_{name}_inference")
            for what in ("CPU seconds", "memory")
        ]
        for name in chain
    }
    free, latency = source.rows("exact/pipeline.csv"), source.rows("exact/latency.csv")
    hard = [source.row("exact/pipeline.csv", instance=name) for name in OPEN]
    gaps = [float(row["gap_percent"]) / 100 for row in free]
    plain = sum(
        abs(float(row["plain_cp_sat"]) - float(row["plain_cp_sat_bound"])) < 1e-9 for row in free
    )
    rows = [
        [
            f"optimal pipeline of ideals, {title}",
            "-",
            theirs,
            f"{seconds(float(chain[name]['cpu_seconds']))} CPU s, "
            f"{value(float(chain[name]['extra_mb']))} MB",
            "met, by the dynamic program over ideals, believed",
            "`python results/exact/study.py chain`",
        ]
        for name, title, theirs in (
            (
                "gnmt",
                "GNMT inference",
                f"the authors' C++: {seconds(program['gnmt'][0])} CPU s, "
                f"{value(program['gnmt'][1])} MB",
            ),
            (
                "inceptionv3",
                "Inception-V3 inference",
                f"the authors' C++: not finished after {seconds(program['inceptionv3'][0])} s, "
                f"{value(program['inceptionv3'][1])} MB",
            ),
        )
    ]
    return table(
        HEADS,
        [
            *rows,
            [
                "splits without contiguity, ten graphs",
                "-",
                f"plain CP-SAT, 150 to 200 s: {plain} optimal, believed; ResNet-50, Inception-V3 (two), "
                "BERT-12: " + listed(floats(hard, "plain_cp_sat")),
                f"{sum(row['status'] == 'optimal' for row in free)} optimal, by prices of sets or by "
                "CP-SAT, believed; " + listed(floats(hard, "value")),
                f"gaps of {span(gaps, percent)}",
                "`python results/exact/study.py pipeline`",
            ],
            [
                "latency of one sample, one slot: "
                + ", ".join(short(row["instance"]) for row in latency),
                "-",
                "the authors' greedy: "
                + listed(floats(latency, "authors_greedy"))
                + "; `max-load-dp`: "
                + listed(floats(latency, "max_load_dp")),
                listed(floats(latency, "value")),
                f"{sum(row['status'] == 'optimal' for row in latency)} of {len(latency)} met, by flows over paths, believed",
                "`python results/exact/study.py latency`",
            ],
        ],
    )


SOLVERS = ("pipedream", "metis", "split-local-search", "ideal-dp")


def baselines(source: Source) -> list[str]:
    """Periods of experts and baselines on every throughput instance."""
    free = {row["instance"]: row for row in source.rows("exact/pipeline.csv")}
    rows = []
    for row in source.rows("exact/splits.csv"):
        best = free.get(row["instance"])
        rows.append(
            [
                row["instance"].replace("_", " "),
                *(value(float(row[name])) if row[name] else "-" for name in ("expert", *SOLVERS)),
                value(float(best["value"])) if best else "-",
                value(float(best["bound"])) if best else "-",
            ]
        )
    return table(
        [
            "period of",
            "expert's stored split",
            "`pipedream`",
            "`metis`",
            "`split-local-search`",
            "`ideal-dp`: pipelines of ideals",
            "`cp-sat`: any split",
            "its bound",
        ],
        rows,
    )


def wide(source: Source) -> list[str]:
    """Heuristics and the bound on graphs of 10^5 ops."""
    rows = []
    for row in source.rows("exact/wide.csv"):
        gaps = [
            f"{percent(float(row[f'{name} gap_percent']) / 100)} in "
            f"{value(float(row[f'{name} seconds']))} s"
            for name in ("etf", "heft", "cpop")
        ]
        rows.append(
            [
                f"`{row['instance']}`",
                row["ops"],
                f"{row['bound']} in {value(float(row['bound seconds']))} s",
                *gaps,
            ]
        )
    heading = ["graph", "ops", "bound (ticks), CPU s", "`etf`: above the bound", "`heft`", "`cpop`"]
    return table(heading, rows)


def slots(source: Source) -> list[str]:
    """Latency with one and two slots."""
    rows = []
    for row in source.rows("exact/slots.csv"):
        name, _, number = row["instance"].partition(", ")
        proved = (
            "proved optimal"
            if row["status"] == "optimal"
            else "gap " + percent(float(row["gap_percent"]) / 100)
        )
        rows.append(
            [
                f"{name.replace('_', ' ')}, {number.removesuffix(' slots')} slot(s)",
                value(float(row["value"])),
                proved,
            ]
        )
    return table(["latency of", "`cp-sat`", "what is proved"], rows)


EXTENSIONS = (
    ("plain", "one device a stage"),
    ("replicas", "up to three replicas"),
    ("groups", "two groups with uplinks"),
    ("overlap", "transfers overlapped"),
    ("overlap_replicas", "overlapped, up to three replicas"),
)


def extensions(source: Source) -> list[str]:
    """Periods with replicas, groups of devices and overlapped transfers; a star where it is not
    proved.
    """
    rows = []
    for row in source.rows("exact/replicas.csv"):
        star = {key: "" if row[f"{key}_proved"] == "True" else " *" for key, _ in EXTENSIONS}
        cells = (value(float(row[key])) + star[key] if row[key] else "-" for key, _ in EXTENSIONS)
        rows.append([row["instance"].replace("_", " "), *cells])
    return table(["period of pipelines of ideals", *(title for _, title in EXTENSIONS)], rows)


def short(instance: str) -> str:
    """Return an instance's name without what all share."""
    return instance.removesuffix("_inference").replace("_", " ")


TABLES: dict[str, Callable[[Source], list[str]]] = {
    "doppler-misses": doppler_misses,
    "doppler": doppler,
    "post-misses": post_misses,
    "post": post,
    "models": models,
    "splits-misses": splits_misses,
    "splits": splits,
    "split-baselines": baselines,
    "slots": slots,
    "wide": wide,
    "extensions": extensions,
}
