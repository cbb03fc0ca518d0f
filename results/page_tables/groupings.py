"""Tables of the study of learned groupings: Post's, Liu et al.'s and HSDAG's workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from page_tables.scheduling_systems import blocking
from page_tables.source import Source, bullets, listed, percent, span, table, times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from page_tables.source import Line

BASELINES, PARSING = "groupings/baselines.csv", "groupings/parsing.csv"
GIVEN = ("one device", "expert", "min-cut", "edge zeroing", "best heuristic")
SCRATCH = ("hierarchical", "soft groups, PPO", "soft groups, REINFORCE", "recurrent", "Post")
LEARNED = (*SCRATCH, "parsing")
SEEDED = ("`cross-entropy`, from edge zeroing", "`dual-policy`, from edge zeroing")

Cells = dict[str, "Line"]


def workloads(source: Source, file: str, methods: Sequence[str]) -> dict[str, Cells]:
    """Return the rows by method of every workload of which all methods are there."""
    found: dict[str, Cells] = {}
    for row in source.rows(file):
        found.setdefault(f"{row['instance'].removeprefix('gen:')} on {row['cluster']}", {})[
            row["method"]
        ] = row
    return {name: cells for name, cells in found.items() if set(cells) >= {"bound", *methods}}


def ratio(cells: Cells, method: str) -> float:
    """Return a method's mean makespan over the proven bound."""
    return float(cells[method]["mean"]) / float(cells["bound"]["mean"])


def shown(cells: Cells, method: str, least: float) -> str:
    """Write that ratio with half of its interval, in bold if it is the least."""
    text = times(ratio(cells, method))
    half = float(cells[method]["interval"] or 0) / float(cells["bound"]["mean"])
    if cells[method]["interval"]:
        text += f" ± {times(half)}"
    text = f"**{text}**" if ratio(cells, method) <= least else text
    return f"{text} ({cells[method]['solver']})" if cells[method]["solver"] else text


def baselines(source: Source) -> list[str]:
    """Makespans over the bound: what needs no samples, what learns from scratch, and ours."""
    names = (*GIVEN, *LEARNED, *SEEDED)
    rows = []
    for name, cells in workloads(source, BASELINES, names).items():
        least = min(ratio(cells, method) for method in names)
        rows.append([name, *(shown(cells, method, least) for method in names)])
    heads = [f"{name}, from scratch" if name in SCRATCH else name for name in names]
    return table(
        [
            "makespan / proven bound",
            *(f"{name}, no teacher" if name == "parsing" else name for name in heads),
        ],
        rows,
    )


def front(source: Source) -> list[str]:
    """The same in a few columns, for the page of all results."""
    names = ("min-cut", *LEARNED, *SEEDED)
    rows = []
    for name, cells in workloads(source, BASELINES, (*GIVEN, *names)).items():
        heuristic = f"{times(ratio(cells, 'best heuristic'))} ({cells['best heuristic']['solver']})"
        rows.append([name, heuristic, *(times(ratio(cells, method)) for method in names)])
    return table(["makespan / proven bound", "best heuristic", *names], rows)


def claims(source: Source) -> list[str]:
    """What the learned placers print of themselves, and ours under the nearest conditions."""
    found = workloads(source, BASELINES, (*GIVEN, *LEARNED, *SEEDED))
    mixed = {name: cells for name, cells in found.items() if name.endswith("cpu+gpu")}
    several = {name: cells for name, cells in found.items() if name not in mixed}
    others = tuple(method for method in SCRATCH if method != "Post")
    placers = ("min-cut", *SCRATCH)

    def most(cells: Cells, method: str, beside: Sequence[str]) -> float:
        return max(1 - ratio(cells, method) / ratio(cells, other) for other in beside)

    def gain(workloads: dict[str, Cells], method: str, beside: Sequence[str]) -> str:
        return span([most(cells, method, beside) for cells in workloads.values()], percent)

    widest = blocking(source, "published", "max-degree")
    kept = {
        policy: [
            1 - ours / plain
            for ours, plain in zip(blocking(source, "published", policy), widest, strict=True)
        ]
        for policy in ("constant-degree", "rollout", "policy-degree")
    }
    return table(
        ["printed", "up to", "here, per workload against the weakest of them", "by a heuristic"],
        [
            [
                "Post: shorter steps than learned placers in the same time (measured)",
                percent(source.reference("Post", "improvement over learned placers in equal time")),
                f"Post {gain(several, 'Post', others)} at equal evaluations, GPUs alone",
                gain(several, "best heuristic", others),
            ],
            [
                "HSDAG: faster than other placers (measured)",
                percent(source.reference("HSDAG", "improvement over other placers")),
                f"parsing {gain(mixed, 'parsing', placers)}, `dual-policy` "
                f"{gain(mixed, SEEDED[1], placers)}, CPU and GPU",
                gain(mixed, "best heuristic", placers),
            ],
            [
                "PAC-ML: less blocking than the largest degree",
                percent(source.reference("PAC-ML", "blocking below max-degree")),
                f"`policy-degree` {listed(kept['policy-degree'], percent)}, `rollout` "
                f"{listed(kept['rollout'], percent)} on A, B, C, D",
                listed(kept["constant-degree"], percent),
            ],
        ],
    )


