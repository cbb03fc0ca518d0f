"""Small planning problems for tests of every solver, and brute force over the plans of a step."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from placeopt.model.result import Budget
from placeopt.plans.judge import judge_step_plan, judged_step
from placeopt.plans.plan import FORMS, PlanStage, ReplicaGroup, TrainingPlan
from placeopt.plans.sample_problem import SamplePlanProblem
from placeopt.plans.step_costs import LinkShares
from placeopt.plans.step_price import step_price
from placeopt.plans.step_problem import DevicePool, StepPlanProblem, shared_counts
from placeopt.solving.registry import make_solver
from placeopt.solving.run import run

SCHEDULES = ("1f1b", "interleaved-1f1b:2", "zb-h1", "zb-h2")
"""All schedules but repetends, interleaved with two stages per device."""


def sample_chain(layers=5, devices=4, capacity=60):
    """Return a chain of layers with two tensor degrees and recomputation."""
    rng = np.random.default_rng(layers)
    work = rng.integers(10, 40, (2, 2, layers))
    work[:, 1] = work[:, 0] + 9
    kept = rng.integers(4, 9, (2, 2, layers))
    kept[:, 1] = 1
    edges = layers - 1
    return SamplePlanProblem(
        layers=tuple(f"l{i}" for i in range(layers)),
        tensor_degrees=(1, 2),
        work=work,
        sync=rng.integers(0, 3, (2, layers)),
        kept=kept,
        fixed=rng.integers(0, 9, (2, 2, layers)),
        source=np.arange(edges),
        target=np.arange(edges) + 1,
        sent=np.full((2, edges), 2),
        received=np.full((2, edges), 2),
        devices=devices,
        samples=12,
        capacity=capacity,
        name=f"chain-{layers}",
        tick_seconds=1e-3,
    )


@functools.cache
def _drawn(seed, key, low, high, size):
    numbers = [seed, *(sum(map(ord, part)) if isinstance(part, str) else int(part) for part in key)]
    return np.random.default_rng(numbers).integers(low, high, size)


@dataclass(frozen=True, eq=False)
class TableCosts:
    """A cost model of random numbers, with shares of transfers that depend on the position."""

    seed: int
    num_layers: int = 5
    closing_apart: bool = False
    name: str = "random"
    spans: None = None
    sources: tuple[tuple[str, str], ...] = (("everything", "drawn at random"),)
    splits_backward: bool = True
    shards_states: bool = True

    @property
    def layer_types(self):
        """All layers differ."""
        return tuple(range(self.num_layers))

    def draw(self, *key, low=0, high=20, size=None):
        """Return numbers that depend on the key alone."""
        return _drawn(self.seed, key, low, high, size)

    def micro_batches(self, kinds):
        """Two sizes."""
        return (1, 2)

    def degrees(self, kind):
        """Two degrees."""
        return (1, 2)

    def forms(self, kind, tensor):
        """Pairs of devices split layers in every way."""
        return ("", *FORMS) if tensor > 1 else ("",)

    def layer_ticks(self, kind, tensor, micro_batch, recompute, form=""):
        """Random, smaller on more devices and for smaller micro-batches, of each way to split for
        itself.
        """
        low = {"": 20, "sequence": 18, "expert": 12}[form]
        ticks = (
            self.draw(kind, 7, form, low=low, high=60, size=self.num_layers) * micro_batch // tensor
        )
        return ticks * 4 // 3 if recompute else ticks

    def weight_ticks(self, kind, tensor, micro_batch, form=""):
        """A random part of each layer, below a third."""
        part = self.draw(kind, 11, low=0, high=34, size=self.num_layers)
        return self.layer_ticks(kind, tensor, micro_batch, False, form) * part // 100

    def send_ticks(self, cut, micro_batch, sender, receiver):
        """Random per cut and pair."""
        return tuple(
            int(x) * micro_batch for x in self.draw(cut, *sender, *receiver, high=9, size=2)
        )

    def link_shares(self, forward, backward, first, last, stages):
        """Shares that depend on the position as they may."""
        before = (2 if first and stages > 3 else 1) * forward
        return LinkShares(before, forward, (2 if last else 1) * backward, backward + forward)

    def optimizer_ticks(self, load, group):
        """By the number of layers, shared out with sharded states."""
        return 30 * (load.last - load.first) // group.tensor // load.shards

    def sync_ticks(self, load, groups):
        """By the number of layers and replicas."""
        count = sum(group.count for group in groups)
        each = (9 if load.shards > 1 else 7) + (3 if groups[0].form == "expert" else 0)
        return (
            (count - 1) * each * (load.last - load.first) // min(group.tensor for group in groups)
        )

    def memory_bytes(self, load, group):
        """Weights, states, and activations in flight, of all stages of the device."""
        kept = self.draw(5, low=3, high=9, size=self.num_layers)[load.first : load.last].sum()
        kept = kept // 2 if load.recompute else kept
        fixed = (4 + 6 / load.shards + (5 if group.form == "expert" else 0)) * (
            load.last - load.first
        )
        kept = kept * 3 // 4 if group.form else kept
        return int(load.chunks * (fixed + kept * load.flight * load.micro_batch)) // group.tensor


@dataclass(frozen=True, eq=False)
class ApartCosts(TableCosts):
    """The longest all-reduce and the longest optimizer step add up, and may be of unlike stages."""

    closing_apart: bool = True

    def optimizer_ticks(self, load, group):
        """By the first layer, whatever the stage holds."""
        return (
            int(self.draw(group.kind, 17, high=200, size=self.num_layers)[load.first])
            // load.shards
        )

    def sync_ticks(self, load, groups):
        """By the first layer."""
        return int(self.draw(groups[0].kind, 19, high=200, size=self.num_layers)[load.first])


def step_problem(seed, kinds=1, devices=4, layers=5, apart=False, **fields):
    """Return a small problem about the time of a step."""
    costs = (ApartCosts if apart else TableCosts)(seed, layers)
    rng = np.random.default_rng(seed)
    pools = tuple(
        DevicePool(kind, devices, 2, int(rng.integers(25, 90))) for kind in ("a", "b", "c")[:kinds]
    )
    settings = {"batch": 6, "name": f"step-{seed}", **fields}
    return StepPlanProblem(costs, pools, **settings)


def every_plan(problem):
    """Yield every plan of a problem that the judge accepts, by enumeration of all there are."""
    layers, kinds = problem.costs.num_layers, [pool.kind for pool in problem.pools]
    for data in problem.data_degrees:
        choices = [
            ((ReplicaGroup(kind, tensor, data, form),), again)
            for kind in kinds
            for tensor in (1, 2)
            for form in ("", *problem.forms)
            for again in ((False, True) if problem.recompute else (False,))
        ]
        if problem.mixed:
            shares = set(shared_counts(data)) - {0, data}
            choices += [
                ((ReplicaGroup("a", t, x), ReplicaGroup("b", u, data - x)), False)
                for t in (1, 2)
                for u in (1, 2)
                for x in shares
            ]
        for count in range(1, min(problem.max_stages, layers) + 1):
            for cuts in combinations(range(1, layers), count - 1):
                ends = [0, *cuts, layers]
                for chosen in product(choices, repeat=count):
                    stages = tuple(
                        PlanStage(tuple(range(a, b)), groups, tuple(range(a, b)) if again else ())
                        for a, b, (groups, again) in zip(ends, ends[1:], chosen, strict=False)
                    )
                    for size, schedule, sharded in product(
                        problem.micro_batches, problem.schedules, (False, True)
                    ):
                        for kept in every_kept(count) if schedule == "repetend" else [()]:
                            plan = TrainingPlan(stages, size, schedule, sharded, kept)
                            if (data > 1 or not sharded) and not judge_step_plan(problem, plan):
                                yield plan


def every_kept(stages):
    """Return all numbers of micro-batches that stages may keep, the last one at most two, each
    before it at most two more.
    """
    found = [(1,), (2,)]
    for _ in range(stages - 1):
        found = [(first + more, first, *rest) for first, *rest in found for more in range(3)]
    return found


def best_step(problem):
    """Return the least time of a step, None if nothing fits."""
    return min((step_price(problem, plan).step for plan in every_plan(problem)), default=None)


def solve(problem, seconds=60.0, evaluations=None, **options):
    """Run the planner."""
    return run(problem, make_solver("plan-stages", "plan", **options), Budget(seconds, evaluations))


def check_optimum(problem, evaluations=None):
    """The planner's value and bound are the best step of brute force; without any plan it says
    infeasible.
    """
    best, result = best_step(problem), solve(problem, evaluations=evaluations)
    if best is None:
        assert result.status == "infeasible"
    else:
        assert (result.value, result.lower_bound) == (best, best)


def small_plan_problems(objective):
    """Return small problems about plans with an objective."""
    if objective == "step-time":
        wide = {"schedules": SCHEDULES, "sharded": True, "recompute": True}
        return (step_problem(1), step_problem(2, kinds=2, layers=4), step_problem(3, **wide))
    return (sample_chain(), sample_chain(6, 5, 45))


def random_step_problem(seed):
    """Return a tiny problem with some of everything: kinds, degrees, forms, schedules, sharding,
    recomputation, tight memory.
    """
    rng, every = np.random.default_rng(seed), (*SCHEDULES, "repetend")
    kinds, layers = 1 + int(rng.random() < 0.4), int(rng.integers(2, 4))
    small = layers * kinds < 6
    return step_problem(
        seed,
        kinds=kinds,
        layers=layers,
        devices=int(rng.integers(2, 4)),
        apart=bool(rng.random() < 0.25),
        schedules=tuple(
            every[i] for i in sorted(rng.permutation(len(every))[: int(rng.integers(1, 4))])
        ),
        sharded=bool(rng.random() < 0.4),
        recompute=bool(small and rng.random() < 0.4),
        mixed=bool(kinds * layers == 4 and rng.random() < 0.5),
        forms=FORMS[: int(rng.integers(0, 3))] if small else (),
        data_degrees=(1, 2) if rng.random() < 0.6 else (1,),
        batch=int(rng.integers(2, 9)),
        micro_batches=(1,) if rng.random() < 0.5 else (1, 2),
    )


def compare_with_brute_force(seed):
    """Return counts about one random problem: plans, differences of the search and of the judge,
    and what the best plan has.
    """
    problem = random_step_problem(seed)
    plans = list(every_plan(problem))
    prices = [step_price(problem, plan).step for plan in plans]
    best, result = min(prices, default=None), solve(problem)
    agree = (
        result.status == "infeasible"
        if best is None
        else (result.value, result.lower_bound) == (best, best)
    )
    found = result.solution
    groups = [] if found is None else [group for stage in found.stages for group in stage.replicas]
    return {
        "problems": 1,
        "plans": len(plans),
        "search_differs": int(not agree),
        "judge_differs": sum(
            judged_step(problem, plan) != price for plan, price in zip(plans, prices, strict=True)
        ),
        "nothing_fits": int(best is None),
        "repetend": int(found is not None and bool(found.kept)),
        "interleaved_or_zero_bubble": int(
            found is not None and found.schedule not in ("1f1b", "repetend")
        ),
        "sharded": int(found is not None and found.sharded),
        "split_otherwise": int(any(group.form for group in groups)),
        "two_kinds": int(len({group.kind for group in groups}) > 1),
        "several_stages": int(found is not None and len(found.stages) > 1),
    }
