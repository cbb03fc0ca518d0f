"""Job streams: how far to split each job of a busy cluster (PAC-ML's model), simulated and bounded.

    from placeopt.streams import load_stream, simulate, DegreePolicy
    stream = load_stream("stream:ramp?beta=A&rule=uniform&units=published", profiles="profiles/")
    episode = simulate(stream, DegreePolicy("constant-degree", degree=8))

Everything is imported on first use.
"""

from typing import TYPE_CHECKING

from placeopt.model.lazy import on_first_use

_HOMES = {
    "topology": "RampTopology",
    "profiles": "JobProfile PAC_ML_MODELS load_profiles",
    "lookahead": "LookaheadConfig step_time",
    "problem": "JobTable JobStreamProblem",
    "sources": "StreamSpec load_stream",
    "simulator": "DegreePolicy Episode Summary simulate simulate_each simulate_many",
    "bound": "OfflineBound offline_bound",
}

__getattr__, _names = on_first_use(__name__, _HOMES)

__all__ = list(_names)

if TYPE_CHECKING:
    from placeopt.streams.bound import OfflineBound as OfflineBound, offline_bound as offline_bound
    from placeopt.streams.lookahead import (
        LookaheadConfig as LookaheadConfig,
        step_time as step_time,
    )
    from placeopt.streams.problem import JobStreamProblem as JobStreamProblem, JobTable as JobTable
    from placeopt.streams.profiles import (
        PAC_ML_MODELS as PAC_ML_MODELS,
        JobProfile as JobProfile,
        load_profiles as load_profiles,
    )
    from placeopt.streams.simulator import (
        DegreePolicy as DegreePolicy,
        Episode as Episode,
        Summary as Summary,
        simulate as simulate,
        simulate_each as simulate_each,
        simulate_many as simulate_many,
    )
    from placeopt.streams.sources import StreamSpec as StreamSpec, load_stream as load_stream
    from placeopt.streams.topology import RampTopology as RampTopology
