"""The ways in which a kernel is compiled; most of a first run's time is spent on what they leave
out.

A function that Python calls needs an entry that takes its arguments apart, and every caller
compiles what it calls once more. So kernels that only kernels call have no such entry, and pieces
of a hot loop are copied into it by the compiler's last stage (LLVM), not before: each is then
analysed once, however often it is used.

numba keeps what it compiled as long as the file of a kernel stays as it is, and does not notice
edits of what the kernel calls in other files. Kernels that are compiled here do: what a module
imports by name of other kernels is part of the stamp by which its cache is known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from numba import njit
from numba.core import serialize
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

from placeopt.model.arrays import Ints
from placeopt.model.interpreted import interpretable

FROZEN = tuple(f"{__package__}.{name}" for name in ("random_bits", "heaps", "union_find"))
"""Modules whose kernels never change, so that whatever way a kernel is compiled it may call
them."""


def _kernel(function: Callable[..., Any], **how: Any) -> Any:
    """Compile a function when it is called, and again after edits of its file or of those of the
    kernels that it imports.
    """
    kernel = njit(cache=True, nogil=True, **how)(function)
    stamp = stamp_of(kernel)
    if stamp is not None:
        imported = {
            stamp_of(other)
            for other in function.__globals__.values()
            if stamp_of(other) is not None
            and other.py_func.__module__ not in (function.__module__, *FROZEN)
        }
        if imported:
            kernel._cache._cache_file._source_stamp = stamp, *sorted(imported, key=repr)
    return kernel


def stamp_of(kernel: Any) -> Any:
    """Return the stamp by which the cache of a kernel is known; None for what is no kernel, or
    where none is compiled.
    """
    cache = getattr(kernel, "_cache", None) if isinstance(kernel, Dispatcher) else None
    file = getattr(cache, "_cache_file", None)
    return None if file is None else file._source_stamp


def entry(function: Callable[..., Any]) -> Any:
    """A kernel that Python calls."""
    return interpretable(_kernel(function))


def uncounted_entry(function: Callable[..., Any]) -> Any:
    """The same where it makes no array and returns none: no references to its arguments are
    counted.
    """
    return interpretable(_kernel(function, _nrt=False))


serialize._numba_unpickle = lru_cache(maxsize=None)(serialize._numba_unpickle)
"""What kernels ask for the class of a named tuple that they return: numba crashes if a signal ends
it with an exception, as can happen to a function in Python, but not to a cache's hit."""

_load_index = IndexDataCacheFile._load_index


def _readable_index(file: Any) -> Any:
    """Return the index of a kernel's cache, an empty one where a class that it names has moved
    since it was written: numba would fail before it sees that the index is out of date.
    """
    try:
        return _load_index(file)
    except (AttributeError, ImportError):
        return {}


IndexDataCacheFile._load_index = _readable_index

inner_kernel = partial(_kernel, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""A kernel that only kernels call."""

uncounted_kernel = partial(inner_kernel, _nrt=False)
"""The same where it makes no array and returns none."""

inlined = partial(uncounted_kernel, forceinline=True)
"""A piece of a hot loop, which becomes a part of its caller; it makes no array and returns none."""

pasted = partial(_kernel, inline="always")
"""A helper whose source becomes a part of its caller before compilation: passing long tuples to a
call would copy them each time."""


@inlined
def row_of(pointer: Ints, row: int) -> range:
    """Return the places of a row in arrays that are cut into rows by a pointer (CSR)."""
    return range(pointer[row], pointer[row + 1])
