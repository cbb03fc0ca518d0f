"""Exact methods: proven optima and bounds."""

from __future__ import annotations

from placeopt.solving.registry import SolverSpec

TARNAWSKI = (
    "Tarnawski et al.: Efficient algorithms for device placement of DNN graph operators, "
    "NeurIPS 2020"
)


def _spec(
    name: str,
    target: str,
    objectives: tuple[str, ...],
    summary: str,
    paper: str,
    use: str,
    *,
    search: bool = True,
    kind: str = "placement",
) -> SolverSpec:
    return SolverSpec(
        name, f"placeopt.solvers.exact.{target}", kind, objectives, summary, search, paper, use
    )


SPECS: tuple[SolverSpec, ...] = (
    _spec(
        "ideal-dp",
        "ideal_dp:IdealDp",
        ("period",),
        "finds and proves the best pipeline of ideals, by dynamic programming",
        TARNAWSKI,
        "pipelines of contiguous stages",
        search=False,
    ),
    _spec(
        "linear-dp",
        "linear_dp:LinearDp",
        ("period",),
        "best pipeline along topological orders by dynamic programming",
        TARNAWSKI,
        "graphs with too many ideals",
        search=False,
    ),
    _spec(
        "split-ideals",
        "split_ideals:SplitIdeals",
        ("period",),
        "best pipeline of ideals with replicas, groups of devices or overlapped transfers",
        TARNAWSKI,
        "stages that share devices, hosts with an uplink, transfers beside computation: the proven "
        "optimum",
        search=False,
        kind="split",
    ),
    _spec(
        "milp",
        "milp:Milp",
        ("period",),
        "mixed-integer linear program solved by HiGHS, with a proven bound",
        TARNAWSKI,
        "a check of cp-sat by another method",
    ),
    _spec(
        "cp-sat",
        "cp_sat:CpSat",
        ("makespan", "period", "latency"),
        "constraint programming, with a proven bound at any time",
        "",
        "up to some hundred ops: proofs and good placements",
    ),
)
