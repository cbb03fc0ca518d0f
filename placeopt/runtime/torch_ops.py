"""Torch versions of the kernels; one that has none is computed by numpy on the host, slowly but
right.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as functional

from placeopt.runtime.numpy_ops import EPSILON, KERNELS, MASKED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Tensor = Any  # torch.Tensor; torch is optional, also for type checkers
    Options = Mapping[str, Any]


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
