"""List heuristics and clusterings: placements from one pass (or a small sweep) over the graph."""

from placeopt.solving.registry import listed

TOPCUOGLU = (
    "Topcuoglu, Hariri, Wu: Performance-effective and low-complexity task scheduling, IEEE TPDS "
    "2002"
)
BAECHI = "Jeon et al.: Baechi, fast device placement of machine learning graphs, SoCC 2020"
DOPPLER = (
    "Doppler: dual-policy learning for device assignment in asynchronous dataflow graphs, "
    "2025 (a baseline there)"
)

_spec = listed(__name__, "placement", "makespan", search=False)

SPECS = (
    _spec(
        "single-device",
        "baselines:SingleDevice",
        "everything on the best single device",
        "",
        "the baseline that every placement has to beat",
    ),
    _spec(
        "random",
        "baselines:RandomPlacement",
        "best of many uniform random placements",
        "",
        "a baseline: how hard is the problem?",
        search=True,
    ),
    _spec(
        "round-robin",
        "baselines:RoundRobin",
        "contiguous chunks of a topological order",
        "",
        "a baseline: what people do by hand",
    ),
    _spec(
        "heft",
        "list_scheduling:Heft",
        "earliest finish by upward rank, with insertion",
        TOPCUOGLU,
        "different devices, cheap communication; the classic baseline",
    ),
    _spec(
        "few-hosts",
        "list_scheduling:FewHosts",
        "earliest finish by upward rank on one host, on two, four, ...",
        TOPCUOGLU,
        "several hosts with slow or shared links between them",
    ),
    _spec(
        "cpop",
        "list_scheduling:Cpop",
        "critical path on one device, the rest by earliest finish",
        TOPCUOGLU,
        "graphs with one long path and little else",
    ),
    _spec(
        "peft",
        "list_scheduling:Peft",
        "earliest finish plus an optimistic cost table",
        "Arabnejad, Barbosa: List scheduling by an optimistic cost table, IEEE TPDS 2014",
        "different devices",
    ),
    _spec(
        "etf",
        "list_scheduling:Etf",
        "the op and device that can start earliest",
        "Hwang, Chow, Anger, Lee: Scheduling precedence graphs with interprocessor communication, "
        "SIAM J. Computing 1989",
        "equal devices with communication",
    ),
    _spec(
        "critical-path",
        "list_scheduling:CriticalPath",
        "highest b-level on the device of its earliest start, best of 50 tie-breakings",
        DOPPLER,
        "sharded graphs, where many ops tie",
    ),
    _spec(
        "enumerative",
        "enumerative:Enumerative",
        "spreads the shards of each meta-op with the least traffic",
        DOPPLER,
        "sharded graphs whose ops are labelled",
    ),
    _spec(
        "m-topo",
        "baechi:MTopo",
        "fills devices in topological order with equal shares of memory",
        BAECHI,
        "only memory matters",
    ),
    _spec(
        "m-etf",
        "baechi:MEtf",
        "earliest task first among devices with space",
        BAECHI,
        "memory is tight",
    ),
    _spec(
        "m-sct",
        "baechi:MSct",
        "earliest task first with favourite children from a linear program",
        BAECHI,
        "memory is tight and communication is small",
    ),
    _spec(
        "edge-zeroing",
        "clustering:EdgeZeroing",
        "merges ops along expensive edges, up to a limit on load",
        "Sarkar: Partitioning and scheduling parallel programs for multiprocessors, MIT Press 1989",
        "expensive communication: the first choice on sharded models",
    ),
    _spec(
        "dsc",
        "clustering:Dsc",
        "dominant sequence clustering, clusters mapped to devices",
        "Yang, Gerasoulis: DSC, scheduling parallel tasks on an unbounded number of processors, "
        "IEEE TPDS 1994",
        "expensive communication, many devices",
    ),
)
