"""The repetend search: proved minimum periods, latency, completion."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from random_pipelines import packed_blocks, random_blocks

import placeopt as po
from placeopt.model.cp_sat import cp_solver
from placeopt.model.errors import InputError
from placeopt.model.random_bits import random_states
from placeopt.model.result import Budget
from placeopt.schedules import period_search, schedule, schedule_result
from placeopt.schedules.bounds import best_bound, makespan_bound, period_bounds
from placeopt.schedules.completion import complete
from placeopt.schedules.cyclic import CyclicModel, entries, mirror_images
from placeopt.schedules.device_tree import DeviceTree
from placeopt.schedules.evaluate import makespan
from placeopt.schedules.judge import pattern_violations, pipeline_violations
from placeopt.schedules.period_search import PeriodSearch, greedy_pattern, placed_pattern
from placeopt.schedules.period_walk import tighten, walk
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.solving.tracker import Tracker

PERIODS = {
    "V": {2: 8, 3: 8, 4: 4, 5: 4, 6: 4},
    "X": {2: 13, 3: 9, 4: 8, 5: 8, 6: 8},
    "K": {2: 8, 3: 6, 4: 6, 5: 6, 6: 6},
    "M": {2: 10, 3: 10, 4: 7, 5: 6, 6: 6},
    "NN": {2: 12, 3: 12, 4: 9, 5: 9, 6: 8},
}
"""Minimum period of one micro-batch per repetend, training, 4 devices, by capacity."""


@pytest.mark.parametrize(
    ("name", "capacity"), [(name, c) for name, row in PERIODS.items() for c in row]
)
def test_proves_the_minimum_period_of_every_shape_and_capacity(name: str, capacity: int):
    """Every cell of the table is found and proved for K = 1, and the schedule is valid within its
    memory.
    """
    problem = po.load_pipeline(f"shape:{name}?devices=4&memory={capacity}")
    result = schedule_result(problem, num_workers=1, micro_batches=6, latency_seconds=0.2)
    found = result.solution
    assert result.value == found.period == found.size_bound == PERIODS[name][capacity]
    assert found.period_status == "optimal for K = 1"
    assert result.lower_bound == best_bound(problem)[0]
    assert result.status == ("optimal" if result.value == result.lower_bound else "feasible")
    assert max(found.peak_memory) <= capacity
    assert pipeline_violations(problem, found.start) == []
    assert pipeline_violations(problem, found.repetend.unroll(12)) == []


@pytest.mark.parametrize(
    ("source", "period"),
    [
        ("shape:V?devices=6&memory=3", 8),
        ("shape:V?devices=6&memory=5", 8),
        ("shape:V?devices=6&memory=6", 4),
        ("shape:X?devices=6&memory=5", 8),
        ("shape:K?devices=6&memory=2", 11),
        ("shape:K?devices=6&memory=3", 8),
        ("shape:K?devices=6&memory=4", 7),
        ("shape:M?devices=6&memory=3", 11),
        ("shape:M?devices=6&memory=8", 6),
        ("shape:NN?devices=6&memory=6", 10),
        ("shape:NN?devices=6&memory=8", 8),
        ("shape:V?devices=8&memory=3", 12),
        ("shape:V?devices=8&memory=5", 8),
        ("shape:V?devices=8&memory=8", 4),
        ("shape:X?devices=8&memory=8", 8),
        ("shape:K?devices=8&memory=5", 7),
        ("shape:M?devices=8&memory=10", 7),
        ("shape:NN?devices=8&memory=12", 8),
    ],
)
def test_proves_periods_on_six_and_eight_devices(source: str, period: int):
    """D = 6 and 8 are proved too."""
    found = schedule(po.load_pipeline(source), num_workers=1, micro_batches=4, latency_seconds=0)
    assert found.period == found.size_bound == period


def test_several_micro_batches_per_repetend_beat_one_under_tight_memory():
    """V with capacity 3: 8 ticks for K = 1, 16/3 for K = 3, which no K can beat."""
    problem = po.load_pipeline("shape:V?devices=4&memory=3")
    assert schedule(problem, num_workers=1, latency_seconds=0).period == 8
    found = schedule(problem, size=3, num_workers=1, micro_batches=9, latency_seconds=0.2)
    assert found.period == found.size_bound == Fraction(16, 3)
    assert found.period_status == "optimal for K = 3"
    assert period_bounds(problem)["residence"] == Fraction(16, 3)
    assert pipeline_violations(problem, found.repetend.unroll(13)) == []
    assert schedule(problem, size=0, num_workers=1, latency_seconds=0).period == Fraction(16, 3)


@pytest.mark.parametrize(
    ("name", "capacity", "most"),
    [
        ("V", 4, 524),
        ("X", 4, 1033),
        ("K", 3, 772),
        ("M", 5, 780),
        ("NN", 6, 1036),
        ("NN", None, 1036),
        ("X", None, 1033),
    ],
)
def test_makespan_of_128_micro_batches(name: str, capacity: int | None, most: int):
    """The completed schedule of 128 micro-batches is as short as the best known one."""
    problem = po.load_pipeline(f"shape:{name}?devices=4", memory=capacity, micro_batches=128)
    found = schedule(problem, num_workers=1)
    assert found.makespan <= most
    assert found.makespan >= makespan_bound(problem, 128)
    assert pipeline_violations(problem, found.start) == []


def test_infeasible_period_is_proved_and_monotone():
    """X with capacity 3 has no pattern of 8 ticks, and one of 9 and of 10."""
    problem = po.load_pipeline("shape:X?devices=4&memory=3")
    statuses = [
        CyclicModel(problem, period).solve(60, num_workers=1, seed=0)[0] for period in (8, 9, 10)
    ]
    assert statuses == ["infeasible", "optimal", "optimal"]


def in_longer_units(problem: PipelineProblem, unit: int) -> PipelineProblem:
    """Return the problem with all times so many times as long."""
    return replace(problem, span=problem.span * unit, lag=problem.lag * unit)


@given(st.integers(0, 10**6), st.sampled_from([2, 6, 1000, 10**6]))
@settings(max_examples=6, deadline=None)
def test_longer_units_decide_whole_periods_alike(seed: int, unit: int):
    """A period of whole units is feasible if and only if it was in ticks, by the model and by the
    tree; the least one lies within a unit of the old one.
    """
    problem = random_blocks(seed)
    schedule_found = po.solve(problem, num_workers=1, evaluations=12).solution
    assume(schedule_found is not None)  # no schedule of some fits into memory
    least = schedule_found.repetend.period
    scaled = in_longer_units(problem, unit)
    for period in (least - 1, least, least + 1):
        status, pattern = CyclicModel(scaled, period * unit).solve(10, num_workers=1, seed=0)
        assert status == ("infeasible" if period < least else "optimal")
        assert pattern is None or not pattern_violations(scaled, pattern.period, pattern.start)
    found = po.solve(scaled, num_workers=1, evaluations=4).solution.repetend
    assert (least - 1) * unit < found.period <= least * unit
    assert pattern_violations(scaled, found.period, found.start) == []


def test_a_limit_of_evaluations_limits_the_work(monkeypatch: pytest.MonkeyPatch):
    """Nothing decides a period: later rounds, of four times the effort each, count as much more."""
    efforts: list[float] = []

    def undecided(self: CyclicModel, *, effort: float, **_: object) -> tuple[str, None]:
        efforts.append(effort)
        return "unknown", None

    monkeypatch.setattr(CyclicModel, "solve", undecided)
    monkeypatch.setattr(PeriodSearch, "_by_device_tree", lambda _, period, __: (period, None))
    monkeypatch.setattr(PeriodSearch, "_walk", lambda *_: None)
    po.solve(po.load_pipeline("shape:V?devices=4&memory=3"), num_workers=1, evaluations=40)
    assert len(set(efforts)) > 1
    assert sum(efforts) <= 40 * efforts[0]


def test_a_long_unit_costs_no_more_work_than_a_tick():
    """A wave of uneven blocks: CP-SAT did not find this pattern in 5 s in units of 1000 ticks."""
    span = np.array([2, 2, 2, 2, 2, 4, 3, 4, 7, 7, 8, 8, 7, 7, 7, 8])
    wave = replace(po.load_pipeline("shape:wave?devices=4&memory=4"), span=1000 * span)
    model = CyclicModel(wave, 33_000)
    assert model.solve(60, num_workers=1, effort=0.2, seed=0)[0] == "optimal"


def test_tighten_shortens_a_loose_pattern_without_changing_orders():
    """A pattern found at a long period is stretched; tightening gives a valid pattern no longer
    than before.
    """
    problem = po.load_pipeline("shape:V?devices=4&memory=4&lag=2")
    for period in (9, 14, 20):
        _, pattern = CyclicModel(problem, period).solve(10, num_workers=1, seed=1)
        tight = tighten(problem, pattern)
        assert tight.period <= period
        assert pipeline_violations(problem, tight.unroll(15)) == []


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineProblem:
    """Draw a small chain of forward and backward blocks with lags on a few devices."""
    devices = draw(st.integers(1, 3))
    stages = draw(st.integers(1, 3))
    place = [draw(st.integers(0, devices - 1)) for _ in range(stages)]
    blocks: list[Block] = []
    for s in range(stages):
        wide = devices > 1 and draw(st.integers(0, 4)) == 0
        where = tuple(range(devices)) if wide else (place[s],)
        after = ((f"F{s - 1}", draw(st.integers(0, 2))),) if s else ()
        blocks.append(Block(f"F{s}", "F", where, draw(st.integers(1, 3)), (1,) * len(where), after))
    for s in reversed(range(stages)):
        before = f"F{s}" if s == stages - 1 else f"B{s + 1}"
        where = blocks[s].devices
        after = ((before, draw(st.integers(0, 2))),)
        blocks.append(
            Block(f"B{s}", "B", where, draw(st.integers(1, 4)), (-1,) * len(where), after)
        )
    capacity = draw(st.integers(stages, stages + 2))
    return PipelineProblem.from_blocks(
        "drawn", blocks, [f"d{i}" for i in range(devices)], capacity=capacity
    )


@settings(max_examples=25, deadline=None)
@given(pipelines())
def test_repetend_agrees_with_tessels_enumeration(problem: PipelineProblem):
    """Global search and exhaustive enumeration of index assignments find the same least period."""
    ours = schedule(problem, num_workers=1, seconds=20)
    theirs = schedule(problem, "tessel", seconds=20)
    assert ours.period == ours.size_bound
    assert ours.period <= theirs.period
    if best_bound(problem)[0].denominator == 1:
        # The enumeration is exhaustive up to as many micro-batches as there are blocks.
        assert ours.period == theirs.period
    assert pipeline_violations(problem, ours.start) == []
    assert pipeline_violations(problem, theirs.start) == []
    assert ours.period >= best_bound(problem)[0]


@settings(max_examples=60, deadline=None)
@given(pipelines(), st.integers(1, 4))
def test_bounds_hold_with_blocks_on_all_devices(problem: PipelineProblem, n: int):
    """No bound passes the exact makespan of n micro-batches, nor the least period of one or two per
    repetend.
    """
    exact = schedule(problem.replace(micro_batches=n), "time-optimal", num_workers=1, seconds=10)
    assert makespan_bound(problem, n) <= exact.makespan
    for size in (1, 2):
        assert (
            best_bound(problem)[0]
            <= schedule(problem, num_workers=1, size=size, seconds=5, latency_seconds=0).period
        )


@pytest.mark.parametrize(
    ("name", "per", "fill"), [("V", 4, 12), ("K", 6, 4), ("M", 6, 12), ("NN", 8, 12)]
)
def test_makespans_of_n_micro_batches_are_proved(name: str, per: int, fill: int):
    """The completed repetend takes n periods and the way through the pipeline, and the bound says
    that nothing is shorter.
    """
    for n in (8, 32, 128):
        found = schedule(
            po.load_pipeline(f"shape:{name}?devices=4", micro_batches=n), num_workers=1
        )
        assert found.makespan == found.makespan_bound == per * n + fill


def test_placed_patterns_keep_every_rule():
    """What is placed block after block is valid, and some period that is long enough is found."""
    found = 0
    for seed in range(60):
        problem = random_blocks(seed)
        longest = int(problem.span.sum() + problem.lag.sum())
        low = int(problem.work.max())
        yes_no = (True, False)
        for period, *how in itertools.product(range(low, longest + 1), yes_no, yes_no):
            pattern = placed_pattern(problem, period, wide_first=how[0], flush=how[1])
            if pattern is not None:
                assert pattern_violations(problem, period, pattern.start) == [], seed
                found += 1
    assert found > 800


def test_no_room_beside_what_takes_the_whole_period():
    """A device that one block keeps busy has no room for another at that period."""
    blocks = [Block("F", "F", (0,), 4, (0,)), Block("B", "B", (0,), 1, (0,), (("F", 0),))]
    problem = PipelineProblem.from_blocks("full", blocks, ["d"])
    for flush in (True, False):
        assert placed_pattern(problem, 4, wide_first=True, flush=flush) is None
        assert placed_pattern(problem, 5, wide_first=True, flush=flush) is not None


def test_flush_blocks_leave_no_holes():
    """Three blocks that fill a device have room at its work where each is next to another."""
    blocks = chain([("A", (0,), 2), ("X", (1,), 1), ("B", (0,), 3), ("C", (0,), 3)])
    problem = PipelineProblem.from_blocks("holes", blocks, ["d0", "d1"])
    assert placed_pattern(problem, 8, wide_first=False, flush=False) is None
    assert placed_pattern(problem, 8, wide_first=False, flush=True) is not None


def test_blocks_on_several_devices_lie_side_by_side():
    """What runs on all devices leaves those one long room, not two short ones."""
    blocks = chain([("T", (0, 1), 2), ("A", (0,), 3), ("U", (0, 1), 2), ("B", (1,), 4)])
    problem = PipelineProblem.from_blocks("wide", blocks, ["d0", "d1"])
    assert placed_pattern(problem, 8, wide_first=False, flush=False) is None
    assert placed_pattern(problem, 8, wide_first=True, flush=False) is not None


def chain(blocks: list[tuple[str, tuple[int, ...], int]]) -> list[Block]:
    """Return blocks of these names, devices and spans, each after the one before."""
    names = [None, *(name for name, _, _ in blocks)]
    return [
        Block(name, "F", devices, span, (), ((before, 0),) if before else ())
        for before, (name, devices, span) in zip(names, blocks, strict=False)
    ]


def two_stages_each(devices: int) -> PipelineProblem:
    """Return a chain that goes over the devices twice, and back."""
    stages = range(2 * devices)
    blocks = [
        Block(f"F{s}", "F", (s % devices,), 2 + s % 3, (1,), ((f"F{s - 1}", 1),) if s else (), s)
        for s in stages
    ]
    for s in reversed(stages):
        after = [(f"F{s}", 0)] + ([(f"B{s + 1}", 1)] if s + 1 < len(stages) else [])
        blocks.append(Block(f"B{s}", "B", (s % devices,), 5, (-1,), tuple(after), s))
    names = [f"d{d}" for d in range(devices)]
    return PipelineProblem.from_blocks("long", blocks, names, capacity=60)


def test_long_pipelines_overlap_micro_batches_though_no_period_is_decided(
    monkeypatch: pytest.MonkeyPatch,
):
    """Two stages per device and a memory limit: without any answer in time the micro-batches do not
    run one after another.
    """
    problem = two_stages_each(32)
    monkeypatch.setattr(CyclicModel, "solve", lambda *_, **__: ("unknown", None))
    result = schedule_result(problem, seconds=2)
    assert result.solution.period < 2 * result.lower_bound
    assert max(result.solution.peak_memory) <= 60


def test_completion_has_time_though_no_period_is_decided(monkeypatch: pytest.MonkeyPatch):
    """Where the search for a period takes all its time, greedy schedules are tried all the same."""
    lags = [0, *[300] * 23]
    blocks = [
        Block(f"F{s}", "F", (s,), 100 + s, (1,), ((f"F{s - 1}", lags[s]),) if s else (), s)
        for s in range(24)
    ]
    for s in reversed(range(24)):
        after = ((f"B{s + 1}", 300),) if s < 23 else ((f"F{s}", 0),)
        blocks.append(Block(f"B{s}", "B", (s,), 200 + s, (-1,), after, s))
    names = [f"d{d}" for d in range(24)]
    problem = PipelineProblem.from_blocks("lags", blocks, names, capacity=20, micro_batches=48)
    monkeypatch.setattr(CyclicModel, "solve", lambda *_, **__: ("unknown", None))
    monkeypatch.setattr(DeviceTree, "decide", lambda *_, **__: None)
    found = schedule(problem, seconds=0.4)
    assert found.makespan <= makespan(problem, complete(problem, found.repetend, 10.0))


def test_walks_keep_every_rule_and_shorten_patterns():
    """What a walk ends with is valid, no longer than what it began with, and never below what is
    proved.
    """
    problem = two_stages_each(6)
    state = random_states(np.random.default_rng(0), 1)[0]
    assert (
        walk(
            problem, placed_pattern(problem, 30, wide_first=False, flush=False), state, 0, 500_000
        ).period
        == 18
    )
    shorter = 0
    for seed in range(60):
        problem, size = random_blocks(seed), 1 + seed % 2
        pattern = greedy_pattern(problem, size)
        if pattern is None:
            continue
        state = random_states(np.random.default_rng(seed), 1)[0]
        found = walk(problem, pattern, state, 0, 10_000)
        assert pattern_violations(problem, found.period, found.start) == []
        tight = tighten(problem, pattern)
        assert best_bound(problem)[0] * size <= found.period <= tight.period <= pattern.period
        shorter += found.period < tight.period
    assert shorter > 20


@pytest.mark.jit
def test_walks_let_wide_blocks_pass_each_other():
    """Blocks on several devices fill a period to the last tick: walks of five million arcs come
    near it, however much longer the one is that they begin with.
    """
    ratio = []
    for seed in range(4):
        problem, period = packed_blocks(seed)
        state = random_states(np.random.default_rng(seed), 1)[0]
        found = walk(problem, greedy_pattern(problem, 1), state, period, 5_000_000)
        assert pattern_violations(problem, found.period, found.start) == []
        ratio.append(found.period / period)
    assert np.mean(ratio) < 1.2, ratio


def test_more_micro_batches_per_repetend_are_never_worse(monkeypatch: pytest.MonkeyPatch):
    """A larger pattern starts as the smaller one repeated: even if nothing is decided it is as
    good.
    """
    problem = po.load_pipeline("shape:NN?devices=4&memory=4")
    smaller = schedule(problem, num_workers=1).repetend
    monkeypatch.setattr(CyclicModel, "solve", lambda *_, **__: ("unknown", None))
    monkeypatch.setattr(DeviceTree, "decide", lambda *_, **__: None)
    monkeypatch.setattr(period_search, "walk", lambda problem, pattern, *_: pattern)
    for size in (2, 3):
        alone, helped = (
            PeriodSearch(problem, size, 1, Tracker("repetend", problem, Budget(0.1)), 1.0, 0.0)
            for _ in range(2)
        )
        alone.run([None])
        helped.run([None, smaller])
        assert helped.value == smaller.per_micro_batch < alone.value
        assert pattern_violations(problem, helped.pattern.period, helped.pattern.start) == []


@pytest.mark.parametrize("period", [4, 5, 6, 7, 9])
def test_least_latency_at_a_period(period: int):
    """The option `period` finds the least latency at that rate: here against all starts of V on two
    devices.
    """
    problem = po.load_pipeline("shape:V?devices=2&memory=2")
    result = schedule_result(problem, period=period, num_workers=1)
    assert "proved least" in result.message
    assert result.solution.period == period
    assert pipeline_violations(problem, result.solution.repetend.unroll(9)) == []

    def free(a: int, b: int) -> bool:
        """Whether a block of 1 tick at a and one of 3 at b never run at once on a device."""
        return not {a % period} & {(b + t) % period for t in range(3)}

    ends = [
        b0 + 3
        for f1, b1, b0 in itertools.product(range(1, 12), range(2, 20), range(5, 24))
        if f1 >= 1
        and b1 >= f1 + 1
        and b0 >= b1 + 3
        and free(0, b0)
        and free(f1, b1)
        and b0 // period + 1 <= 2
        and (b1 - f1) // period + 1 <= 2
    ]
    assert result.solution.repetend.latency(problem.span) == min(ends)


def test_least_latency_of_unconnected_parts():
    """The short part runs while the long one does, which began before it: 11 ticks, not 12."""
    blocks = [
        Block("a", "F", (0,), 1),
        Block("b0", "F", (0,), 1),
        Block("b1", "F", (1,), 10, (), (("b0", 0),)),
    ]
    problem = PipelineProblem.from_blocks("parts", blocks, ["x", "y"])
    result = schedule_result(problem, period=11, num_workers=1)
    assert "latency 11 ticks" in result.message
    assert result.message.endswith("proved least")


def test_period_below_the_least_is_proved_impossible():
    """A rate that no pattern reaches gives no schedule, and says why."""
    problem = po.load_pipeline("shape:V?devices=4&memory=3")
    result = schedule_result(problem, period=7, num_workers=1)
    assert (result.status, result.solution) == ("unknown", None)  # other rates may well be possible
    assert "every 7 ticks is proved impossible" in result.message
    with pytest.raises(InputError, match="size"):
        schedule(problem, period=7, size=0)


@settings(max_examples=15, deadline=None)
@given(pipelines(), st.integers(2, 5))
def test_scaling_all_times_scales_the_period(problem: PipelineProblem, factor: int):
    """Times `factor` as long make the least period at most `factor` as long, and no shorter than
    the finer grid allows.
    """
    scaled = problem.replace(span=problem.span * factor, lag=problem.lag * factor)
    small, large = schedule(problem, num_workers=1), schedule(scaled, num_workers=1)
    assert (small.period - 1) * factor < large.period <= small.period * factor


def test_idle_turns_are_never_needed(monkeypatch: pytest.MonkeyPatch):
    """With and without the normal form the same least period is proved, joins and several sources
    included.
    """
    monkeypatch.setattr(DeviceTree, "decide", lambda *_: None)  # leave every period to CP-SAT
    periods, skipped = {}, 0
    for narrow in (True, False):
        if not narrow:
            monkeypatch.setattr(CyclicModel, "_forbid_idle_turns", lambda self: None)
        for seed in range(40):
            try:
                found = schedule(
                    random_blocks(seed),
                    num_workers=1,
                    seconds=20,
                    latency_seconds=0,
                    micro_batches=3,
                )
            except InputError:
                skipped += narrow  # not one micro-batch fits
                continue
            assert found.period == found.size_bound
            periods.setdefault(seed, set()).add(found.period)
    assert skipped < 20
    assert all(len(values) == 1 for values in periods.values())


def test_entries_are_the_only_way_to_their_descendants():
    """In K the two branches join: their first blocks are no entries, the joint block and all after
    it are.
    """
    problem = po.load_pipeline("shape:K?devices=4")
    found = entries(problem)
    sources = np.flatnonzero(np.diff(problem.pred_ptr) == 0).tolist()
    assert not set(sources) & set(found)
    joint = [b for b in range(problem.num_blocks) if len(problem.predecessors_of(b)) > 1]
    assert joint
    assert joint[0] in found
    assert entries(po.load_pipeline("shape:V?devices=3")) == list(range(6))


def test_mirror_images_are_symmetries():
    """X has one pair of chains; unequal capacities, or one longer block, break it; connected shapes
    have none.
    """
    problem = po.load_pipeline("shape:X?devices=4&memory=3")
    ((one, other),) = mirror_images(problem)
    assert sorted(one + other) == list(range(problem.num_blocks))
    assert mirror_images(problem.replace(capacity=np.array([3, 3, 3, 4]))) == []
    longer = problem.span.copy()
    longer[one[1]] += 1
    assert mirror_images(problem.replace(span=longer)) == []
    assert mirror_images(po.load_pipeline("shape:V?devices=4")) == []


def test_bytes_times_nanoseconds_do_not_overflow():
    """Gigabytes and seconds in ticks: the same period, scaled, and still a proof."""
    small = po.load_pipeline("shape:V?devices=4&memory=3")
    large = small.replace(
        span=small.span * 10**9,
        memory=small.memory * 10**10,
        capacity=small.capacity * 10**10,
        lag=small.lag * 10**9,
    )
    found = schedule(large, num_workers=2, seconds=30, latency_seconds=0, micro_batches=4)
    assert found.period >= 10**9 * best_bound(small)[0]
    assert pipeline_violations(large, found.start) == []
    assert CyclicModel(large, 8 * 10**9).solve(20, num_workers=2, seed=0)[0] in (
        "feasible",
        "optimal",
    )
    assert CyclicModel(large, 5 * 10**9).solve(20, num_workers=2, seed=0)[0] == "infeasible"


def test_period_is_proved_on_nanosecond_ticks():
    """Spans of about a millisecond in nanoseconds are searched on the exact grid."""
    problem = po.load_pipeline(
        "shape:V?devices=4&forward=1000003&backward=2999999&lag=12345&memory=3"
    )
    found = schedule(problem, num_workers=1, seconds=30)
    assert found.period == found.size_bound
    assert int(problem.work.max()) < found.period < 8_200_000
    assert pipeline_violations(problem, found.start) == []


def test_same_seed_same_answer():
    """One worker and one seed give one schedule."""
    problem = po.load_pipeline("shape:NN?devices=4&memory=6")
    first, second = (schedule(problem, num_workers=1, seed=3).start for _ in range(2))
    assert np.array_equal(first, second)


def test_least_latency_where_a_lag_is_many_periods_long():
    """The latency may be any number of periods: the least one is found and proved."""
    blocks = [Block("F0", "F", (0,), 1), Block("F1", "F", (1,), 1, after=(("F0", 50),))]
    problem = PipelineProblem.from_blocks("far", blocks, ["a", "b"], micro_batches=4)
    result = schedule_result(problem, period=1, num_workers=1)
    assert "latency 52 ticks" in result.message
    assert "proved least" in result.message
    assert result.solution.pattern.latency(problem.span) == 52


@pytest.mark.parametrize("solver", ["repetend", "time-optimal"])
def test_a_limit_of_evaluations_gives_one_answer(solver: str, monkeypatch: pytest.MonkeyPatch):
    """CP-SAT then runs by one worker and its own clock, and never without a limit."""
    asked: list[dict[str, object]] = []

    def recorded(**limits: object) -> object:
        asked.append(limits)
        return cp_solver(**limits)

    for module in ("cyclic", "time_optimal"):
        monkeypatch.setattr(f"placeopt.schedules.{module}.cp_solver", recorded)
    problem = po.load_pipeline("shape:NN?devices=4&memory=4&micro_batches=9")
    results = [po.solve(problem, solver, evaluations=2, seed=3) for _ in range(2)]
    assert asked
    assert all(limits["workers"] == 1 and 0 < limits["effort"] < 60 for limits in asked)
    starts = [result.solution.start.tolist() for result in results]
    assert starts[0] == starts[1]
    assert all(result.evaluations <= 2 for result in results)


def test_spans_near_the_largest_numbers_are_scheduled():
    """The latest start of a pattern of 64 bits is cut to what CP-SAT can count."""
    blocks = [
        Block(f"b{i}", "other", (0,), 2**58 + i, (), ((f"b{i - 1}", 0),) if i else ())
        for i in range(4)
    ]
    problem = PipelineProblem.from_blocks("long", blocks, ["d"], micro_batches=1)
    result = schedule_result(problem, "repetend", seconds=10)
    assert result.value == result.lower_bound == 2**60 + 6
