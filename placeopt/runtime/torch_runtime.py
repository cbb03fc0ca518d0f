"""`TorchRuntime`: placements on the devices of one process, by default its CUDA devices.

The threads are those of `torch_engine`. With devices "cpu" the same code runs without a GPU, which
is how it is tested; ops then share the interpreter, and times mean little. An op without a torch
version of its kernel is computed by numpy on the host, slowly but right.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as functional

from placeopt.model.errors import InputError, MissingExtraError
from placeopt.runtime.execution_plan import make_plan
from placeopt.runtime.measurement import Measurement, check_placement, compare_results
from placeopt.runtime.numpy_ops import EPSILON, KERNELS, MASKED, constant
from placeopt.runtime.serial_runtime import NamedDevices, execute, result_tensors
from placeopt.runtime.torch_engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from placeopt.model.graph import OpGraph
    from placeopt.model.placement import Placement
    from placeopt.runtime.steps import Constant, ExecutionPlan

    Tensor = Any  # torch.Tensor; torch is optional, also for type checkers
    Options = Mapping[str, Any]


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

    link: ClassVar[tuple[float, float]] = (2e-5, 2e10)

    def __post_init__(self) -> None:
        try:
            import torch
        except ImportError:
            raise MissingExtraError("torch", "torch", "the torch runtime") from None
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
        """Run the op's kernel."""
        step = self.plan.steps[op]
        given = [
            operands[x] if isinstance(x, int) else self.constants[device, x] for x in step.operands
        ]
        found: Sequence[Any] = run_kernel(step.kernel, step.options, given, self.devices[device])
        return found


def run_kernel(
    name: str, options: Options, operands: list[Tensor], device: torch.device
) -> list[Tensor]:
    """Execute a kernel on the device of its operands; `device` is where a kernel without operands
    leaves its outputs.
    """
    kernel = TORCH_KERNELS.get(name)
    if kernel is not None:
        found = kernel(options, *operands)
        return found if isinstance(found, list) else [found]
    arrays = KERNELS[name](options, *(operand.cpu().numpy() for operand in operands))
    return [
        torch.from_numpy(array).to(device)
        for array in (arrays if isinstance(arrays, list) else [arrays])
    ]


def _matmul(o: Options, x: Tensor, y: Tensor) -> Tensor:
    return x @ (y.transpose(-1, -2) if o.get("transpose") else y)


def _linear(o: Options, x: Tensor, weights: Tensor, *bias: Tensor) -> Tensor:
    return x @ weights + bias[0] if bias else x @ weights


def _scores(o: Options, query: Tensor, key: Tensor) -> Tensor:
    q = query.reshape(query.shape[0], o["heads"], -1).permute(1, 0, 2)
    return q @ key.reshape(key.shape[0], o["heads"], -1).permute(1, 2, 0)


def _mix(o: Options, weight: Tensor, value: Tensor) -> Tensor:
    heads, length, _ = weight.shape
    v = value.reshape(value.shape[0], heads, -1).permute(1, 0, 2)
    return (weight @ v).permute(1, 0, 2).reshape(length, -1)


def _conv(o: Options, x: Tensor, weights: Tensor, *bias: Tensor) -> Tensor:
    (kh, kw), (ph, pw), (height, width) = o["kernel"], o["padding"], o["shape"][2:]
    below = max(0, (height - 1) * o["stride"] + kh - x.shape[2] - ph)
    right = max(0, (width - 1) * o["stride"] + kw - x.shape[3] - pw)
    kernel = weights.reshape(weights.shape[0], x.shape[1] // o["groups"], kh, kw)
    out = functional.conv2d(
        functional.pad(x, (pw, right, ph, below)),
        kernel,
        *bias,
        stride=o["stride"],
        groups=o["groups"],
    )
    return out[:, :, :height, :width].contiguous()


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "exp": lambda x: torch.exp(x.clamp(max=60)),
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: 1 / (x.abs() + EPSILON).sqrt(),
    "square": torch.square,
    "neg": torch.neg,
    "abs": torch.abs,
    "pow": lambda x: x * x * x,
    "mul_constant": lambda x: x * 0.125,
    "copy": torch.clone,
}
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "scale": torch.mul,
    "bias_add": torch.add,
    "div": lambda x, y: x / (y + torch.where(y < 0, -1e-30, 1e-30)),
}


