"""Job streams: blocking rates of degree policies, beside the published ones and a bound on any
policy.

    python results/job_streams/study.py [PART ...] [--again]    # all parts, then tables and
                                                                pictures
    python results/job_streams/study.py report                  # only redraws from the CSV files

Parts: published (split rule and units as published), learned (policies learned on each
distribution, judged on all, both rules), uniform (split rule {1, u}), consistent (consistent
units), poisson and poisson_consistent (blocking against load), short (clairvoyant optimum of short
streams), speed. Every policy is tuned on streams with seeds of 1 000 000 and more and judged on
seeds 0..23. A table that is there is kept (`--help` says what else). It is no grid: a policy is
tuned once and judged on many streams. Profiles: PLACEOPT_DATA.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from placeopt.experiments.studies import (
    data_folder,
    is_there,
    kept_rows,
    read_csv,
    row_options,
    write_csv,
)
from placeopt.model.result import Budget
from placeopt.plotting.style import COLOURS, new_figure, write_figure
from placeopt.solvers.degree.feasible_first import FeasibleFirst
from placeopt.solvers.degree.policy_degree import PolicyDegree
from placeopt.solvers.degree.tuning import tuned_policy
from placeopt.solving.tracker import Tracker
from placeopt.streams import Summary, load_stream, offline_bound, simulate, simulate_many

HERE = Path(__file__).resolve().parent
DATA = data_folder("pipedream")
SEEDS = 24
BETAS = "ABCD"
LOADS = (0.5, 0.7, 0.9, 1.1, 1.3)
POLICIES = (
    "max-degree",
    "min-degree",
    "random-degree",
    "constant-degree:4",
    "constant-degree:8",
    "constant-degree",
    "feasible-first",
    "rollout",
)
SETTINGS = {
    "published": {"iterations": 18, "streams": 96, "steps": 400, "hidden": 64},
    "uniform": {"iterations": 10, "streams": 48, "steps": 400},
}
"""Of the learned policy: more than the defaults' work under the rule on which it is compared, less
under the other."""

LEARNED = ("seed of policy-degree", "policy-degree")
PUBLISHED = {  # Parsonson et al. 2023, three seeds
    "PAC-ML, final checkpoint": (0.2209, 0.2641, 0.1247, 0.1037),
    "PAC-ML, best checkpoint": (0.2038, 0.2567, 0.1166, 0.0992),
    "max-degree": (0.2624, 0.2631, 0.2674, 0.2631),
    "min-degree": (0.3087, 0.3956, 0.3074, 0.1419),
    "random-degree": (0.5172, 0.6011, 0.5055, 0.4652),
}


def stream(beta, rule="uniform", units="published", seed=0, **options):
    """Return the stream of one cell."""
    extra = "".join(f"&{key}={value}" for key, value in options.items())
    return load_stream(
        f"stream:ramp?beta={beta}&rule={rule}&units={units}&seed={seed}{extra}", profiles=DATA
    )


def measure(part, problem, policies, load=None):
    """Return a row per policy, and one for the bound, of the held-out streams like `problem`."""
    streams = [problem, *(problem.resample(seed) for seed in range(1, SEEDS))]
    cell = {
        "part": part,
        "units": problem.jobs.config.units,
        "rule": problem.jobs.config.rule,
        "beta": problem.spec.beta,
        "offered_load": load or round(problem.offered_load, 3),
    }
    rows = []

    def add(name, policy, setting, seconds):
        runs = simulate_many(streams, policy)
        s = Summary.of(name, runs)
        rows.append(
            {
                **cell,
                "policy": name,
                "blocking": s.blocking_rate,
                "low": s.ci95[0],
                "high": s.ci95[1],
                "jct": s.mean_jct,
                "speedup": s.mean_speedup,
                "throughput": s.throughput,
                "degree": s.mean_degree,
                "utilisation": s.utilisation,
                **s.causes,
                "seeds": len(runs),
                "tuning_seconds": round(seconds, 1),
                "setting": setting,
            }
        )
        print(
            f"{part} {problem.name} {cell['offered_load']} {name}: {s.blocking_rate:.4f}",
            flush=True,
        )

    for name in policies:
        start = time.perf_counter()
        policy, setting = tuned_policy(name, problem)
        add(name, policy, setting, time.perf_counter() - start)
    rates = np.array([offline_bound(one).blocking_rate for one in streams])
    rows.append(
        {
            **cell,
            "policy": "offline bound",
            "blocking": rates.mean(),
            "seeds": SEEDS,
            "setting": "lp",
        }
    )
    return rows


def published():
    """Split rule and units as published."""
    return [
        row for beta in BETAS for row in measure("published", stream(beta, "published"), POLICIES)
    ]


def uniform():
    """Every op split u ways or not at all, in one block."""
    return [row for beta in BETAS for row in measure("uniform", stream(beta), POLICIES)]


def consistent():
    """Seconds and bytes: communication costs what it costs."""
    kept = [p for p in POLICIES if p != "constant-degree:8"]
    return [
        row
        for beta in BETAS
        for row in measure("consistent", stream(beta, units="consistent"), kept)
    ]


def poisson(units="published"):
    """Blocking against load under Poisson arrivals."""
    rows = []
    base = stream("A", units=units)
    for load in LOADS:
        interval = base.spec.gap(base.jobs) * base.offered_load / load
        problem = stream("A", units=units, arrivals="poisson", interval=interval)
        policies = ("max-degree", "min-degree", "constant-degree", "feasible-first", "rollout")
        rows += measure("poisson", problem, policies, load)
    return rows


def poisson_consistent():
    """Blocking against load under Poisson arrivals, consistent units."""
    return poisson("consistent")


def short():
    """Clairvoyant optimum of streams of 40 jobs by CP-SAT, beside the linear bound and the
    policies.
    """
    rows = []
    for beta in BETAS:
        problem = stream(beta, jobs=40)
        policies = {
            name: tuned_policy(name, problem)[0]
            for name in ("max-degree", "constant-degree", "rollout")
        }
        for seed in range(3):
            one = problem.resample(seed)
            start = time.perf_counter()
            exact = offline_bound(one, method="exact", seconds=15, num_workers=2)
            row = {
                "part": "short",
                "beta": beta,
                "seed": seed,
                "jobs": one.num_jobs,
                "lp": offline_bound(one).blocked,
                "exact": exact.blocked,
                "proved": exact.exact,
                "seconds": round(time.perf_counter() - start, 1),
            }
            row |= {
                name: simulate(one, policy, seed=seed).blocked for name, policy in policies.items()
            }
            print(row, flush=True)
            rows.append(row)
    return rows


def speed():
    """Processor seconds of one 1001-job episode, and of 1000 episodes on one and two threads, with
    the wall time.
    """
    rows = []

    def one_episode(label, problem, policy, repeats):
        times = []
        for seed in range(repeats):
            start = time.process_time()
            simulate(problem, policy, seed=seed)
            times.append(time.process_time() - start)
        rows.append(
            {
                "part": "speed",
                "what": f"1 episode, {label}",
                "processor_seconds": float(np.median(times)),
            }
        )

    for rule in ("uniform", "published"):
        case = stream("A", rule)
        for name in (
            "max-degree",
            "random-degree",
            "constant-degree:8",
            "feasible-first:8-4-16",
            "rollout:8-4-16",
        ):
            one_episode(
                f"{rule} rule, {name}",
                case,
                tuned_policy(name, case)[0],
                5 if "rollout" in name else 50,
            )
    problem = stream("A")
    problems = [problem.resample(seed) for seed in range(1000)]
    for one in problems:
        _ = one.arrays
    chosen = tuned_policy("feasible-first:8-4-16", problem)[0]
    for workers in (1, 2):
        start, cpu = time.perf_counter(), time.process_time()
        simulate_many(problems, chosen, threads=workers)
        wall, used = time.perf_counter() - start, time.process_time() - cpu
        rows.append(
            {
                "part": "speed",
                "what": f"1000 episodes, feasible-first:8-4-16, {workers} thread(s)",
                "processor_seconds": used,
                "wall_seconds": wall,
                "cores": used / wall,
            }
        )
    for row in rows:
        print(row, flush=True)
    return rows


def learned(rows):
    """The policies learned on each distribution, judged on the streams of all four, beside rows that
    are kept.
    """
    done = {(row["rule"], row["learned_on"]) for row in rows}
    for rule in ("published", "uniform"):
        judged = {
            beta: [stream(beta, rule).resample(seed) for seed in range(SEEDS)] for beta in BETAS
        }
        for home in BETAS:
            if (rule, home) in done:
                continue
            rows += learned_on(home, rule, judged)
            write_csv(HERE / "learned.csv", rows, digits=5)
    return rows


def learned_on(home, rule, judged):
    """Return a row for the policy learned on one distribution, and one for its seed, for each set
    of streams.
    """
    problem, start = stream(home, rule), time.process_time()
    tracker = Tracker("policy-degree", problem, Budget())
    base = FeasibleFirst(fragmentation=0.0, training=4, steps=30).tune(problem, tracker)
    trained = PolicyDegree(**SETTINGS[rule]).train(problem, base, tracker)
    seconds, rows = time.process_time() - start, []
    for beta, streams in judged.items():
        for name, policy in zip(LEARNED, (trained.seed_policy, trained.policy), strict=True):
            start = time.process_time()
            s = Summary.of(name, simulate_many(streams, policy))
            rows.append(
                {
                    "rule": rule,
                    "learned_on": home,
                    "policy": name,
                    "beta": beta,
                    "blocking": s.blocking_rate,
                    "low": s.ci95[0],
                    "high": s.ci95[1],
                    "jct": s.mean_jct,
                    "speedup": s.mean_speedup,
                    "throughput": s.throughput,
                    "degree": s.mean_degree,
                    "seeds": s.episodes,
                    "training_episodes": tracker.evaluations,
                    "training_processor_seconds": round(seconds, 1),
                    "episode_processor_seconds": (time.process_time() - start) / s.episodes,
                }
            )
            print(*rows[-1].values(), flush=True)
    return rows


PARTS = {
    f.__name__: f
    for f in (published, learned, uniform, consistent, poisson, poisson_consistent, short, speed)
}


def read_rows(part):
    """Return the rows of a part, empty if it has not been run."""
    return read_csv(HERE / f"{part}.csv")


def with_learned(part):
    """Return the rows of a part, before the bound those of the policies learned on the distribution
    they are judged on.
    """
    rows = read_rows(part)
    own = [
        row
        for row in read_rows("learned")
        if row["rule"] == part and row["learned_on"] == row["beta"]
    ]
    return (
        [row for row in rows if row["policy"] != "offline bound"]
        + own
        + [row for row in rows if row["policy"] == "offline bound"]
    )


# --- tables and pictures
# ---------------------------------------------------------------------------------


def grid(rows):
    """Return {policy: {beta: row}} in the order of the file."""
    found = {}
    for row in rows:
        found.setdefault(row["policy"], {})[row["beta"]] = row
    return found


def shown(row):
    """Return a rate with half its interval."""
    rate = float(row["blocking"])
    return f"{rate:.4f}" + (
        f" ± {(float(row['high']) - float(row['low'])) / 2:.4f}" if row["high"] else ""
    )


def table(rows, columns, key):
    """Return the lines of a Markdown table: a line per policy, a column per value of `key`."""
    found = {}
    for row in rows:
        found.setdefault(row["policy"], {})[row[key]] = row
    lines = ["| policy | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, cells in found.items():
        lines.append(
            "| "
            + " | ".join([name, *(shown(cells[c]) if c in cells else "-" for c in columns)])
            + " |"
        )
    return lines


def across(lines):
    """Add the policies learned on one distribution and judged on another."""
    for rule in ("published", "uniform"):
        if rows := [
            row
            for row in read_rows("learned")
            if row["rule"] == rule and row["policy"] == "policy-degree"
        ]:
            lines += [
                "",
                f"## `policy-degree`, {rule} split rule: learned on one distribution, judged on "
                "all",
                "",
            ]
            lines += table(
                [{**row, "policy": f"learned on {row['learned_on']}"} for row in rows],
                BETAS,
                "beta",
            )


def reductions(lines):
    """Add the relative reduction of blocking against maximum parallelisation."""
    lines += [
        "",
        "## Reduction against maximum parallelisation",
        "",
        "(blocking of max-degree - blocking) / blocking of max-degree; the published abstract says "
        "up to 56.2 %.",
        "",
        "| | A | B | C | D |",
        "|---|---|---|---|---|",
    ]
    base = PUBLISHED["max-degree"]
    for name in ("PAC-ML, final checkpoint", "PAC-ML, best checkpoint"):
        cells = (f"{1 - ours / most:.1%}" for ours, most in zip(PUBLISHED[name], base, strict=True))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for part in ("published", "uniform"):
        cells = grid(with_learned(part))
        for name in (
            "constant-degree",
            "feasible-first",
            "rollout",
            "policy-degree",
            "offline bound",
        ):
            if set(cells.get(name, ())) == set(BETAS):
                most = cells["max-degree"]
                values = (
                    f"{1 - float(cells[name][b]['blocking']) / float(most[b]['blocking']):.1%}"
                    for b in BETAS
                )
                lines.append(f"| {name}, {part} rule | " + " | ".join(values) + " |")


def report():
    """Write tables.md and the pictures from the CSV files."""
    lines = [
        "# Job streams: tables",
        "",
        "Blocking rate, mean of 24 held-out seeds ± half of its 95 % interval.",
        "",
        "## As published (three seeds)",
        "",
        "| policy | A | B | C | D |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | " + " | ".join(f"{v:.4f}" for v in row) + " |"
        for name, row in PUBLISHED.items()
    ]
    for part, title in (
        ("published", "Published units, published split rule"),
        ("uniform", "Published units, uniform split rule"),
        ("consistent", "Consistent units, uniform split rule"),
    ):
        if rows := with_learned(part):
            lines += ["", f"## {title}", "", *table(rows, BETAS, "beta")]
            if part != "consistent":
                draw_distributions(part, rows)
    across(lines)
    reductions(lines)
    for units in ("published", "consistent"):
        if rows := read_rows("poisson" if units == "published" else "poisson_consistent"):
            lines += [
                "",
                f"## Poisson arrivals, distribution A, {units} units, by offered load",
                "",
            ]
            lines += table(rows, [f"{load}" for load in LOADS], "offered_load")
    if rows := read_rows("poisson") + read_rows("poisson_consistent"):
        draw_loads(rows)
    if rows := read_rows("short"):
        lines += [
            "",
            "## Streams of 40 jobs: blocked jobs, and the clairvoyant optimum by CP-SAT",
            "",
        ]
        names = [
            "beta",
            "seed",
            "lp",
            "exact",
            "proved",
            "seconds",
            "max-degree",
            "constant-degree",
            "rollout",
        ]
        lines += ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
        lines += ["| " + " | ".join(row[name] for name in names) + " |" for row in rows]
    if rows := read_rows("speed"):
        lines += [
            "",
            "## Speed",
            "",
            "| | processor seconds | wall seconds | cores used |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {row['what']} | {row['processor_seconds']} | {row['wall_seconds']} | "
            f"{row['cores']} |"
            for row in rows
        ]
    lookahead = stream("A", units="consistent").jobs.lookahead
    lines += ["", "## Completion time by degree, consistent units (seconds)", ""]
    degrees = next(iter(lookahead.values()))
    lines += [
        "| model | " + " | ".join(map(str, degrees)) + " | best degree |",
        "|---" * (len(degrees) + 2) + "|",
    ]
    for model, row in lookahead.items():
        lines.append(
            f"| {model} | "
            + " | ".join(f"{t:.2f}" for t in row.values())
            + f" | {min(row, key=row.get)} |"
        )
    draw_splitting(lookahead)
    (HERE / "tables.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw_distributions(part, rows):
    """Bars per distribution with confidence intervals; PAC-ML's checkpoints and the offline bound
    as lines.
    """
    cells = grid(rows)
    names = [
        n
        for n in (
            "max-degree",
            "min-degree",
            "constant-degree",
            "feasible-first",
            "policy-degree",
            "rollout",
        )
        if set(cells.get(n, ())) == set(BETAS)
    ]
    figure = new_figure(9, 4)
    axes = figure.add_subplot()
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        rates = [float(cells[name][beta]["blocking"]) for beta in BETAS]
        error = [
            float(cells[name][beta]["high"]) - rate for beta, rate in zip(BETAS, rates, strict=True)
        ]
        at = np.arange(4) - 0.4 + (i + 0.5) * width
        axes.bar(
            at, rates, width, yerr=error, label=name, color=COLOURS[i], error_kw={"linewidth": 1}
        )
    for k, beta in enumerate(BETAS):
        span = k - 0.43, k + 0.43
        first = k == 0
        axes.hlines(
            PUBLISHED["PAC-ML, best checkpoint"][k],
            *span,
            colors="black",
            linestyles="dashed",
            label="PAC-ML, best checkpoint" if first else None,
        )
        axes.hlines(
            float(cells["offline bound"][beta]["blocking"]),
            *span,
            colors="black",
            linewidth=2,
            label="bound on any policy" if first else None,
        )
    axes.set_xticks(range(4), [f"{beta}" for beta in BETAS])
    axes.set_xlabel("distribution of the deadlines")
    axes.set_ylabel("blocking rate")
    axes.set_title(f"{SEEDS} held-out streams of 1001 jobs, {part} split rule", fontsize=10)
    finish(figure, axes)
    write_figure(figure, HERE / f"distributions-{part}.png", dpi=110)


def draw_loads(rows):
    """Blocking against offered load, one panel for each kind of units."""
    figure = new_figure(9, 3.8)
    for panel, units in zip(
        figure.subplots(1, 2, sharey=True), ("published", "consistent"), strict=True
    ):
        for i, name in enumerate(dict.fromkeys(row["policy"] for row in rows)):
            mine = [row for row in rows if row["policy"] == name and row["units"] == units]
            if not mine:
                continue
            load, rate = ([float(row[key]) for row in mine] for key in ("offered_load", "blocking"))
            if name == "offline bound":
                panel.plot(load, rate, color="black", linewidth=2, label="bound on any policy")
                continue
            error = [float(row["high"]) - float(row["blocking"]) for row in mine]
            panel.errorbar(
                load, rate, yerr=error, marker="o", markersize=3, label=name, color=COLOURS[i]
            )
        panel.set_title(f"{units} units", fontsize=10)
        panel.set_xlabel("offered load (sequential work per server and time)")
        finish(figure if units == "published" else None, panel)
    figure.axes[0].set_ylabel("blocking rate")
    write_figure(figure, HERE / "load.png", dpi=110)


def draw_splitting(lookahead):
    """Speed-up by degree in consistent units."""
    figure = new_figure(6, 3.8)
    axes = figure.add_subplot()
    for i, (model, row) in enumerate(lookahead.items()):
        axes.plot(
            list(row), [row[1] / t for t in row.values()], marker="o", label=model, color=COLOURS[i]
        )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("degree")
    axes.set_ylabel("speed-up over one server")
    axes.set_title("Where splitting stops paying (consistent units)", fontsize=10)
    finish(figure, axes)
    write_figure(figure, HERE / "splitting.png", dpi=110)


def finish(figure, axes):
    """Tidy the axes; put the legend below the figure."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E8E8E8", linewidth=0.6)
    axes.set_axisbelow(True)
    if figure is not None:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False
        )


def main():
    """Run the parts that are named, all by default, and write the report."""
    given = row_options(__doc__, (*PARTS, "report"))
    for name, part in PARTS.items():
        path = HERE / f"{name}.csv"
        if name in given.stages and not is_there(path, given) and time.monotonic() < given.end:
            rows = part(kept_rows(path, given, ())) if part is learned else part()
            write_csv(path, rows, digits=5)
    report()


if __name__ == "__main__":
    main()
