"""Streams from text, files and mappings; drawing; what is wrong with bad ones, in one line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from stream_samples import stream, table

import placeopt as po
from placeopt.model.errors import InputError
from placeopt.streams import JobProfile, JobStreamProblem, StreamSpec, load_stream
from placeopt.streams.sources import beta_distribution

PROFILE = """node1 -- Input0 -- forward_compute_time=2.000, backward_compute_time=0.000, activation_size=0.0, parameter_size=0.0
node2 -- Conv(3, 64) -- forward_compute_time=4.000, backward_compute_time=8.000, activation_size=4000000.0, parameter_size=1000000.0
node3 -- Linear(9, 9) -- forward_compute_time=3.000, backward_compute_time=6.000, activation_size=[1000.0; 500.0], parameter_size=5000000.0
\tnode1 -- node2
\tnode2 -- node3
"""


@pytest.fixture
def profiles(tmp_path):
    """Return a folder with two small PipeDream profiles and a graph in another format."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "small.txt").write_text(PROFILE)
    (folder / "large.txt").write_text(PROFILE.replace("=4.000", "=9.000"))
    return folder


def load(source, profiles=None, **options):
    """Load a stream of the two small models."""
    return load_stream(
        {"models": "small,large", "jobs": 20, **source}, profiles=profiles, **options
    )


def test_source_text(profiles):
    """A source string, a mapping, JSON and TOML describe the same stream."""
    text = load_stream(
        "stream:ramp?models=small,large&jobs=20&beta=C&rule=published&seed=4", profiles=profiles
    )
    options = {
        "models": ["small", "large"],
        "jobs": 20,
        "beta": "C",
        "rule": "published",
        "seed": 4,
    }
    same = [load_stream(options, profiles=profiles)]
    path = profiles.parent / "stream.json"
    path.write_text(json.dumps({**options, "profiles": "profiles"}))
    same.append(load_stream(path))
    path = profiles.parent / "stream.toml"
    path.write_text(
        'profiles = "profiles"\nseed = 4\n[stream]\nmodels = ["small", "large"]\njobs = 20\nbeta = '
        '"C"\n'
        '[lookahead]\nrule = "published"\n[topology]\ngroups = 4\n'
    )
    same.append(po.load_stream(path))
    assert {problem.hash for problem in same} == {text.hash}
    assert load_stream(path, seed=5).hash != text.hash


def test_profile_units_and_input(profiles):
    """Milliseconds become seconds; sequential time is 50 steps; zero_input makes data loading
    free.
    """
    problem = load({}, profiles)
    assert problem.jobs.profiles[0].sequential == pytest.approx(0.023)
    assert problem.jobs.lookahead["small"][1] == pytest.approx(50 * 0.023)
    assert load({"zero_input": True}, profiles).jobs.profiles[0].sequential == pytest.approx(0.021)
    assert load({"units": "published"}, profiles).jobs.lookahead["small"][1] == pytest.approx(
        50 * 23
    )


def test_draws(profiles):
    """Equal numbers of each model, deadlines as fractions of the sequential time, a seed that fixes
    everything.
    """
    problem = load({"jobs": 101, "beta": 0.5, "interval": 3}, profiles)
    counts = np.bincount(problem.model)
    assert sorted(counts.tolist()) == [50, 51]
    sequential = problem.jobs.arrays.sequential[problem.model]
    assert problem.deadline.tolist() == np.floor(0.5 * sequential + 0.5).astype(int).tolist()
    assert np.unique(np.diff(problem.arrival)).tolist() == [3 * 10**9]
    assert problem.horizon == 300 * 10**9
    assert problem.resample(7).hash == problem.resample(7).hash != problem.resample(8).hash
    assert problem.resample(0).hash == problem.hash


def test_poisson_arrivals():
    """Gaps of Poisson arrivals have the given mean and an exponential's spread."""
    problem = StreamSpec(jobs=4001, arrivals="poisson", interval=2.0).draw(table(), 1)
    gaps = np.diff(problem.arrival) * problem.tick_seconds
    assert gaps.mean() == pytest.approx(2.0, rel=0.06)
    assert gaps.std() == pytest.approx(2.0, rel=0.1)
    assert problem.mean_gap == pytest.approx(2e9, rel=0.06)


def test_offered_load():
    """The offered load is sequential work over server time."""
    assert stream(600, load=0.7).offered_load == pytest.approx(0.7, rel=0.02)


def test_deadline_distributions():
    """A is uniform on 0.10..1.00; B, C and D have the known means; other draws stay near them."""
    means = {"A": 0.550, "B": 0.300, "C": 0.488, "D": 0.717}
    for name, mean in means.items():
        values, weights = beta_distribution(name)
        assert weights.sum() == pytest.approx(1)
        assert (values * weights).sum() == pytest.approx(mean, abs=2e-3)
        assert values.min() == pytest.approx(0.1, abs=0.011)
        assert values.max() == 1.0
        others = [beta_distribution(name, draw) for draw in range(8)]
        assert np.mean([(v * w).sum() for v, w in others]) == pytest.approx(mean, abs=0.03)


