"""The random numbers of kernels.

numba's cache does not notice edits of a callee in another file (`placeopt.model.compiled` does). So
this file is frozen, and any kernel may call it: a changed generator would change every seeded
result anyway. Never edit a body here; a new generator is a new function.

References
----------
P. L'Ecuyer, "Maximally equidistributed combined Tausworthe generators", Mathematics of Computation
65, 1996. G. L. Steele Jr., D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints

_inner = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For functions that only kernels call: without an entry from Python they compile in half the
time."""


def random_states(rng: np.random.Generator, count: int) -> Ints:
    """Return states for `uniform` and `below`, shape (count, 3); each part is at least 128, as they
    require.
    """
    return rng.integers(128, 2**32, (count, 3), dtype=np.int64)


@_inner
def uniform(s):
    """Return a float in [0, 1) and advance the state s (int64[3]): a combined Tausworthe generator
    (L'Ecuyer 1996).

    In int64 arithmetic that never overflows, so that it is the same with and without compilation.
    """
    s[0] = (((s[0] & 4294967294) << 12) & 4294967295) ^ ((((s[0] << 13) & 4294967295) ^ s[0]) >> 19)
    s[1] = (((s[1] & 4294967288) << 4) & 4294967295) ^ ((((s[1] << 2) & 4294967295) ^ s[1]) >> 25)
    s[2] = (((s[2] & 4294967280) << 17) & 4294967295) ^ ((((s[2] << 3) & 4294967295) ^ s[2]) >> 11)
    return (s[0] ^ s[1] ^ s[2]) * 2.3283064365386963e-10  # 2^-32


@_inner
def below(s, count):
    """Return an integer in [0, count) and advance the state s (int64[3])."""
    return int(uniform(s) * count)


@_inner
def split_uniform(state):
    """Return a float in [0, 1) of 53 bits and advance the state (uint64[1]): SplitMix64 (Steele et
    al. 2014).
    """
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)
