"""`TorchRuntime`: placements on the devices of one process, by default its CUDA devices.

The threads are those of `torch_engine`. With devices "cpu" the same code runs without a GPU, which
is how it is tested; ops then share the interpreter, and times mean little.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placeopt.model.errors import InputError, needed_package
from placeopt.model.graph import OpGraph
from placeopt.model.placement import Placement
from placeopt.runtime.array_ops import KERNELS, ON_HOST, constant
from placeopt.runtime.execution_plan import Constant, ExecutionPlan, make_plan
from placeopt.runtime.measurement import Measurement, check_placement, compare_results
from placeopt.runtime.serial_runtime import NamedDevices, execute, result_tensors
from placeopt.runtime.torch_engine import Engine


def unavailable() -> str:
    """Why CUDA devices cannot be used here; empty if they can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "torch finds no CUDA device"


@dataclass
class TorchRuntime(NamedDevices):
    """Runs graphs on torch devices.

    Parameters
    ----------
    devices : names of torch devices, one per device of the placement; () for all CUDA devices. A
        name may occur
        twice: its devices then share the hardware.

    Raises
    ------
    MissingExtraError
        If torch is not installed.
    InputError
        If there is no CUDA device and no other devices were named.
    """

    devices: tuple[str, ...] = ()

    link = (2e-5, 2e10)

    def __post_init__(self) -> None:
        torch = needed_package("torch", "torch", "the torch runtime")
        if not self.devices:
            if reason := unavailable():
                raise InputError(
                    f"torch runtime: {reason}; name devices, e.g. devices=('cpu', 'cpu')"
                )
            self.devices = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))

    def title(self) -> str:
        """Names of the devices."""
        return f"torch {','.join(self.devices)}"

    def run(
        self, graph: OpGraph, placement: Placement, *, repeat: int = 1, check: bool = False
    ) -> Measurement:
        """Execute `graph` under `placement`, `repeat` times after one that does not count.

        Raises
        ------
        ExecutionError
            If an op fails or, with `check`, a result differs from that of the numpy kernels.
        """
        placement = check_placement(graph, placement, self.num_devices, repeat)
        plan = make_plan(graph)
        engine = Engine(
            graph, KernelWork(graph, plan, placement, self.devices), placement, self.devices
        )
        runs = [engine.run() for _ in range(repeat + 1)][1:]
        if check:
            results = {
                tensor: engine.values[key].cpu().numpy() for tensor, key in engine.results.items()
            }
            compare_results(
                graph, results, execute(graph, plan, graph.topological_order)[0], tolerance=1e-3
            )
        return Measurement.of_runs(graph.name, "torch", self.cluster(), placement, runs, check)


class KernelWork:
    """The synthetic kernels of a plan, with their constants on the devices that read them."""

    def __init__(
        self, graph: OpGraph, plan: ExecutionPlan, placement: Placement, names: Sequence[str]
    ) -> None:
        import torch

        self.plan, self.devices = plan, [torch.device(name) for name in names]
        self.results: Collection[int] = result_tensors(graph)
        self.constants: dict[tuple[int, Constant], Any] = {}
        for op, home in enumerate(placement.device.tolist()):
            for key in plan.constants(op):
                if (home, key) not in self.constants:
                    self.constants[home, key] = torch.from_numpy(constant(*key).copy()).to(
                        self.devices[home]
                    )

    def reads(self, op: int) -> Collection[int]:
        """Return the tensors that an op reads."""
        return {x for x in self.plan.steps[op].operands if isinstance(x, int)}

    def outputs(self, op: int) -> Sequence[int]:
        """Return the tensors that an op makes."""
        return self.plan.steps[op].outputs

    def compute(self, op: int, device: int, operands: Mapping[int, Any]) -> Sequence[Any]:
        """Run the op's kernel; one that torch has not runs on the host, slowly but right."""
        import torch

        step = self.plan.steps[op]
        given = [
            operands[x] if isinstance(x, int) else self.constants[device, x] for x in step.operands
        ]
        if step.kernel in ON_HOST:
            given = [x.cpu().numpy() for x in given]
        kernel = conv if step.kernel == "conv" else KERNELS[step.kernel]
        found = kernel(step.options, *given)
        where = self.devices[device]
        made = found if isinstance(found, list) else [found]
        return [torch.as_tensor(x, device=where) for x in made]


def conv(o: Mapping[str, Any], x: Any, weights: Any, *bias: Any) -> Any:
    """Two-dimensional convolution by torch's own kernel."""
    from torch.nn import functional

    (kh, kw), (ph, pw), (height, width) = o["kernel"], o["padding"], o["shape"][2:]
    below = max(0, (height - 1) * o["stride"] + kh - x.shape[2] - ph)
    right = max(0, (width - 1) * o["stride"] + kw - x.shape[3] - pw)
    out = functional.conv2d(
        functional.pad(x, (pw, right, ph, below)),
        weights.reshape(len(weights), -1, kh, kw),
        *bias,
        stride=o["stride"],
        groups=o["groups"],
    )
    return out[:, :, :height, :width].contiguous()
