"""`plan-stages`: optimal by brute force, above published planners under their own formula."""

from __future__ import annotations

import pytest
from small_plans import (
    TableCosts,
    best_step,
    check_optimum,
    compare_with_brute_force,
    every_plan,
    solve,
    step_problem,
)

from placeopt.model.errors import InputError
from placeopt.model.objective import objective_of
from placeopt.plans.layer_tables import read_layer_table
from placeopt.plans.network_table import read_network
from placeopt.plans.published_costs import PublishedStepCosts
from placeopt.plans.step_price import step_price
from placeopt.plans.step_problem import DevicePool, StepPlanProblem

GIB = 2**30


@pytest.mark.parametrize("seed", range(20))
def test_the_optimum_is_that_of_brute_force(seed):
    """Value and bound are the least step of all plans, on one and two kinds of devices, with and
    without recomputation.
    """
    kinds = 1 + seed % 2
    problem = step_problem(
        seed,
        kinds=kinds,
        layers=4 if kinds == 1 else 3 - seed % 4 // 3,
        devices=3 + seed % 2,
        recompute=kinds == 1 and seed % 3 == 0,
        mixed=seed % 4 == 3,
        data_degrees=(1, 2, 3),
    )
    check_optimum(problem)


@pytest.mark.parametrize("seed", range(5))
def test_closings_apart_are_searched_to_the_end(seed):
    """Where the longest all-reduce and the longest optimizer step are of unlike stages, tolerance 0
    ends with a proof.

    A range of periods was opened again and again until the time was over.
    """
    problem = step_problem(
        seed, kinds=2, layers=4, devices=3, apart=True, data_degrees=(1,), batch=7
    )
    check_optimum(problem, evaluations=2000)


class Closing(TableCosts):
    """What closes a step depends on the micro-batch and on recomputation."""

    slope = 1

    def sync_ticks(self, load, groups):
        """Longer, or shorter, of larger micro-batches."""
        return super().sync_ticks(load, groups) + 500 + self.slope * 200 * load.micro_batch

    def optimizer_ticks(self, load, group):
        """Shorter of recomputed stages."""
        return super().optimizer_ticks(load, group) + 50 * (not load.recompute)


class Shorter(Closing):
    """Less of larger micro-batches."""

    slope = -1


@pytest.mark.parametrize("costs", [Closing, Shorter])
@pytest.mark.parametrize("seed", range(3))
def test_costs_of_ones_own_may_close_by_micro_batch_and_recomputation(seed, costs):
    """Sums of the first micro-batch that was looked at were taken for those of all."""
    problem = step_problem(seed, layers=3, devices=3, recompute=True, data_degrees=(1, 2))
    check_optimum(problem.replace(costs=costs(seed, 3)))


class Recomputed(TableCosts):
    """Times of layers that are recomputed are known, and of no others."""

    def layer_ticks(self, kind, tensor, micro_batch, recompute, form=""):
        """Nothing without recomputation."""
        ticks = super().layer_ticks(kind, tensor, micro_batch, recompute, form)
        return ticks if recompute else None

    def weight_ticks(self, kind, tensor, micro_batch, form=""):
        """Nothing."""


@pytest.mark.parametrize("seed", range(3))
def test_layers_that_can_only_be_recomputed_are(seed):
    """It was proved that no plan fits."""
    problem = step_problem(seed, layers=3, devices=3, recompute=True, data_degrees=(1, 2))
    problem = problem.replace(costs=Recomputed(seed, 3))
    assert best_step(problem) is not None
    check_optimum(problem)


class Slow(TableCosts):
    """Layers that take long."""

    def layer_ticks(self, *of, **how):
        """A million times as long."""
        return 10**6 * super().layer_ticks(*of, **how)


