"""Tables of README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from page_tables.source import Source, floats, listed, middle, seconds, span, table, times, value

if TYPE_CHECKING:
    from collections.abc import Callable

    from page_tables.source import Line

LETTERS = ("A", "B", "C", "D")
SHAPES = ("V", "K", "X", "M", "NN")


def by_seeds(source: Source, graph: str) -> str:
    """Say what the default solver proves of a graph of Doppler's on four devices, by seeds."""
    rows = source.rows("exact/doppler-seeds.csv")
    rows = [row for row in rows if row["instance"].startswith(f"{graph} seed ")]
    proved = sum(row["status"] == "optimal" for row in rows)
    return (
        f"{value(min(floats(rows, 'value')))}, proved optimal with {proved} of {len(rows)} seeds "
        f"in {span(floats(rows, 'seconds'), seconds)} s"
    )


def compared(source: Source) -> list[str]:
    """What stands beside published systems, one line each."""
    optima = source.rows("exact/optima.csv")
    proved = [
        row
        for row in optima
        if row["status"] == "optimal" and float(row["value"]) == float(row["published"])
    ]
    spent = sum(float(row["seconds"]) for row in optima)
    gnmt, inception = (
        source.row("exact/chain.csv", instance=f"layer_{name}_inference")
        for name in ("gnmt", "inceptionv3")
    )
    program = [
        source.reference("Tarnawski et al.", f"chain {what}", f"layer_{name}_inference")
        for name in ("gnmt", "inceptionv3")
        for what in ("CPU seconds", "memory")
    ]
    resnet = source.row("exact/latency.csv", instance="layer_resnet50_inference")
    bert = source.row("exact/pipeline.csv", instance="operator_bert_l-12_inference")
    doppler = [
        source.doppler_mean("llama_block", method)
        for method in ("critical path, best of 50", "cross-entropy")
    ]
    return table(
        ["", "printed or stored", "run here", "placeopt"],
        [
            [
                "makespans of small task graphs",
                f"{len(optima)} optima",
                "-",
                f"{len(proved)} proved, {seconds(spent)} s together",
            ],
            [
                "Doppler's Llama block, 4 devices",
                "-",
                f"critical path {value(doppler[0])}, `cross-entropy` {value(doppler[1])}",
                by_seeds(source, "llama_block"),
            ],
            [
                "optimal pipeline split of GNMT (Tarnawski et al.)",
                "-",
                f"{seconds(program[0])} CPU s, {value(program[1])} MB",
                f"{seconds(float(gnmt['cpu_seconds']))} CPU s, {value(float(gnmt['extra_mb']))} MB",
            ],
            [
                "the same of Inception-V3",
                "-",
                f"did not finish ({seconds(program[2])} s, {value(program[3])} MB)",
                f"{seconds(float(inception['cpu_seconds']))} CPU s, "
                f"{value(float(inception['extra_mb']))} MB",
            ],
            [
                "latency of ResNet-50's layers on 14 accelerators",
                "-",
                f"the authors' greedy {value(float(resnet['authors_greedy']))}",
                certified(resnet, "by flows over paths, believed"),
            ],
            [
                "BERT-12's operators on 6 accelerators, any split, period",
                "-",
                f"plain CP-SAT {value(float(bert['plain_cp_sat']))}, bound "
                f"{value(float(bert['plain_cp_sat_bound']))}",
                certified(bert, "by prices of sets, believed"),
            ],
            [
                "PAC-ML, blocking rates on deadlines A, B, C, D, its split rule",
                listed(source.references("PAC-ML", "blocking of the best checkpoint", LETTERS)),
                "constant degree: " + listed(blocking(source, "published", "constant-degree")),
                "; ".join(
                    f"`{policy}`: {listed(blocking(source, 'published', policy))}"
                    for policy in ("rollout", "policy-degree")
                ),
            ],
        ],
    )


def certified(row: dict[str, str], believed: str = "") -> str:
    """Return a value and what is proved of it.

    Parameters
    ----------
    believed : what has to be believed; without it, a proof is in results/proofs.
    """
    found = value(float(row["value"]))
    return (
        f"{found}, " + (f"optimal {believed}" if believed else "proved optimal")
        if row["status"] == "optimal"
        else f"{found}, bound {value(float(row['bound']))}"
    )


def blocking(source: Source, rule: str, policy: str) -> list[float]:
    """Return the blocking rates of a policy on the distributions of deadlines on which it was
    measured.
    """
    found = (source.streams(rule, beta=beta, policy=policy) for beta in LETTERS)
    return [float(row["blocking"]) for rows in found for row in rows]


def runs(source: Source, solver: str, *, capped: bool = False) -> list[Line]:
    """Return the times of a solver on the shapes on 4 devices: capped as the authors' code was, or
    not.
    """
    rows = source.rows("pipeline/capped.csv", solver=solver)
    return [
        next(row for row in rows if row["shape"] == shape and (row["capacity"] != "none") == capped)
        for shape in SHAPES
    ]


def repetends(source: Source) -> list[str]:
    """CPU seconds of the search for a repetend without a memory cap."""
    return table(
        ["placement shape", *SHAPES],
        [
            [
                "the authors' code in its fast mode, run here",
                *map(seconds, source.references("Tessel", "CPU seconds without a cap", SHAPES)),
            ],
            ["`tessel` (the same enumeration, on CP-SAT)", *map(middle, runs(source, "tessel"))],
            ["`repetend` (modulo scheduling)", *map(middle, runs(source, "repetend"))],
        ],
    )


def evaluator(source: Source) -> list[str]:
    """Times of the evaluator."""
    file = "evaluator/speed.csv"

    def one(ops: int, queue: str = "fifo", contention: str = "none", batch: int = 0) -> float:
        rows = source.rows(file, ops=ops, queue=queue, contention=contention, threads=1)
        return float(
            next(row for row in rows if not batch or int(row["batch"]) == batch)["microseconds"]
        )

    size = source.row(file, ops=100_000, queue="fifo", contention="none")
    thousand = [one(1000), one(1000, "priority"), one(1000, contention="pair")]
    threads = {
        int(row["threads"]): float(row["microseconds"])
        for row in source.rows(file, ops=1000, batch=1024)
    }
    heft = source.row("evaluator/heft.csv")
    return table(
        ["", "time"],
        [
            [
                "one evaluation, 1000 ops, 8 devices: `fifo`, `priority`, one channel per pair",
                f"{listed(thousand, whole)} us",
            ],
            ["one evaluation, 200 ops, 4 devices", f"{whole(one(200))} us"],
            [
                f"one evaluation, 100 000 ops, {size['devices']} devices",
                f"{whole(float(size['microseconds']) / 1e3)} ms",
            ],
            [
                "a batch on both cores, relative to one",
                f"{times(threads[1] / threads[2])} times as fast",
            ],
            [
                f"HEFT on {heft['ops']} ops: ours, the same in plain Python",
                f"{value(float(heft['compiled_ms']))} ms, {whole(float(heft['plain_ms']))} ms",
            ],
        ],
    )


def whole(x: float) -> str:
    """Write a time in small units: no decimals."""
    return f"{x:.0f}"


TABLES: dict[str, Callable[[Source], list[str]]] = {
    "compared": compared,
    "repetends": repetends,
    "evaluator": evaluator,
}
