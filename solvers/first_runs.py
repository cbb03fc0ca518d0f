"""Something small for every group of kernels to do, so that they are compiled before they are
needed.

A group of `placeopt.solving.compilation` is run by the function of its name, which calls every
kernel of the group that Python calls, with the very types of a real run, and as few kernels of
other groups as it can.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from placeopt.model.arrays import place_in
from placeopt.model.problem import PlacementProblem
from placeopt.model.result import Budget
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run


@cache
def small_problem(objective: str = "makespan") -> PlacementProblem:
    """Return one op that feeds five, which feed one, on two devices."""
    fork = [(0, v, 3) for v in range(1, 6)] + [(v, 6, 3) for v in range(1, 6)]
    return PlacementProblem.from_edges(
        [[v + 2] * 2 for v in range(7)], fork, name="warm-up", objective=objective
    )


def evaluator() -> None:
    """Evaluate a placement."""
    from placeopt.makespan.evaluate import warm_up

    warm_up()


def bounds() -> None:
    """Run the combinatorial bounds on the makespan."""
    from placeopt.makespan.bounds.analysis import COMBINATORIAL, Analysis

    Analysis(small_problem(), seconds=60.0).run_all(COMBINATORIAL, optional=False)


def ranks() -> None:
    """Rank the ops in every way."""
    from placeopt.solvers.heuristics import ranks as rank
    from placeopt.solvers.heuristics.context import Context

    context = Context(small_problem())
    context.upward_rank()
    device = np.zeros(context.problem.num_ops, np.int64)
    rank.clustered_rank(
        context.graph, context.mean_compute, context.mean_transfer, context.units.unit
    )
    rank.placed_rank(context.graph, context.costs, device)
    rank.downward_rank(context.graph, context.mean_compute, context.mean_transfer)
    rank.optimistic_cost(context.graph, context.costs, context.mean_transfer)
    rank.priority_list(context.graph, place_in(context.graph.order))


def lists() -> None:
    """Schedule in a given order."""
    from placeopt.solvers.heuristics.context import Context

    context = Context(small_problem())
    context.in_order(np.array(context.graph.order))


def lists_by_time() -> None:
    """Schedule by time, with favourite children, and by earliest start."""
    from placeopt.solvers.heuristics import time_kernels
    from placeopt.solvers.heuristics.context import Context

    context = Context(small_problem())
    graph, costs, units = context.graph, context.costs, context.units
    position, none = place_in(graph.order), np.full(len(graph.order), -1, np.int64)
    context.by_time(position)
    time_kernels.schedule_with_favourites(graph, costs, units, position, none)
    time_kernels.schedule_earliest_start(graph, costs, units, np.array(graph.order), position)


def clusterings() -> None:
    """Cluster in every way, and map clusters to devices."""
    from placeopt.solvers.heuristics import clustering, clustering_kernels as kernels
    from placeopt.solvers.heuristics.context import Context

    context = Context(small_problem())
    graph = clustering.unit_graph(context)
    kernels.internalise(
        graph, context.units.unit, clustering.op_edges(context, np.array(context.graph.order))
    )
    clustering.dsc_clusters(context)
    clustering.map_clusters(graph, kernels.zero_edges(graph, 1, 10.0), 10.0)


def walks() -> None:
    """Take a few steps of an annealing walk."""
    from placeopt.solvers.search.annealing_walks import AnnealingWalk
    from placeopt.solvers.search.search_space import SearchSpace

    problem = small_problem()
    order, random = np.array(problem.topological_order), np.full(3, 200, np.int64)
    AnnealingWalk(SearchSpace(problem), np.zeros(problem.num_ops, np.int64), order, random).run(
        2, 1.0, 1.0
    )


def populations() -> None:
    """Mutate, mend, draw and count the rows of a population."""
    from placeopt.solvers.search import population_kernels as kernels
    from placeopt.solvers.search.search_space import SearchSpace

    space, states = SearchSpace(small_problem()), np.full((2, 3), 200, np.int64)
    homes = np.zeros((2, 7), np.int64)
    kernels.fit(space.graph, homes, states)
    kernels.mutate(space.graph, homes, np.zeros((2, 7), np.int64), states, 1)
    half, rows = np.full((7, 2), 0.5), np.zeros((2, 7), np.int32)
    drawn = kernels.sample(np.arange(7), np.cumsum(half, axis=1), states, rows)
    kernels.frequencies(drawn, 2)
    kernels.surrogate_gradient(half, half, drawn, np.zeros(2), 0.2, 0.01)
    space.groups(2)


def period() -> None:
    """Evaluate a pipeline partition."""
    from placeopt.model.objective import objective_of

    for contiguity in ("chain", "convex"):
        problem = replace(small_problem("period"), contiguity=contiguity)
        objective_of(problem).evaluate_batch(problem, np.zeros((1, problem.num_ops), np.int32))


def period_dp() -> None:
    """Solve a small partition by dynamic programming."""
    _run("ideal-dp", "period")


def period_search() -> None:
    """Improve a small partition by local search."""
    from placeopt.solvers.exact.period_local_search import anneal_period
    from placeopt.solving.tracker import Tracker

    tracker: Tracker[Any] = Tracker("cp-sat", small_problem("period"), Budget(evaluations=1))
    next(anneal_period(tracker, tracker.rng()))


def period_columns() -> None:
    """Prove a bound by the sets of one device."""
    from placeopt.period.bounds.closing import Closing
    from placeopt.period.bounds.covering import cover_bound
    from placeopt.period.bounds.prices import column_bound
    from placeopt.period.contracted import contract

    column_bound(small_problem("period"), 0, None, 60.0)
    model = contract(small_problem("period"), contiguity="none")
    cover = cover_bound(model, time.perf_counter() + 60.0)
    if cover is not None:
        Closing(cover, lambda: model.largest_load, lambda device: None).raise_from(0, 60.0)


def policies() -> None:
    """Learn a little with every policy."""
    for name in ("dual-policy", "graph-parsing", "grouper-placer"):
        _run(name, evaluations=400)  # the seeds take the first hundreds
    _run("dual-policy", evaluations=100, teacher="")


def learned_lists() -> None:
    """Schedule by learned scores."""
    _run("learned-list")


def latency() -> None:
    """Evaluate and improve a small placement under the latency, and bound it by flows."""
    from placeopt.latency.bounds.flow import FlowBound
    from placeopt.solvers.search.search_space import SearchSpace

    SearchSpace(small_problem("latency")).groups(2)
    _run("cp-sat", "latency")
    flow = FlowBound(small_problem("latency"))
    rounds = iter((False, False, True))
    flow.run(lambda: 2**40, lambda: next(rounds, True))
    list(flow.labels(lambda: 2**40))


def replicas() -> None:
    """Plan a small pipeline over two clusters."""
    from placeopt.solvers.exact.split_ideals import best_split, split_model
    from placeopt.splits.problem import SplitProblem

    problem = SplitProblem(small_problem("period"), groups=2)
    best_split(problem, split_model(problem))


def sharding() -> None:
    """Bound, choose and prove five small nodes, of which one follows another."""
    from placeopt.sharding.bounds.exact_pass import survivors
    from placeopt.sharding.bounds.lagrangian import Dual
    from placeopt.sharding.bounds.squares import Squares
    from placeopt.sharding.bounds.stars import stars_of
    from placeopt.sharding.compact import condense, draft_of, unchanged
    from placeopt.sharding.contest_format import from_contest
    from placeopt.sharding.decode import decode, least_usage
    from placeopt.sharding.reduction import reduce
    from placeopt.solvers.sharding.tree_moves import roots_at
    from placeopt.solvers.sharding.tree_search import Guide, TreeSearch

    nodes = {"intervals": [[0, 2]] * 5, "costs": [[2, 1]] * 5, "usages": [[0, 1]] * 5}
    pairs = [[0, 1], [2, 1], [2, 3], [3, 0], [3, 4], [1, 4]]
    edges = {"nodes": pairs, "costs": [[1, 2, 3, 1]] * 5 + [[1, 10**18, 10**18, 2]]}
    tiny = from_contest({"problem": {"nodes": nodes, "edges": edges, "usage_limit": 3}})
    whole = condense(*draft_of(tiny))
    reduce(whole, 10**6)
    dual = Dual(whole.compact)
    dual.begin_at(dual.state(), unchanged(whole.compact))
    for _ in range(12):
        dual.step()
    stars_of(dual.compact, np.ones(len(dual.capacity)), dual.clamp)
    dual.step()
    choice = decode(dual.factors, whole.compact, dual.width)
    search = TreeSearch(whole.compact, choice, np.random.default_rng(0))
    search.guide(Guide(dual.prices, choice, choice, unchanged(whole.compact), dual.state()))
    for _ in range(20):
        search.round(5)
    roots_at(search.factors, whole.compact, whole.compact.capacity < least_usage(whole.compact)[0])
    dual.aim(search.best_cost + 1)
    found, witness, clamped = dual.certify()
    survivors(clamped, witness, found, search.best_cost + 1)
    Squares(whole.compact, search.best_cost + 1, dual.prices).prove(search.best_cost + 1)


def plan_ideals() -> None:
    """Plan one layer."""
    from placeopt.plans.sample_problem import SamplePlanProblem
    from placeopt.solvers.planning.ideal_planner import all_plans

    one, edge = np.ones((1, 2, 1), np.int64), np.zeros((1, 0), np.int64)
    problem = SamplePlanProblem(
        ("layer",),
        (1,),
        one,
        one[:, 0],
        one,
        one,
        edge[0],
        edge[0],
        edge,
        edge,
        devices=1,
        samples=1,
        capacity=2,
    )
    plans = all_plans(problem, 10)
    if plans is not None:
        plans.within(plans.most)


def plan_stages() -> None:
    """Look for one period."""
    from placeopt.solvers.planning.step_search import StepArrays, least_stage_period, search_period

    one, pair = np.ones((1, 2, 2), np.int64), np.ones(2, np.int64)
    link, price = np.zeros((1, 1, 3, 2, 2), np.int64), np.ones((1, 1), np.int64)
    last, pool, fill = np.ones((1, 2), np.int64), np.ones(1, np.int64), np.zeros(2, np.int64)
    least_stage_period((one, one, price), price, pool, 0, 5)
    behind = link[:, :, :2].copy()
    arrays = StepArrays(
        one,
        one,
        last,
        one,
        one,
        one,
        price,
        link,
        behind,
        fill,
        0,
        0,
        pool,
        price,
        pair,
        1,
        1,
        4,
        1,
        0,
    )
    search_period(arrays, 0, 5, 9)


def streams() -> None:
    """Run a stream of four jobs of one type."""
    from placeopt.streams import (
        DegreePolicy,
        JobProfile,
        JobTable,
        LookaheadConfig,
        RampTopology,
        StreamSpec,
        simulate,
    )

    ones = np.ones(3)
    job = JobProfile("job", ones, ones, ones, np.array([[0, 1], [1, 2]]), np.arange(3))
    types = JobTable((job,), RampTopology(1, 1, 2), LookaheadConfig())
    simulate(
        StreamSpec(jobs=4).draw(types, 0),
        DegreePolicy("constant-degree", degree=1),
        record_servers=True,
    )


def pipelines() -> None:
    """Call every kernel of the `pipelines` group."""
    from placeopt.schedules.solve import warm_up

    warm_up()


def _run(solver: str, objective: str = "makespan", evaluations: int = 10, **options: Any) -> None:
    """Run a solver; by evaluations alone: with a clock it would depend on the machine what is
    called.
    """
    run(small_problem(objective), make_solver(solver, **options), Budget(evaluations=evaluations))
