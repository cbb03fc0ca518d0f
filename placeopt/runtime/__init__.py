"""Running placements on real systems: kernels, engines, measurements.

A `Runtime` executes a graph under a placement and returns a `Measurement`. Nothing heavy is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placeopt.runtime.dask_runtime import DaskRuntime
    from placeopt.runtime.measurement import Measurement, Runtime
    from placeopt.runtime.serial import SerialRuntime

_HOMES = {
    "DaskRuntime": "dask_runtime",
    "Measurement": "measurement",
    "Runtime": "measurement",
    "SerialRuntime": "serial",
}

__all__ = [
    "DaskRuntime",
    "Measurement",
    "Runtime",
    "SerialRuntime",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"placeopt.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'placeopt.runtime' has no attribute '{name}'")
