"""The known schedules: valid, with the bubbles and memory of their closed forms."""

from __future__ import annotations

from fractions import Fraction

import pytest

import placeopt as po
from placeopt.model.errors import Refused
from placeopt.schedules import schedule
from placeopt.schedules.cyclic import CyclicModel
from placeopt.schedules.device_tree import DeviceTree
from placeopt.schedules.judge import pipeline_violations
from placeopt.schedules.known import v_shape


def made(solver: str, source: str, micro_batches: int):
    """Return a schedule after judging it."""
    problem = po.load_pipeline(source, micro_batches=micro_batches)
    found = schedule(problem, solver)
    assert pipeline_violations(problem, found.start) == []
    return found


def idle(found) -> int:
    """Idle ticks of the busiest device between time 0 and the makespan."""
    return found.makespan - found.micro_batches * int(found.problem.work.max())


@pytest.mark.parametrize(("devices", "n"), [(2, 2), (2, 5), (4, 4), (4, 9), (5, 12), (8, 8)])
@pytest.mark.parametrize(("f", "b"), [(1, 3), (2, 3)])
def test_gpipe_and_1f1b_idle_as_their_formula_says(devices: int, n: int, f: int, b: int):
    """Both idle (D - 1)(f + b); GPipe holds n micro-batches, stage s of 1F1B min(n, D - s)."""
    source = f"shape:V?devices={devices}&forward={f}&backward={b}"
    gpipe, steady = made("gpipe", source, n), made("1f1b", source, n)
    assert idle(gpipe) == idle(steady) == (devices - 1) * (f + b)
    assert gpipe.peak_memory == [n] * devices
    assert steady.peak_memory == [min(n, devices - s) for s in range(devices)]
    assert steady.period == f + b
    assert steady.repetend.size == 1
    # GPipe never settles down: it repeats with its idle time, n micro-batches at once.
    assert gpipe.repetend is None
    assert gpipe.period == f + b + Fraction((devices - 1) * (f + b), n)


@pytest.mark.parametrize(
    ("devices", "rounds", "chunks"),
    [(2, 1, 2), (2, 4, 3), (3, 2, 2), (4, 1, 2), (4, 2, 3), (6, 3, 2)],
)
def test_interleaved_idles_as_its_formula_says(devices: int, rounds: int, chunks: int):
    """Interleaved 1F1B idles (D - 1)(f + b) of stages that are 1/v as long: a share of (D - 1)/(vn
    + D - 1).
    """
    n = rounds * devices
    found = made(
        "interleaved-1f1b", f"shape:interleaved?devices={devices}&chunks={chunks}&backward=2", n
    )
    assert idle(found) == (devices - 1) * 3
    assert max(found.bubble_wall) == pytest.approx((devices - 1) / (chunks * n + devices - 1))


