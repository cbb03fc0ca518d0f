"""The ATen ops of torch.export graphs: which cost rule each one has.

Both readers of exported programs, the live one and the one of .pt2 archives, describe a call by its
target and its arguments, in which tensors are `Ref`s. Regions that only set a mode belong to the
graph around them: torch.export writes `with torch.no_grad()` as a call of a nested graph. Left as
it is, the region is one op that ties everything that reads its results together; so readers and
programs both inline it, under the names given here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placeopt.instances.readers.model_ir import Node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Ref(str):
    """The name of a tensor among the arguments of a call."""

    __slots__ = ()


_GROUPS: dict[str, str] = {
    "conv": "conv1d conv2d conv3d convolution _convolution",
    "conv_transpose": "conv_transpose1d conv_transpose2d conv_transpose3d",
    "matmul": "linear matmul mm bmm mv dot addmm baddbmm addbmm addmv _int_mm _scaled_mm "
    "_grouped_mm grouped_mm grouped_mm_fallback",
    "einsum": "einsum",
    "rnn": "lstm gru rnn_tanh rnn_relu",
    "attention": "scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math",
    "pool": "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d "
    "max_pool2d_with_indices "
    "max_pool3d_with_indices",
    "reduce": "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d "
    "adaptive_max_pool2d sum "
    "mean amax amin max min prod norm var std var_mean argmax argmin any all logsumexp "
    "linalg_vector_norm cumsum",
    "softmax": "softmax log_softmax _softmax _log_softmax _safe_softmax cross_entropy_loss "
    "nll_loss",
    "layer_norm": "layer_norm native_layer_norm group_norm native_group_norm instance_norm",
    "rms_norm": "rms_norm _fused_rms_norm",
    "batch_norm": "batch_norm _native_batch_norm_legit_no_training native_batch_norm "
    "cudnn_batch_norm "
    "_native_batch_norm_legit",
    "sigmoid": "sigmoid tanh exp log erf softplus elu selu celu silu mish hardswish sin cos tan "
    "logsigmoid expm1 log1p",
    "gelu": "gelu",
    "resize": "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d grid_sampler "
    "grid_sampler_2d "
    "_upsample_bilinear2d_aa upsample_nearest1d upsample_nearest3d",
    "sort": "topk sort argsort",
    "fft": "_fft_r2c _fft_c2c _fft_c2r fft_rfft fft_irfft fft_fft fft_ifft",
    "layout": "clone contiguous to _to_copy type_as float half bfloat16",
    "move": "cat stack concat copy repeat repeat_interleave roll flip constant_pad_nd pad scatter "
    "scatter_add index_put "
    "slice_scatter select_scatter pixel_shuffle pixel_unshuffle zeros_like ones_like full_like "
    "empty_like rand_like "
    "randn_like new_zeros new_ones new_full new_empty masked_fill one_hot tril triu unfold im2col",
    "gather": "embedding",
    "pick": "index index_select gather take take_along_dim masked_select embedding_bag",
    "view": "view reshape flatten unflatten unsqueeze squeeze expand expand_as permute transpose t "
    "numpy_T slice select "
    "split split_with_sizes chunk unbind narrow view_as _unsafe_view movedim swapaxes tensor_split "
    "unsafe_split "
    "unsafe_chunk as_strided real imag view_as_real view_as_complex",
    "identity": "dropout alias detach lift_fresh_copy lift_fresh native_dropout feature_dropout "
    "alpha_dropout positive",
    "fill": "arange zeros ones full scalar_tensor empty rand randn eye linspace tensor randperm "
    "randint",
}

RULE = {name: rule for rule, names in _GROUPS.items() for name in names.split()}
"""Cost rule by ATen name; a name that is not here costs 1 flop per output element."""

_EXTRA: dict[str, dict[str, Any]] = {
    "linear": {"bias": 2, "trans_b": True},
    "addmm": {"bias": 0, "left": 1},
    "addmv": {"bias": 0, "left": 1},
    "baddbmm": {"bias": 0, "left": 1},
    "add": {"affine": "shift"},
    "sub": {"affine": "shift", "ordered": True},
    "mul": {"affine": "scale"},
    "div": {"affine": "scale", "ordered": True},
}


def base_name(target: str) -> str:
    """Return "conv2d" for "torch.ops.aten.conv2d.default" or "aten::conv2d"; in-place marks are
    dropped.
    """
    parts = target.replace("::", ".").removeprefix("torch.ops.").split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name.rstrip("_") or name


def make_node(
    name: str,
    target: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: list[str],
    layer: str,
) -> Node:
    """Return the node of a call.

    Inputs are the tensors among the arguments in order; None among them leaves a gap, so that
    positions tell a weight from a bias.
    """
    kind = base_name(target)
    rule = RULE.get(kind, "elementwise")
    attrs = dict(_EXTRA.get(kind, {}))
    inputs = list(_tensors([*args, *kwargs.values()]))
    if rule == "pool":
        kernel = args[1] if len(args) > 1 else kwargs.get("kernel_size", ())
        sizes = [kernel] if isinstance(kernel, int) else list(kernel or ())
        attrs["kernel"] = _kernel(sizes, kind)
    elif rule == "einsum":
        attrs["equation"] = next(
            (x for x in args if isinstance(x, str) and not isinstance(x, Ref)), ""
        )
    elif rule == "rnn":
        attrs["weights"] = tuple(range(3 if kind == "lstm" else 2, len(inputs)))
    elif rule == "batch_norm":
        attrs["buffers"] = (3, 4)
    elif kind in ("convolution", "_convolution") and len(args) > 6 and args[6] is True:
        rule = "conv_transpose"
    return Node(name, kind, rule, inputs, outputs, attrs, layer)


def _kernel(sizes: list[int], kind: str) -> tuple[int, ...]:
    rank = (
        int(kind.partition("d")[0][-1]) if kind.partition("d")[0][-1:].isdecimal() else len(sizes)
    )
    return tuple(sizes * rank if len(sizes) == 1 else sizes)


def _tensors(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Ref):
            yield str(value)
        elif value is None:
            yield ""
        elif isinstance(value, list | tuple):
            yield from (x for x in _tensors(value) if x)


def module_path(stack: str) -> str:
    """Return "layers/0/attn" for the path "layers.0.attn" of a module, also in torch's "L['self']"
    notation.
    """
    text = stack.removeprefix("L__self__").removeprefix("L['self']").strip(".")
    return "/".join(
        part.strip("'\"") for part in text.replace("[", ".").replace("]", "").split(".") if part
    )


def region_of(node: Any) -> tuple[Any, tuple[Any, ...], bool] | None:
    """Return (node of the nested graph, its arguments, whether gradients pass), None if a node is
    no such region.

    A region that turns autocast on is none: inlined, it would compute in another precision.
    """
    if node.op != "call_function":
        return None
    name = getattr(node.target, "__name__", "") or str(node.target)
    if name == "wrap_with_set_grad_enabled":
        return node.args[1], tuple(node.args[2:]), bool(node.args[0])
    if name == "wrap_with_autocast" and not node.args[2]:
        return node.args[4], tuple(node.args[5:]), True
    return None


def inner_name(region: str, name: str) -> str:
    """Return the name that an op of a region has outside it."""
    return f"{region}_{name}"