def test_a_batch_whose_ticks_cannot_be_counted_is_refused():
    """It was said that no plan fits the memory."""
    problem = step_problem(3, layers=3, batch=10**15)
    assert solve(problem).status == "optimal"
    with pytest.raises(InputError, match="pass 2\\^62 ticks"):
        solve(problem.replace(costs=Slow(3, 3)))
    with pytest.raises(InputError, match="at most 1e15"):
        problem.replace(batch=10**16)
    assert solve(step_problem(3, layers=3, max_stages=10**12)).status == "optimal"


@pytest.mark.parametrize("seed", range(6))
def test_bounds_hold_for_every_plan(seed):
    """The area bound is not above any plan."""
    problem = step_problem(seed, kinds=2, layers=2, devices=3, data_degrees=(1, 2))
    bound = objective_of(problem).bounds(problem, 0.0).value
    assert all(step_price(problem, plan).step >= bound for plan in every_plan(problem))


@pytest.mark.parametrize("start", range(5))
def test_random_problems_are_those_of_brute_force(start):
    """Search, price and judge agree on tiny problems with some of everything; `results/plans` has
    more of them.
    """
    for seed in range(8 * start, 8 * start + 8):
        counts = compare_with_brute_force(seed)
        assert (counts["search_differs"], counts["judge_differs"]) == (0, 0)


def test_a_tolerance_leaves_a_true_bound():
    """A search that may end early still encloses the optimum."""
    problem = step_problem(5, layers=4)
    best, result = best_step(problem), solve(problem, tolerance=0.2)
    assert result.lower_bound <= best <= result.value
    assert result.gap <= 0.2


def test_the_order_of_the_devices_does_not_count():
    """Five replicas were shared 2 to 3 with the first kind, and not 3 to 2."""
    problem = step_problem(
        1, kinds=2, layers=2, mixed=True, data_degrees=(5,), batch=10, max_stages=1
    ).replace(pools=(DevicePool("a", 2, 2, 10**6), DevicePool("b", 3, 2, 10**6)))
    found = [solve(problem), solve(problem.replace(pools=problem.pools[::-1]))]
    assert found[0].value == found[1].value == best_step(problem)


@pytest.mark.parametrize("evaluations", [4, 12, 40])
def test_stages_of_two_kinds_begin_with_the_best_plan_without(evaluations):
    """It ends no worse than a search without them that has half of its budget."""
    for seed in range(6):
        problem = step_problem(seed, kinds=2, layers=5, devices=6, mixed=True, batch=24)
        without = solve(problem.replace(mixed=False), evaluations=evaluations // 2)
        mixed = solve(problem, evaluations=evaluations)
        if without.value is not None:
            assert mixed.value <= without.value


def published(data, *pools, batch=1024, model="OPT-350"):
    """Return a problem under the published formula."""
    folder = data / "training_plans" / "profiles"
    costs = PublishedStepCosts(
        read_layer_table(folder, model), read_network(folder / "network.json", raw=True)
    )
    return StepPlanProblem(costs, pools, batch)


@pytest.mark.jit
@pytest.mark.parametrize(("devices", "reference"), [(32, 0.130), (80, 0.272), (128, 0.418)])
def test_published_steps_are_reached_and_proved(data, devices, reference):
    """On like devices the best of the published planners and of enumeration is reached, and
    proved.
    """
    result = solve(published(data, DevicePool("A100-40", devices, 4, 40 * GIB)))
    assert result.status == "optimal"
    assert round(1 / result.seconds, 3) >= reference


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a100", "v100", "reference"), [(32, 96, 0.170), (80, 240, 0.361), (128, 384, 0.523)]
)
def test_published_steps_on_unlike_devices_are_beaten(data, a100, v100, reference):
    """On two kinds of devices the published planner is beaten by a tenth."""
    result = solve(
        published(
            data, DevicePool("A100-40", a100, 4, 40 * GIB), DevicePool("V100-16", v100, 4, 16 * GIB)
        ),
        tolerance=0.01,
    )
    assert 1 / result.seconds > 1.1 * reference
    assert result.gap <= 0.01
