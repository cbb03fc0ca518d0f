"""Pipeline schedules: micro-batches of a model's blocks on devices.

>>> from placeopt.schedules import load_pipeline, schedule
>>> best = schedule(load_pipeline("shape:V?devices=4&memory=3"), micro_batches=16)
"""

from typing import TYPE_CHECKING

from placeopt.model.lazy import on_first_use
from placeopt.solving.registry import listed

if TYPE_CHECKING:
    from placeopt.schedules.joint import (
        JointResult as JointResult,
        choose_pipeline as choose_pipeline,
    )
    from placeopt.schedules.judge import pipeline_violations as pipeline_violations
    from placeopt.schedules.problem import Block as Block, PipelineProblem as PipelineProblem
    from placeopt.schedules.solution import (
        PipelineSchedule as PipelineSchedule,
        Repetend as Repetend,
    )
    from placeopt.schedules.solve import schedule as schedule, schedule_result as schedule_result
    from placeopt.schedules.sources import load_pipeline as load_pipeline

ZERO_BUBBLE = "Qi et al.: Zero bubble pipeline parallelism, ICLR 2024"
V_SCHEDULES = "Qi et al.: Pipeline parallelism with controllable memory, NeurIPS 2024"
TESSEL = (
    "Lin et al.: Tessel, boosting distributed execution of large DNN models via flexible "
    "schedule search, HPCA 2024"
)

_spec = listed(__name__, "pipeline", "period", search=False)

SPECS = (
    _spec(
        "repetend",
        "repetend:RepetendSolver",
        "finds and proves the shortest repeating pattern, by modulo scheduling",
        TESSEL,
        "the first choice: any shape, any memory limit",
        search=True,
    ),
    _spec(
        "tessel",
        "tessel:TesselSolver",
        "Tessel's enumeration of index assignments with lazy completion",
        TESSEL,
        "for comparison: the published search",
        search=True,
    ),
    _spec(
        "time-optimal",
        "time_optimal:TimeOptimalSolver",
        "shortest makespan of all n micro-batches, exact",
        TESSEL,
        "few micro-batches",
        search=True,
    ),
    _spec(
        "gpipe",
        "known.linear:GPipe",
        "all forward, then all backward",
        "Huang et al.: GPipe, NeurIPS 2019",
        "memory is plentiful",
    ),
    _spec(
        "1f1b",
        "known.linear:OneForwardOneBackward",
        "one forward, one backward",
        "Narayanan et al.: Memory-efficient pipeline-parallel DNN training (PipeDream-Flush), ICML "
        "2021",
        "the usual baseline",
    ),
    _spec(
        "1f1b-plus",
        "known.shared_blocks:OneForwardOneBackwardPlus",
        "1F1B on placements with blocks that devices share",
        TESSEL,
        "the baseline on the placement of a searched schedule (M, NN, K)",
    ),
    _spec(
        "interleaved-1f1b",
        "known.linear:InterleavedOneForwardOneBackward",
        "1F1B with several stages per device",
        "Narayanan et al.: Efficient large-scale language model training on GPU clusters, SC 2021",
        "fast links",
    ),
    _spec(
        "zb-h1",
        "known.linear:ZeroBubbleH1",
        "zero bubble with the memory of 1F1B",
        ZERO_BUBBLE,
        "backward split into inputs and weights",
    ),
    _spec(
        "zb-h2",
        "known.linear:ZeroBubbleH2",
        "zero bubble with twice the memory of 1F1B",
        ZERO_BUBBLE,
        "backward split, memory to spare",
    ),
    _spec(
        "zb-v",
        "known.v_shape:ZeroBubbleV",
        "zero bubble, stages in a V, the memory of 1F1B",
        ZERO_BUBBLE,
        "two stages per device",
    ),
    _spec(
        "v-half",
        "known.v_shape:VHalf",
        "stages in a V, half the memory of 1F1B",
        V_SCHEDULES,
        "memory is tight",
    ),
    _spec(
        "v-min",
        "known.v_shape:VMin",
        "stages in a V, a third of the memory of 1F1B",
        V_SCHEDULES,
        "memory is very tight",
    ),
    _spec(
        "chimera",
        "known.bidirectional:Chimera",
        "two pipelines in opposite directions",
        "Li, Hoefler: Chimera, SC 2021",
        "memory for two copies of the weights",
    ),
    _spec(
        "dualpipe",
        "known.bidirectional:DualPipe",
        "two directions with split backward",
        "DeepSeek-AI: DeepSeek-V3 technical report, 2024",
        "memory for two copies of the weights, expert parallelism",
    ),
    _spec(
        "hanayo",
        "known.linear:Hanayo",
        "stages in waves over the devices",
        "Liu et al.: Hanayo, SC 2023",
        "several stages per device without copies",
    ),
)


_HOMES = {
    "problem": "Block PipelineProblem",
    "joint": "JointResult choose_pipeline",
    "sources": "load_pipeline",
    "solution": "PipelineSchedule Repetend",
    "solve": "schedule schedule_result",
    "judge": "pipeline_violations",
}

__getattr__, _names = on_first_use(__name__, _HOMES)

__all__ = ["SPECS", *_names]
