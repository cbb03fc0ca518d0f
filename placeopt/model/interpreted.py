"""Kernels run by the interpreter while another process compiles them: slow, with the same results.

A kernel that Python calls asks this file before it is compiled or loaded
(`placeopt.model.compiled`). Of a module that is named in `MODULES` it runs its Python source, in
which all kernels that it calls are Python too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

MODULES: set[str] = set()
"""Modules whose kernels are interpreted, as long as they are not compiled;
`placeopt.solving.compilation` keeps it."""

_namespaces: dict[str, dict[str, Any]] = {}


def interpretable(kernel: Any) -> Any:
    """Let a kernel run as Python, instead of being compiled, while its module is in MODULES."""
    compile_now: Callable[..., Any] | None = getattr(kernel, "_compile_for_args", None)
    if (
        compile_now is not None
    ):  # numba asks this method for what it shall call with arguments of a new type

        def compile_or_interpret(*args: Any, **named: Any) -> Any:
            return (
                as_python(kernel)
                if kernel.py_func.__module__ in MODULES
                else compile_now(*args, **named)
            )

        kernel._compile_for_args = compile_or_interpret
    return kernel


def as_python(kernel: Any) -> FunctionType:
    """Return the Python function of a kernel, which calls Python functions where the kernel calls
    kernels.
    """
    source = kernel.py_func
    namespace = _namespaces.get(source.__module__)
    if namespace is None:
        namespace = _namespaces[source.__module__] = dict(vars(sys.modules[source.__module__]))
        for name, value in list(namespace.items()):
            if hasattr(value, "py_func"):
                namespace[name] = as_python(value)
    return FunctionType(
        source.__code__, namespace, source.__name__, source.__defaults__, source.__closure__
    )
