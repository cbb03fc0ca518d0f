"""Degree policies: how far to split each job of a stream."""

from placeopt.solving.registry import listed

PAC_ML = (
    "Parsonson et al.: Partitioning distributed compute jobs with reinforcement learning and "
    "graph networks, 2023"
)

_spec = listed(__name__, "jobs", "blocking", search=False)

SPECS = (
    _spec(
        "max-degree",
        "fixed:MaxDegree",
        "largest degree not above the free servers",
        PAC_ML,
        "a baseline",
    ),
    _spec(
        "min-degree",
        "fixed:MinDegree",
        "smallest degree that should meet the deadline",
        PAC_ML,
        "a baseline",
    ),
    _spec(
        "random-degree",
        "fixed:RandomDegree",
        "random degree not above the free servers",
        PAC_ML,
        "a baseline",
    ),
    _spec(
        "constant-degree",
        "fixed:ConstantDegree",
        "one degree for all jobs; by default the best of a sweep",
        "",
        "the baseline that learned policies have to beat",
    ),
    _spec(
        "feasible-first",
        "feasible_first:FeasibleFirst",
        "first degree of a learned order that fits and meets the deadline",
        "",
        "the default",
        search=True,
    ),
    _spec(
        "rollout",
        "rollout_degree:RolloutDegree",
        "simulates the near future for each degree",
        "",
        "the fewest blocked jobs; needs a simulation per arrival",
        search=True,
    ),
    _spec(
        "policy-degree",
        "policy_degree:PolicyDegree",
        "takes the degree after which a learned network values the cluster most",
        PAC_ML,
        "a learned policy that decides quickly",
        search=True,
    ),
)
