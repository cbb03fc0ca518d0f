"""List heuristics and clusterings: placements from one pass (or a small sweep) over the graph."""

from __future__ import annotations

from placeopt.solving.registry import SolverSpec


def _spec(name: str, target: str, summary: str, *, search: bool = False) -> SolverSpec:
    return SolverSpec(name, f"placeopt.solvers.{target}", "placement", ("makespan",), summary, search)


SPECS: tuple[SolverSpec, ...] = (
    _spec("single-device", "heuristics.baselines:SingleDevice", "everything on the best single device"),
    _spec("random", "heuristics.baselines:RandomPlacement", "best of many uniform random placements", search=True),
    _spec("round-robin", "heuristics.baselines:RoundRobin", "contiguous chunks of a topological order"),
    _spec("heft", "heuristics.list_scheduling:Heft", "earliest finish by upward rank, with insertion (2002)"),
    _spec("cpop", "heuristics.list_scheduling:Cpop", "critical path on one device, the rest by earliest finish (2002)"),
    _spec("peft", "heuristics.list_scheduling:Peft", "earliest finish plus an optimistic cost table (2014)"),
    _spec("etf", "heuristics.list_scheduling:Etf", "the op and device that can start earliest (1989)"),
    _spec("critical-path", "heuristics.critical_path:CriticalPath",
          "highest b-level on the device of its earliest start, best of 50 tie-breakings"),
    _spec("enumerative", "heuristics.enumerative:Enumerative", "spread the shards of each meta-op with least traffic"),
    _spec("m-topo", "heuristics.baechi:MTopo", "topological order, equal shares of memory (Baechi 2020)"),
    _spec("m-etf", "heuristics.baechi:MEtf", "earliest task first among devices with space (Baechi 2020)"),
    _spec("m-sct", "heuristics.baechi:MSct", "earliest task first with favourite children from an LP (Baechi 2020)"),
    _spec("edge-zeroing", "heuristics.clustering:EdgeZeroing", "merge along expensive edges under a load cap (Sarkar 1989)"),
    _spec("dsc", "heuristics.clustering:Dsc", "dominant sequence clustering, clusters mapped to devices (1994)"),
)  # fmt: skip
