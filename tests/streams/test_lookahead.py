"""The lookahead: published step times, and a step-by-step oracle on random jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import stream_oracle
from stream_samples import random_profile, table

from placeopt.model.errors import InputError
from placeopt.streams import JobProfile, LookaheadConfig, RampTopology, load_stream, step_time
from placeopt.streams.lookahead import build_split_job, collective_time
from placeopt.streams.problem import contended_step_time
from placeopt.streams.topology import RampTopology as Grid

GOLDEN = {
    "alexnet": (36061.15, 18031.03, 9015.95, 6010.88, 4508.41, 2254.76),
    "resnet18": (36668.35, 18336.34, 9170.04, 6114.39, 4586.86, 2295.82),
    "squeezenet1_0": (38000.15, 19002.78, 9503.33, 6336.61, 4753.55, 2379.20),
    "vgg16": (34525.35, 17267.73, 8638.72, 5761.84, 4324.16, 2168.24),
    "gnmt": (4470.80, 2235.57, 1117.92, 745.36, 560.48, 308.39),
}
"""Completion times of the published simulator, in its units, for degrees 1, 2, 4, 6, 8 and 16."""


@pytest.mark.jit
def test_published_step_times(data):
    """All 30 completion times of the published simulator are met to 0.01 % (it prints two
    digits).
    """
    times = load_stream(
        "stream:ramp?rule=published&units=published", profiles=data / "pipedream"
    ).jobs.lookahead
    for model, golden in GOLDEN.items():
        np.testing.assert_allclose(
            [times[model][u] for u in (1, 2, 4, 6, 8, 16)], golden, rtol=1e-4
        )


@pytest.mark.interpreted
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rule", ["published", "uniform"])
def test_step_time_equals_the_oracle(seed, rule):
    """Splitting op by op and walking through one step in plain Python gives the same step time."""
    profile = random_profile(seed, 5 + seed % 3)
    topology = RampTopology(4, 2, 2, memory=400_000_000, max_degree=8)
    for degree in (1, 2, 4, 8):
        for units in ("published", "consistent"):
            ours = step_time(profile, degree, topology, LookaheadConfig(rule, units, 4.0))
            theirs = stream_oracle.step_time(profile, degree, topology, rule, units, 4.0)
            assert (
                (ours == pytest.approx(theirs, rel=1e-9)) if theirs is not None else ours == np.inf
            )


@pytest.mark.parametrize("grid", [(4, 4, 2), (2, 3, 4), (1, 1, 4), (3, 3, 3)])
def test_blocks_equal_the_oracle(grid):
    """First fit tries the blocks of every size in the order of the definition."""
    topology = Grid(*grid)
    for size in topology.degrees:
        assert list(topology.block_shapes(size)) == list(
            dict.fromkeys(stream_oracle.shapes(size, grid))
        )
        row = topology.blocks.size_ptr[size]
        first = topology.blocks.server[
            topology.blocks.server_ptr[row] : topology.blocks.server_ptr[row + 1]
        ]
        block = stream_oracle.first_block(size, grid, lambda _: True)
        assert [topology.index(*server) for server in block] == first.tolist()


def test_degrees_of_the_published_grid():
    """The 4x4x2 grid has the published degrees."""
    assert RampTopology().degrees == (1, 2, 4, 6, 8, 16)


def test_collective_times_equal_the_oracle():
    """All-reduce times over random sets of servers follow the four-step formula."""
    rng = np.random.default_rng(0)
    topology = RampTopology()
    for _ in range(40):
        servers = tuple(sorted(rng.choice(32, int(rng.integers(1, 17)), replace=False).tolist()))
        size = float(rng.integers(1, 10**9))
        spots = {tuple(topology.coordinates[s].tolist()) for s in servers}
        expected = stream_oracle.collective(size, spots, topology, topology.channel_bandwidth)
        assert collective_time(size, servers, topology) == pytest.approx(expected, rel=1e-12)


def test_one_server_takes_the_sequential_time():
    """Degree 1 is the sum of all op times, whatever the rule and the contention."""
    for seed in range(4):
        profile = random_profile(seed)
        for rule in ("published", "uniform"):
            config = LookaheadConfig(rule)
            assert step_time(profile, 1, RampTopology(), config) == pytest.approx(
                profile.sequential
            )
            contended = contended_step_time(profile, 1, RampTopology(), config)
            assert contended == pytest.approx(profile.sequential, rel=1e-6)


def test_cache_knows_everything_a_step_time_depends_on():
    """A change of profile, degree, topology, units or rule changes the answer even after a first
    call.
    """
    profile, base, config = (
        random_profile(1, 12),
        RampTopology(),
        LookaheadConfig("published", quantum=7.0),
    )
    variants = [
        (profile, 4, base, config),
        (replace(profile, backward=profile.backward * 2), 4, base, config),
        (replace(profile, memory=profile.memory * 3), 4, base, config),
        (profile, 1, base, config),
        (profile, 4, replace(base, bandwidth=1e9), config),
        (profile, 4, base, replace(config, units="published")),
        (profile, 4, base, replace(config, rule="uniform")),
        (profile, 4, base, replace(config, quantum=100.0)),
    ]
    times = [step_time(*variant) for variant in variants]
    assert len(set(times)) == len(times)
    assert [step_time(*variant) for variant in variants] == times


def test_time_scales_with_the_unit():
    """Times and propagation scaled alike scale the step alike."""
    profile, topology = random_profile(2), RampTopology()
    slow = replace(profile, forward=profile.forward * 8, backward=profile.backward * 8)
    slower = replace(
        topology,
        bandwidth=topology.bandwidth / 8,
        propagation=topology.propagation * 8,
        io_latency=topology.io_latency * 8,
        memory_frequency=topology.memory_frequency / 8,
        peak_flops=topology.peak_flops / 8,
    )
    config = LookaheadConfig("uniform")
    assert step_time(slow, 4, slower, config) == pytest.approx(
        8 * step_time(profile, 4, topology, config)
    )


@pytest.mark.jit
def test_splitting_hurts_in_consistent_units(data):
    """With consistent units VGG-16 is slower on two servers than on one; AlexNet is faster on
    16.
    """
    times = load_stream("stream:ramp?rule=published", profiles=data / "pipedream").jobs.lookahead
    assert times["vgg16"][2] > 1.3 * times["vgg16"][1]
    assert times["alexnet"][16] < 0.3 * times["alexnet"][1]


def test_a_job_that_fits_nowhere():
    """A degree whose sub-ops exceed a server's memory is left out of the table."""
    types = table(memory=100_000_000, count=1)
    profile = types.profiles[0]
    assert profile.memory.max() > 100_000_000
    assert 1 not in types.lookahead[profile.name]


