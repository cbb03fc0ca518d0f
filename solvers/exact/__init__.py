"""Exact methods: proven optima and bounds."""

from placeopt.solving.registry import listed

TARNAWSKI = (
    "Tarnawski et al.: Efficient algorithms for device placement of DNN graph operators, "
    "NeurIPS 2020"
)

_spec = listed(__name__, "placement", "period")

SPECS = (
    _spec(
        "ideal-dp",
        "ideal_dp:IdealDp",
        "finds and proves the best pipeline of ideals, by dynamic programming",
        TARNAWSKI,
        "pipelines of contiguous stages",
        search=False,
    ),
    _spec(
        "linear-dp",
        "linear_dp:LinearDp",
        "best pipeline along topological orders by dynamic programming",
        TARNAWSKI,
        "graphs with too many ideals",
        search=False,
    ),
    _spec(
        "split-ideals",
        "split_ideals:SplitIdeals",
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
        "mixed-integer linear program solved by HiGHS, with a proven bound",
        TARNAWSKI,
        "a check of cp-sat by another method",
    ),
    _spec(
        "cp-sat",
        "cp_sat:CpSat",
        "constraint programming, with a proven bound at any time",
        "",
        "up to some hundred ops: proofs and good placements",
        objectives=("makespan", "period", "latency"),
    ),
)
