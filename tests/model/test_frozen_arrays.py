"""Arrays of problems are views of immutable bytes: neither a write nor a flag changes them, pickled
or not.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from numba import typeof
from plan_samples import random_problem as sample_plan
from random_pipelines import random_blocks
from sharding_problems import draw
from stream_samples import few_jobs

import placeopt as po
from placeopt.model.arrays import frozen
from placeopt.model.placement import Placement
from placeopt.model.problem import PlacementProblem
from placeopt.splits.problem import SplitProblem

PLACEMENT = PlacementProblem.from_edges([[3, 2], [4, 5], [1, 1]], [(0, 1, 2), (1, 2, 3)])
HOLDERS = {
    "graph": po.load("gen:fork-join", cluster="uniform:2"),
    "placement problem": PLACEMENT,
    "placement": Placement([0, 1, 0], [2, 1, 0]),
    "split problem": SplitProblem(PLACEMENT.replace(objective="period"), max_replicas=2),
    "sharding problem": draw(3)[0],
    "pipeline": random_blocks(1),
    "plan": sample_plan(0),
    "stream": few_jobs(0),
}


def arrays_of(holder):
    """Yield (name, array) of the fields, and of what is derived from them and kept."""
    for name, value in vars(holder).items():
        parts = value if isinstance(value, tuple) and hasattr(value, "_fields") else (value,)
        yield from ((name, part) for part in parts if isinstance(part, np.ndarray) and part.size)


@pytest.mark.parametrize(
    "how", ["made", "protocol 2", "protocol 4", "protocol 5", "copied", "deeply copied"]
)
@pytest.mark.parametrize("name", HOLDERS)
def test_no_write_and_no_flag_changes_them(name, how):
    """Writing raises, making them writeable raises, whatever array the memory is reached
    through.
    """
    holder = HOLDERS[name]
    if how.startswith("protocol"):
        holder = pickle.loads(pickle.dumps(holder, protocol=int(how[-1])))
    elif how != "made":
        holder = (copy.copy if how == "copied" else copy.deepcopy)(holder)
    found = list(arrays_of(holder))
    assert found
    for key, array in found:
        while isinstance(array, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                array[(0,) * array.ndim] = 7
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.setflags(write=True)
            array = array.base
        assert type(array) is bytes, key


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (5,), (2, 3)])
@pytest.mark.parametrize("kind", [np.int64, np.int16, np.bool_, np.float64])
def test_kernels_see_any_read_only_array(shape, kind):
    """The content, the shape and the type that numba gives it are those of an array with a flag."""
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(kind)
    flagged = array.copy()
    flagged.setflags(write=False)
    made = frozen(array)
    assert np.array_equal(made, array)
    assert typeof(made) == typeof(flagged)
    assert frozen(made) is made
    assert np.array_equal(frozen(array.T), array.T)


def test_a_class_that_says_it_is_immutable_is_copied():
    """What an array of another class says of its memory is not believed."""

    class Pretender(np.ndarray):
        base = b"immutable"

    array = np.arange(4).view(Pretender)
    for given in (array, memoryview(bytearray(32)).toreadonly()):
        made = frozen(np.frombuffer(given, dtype=np.int64) if given is not array else array)
        assert type(made) is np.ndarray
        assert type(made.base) is bytes
