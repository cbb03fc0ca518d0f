"""Running placements on real systems: kernels, runtimes, measurements, calibration, learning from
them.

A `Runtime` executes a graph under a placement and returns a `Measurement`. Nothing heavy is
imported here.
"""

from typing import TYPE_CHECKING

from placeopt.model.lazy import on_first_use

if TYPE_CHECKING:
    from placeopt.runtime.calibration import Calibration, calibrate
    from placeopt.runtime.dask_runtime import DaskRuntime
    from placeopt.runtime.measurement import Measurement, Runtime
    from placeopt.runtime.refinement import Measured, refine
    from placeopt.runtime.serial_runtime import SerialRuntime
    from placeopt.runtime.torch_runtime import TorchRuntime

_HOMES = {
    "calibration": "Calibration calibrate",
    "dask_runtime": "DaskRuntime",
    "refinement": "Measured refine",
    "measurement": "Measurement Runtime",
    "serial_runtime": "SerialRuntime",
    "torch_runtime": "TorchRuntime",
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

__getattr__, _ = on_first_use(__name__, _HOMES)
