"""JSON of sharding problems and solutions; see `placeopt.io.serialize`."""

from placeopt.io.serialize import Codec, register, register_plain
from placeopt.sharding.problem import ShardingProblem, ShardingSolution

# fields that follow from others, or have one value only, are left out
register_plain("sharding", ShardingProblem, ("objective", "edge_ptr"))
register(
    Codec(
        "sharding-solution",
        ShardingSolution,
        lambda solution: {"strategies": solution.strategy.tolist()},
        lambda body: ShardingSolution(body.integers("strategies")),
    )
)
