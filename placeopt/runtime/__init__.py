"""Running placements on real systems: kernels, runtimes, measurements, calibration, learning from them.

A `Runtime` executes a graph under a placement and returns a `Measurement`. Nothing heavy is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placeopt.runtime.calibration import Calibration, calibrate
    from placeopt.runtime.dask_runtime import DaskRuntime
    from placeopt.runtime.measurement import Measurement, Runtime
    from placeopt.runtime.refinement import Measured, refine
    from placeopt.runtime.serial_runtime import SerialRuntime
    from placeopt.runtime.torch_runtime import TorchRuntime

_HOMES = {
    "Calibration": "calibration",
    "calibrate": "calibration",
    "DaskRuntime": "dask_runtime",
    "Measured": "refinement",
    "refine": "refinement",
    "Measurement": "measurement",
    "Runtime": "measurement",
    "SerialRuntime": "serial_runtime",
    "TorchRuntime": "torch_runtime",
}

__all__ = [
    "Calibration",
    "DaskRuntime",
    "Measured",
    "Measurement",
    "Runtime",
    "SerialRuntime",
    "TorchRuntime",
    "calibrate",
    "refine",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"placeopt.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'placeopt.runtime' has no attribute '{name}'")