def test_trace(profiles, tmp_path):
    """A trace gives arrivals, models and deadlines; resampling keeps its jobs and gaps."""
    path = tmp_path / "trace.csv"
    path.write_text(  # with the mark of byte order that spreadsheets write
        "\ufeffarrival,model,deadline\n0,small,2\n1.5,large,3\n1.5,small,4\n"
    )
    problem = load_stream(path, profiles=profiles)
    assert problem.jobs.models == ("small", "large")
    assert problem.arrival.tolist() == [0, 1_500_000_000, 1_500_000_000]
    assert problem.model.tolist() == [0, 1, 0]
    assert problem.deadline.tolist() == [2 * 10**9, 3 * 10**9, 4 * 10**9]
    assert problem.horizon == 5_500_000_000
    other = problem.resample(1)
    assert sorted(np.diff(other.arrival)) == [0, 1_500_000_000]
    others = [problem.resample(seed) for seed in range(9)]
    assert min(one.horizon for one in others) == problem.horizon
    assert all((one.arrival + one.deadline).max() <= one.horizon for one in others)
    assert load_stream(path, profiles=profiles, seed=7).seed == 7
    path.write_text("arrival, model, beta\n0,small,0.5\n")
    assert load_stream(path, profiles=profiles).deadline[0] == pytest.approx(
        0.5 * 50 * 0.023e9, abs=1
    )
    description = tmp_path / "stream.json"
    description.write_text(json.dumps({"trace": "trace.csv", "profiles": "profiles", "horizon": 9}))
    assert load_stream(description).horizon == 9 * 10**9
    description.write_text(
        json.dumps({"trace": "trace.csv", "profiles": "profiles", "horizon": 0.2})
    )
    assert load_stream(description).resample(1).horizon == 2 * 10**8
    for idle in ({"jobs": 5}, {"beta": "A"}, {"arrivals": "poisson"}, {"interval": 2}):
        with pytest.raises(InputError, match=f"stream option {next(iter(idle))}: the trace"):
            load_stream({"trace": str(path), **idle}, profiles=profiles)


def test_job_types_from_any_graph(profiles):
    """Generated graphs and files of other formats are job types, priced on a device where they have
    no times.
    """
    problem = load_stream(
        {"models": ["gen:chain-mm", "small"], "device": "A100", "jobs": 4}, profiles=profiles
    )
    assert problem.jobs.models == ("gen:chain-mm", "small")
    assert problem.jobs.lookahead["gen:chain-mm"][1] > 0
    alone = load_stream({"models": "gen:chain-mm", "device": "A100", "jobs": 4})
    assert alone.jobs.lookahead["gen:chain-mm"] == problem.jobs.lookahead["gen:chain-mm"]
    with pytest.raises(InputError, match="no measured times; name a device"):
        load_stream({"models": "gen:chain-mm", "jobs": 4})