def two_ops(size=5e9):
    """A chain of two ops: forward 2 s and 4 s, backward 1 s and 3 s; every tensor has `size`
    bytes.
    """
    return JobProfile(
        "two",
        np.array([2.0, 4.0]),
        np.array([1.0, 3.0]),
        np.array([size, size]),
        np.array([[0, 1]]),
    )


def test_contention_on_a_job_by_hand():
    """Two sub-ops on two servers, channels of 1e11 B/s: 5 s of compute, three transfers of 12.5 ms,
    one of 25 ms.

    Each of the three edges forward-forward-backward-backward crosses with a quarter of the bytes
    (1.25e9); the last gradients (half of the bytes) leave when the last op ends, the earlier ones
    behind the transfers that ops wait for.
    """
    topology, config = (
        RampTopology(2, 1, 1, propagation=0.0, io_latency=0.0),
        LookaheadConfig("uniform"),
    )
    for contention in ("none", "pair", "source"):
        time = contended_step_time(two_ops(), 2, topology, config, contention=contention)
        assert time == pytest.approx(5.0 + 3 * 0.0125 + 0.025, abs=1e-6)


def test_a_shared_bus_makes_transfers_queue():
    """Four sub-ops on one op boundary: 3 transfers leave each server; a bus sends them one after
    the other.
    """
    topology, config = (
        RampTopology(4, 1, 1, propagation=0.0, io_latency=0.0),
        LookaheadConfig("uniform"),
    )
    profile = JobProfile(
        "one", np.array([4.0]), np.array([4.0]), np.array([16e9]), np.zeros((0, 2))
    )
    # the join carries 1e9 bytes at 5e10 B/s (20 ms); gradients carry 4e9 (80 ms) at the end
    pair = contended_step_time(profile, 4, topology, config, contention="pair")
    bus = contended_step_time(profile, 4, topology, config, contention="source")
    assert pair == pytest.approx(2.0 + 0.02 + 0.08, abs=1e-6)
    assert bus == pytest.approx(2.0 + 3 * 0.02 + 3 * 0.08, abs=1e-6)


def test_contention_never_beats_the_work_of_a_server():
    """A contended step is at least the largest load of a server."""
    topology = RampTopology(2, 2, 2)
    for seed in range(4):
        profile = random_profile(seed)
        for degree in (2, 4):
            job = build_split_job(profile, degree, topology, LookaheadConfig("uniform"))
            load = np.bincount(job.server, weights=job.compute).max()
            for contention in ("none", "pair", "source"):
                time = contended_step_time(
                    profile, degree, topology, LookaheadConfig("uniform"), contention=contention
                )
                assert time >= load - 1e-6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"degree": 3}, "degree 3 does not exist on the 2x2x2 grid"),
        ({"contention": "bus"}, "contention: expected one of none, pair, source, received 'bus'"),
    ],
)
def test_wrong_contended_steps(arguments, words):
    """What the general lookahead cannot evaluate is refused in one line."""
    arguments = {"degree": 2, **arguments}
    with pytest.raises(InputError, match=words):
        contended_step_time(
            random_profile(0),
            arguments.pop("degree"),
            RampTopology(2, 2, 2),
            LookaheadConfig(),
            **arguments,
        )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"forward": [1.0, -2.0]}, r"forward\[1\] must be a number >= 0, received -2"),
        ({"edges": [[0, 1], [1, 0]]}, "cycle"),
        ({"edges": [[0, 5]]}, "outside 0..1"),
        ({"forward": [0.0, 0.0], "backward": [0.0, 0.0]}, "take no time"),
        ({"memory": [1.0]}, "memory must have 2 values"),
        ({"split_rank": [0, 0]}, "permutation"),
    ],
)
def test_wrong_job_types(fields, words):
    """A damaged job type is refused in one line that names it."""
    good = {"forward": [2.0, 4.0], "backward": [1.0, 3.0], "memory": [1.0, 1.0], "edges": [[0, 1]]}
    with pytest.raises(InputError, match=f"'two'.*{words}"):
        JobProfile("two", **{key: np.array(value) for key, value in {**good, **fields}.items()})
