"""What others do with a graph on several accelerators: the baselines of Tarnawski et al. beside the
dynamic programs.
"""

from placeopt.solving.registry import listed

_spec = listed(__name__, "placement", "period", search=False)

SPECS = (
    _spec(
        "pipedream",
        "pipedream:PipeDream",
        "PipeDream's optimizer along a topological order, without replicas",
        "Narayanan et al.: PipeDream, generalized pipeline parallelism for DNN training, SOSP 2019",
        "for comparison: the published planner",
    ),
    _spec(
        "split-local-search",
        "split_local_search:SplitLocalSearch",
        "best-improving moves of single ops from random splits",
        "Mirhoseini et al. and Tarnawski et al.: the local search that the latter compare with, "
        "NeurIPS 2020",
        "for comparison: a baseline without contiguity",
        search=True,
    ),
    _spec(
        "max-load-dp",
        "max_load_dp:MaxLoadDp",
        "the split that is best for the period, valued by its latency",
        "Tarnawski et al.: Efficient algorithms for device placement of DNN graph operators, "
        "NeurIPS 2020",
        "for comparison: how well balanced loads serve a single sample",
        objectives=("latency",),
    ),
    _spec(
        "min-cut",
        "graph_partition:MinCut",
        "balanced parts with a small cut, one a device, by METIS (extra: partition)",
        "Karypis, Kumar: A fast and high quality multilevel scheme for partitioning irregular "
        "graphs, SIAM 1998",
        "the baseline of papers on learned placement",
        objectives=("makespan",),
    ),
    _spec(
        "metis",
        "graph_partition:GraphPartition",
        "balanced parts with a small cut, by METIS (extra: partition)",
        "Karypis, Kumar: A fast and high quality multilevel scheme for partitioning irregular "
        "graphs, SIAM 1998",
        "for comparison: a graph partitioner without a model of loads",
    ),
)