@pytest.mark.parametrize(
    ("devices", "waves"), [(2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (6, 2), (8, 1), (8, 2)]
)
def test_hanayo_idles_as_its_formula_says(devices: int, waves: int):
    """Hanayo with n = D and b = 2f idles a share of (2D - 2)/(3Dw + 2D - 2)."""
    found = made("hanayo", f"shape:wave?devices={devices}&waves={waves}&backward=2", devices)
    assert idle(found) == 4 * (devices - 1)
    share = (2 * devices - 2) / (3 * devices * waves + 2 * devices - 2)
    assert max(found.bubble_wall) == pytest.approx(share)


@pytest.mark.parametrize(("devices", "n"), [(2, 4), (4, 8), (4, 11), (6, 12), (8, 20)])
def test_zero_bubble_h1_and_h2(devices: int, n: int):
    """At f = i = w, ZB-H1 idles (D - 1)(f + i - w) and holds D, ZB-H2 idles (D - 1)(f + i - 2w) = 0
    and holds 2D - 1.
    """
    source = f"shape:V?devices={devices}&split=1&forward=1&input=1&weight=1"
    h1, h2 = made("zb-h1", source, n), made("zb-h2", source, n)
    assert max(h1.idle_ticks) == devices - 1
    assert h1.peak_memory == [devices] * devices
    assert h2.idle_ticks == [0] * devices
    assert h2.peak_memory == [2 * devices - 1] * devices


@pytest.mark.parametrize(("devices", "n"), [(2, 4), (3, 6), (4, 8), (4, 13), (5, 10), (8, 16)])
def test_zero_bubble_v(devices: int, n: int):
    """ZB-V has no idle time within a device's span at f = i = w, with the memory of 1F1B (2D half
    stages).
    """
    found = made("zb-v", f"shape:wave?devices={devices}&split=1&forward=1&input=1&weight=1", n)
    assert found.idle_ticks == [0] * devices
    assert found.peak_memory == [2 * devices] * devices


@pytest.mark.parametrize("devices", [3, 4, 5, 6, 7, 8, 9, 10])
@pytest.mark.parametrize("rounds", [2, 3])
def test_v_half_and_v_min(devices: int, rounds: int):
    """V-Half holds floor((D + 2)/2) stages and idles about 3D, V-Min holds floor((D + 4)/3) and
    idles about 4D.
    """
    source = f"shape:wave?devices={devices}&split=1&forward=1&input=1&weight=1"
    half, least = made("v-half", source, rounds * devices), made("v-min", source, rounds * devices)
    assert max(half.peak_memory) == 2 * ((devices + 2) // 2)
    assert max(least.peak_memory) == 2 * ((devices + 4) // 3)
    assert idle(half) == (3 * devices - 4 if devices % 2 else max(3 * devices - 6, 7))
    assert idle(least) == 4 * devices - (5 if devices % 3 == 1 else 7)


@pytest.mark.parametrize(("seconds", "rounds"), [(60.0, 4), (1e-3, 0)])
def test_building_blocks_are_squeezed_as_far_as_there_is_time(monkeypatch, seconds, rounds):
    """A pass looks at all instances that are ready, for each of them: on many stages they take
    minutes.
    """
    asked = []
    monkeypatch.setattr(v_shape, "justify", lambda _, start, rounds: asked.append(rounds) or start)
    source = "shape:wave?devices=8&split=1&forward=1&input=1&weight=1"
    problem = po.load_pipeline(source, micro_batches=16)
    assert po.solve(problem, "v-half", seconds=seconds).solution is not None
    assert asked == [rounds] * 2


@pytest.mark.parametrize(("devices", "units"), [(2, 1), (4, 1), (4, 3), (6, 2), (8, 1), (8, 2)])
def test_chimera_idles_as_its_formula_says(devices: int, units: int):
    """Chimera idles (D - 2)/(2N + D - 2) for b = f and, in one unit of D micro-batches, (D -
    2)/(3N/2 + D - 2) for b = 2f.
    """
    n = units * devices // 2
    equal = made("chimera", f"shape:X?devices={devices}&backward=1", n)
    assert max(equal.bubble_wall) == pytest.approx((devices - 2) / (2 * 2 * n + devices - 2))
    single = made("chimera", f"shape:X?devices={devices}&backward=2", devices // 2)
    assert max(single.bubble_wall) == pytest.approx((devices - 2) / (3 * devices / 2 + devices - 2))
    assert max(equal.peak_memory) <= devices


@pytest.mark.parametrize("devices", [2, 4, 6, 8])
@pytest.mark.parametrize(("f", "i", "w"), [(1, 1, 1), (2, 2, 1), (3, 2, 2)])
def test_dualpipe_idles_less_than_its_overlapped_formula(devices: int, f: int, i: int, w: int):
    """Run one after the other, DualPipe idles (D/2 - 1)(f + i - w), below the report's formula;
    memory D + 1.
    """
    found = made(
        "dualpipe",
        f"shape:X?devices={devices}&split=1&forward={f}&input={i}&weight={w}",
        2 * devices,
    )
    b = i + w
    assert max(found.idle_ticks) == (devices // 2 - 1) * (f + i - w)
    assert max(found.idle_ticks) <= (devices // 2 - 1) * ((f + b) + b - 3 * w)
    assert max(found.peak_memory) == devices + 1


CASES = [
    ("gpipe", "shape:V?devices=4", 8),
    ("1f1b", "shape:V?devices=4", 8),
    ("1f1b", "shape:V?devices=3&lag=1", 8),
    ("interleaved-1f1b", "shape:interleaved?devices=3&backward=2", 6),
    ("hanayo", "shape:wave?devices=3&backward=2", 6),
    ("zb-h1", "shape:V?devices=4&split=1", 8),
    ("zb-h2", "shape:V?devices=4&split=1", 8),
    ("zb-v", "shape:wave?devices=3&split=1&backward=2", 6),
    ("v-half", "shape:wave?devices=3&split=1&backward=2", 6),
    ("v-min", "shape:wave?devices=3&split=1&backward=2", 6),
    ("chimera", "shape:X?devices=4&backward=2", 4),
    ("dualpipe", "shape:X?devices=4&split=1&backward=2", 8),
]


@pytest.mark.parametrize(("solver", "source", "n"), CASES)
def test_repetend_is_never_worse_at_the_same_placement_and_memory(solver: str, source: str, n: int):
    """With the memory that the known schedule needs, the searched period is at most its period."""
    known = made(solver, source, n)
    problem = known.problem.with_capacity(max(known.peak_memory))
    found = schedule(problem, num_workers=1, size=0, latency_seconds=0, seconds=30)
    assert (found.period, found.makespan) <= (known.period, known.makespan)
    assert max(found.peak_memory) <= max(known.peak_memory)


@pytest.mark.parametrize(
    ("solver", "source", "n"),
    [
        ("hanayo", "shape:wave?devices=8&split=1&lag=1&memory=4", 2),  # fewer than devices
        ("1f1b", "shape:V?devices=2&split=1&memory=2&lag=3", 4),  # 7 for K = 1
    ],
)
def test_published_schedules_are_candidates(
    solver: str, source: str, n: int, monkeypatch: pytest.MonkeyPatch
):
    """Where the search decides nothing, what is published is the answer, by makespan and period."""
    known = made(solver, source, n)
    monkeypatch.setattr(CyclicModel, "solve", lambda *_, **__: ("unknown", None))
    monkeypatch.setattr(DeviceTree, "decide", lambda *_, **__: None)
    found = schedule(known.problem, size=0, seconds=0.3)
    assert found.makespan == known.makespan
    assert found.period <= known.period
    assert pipeline_violations(found.problem, found.start) == []


def test_known_schedules_refuse_other_placements_and_too_little_memory():
    """One line says which shape a schedule is made for, or what it would hold."""
    with pytest.raises(po.InputError, match="one stage per device"):
        schedule(po.load_pipeline("shape:interleaved"), "1f1b")
    with pytest.raises(po.InputError, match="4 devices at once"):
        schedule(po.load_pipeline("shape:M"), "gpipe")
    with pytest.raises(po.InputError, match="gpipe holds 8 on 'device0', whose capacity is 4"):
        schedule(po.load_pipeline("shape:V?memory=4"), "gpipe", micro_batches=8)
    with pytest.raises(po.InputError, match="multiple of 4"):
        schedule(po.load_pipeline("shape:interleaved"), "interleaved-1f1b", micro_batches=6)


@pytest.mark.parametrize(("devices", "n"), [(2, 2), (4, 9), (6, 12)])
@pytest.mark.parametrize(("f", "b"), [(1, 3), (2, 3), (3, 1)])
def test_1f1b_plus_is_1f1b_on_a_plain_pipeline(devices: int, n: int, f: int, b: int):
    """Without shared blocks the generalised schedule is 1F1B, start by start."""
    source = f"shape:V?devices={devices}&forward={f}&backward={b}"
    assert (made("1f1b-plus", source, n).start == made("1f1b", source, n).start).all()


@pytest.mark.parametrize("name", ["M", "NN", "K"])
@pytest.mark.parametrize("devices", [4, 6])
def test_1f1b_plus_on_shared_placements(name: str, devices: int):
    """It holds as many micro-batches as there are stages left, keeps the order of micro-batches,
    and no search is slower.
    """
    source = f"shape:{name}?devices={devices}"
    found = made("1f1b-plus", source, 16)
    problem = found.problem
    chain = devices // 2 + 1 if name == "K" else devices
    assert max(found.peak_memory) == chain
    assert (found.start[1:] > found.start[:-1]).all()
    assert found.makespan >= schedule(problem, micro_batches=16).makespan
    assert found.period >= problem.work.max()


def test_1f1b_plus_refuses_what_it_is_not_for():
    """Two stages on a device are refused in words."""
    with pytest.raises(Refused, match="of its own"):
        made("1f1b-plus", "shape:X?devices=4", 8)


@pytest.mark.parametrize("units", [1, 2, 5])
def test_chimera_is_direct(units: int):
    """More micro-batches than devices are units one after the other (direct concatenation): the
    order repeats by unit.
    """
    found = made("chimera", "shape:X?devices=4&backward=2", 2 * units)
    orders = [
        [
            (j // 2, i)
            for _, j, i in sorted(
                (int(found.start[j, i]), j, i) for j in range(2 * units) for i in blocks
            )
        ]
        for blocks in found.problem.on_device
    ]
    for order in orders:
        first = [unit for unit, i in order if found.problem.kind[i] == "F"]
        assert first == sorted(first)
