"""Policies: placers that learn by policy gradient, seeded by heuristics."""

from placeopt.solving.registry import listed

_spec = listed(__name__, "placement", "makespan")

SPECS = (
    _spec(
        "dual-policy",
        "dual_policy:DualPolicy",
        "selects an op and places it; starts as a heuristic, learns by policy gradient",
        "Doppler: dual-policy learning for device assignment in asynchronous dataflow graphs, 2025",
        "the published method, also on a real system; annealing ends as low without it",
    ),
    _spec(
        "learned-list",
        "tuned_list:LearnedList",
        "list scheduler whose scores were learned on generated graphs",
        "Topcuoglu, Hariri, Wu: HEFT, 2002, from which it began; WeCAN, 2026 (the idea)",
        "a good placement in milliseconds, without any search",
    ),
    _spec(
        "tuned-list",
        "tuned_list:TunedList",
        "a climb in the scores of the learned list scheduler, then a walk",
        "Bean: Genetic algorithms and random keys for sequencing and optimization, 1994",
        "few evaluations, from a better seed than any heuristic's",
    ),
    _spec(
        "grouper-placer",
        "grouper_placer:GrouperPlacer",
        "softmax grouper and softmax placer, learned together",
        "Liu et al.: grouper-placer for TensorFlow, 2019; Mirhoseini et al.: A hierarchical model "
        "for device placement, ICLR 2018",
        "for comparison: the published method",
    ),
    _spec(
        "graph-parsing",
        "graph_parsing:GraphParsing",
        "learned edge scores parse the graph into groups, which are placed",
        "HSDAG: A structure-aware framework for learning device placements on computation graphs, "
        "NeurIPS 2024",
        "for comparison: the published method",
    ),
    _spec(
        "neural-parsing",
        "graph_parsing:NeuralParsing",
        "graph parsing with edge scores from a graph network (torch)",
        "HSDAG: A structure-aware framework for learning device placements on computation graphs, "
        "NeurIPS 2024",
        "for comparison: the published method",
    ),
    _spec(
        "recurrent-placer",
        "network_placer:RecurrentPlacer",
        "LSTM encoder and attentive LSTM decoder over groups of ops (torch)",
        "Mirhoseini et al.: Device placement optimization with reinforcement learning, ICML 2017",
        "for comparison: the published method",
    ),
    _spec(
        "graph-placer",
        "network_placer:GraphPlacer",
        "message passing and attention, a device for every op at once (torch)",
        "Zhou et al.: GDP: generalized device placement for dataflow graphs, 2019",
        "for comparison: the published method",
    ),
    _spec(
        "visiting-placer",
        "visiting_placer:VisitingPlacer",
        "a graph network moves one op after the other, judged after each move (torch)",
        "Addanki et al.: Placeto: learning generalizable device placement algorithms, NeurIPS 2019",
        "for comparison: the published method",
    ),
    _spec(
        "soft-grouper",
        "network_placer:SoftGrouper",
        "grouper and recurrent placer learned jointly through soft groups, by PPO or REINFORCE "
        "(torch)",
        "Liu et al.: grouper-placer for TensorFlow, 2019; Mirhoseini et al.: A hierarchical model "
        "for device placement, ICLR 2018",
        "for comparison: the published method",
    ),
)