def _mask(o: Options, x: Tensor) -> Tensor:
    query = torch.arange(x.shape[-2], device=x.device)[:, None] + o["first"]
    later = torch.arange(x.shape[-1], device=x.device)[None, :] > query
    return torch.where(later, MASKED, x * o["factor"])


def _rotate(o: Options, x: Tensor) -> Tensor:
    pairs = x.shape[1] // 2
    position = torch.arange(x.shape[0], device=x.device, dtype=torch.float64) + o["first"]
    rate = 10000.0 ** (-torch.arange(pairs, device=x.device, dtype=torch.float64) / pairs)
    angle = position[:, None] * rate[None, :]
    turn = torch.polar(torch.ones_like(angle), angle).to(
        torch.complex64 if x.dtype == torch.float32 else torch.complex128
    )
    return torch.view_as_real(
        torch.view_as_complex(x.reshape(x.shape[0], pairs, 2).contiguous()) * turn
    ).reshape(x.shape)


def _sum(o: Options, *parts: Tensor) -> Tensor:
    return reduce(operator.iadd, parts[1:], parts[0].clone())


def _maximum(o: Options, *parts: Tensor) -> Tensor:
    return reduce(torch.maximum, parts[1:], parts[0].clone())


def _over_rows(o: Options, x: Tensor) -> Tensor:
    function = o["function"]
    if function == "max":
        return x.amax(dim=-1, keepdim=True)
    if function == "mean":
        return x.mean(dim=-1, keepdim=True)
    if function == "square":
        return x.square().mean(dim=-1, keepdim=True)
    if function == "exp":
        return x.clamp(max=60).exp().sum(dim=-1, keepdim=True)
    return x.sum(dim=-1, keepdim=True)


def _softmax(o: Options, x: Tensor, *total: Tensor) -> Tensor:
    return x.clamp(max=60).exp() / total[0] if total else torch.softmax(x, dim=-1)


def _rms_norm(o: Options, x: Tensor, *total: Tensor) -> Tensor:
    mean = total[0] / o["parts"] if total else x.square().mean(dim=-1, keepdim=True)
    return x / (mean + EPSILON).sqrt()


def _regrid(o: Options, *parts: Tensor) -> Tensor:
    across = o["across"]
    whole = torch.cat(
        [torch.cat(parts[i : i + across], dim=1) for i in range(0, len(parts), across)], dim=0
    )
    (height, width), (top, left) = o["shape"], o["offset"]
    block = whole[top : top + height, left : left + width]
    return functional.pad(
        block, (0, width - block.shape[1], 0, height - block.shape[0])
    ).contiguous()


TORCH_KERNELS: dict[str, Callable[..., Any]] = {
    "matmul": _matmul,
    "linear": _linear,
    "scores": _scores,
    "mix": _mix,
    "conv": _conv,
    "mask": _mask,
    "unary": lambda o, x: _UNARY[o["function"]](x),
    "binary": lambda o, x, y: _BINARY[o["function"]](x, y),
    "rearrange": lambda o, x: x.reshape(o["shape"]).clone(),
    "variable": lambda o, x: x,
    "batch_norm": lambda o, x, scale, shift: x * scale + shift,
    "exp_shifted": lambda o, x, top: torch.exp(x - top),
    "rotate": _rotate,
    "sum": _sum,
    "maximum": _maximum,
    "over_rows": _over_rows,
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "regrid": _regrid,
    "global_pool": lambda o, x: x.mean(dim=(2, 3)).reshape(o["shape"]),
    "concat": lambda o, *parts: torch.cat(parts, dim=o["axis"]),
}
