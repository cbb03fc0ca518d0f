"""The ways in which a kernel is compiled; most of a first run's time is spent on what they leave out.

A function that Python calls needs an entry that takes its arguments apart, and every caller compiles what it calls once
more. So kernels that only kernels call have no such entry, and pieces of a hot loop are copied into it by the
compiler's last stage (LLVM), not before: each is then analysed once, however often it is used.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from numba import njit
from numba.core import serialize

from placeopt.model.interpreted import interpretable

if TYPE_CHECKING:
    from collections.abc import Callable


def entry(function: Callable[..., Any]) -> Any:
    """A kernel that Python calls."""
    return interpretable(njit(cache=True, nogil=True)(function))


def uncounted_entry(function: Callable[..., Any]) -> Any:
    """The same where it makes no array and returns none: no references to its arguments are counted."""
    return interpretable(njit(cache=True, nogil=True, _nrt=False)(function))


serialize._numba_unpickle = lru_cache(maxsize=None)(serialize._numba_unpickle)
"""What kernels ask for the class of a named tuple that they return: numba crashes if a signal ends it with an exception, as
can happen to a function in Python, but not to a cache's hit."""

inner = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""A kernel that only kernels call."""

uncounted = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)
"""The same where it makes no array and returns none."""

inlined = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False, forceinline=True)
"""A piece of a hot loop, which becomes a part of its caller; it makes no array and returns none."""