def misses(source: Source) -> list[str]:
    """Where the learners do not reach the best heuristic, and how few of them do."""
    names = (*GIVEN, *LEARNED, *SEEDED)
    found = workloads(source, BASELINES, names)
    learned = below(found, LEARNED)
    clear = [
        name
        for name, cells in found.items()
        if clearly_below(cells, "`dual-policy`, from edge zeroing")
    ]
    best = [min(ratio(cells, method) for method in names) for cells in found.values()]
    return bullets(
        [
            "Without a heuristic's placement to begin with, a learner ends below the best "
            f"heuristic on {len(learned)} of {len(found)} "
            f"workloads{named(learned)}.",
            "`dual-policy` from edge zeroing ends below the best heuristic by more than half of "
            f"its interval on {len(clear)} of "
            f"{len(found)}{named(clear)}; the best of all methods is at {span(best, times)} times "
            "the bound.",
        ]
    )


def below(found: dict[str, Cells], methods: Sequence[str]) -> list[str]:
    """Return the workloads on which one of some methods has a lower mean than the best
    heuristic.
    """
    return [
        name
        for name, cells in found.items()
        if min(ratio(cells, method) for method in methods) < ratio(cells, "best heuristic")
    ]


def named(workloads: Sequence[str]) -> str:
    """Write some workloads in brackets, nothing if there is none."""
    return f" ({'; '.join(workloads)})" if workloads else ""


def clearly_below(cells: Cells, method: str) -> bool:
    """Whether the interval of a method's mean lies below the best heuristic's value."""
    return float(cells[method]["mean"]) + float(cells[method]["interval"]) < float(
        cells["best heuristic"]["mean"]
    )


PARTS = {
    "none": "nothing left out",
    "fractal_dimension": "fractal dimension",
    "position": "positions",
    "spectral": "spectral features",
    "centrality": "centrality",
    "structure": "all structure",
    "types": "op types",
    "parsing": "learning to parse",
    "placing": "learning to place",
}


def ablations(source: Source) -> list[str]:
    """What parsing from no teacher ends at with a part left out, over the bound."""
    found = workloads(source, PARSING, tuple(PARTS))
    rows = [
        [title, *(shown(cells, part, 0.0) for cells in found.values())]
        for part, title in PARTS.items()
    ]
    rows.append(
        [
            "the best heuristic, beside them",
            *(shown(cells, "best heuristic", 0.0) for cells in found.values()),
        ]
    )
    return table(["left out; makespan / proven bound", *found], rows)


def ablation_misses(source: Source) -> list[str]:
    """Which parts matter: those whose loss is above the intervals."""
    found = workloads(source, PARSING, tuple(PARTS))
    lines = []
    for part, title in PARTS.items():
        worse = [name for name, cells in found.items() if apart(cells["none"], cells[part])]
        better = [name for name, cells in found.items() if apart(cells[part], cells["none"])]
        if part != "none" and (worse or better):
            said = [
                f"{word} on {', '.join(names)}"
                for word, names in (("worse", worse), ("better", better))
                if names
            ]
            lines.append(f"Without {title}: {'; '.join(said)}.")
    quiet = [
        title
        for part, title in PARTS.items()
        if part != "none" and not any(line.startswith(f"Without {title}:") for line in lines)
    ]
    return bullets(
        [*lines, f"Not to be told from the whole on any graph: {', '.join(quiet) or 'none'}."]
    )


def apart(lower: Line, upper: Line) -> bool:
    """Whether the intervals of two means lie apart, the first below."""
    return float(lower["mean"]) + float(lower["interval"]) < float(upper["mean"]) - float(
        upper["interval"]
    )


TABLES: dict[str, Callable[[Source], list[str]]] = {
    "groupings": baselines,
    "groupings-front": front,
    "groupings-misses": misses,
    "learning-claims": claims,
    "parsing-ablations": ablations,
    "parsing-parts": ablation_misses,
}