def test_job_type_from_a_measured_graph():
    """Forward times, resident and output bytes of a measured graph carry over; backward ops are
    mirrored.
    """
    graph = po.OpGraph(
        "g",
        ("a", "b", "c"),
        producer=[0, 1],
        tensor_bytes=[10, 20],
        consumer_ptr=[0, 2, 3],
        consumer=[1, 2, 2],
        resident=[1, 2, 3],
        measured_kinds=("*",),
        measured=[[5], [7], [9]],
        tick_seconds=1e-3,
    )
    profile = JobProfile.from_graph(graph, backward_ratio=3.0)
    assert profile.forward.tolist() == pytest.approx([0.005, 0.007, 0.009])
    assert profile.backward.tolist() == pytest.approx([0.015, 0.021, 0.027])
    assert profile.memory.tolist() == [11, 22, 3]
    assert sorted(map(tuple, profile.edges.tolist())) == [(0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"models": "small,vgg61"},
            "model 'vgg61' is not among the profiles in .*; known: large, small",
        ),
        ({"models": "small,small"}, "distinct names, received small, small"),
        ({"jobs": -3}, "jobs must be >= 1 and <= 10000000, received -3"),
        ({"jobs": 2**63}, "received 9223372036854775808"),
        ({"jobs": "many"}, "expected a whole number, received 'many'"),
        ({"jobs": 2.5}, "expected a whole number, received '2.5'"),
        ({"interval": -1}, "interval must be a positive time, received -1"),
        ({"interval": "nan"}, "interval must be a positive time, received nan"),
        ({"horizon": 0}, "horizon must be a positive time"),
        ({"beta": "E"}, "expected one of A, B, C, D or a number > 0, received 'E'"),
        ({"beta": -0.5}, "A, B, C, D or a number > 0 and <= 10, received -0.5"),
        ({"arrivals": "bursty"}, "arrivals must be fixed or poisson, received 'bursty'"),
        ({"rule": "half"}, "expected one of published, uniform, received 'half'"),
        ({"units": "metric"}, "expected one of consistent, published, received 'metric'"),
        ({"quantum": 0}, "expected a number > 0"),
        ({"steps": 0}, "training steps must be >= 1, received 0"),
        ({"contention": "bus"}, "expected one of none, pair, source, received 'bus'"),
        ({"groups": 0}, "groups must be a whole number >= 1, received 0"),
        ({"groups": 99, "racks": 99}, "at most 4096 servers"),
        ({"bandwidth": -1}, "bandwidth must be a positive number"),
        ({"memory": 0}, "memory must be in"),
        ({"seed": -1}, "seed: expected a whole number >= 0"),
        ({"zero_input": "maybe"}, "expected true or false, received 'maybe'"),
        ({"models": 7}, "expected a list of names"),
        ({"backward_ratio": "x"}, "expected a number, received 'x'"),
        ({"colour": "red"}, "stream option 'colour' is not known; known: arrivals"),
    ],
)
def test_wrong_options(profiles, options, words):
    """Every wrong option is one line that says what was expected and received."""
    with pytest.raises(InputError, match=words) as error:
        load(options, profiles)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected the header arrival,model,deadline"),
        ("time,model,deadline\n0,small,1\n", "received 'time,model,deadline'"),
        ("arrival,model,deadline\n", "at least one job"),
        (
            "arrival,model,deadline\n5,small,1\n4,small,1\n",
            "line 3: arrivals out of order: 4 after 5",
        ),
        (
            "arrival,model,deadline\n-1,small,1\n",
            "line 2: arrival must be a time >= 0, received -1",
        ),
        (
            "arrival,model,deadline\n0,small,-2\n",
            "line 2: deadline must be a time >= 0, received -2",
        ),
        (
            "arrival,model,deadline\n0,small,soon\n",
            "line 2: deadline must be a number, received 'soon'",
        ),
        ("arrival,model,deadline\ninf,small,1\n", "line 2: arrival must be a time >= 0"),
        ("arrival,model,deadline\n0,resnet,1\n", "model 'resnet' is not among the profiles"),
        ("arrival,model,deadline\n0,small\n", "line 2: deadline must be a number"),
        ("arrival,model,deadline\n0,small,1,9\n", "line 2: expected three columns"),
        ("arrival,model,beta\n0,small,1e300\n", "expected a finite number >= 0, received inf"),
    ],
)
def test_wrong_traces(profiles, tmp_path, text, words):
    """A damaged trace is one line that names the line of the file."""
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        load_stream(path, profiles=profiles)


def test_wrong_files(profiles, tmp_path):
    """Missing and damaged files, unknown kinds and missing profiles are one line each."""
    for name, text, words in (
        ("a.json", "{,", "not valid JSON"),
        ("b.toml", "x = [", "not valid TOML"),
        ("c.json", "[1]", "expected an object"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=words):
            load_stream(tmp_path / name, profiles=profiles)
    for source, words in (
        (tmp_path / "none.json", "expected stream:ramp"),
        ("stream:poisson", "expected stream:ramp"),
        ("stream:ramp?jobs", "expected key=value, received 'jobs'"),
        ("stream:ramp?jobs=1&jobs=2", "'jobs' is given twice"),
    ):
        with pytest.raises(InputError, match=words):
            load_stream(source, profiles=profiles)
    with pytest.raises(InputError, match="--profiles DIR"):
        load_stream("stream:ramp")
    with pytest.raises(InputError, match="no such folder"):
        load_stream("stream:ramp", profiles=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"arrival": [3, 2]}, "arrivals out of order: job 1 arrives at 2e-09, job 0 at 3e-09"),
        ({"arrival": [-3, 2]}, "job 0 arrives at -3e-09, before 0"),
        ({"arrival": [0, 2**62]}, r"arrivals pass 2\^62 ticks"),
        ({"deadline": [1, -2]}, "job 1 has a negative deadline"),
        ({"model": [0, 9]}, "model indices must be 0..2"),
        ({"arrival": [], "model": [], "deadline": []}, "at least one job"),
        ({"horizon": 0}, "horizon must be positive"),
        ({"horizon": float("nan")}, "horizon: expected whole numbers, received NaN"),
        ({"objective": "makespan"}, "objective: expected blocking"),
    ],
)
def test_wrong_problems(fields, words):
    """A stream built by hand is checked as well."""
    good = {"arrival": [0, 1], "model": [0, 1], "deadline": [1, 1], "horizon": 10}
    with pytest.raises(InputError, match=words):
        JobStreamProblem("s", table(), **{**good, **fields})
