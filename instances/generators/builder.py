"""GraphBuilder: writes down a model op by op and counts its flops, bytes and parameters.

Conventions, shared by every generator:

- a multiply-add is 2 flops; data movement (reshape, concat, gather) is 0 flops;
- bytes moved are all inputs, the weights and all outputs, each once;
- resident bytes are the weights (and, for batch norms, the running statistics);
- an input of the model (tokens, image) is not an op: it is there when the run starts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypedDict, Unpack

from placeopt.instances.generators import check_count
from placeopt.model.arrays import MAX_SUM
from placeopt.model.errors import InputError
from placeopt.model.graph import OpGraph

Shape = tuple[int, ...]

Size = int | tuple[int, int]
"""Of a kernel or its padding: one number for height and width, or both."""

MAX_BUILT = 300_000
"""Most ops of a graph that is written down op by op: seconds, not minutes."""


class Tensor(NamedTuple):
    """A handle on a tensor of the graph being built; id -1 is an input of the model."""

    id: int
    shape: Shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def height_and_width(size: Size) -> tuple[int, int]:
    """Return both numbers of a size."""
    return (size, size) if isinstance(size, int) else size


class OpFields(TypedDict, total=False):
    """What an op may be given; see `GraphBuilder.ops`."""

    name: str
    flops: int
    parameters: int
    buffers: int
    moved: int | None


OP_FIELDS = ("op_types", "layer", "flops", "bytes_moved", "resident", "parameters", "meta")
"""Fields of an OpGraph that the builder keeps, a row for every op."""


class GraphBuilder:
    """Collects ops and tensors; `build` returns the OpGraph.

    Parameters
    ----------
    name : name of the graph.
    dtype_bytes : bytes of one element of activations and weights.
    """

    def __init__(self, name: str, dtype_bytes: int = 4) -> None:
        self.name = name
        self.dtype_bytes = dtype_bytes
        self._path = ""
        self.meta = -1  # label of the sharded op that the next ops are pieces of
        self._names = Counter[str]()
        self._op_names: list[str] = []
        self._ops: list[tuple[Any, ...]] = []  # values of OP_FIELDS
        self._tensors: list[tuple[int, int, list[int]]] = []  # producer, bytes, consumers
        self._shapes: list[Shape] = []
        self._links = 0

    # --- the primitive
    # -----------------------------------------------------------------------------------

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Name the layer that the ops created inside belong to; layers nest ("encoder/3")."""
        outer = self._path
        self._path = f"{outer}/{name}" if outer else name
        try:
            yield
        finally:
            self._path = outer

    def input(self, *shape: int) -> Tensor:
        """Return an input of the model."""
        return Tensor(-1, shape)

    def ops(
        self,
        kind: str,
        inputs: Sequence[Tensor],
        shapes: Sequence[Shape],
        *,
        name: str = "",
        flops: int = 0,
        parameters: int = 0,
        buffers: int = 0,
        moved: int | None = None,
    ) -> list[Tensor]:
        """Add one op with any number of outputs and return them.

        Parameters
        ----------
        kind : type of the op.
        parameters, buffers : learned values and other values kept with the op (running statistics).
        moved : bytes read and written, default all inputs, parameters and outputs.
        """
        title = name or kind
        path = f"{self._path}/{title}" if self._path else title
        seen = self._names[path]
        self._names[path] += 1
        op = len(self._op_names)
        self._links += len(inputs) + len(shapes)
        check_count(self.name, op + 1, MAX_BUILT)
        # Most outputs and inputs of all ops: seconds, not minutes
        max_links = 3_000_000
        check_count(self.name, self._links, max_links, "tensors and inputs of ops")
        self._op_names.append(f"{path}_{seen}" if seen else path)
        for tensor in inputs:
            if tensor.id >= 0:
                self._tensors[tensor.id][2].append(op)
        outputs = [Tensor(index, shape) for index, shape in enumerate(shapes, len(self._tensors))]
        self._tensors += [(op, tensor.size * self.dtype_bytes, []) for tensor in outputs]
        self._shapes += shapes
        if moved is None:
            values = sum(tensor.size for tensor in (*inputs, *outputs))
            moved = (values + parameters) * self.dtype_bytes
        resident = (parameters + buffers) * self.dtype_bytes
        self._ops.append((kind, self._path, flops, moved, resident, parameters, self.meta))
        return outputs

    def op(
        self, kind: str, inputs: Sequence[Tensor], shape: Shape, **fields: Unpack[OpFields]
    ) -> Tensor:
        """Add one op with one output and return it; see `ops`."""
        return self.ops(kind, inputs, (shape,), **fields)[0]

    def variable(self, shape: Shape, *, name: str = "weights") -> Tensor:
        """Learned values as an op of their own, which other ops read as a tensor."""
        return self.op("variable", (), shape, name=name, parameters=math.prod(shape), moved=0)

    def build(self) -> OpGraph:
        """Return the graph."""
        fields = {name: tuple(row[at] for row in self._ops) for at, name in enumerate(OP_FIELDS)}
        sizes = [size for _, size, _ in self._tensors]
        if max(map(sum, (fields["flops"], fields["bytes_moved"], sizes))) >= MAX_SUM:
            raise InputError(
                f"generator '{self.name}': flops or bytes pass 2^62; use smaller sizes"
            )
        return OpGraph.from_tensors(
            self.name, self._op_names, self._tensors, shapes=tuple(self._shapes), **fields
        )

    # --- element-wise and shape ops
    # ----------------------------------------------------------------------

    def unary(self, kind: str, x: Tensor, *, cost: int = 1, name: str = "") -> Tensor:
        """Element-wise op of one tensor: `cost` flops per element."""
        return self.op(kind, (x,), x.shape, name=name, flops=cost * x.size)

    def binary(self, kind: str, x: Tensor, y: Tensor, *, name: str = "") -> Tensor:
        """Element-wise op of two tensors of which the larger gives the shape."""
        shape = x.shape if x.size >= y.size else y.shape
        return self.op(kind, (x, y), shape, name=name, flops=math.prod(shape))

    def add(self, x: Tensor, y: Tensor, *, name: str = "") -> Tensor:
        """Element-wise sum."""
        return self.binary("add", x, y, name=name)

    def scale(self, x: Tensor) -> Tensor:
        """Multiply by a learned vector along the last dimension."""
        return self.op("scale", (x,), x.shape, flops=x.size, parameters=x.shape[-1])

    def bias(self, x: Tensor, *, name: str = "bias") -> Tensor:
        """Add a learned vector along the last dimension."""
        return self.op("bias_add", (x,), x.shape, name=name, flops=x.size, parameters=x.shape[-1])

    def reshape(
        self, x: Tensor, shape: Shape, *, kind: str = "transpose", name: str = ""
    ) -> Tensor:
        """Rearrange a tensor into `shape` (a copy: bytes move, nothing is computed)."""
        return self.op(kind, (x,), shape, name=name)

    def concat(self, parts: Sequence[Tensor], *, name: str = "concat") -> Tensor:
        """Join tensors along the second dimension."""
        batch, _, *rest = parts[0].shape
        shape = (batch, sum(part.shape[1] for part in parts), *rest)
        return self.op("concat", parts, shape, name=name)

    # --- matrix products
    # ---------------------------------------------------------------------------------

    def linear(self, x: Tensor, out: int, *, bias: bool = True, name: str = "linear") -> Tensor:
        """Fully connected layer on the last dimension, bias fused."""
        features = x.shape[-1]
        shape = (*x.shape[:-1], out)
        return self.op(
            "linear",
            (x,),
            shape,
            name=name,
            flops=math.prod(shape) * (2 * features + bias),
            parameters=out * (features + bias),
        )

    def matmul(
        self, x: Tensor, y: Tensor, shape: Shape, inner: int, *, name: str = "matmul"
    ) -> Tensor:
        """Product of two activations with `inner` terms per output element."""
        return self.op("matmul", (x, y), shape, name=name, flops=2 * math.prod(shape) * inner)

    def embedding(
        self, tokens: Tensor, rows: int, width: int, *, name: str = "embedding"
    ) -> Tensor:
        """Look rows of a learned table up; only the rows that are read move."""
        shape = (*tokens.shape, width)
        return self.op(
            "embedding",
            (tokens,),
            shape,
            name=name,
            parameters=rows * width,
            moved=2 * math.prod(shape) * self.dtype_bytes,
        )

    # --- images, NCHW
    # ------------------------------------------------------------------------------------

    def conv(
        self,
        x: Tensor,
        out: int,
        kernel: Size,
        stride: int = 1,
        padding: Size = 0,
        *,
        groups: int = 1,
        bias: bool = False,
        name: str = "conv",
    ) -> Tensor:
        """Two-dimensional convolution."""
        batch, channels, height, width = x.shape
        (kh, kw), (ph, pw) = height_and_width(kernel), height_and_width(padding)
        shape = (
            batch,
            out,
            (height + 2 * ph - kh) // stride + 1,
            (width + 2 * pw - kw) // stride + 1,
        )
        self._check_image(shape)
        terms = channels // groups * kh * kw
        return self.op(
            "conv",
            (x,),
            shape,
            name=name,
            flops=math.prod(shape) * (2 * terms + bias),
            parameters=out * (terms + bias),
        )

    def batch_norm(self, x: Tensor, *, name: str = "bn") -> Tensor:
        """Batch normalisation folded to scale and shift; keeps running mean and variance."""
        channels = x.shape[1]
        return self.op(
            "batch_norm",
            (x,),
            x.shape,
            name=name,
            flops=2 * x.size,
            parameters=2 * channels,
            buffers=2 * channels,
        )

    def _check_image(self, shape: Shape) -> None:
        if min(shape) < 1:
            raise InputError(
                f"generator '{self.name}': the image vanishes at layer '{self._path}' (shape "
                f"{shape}); use a larger image"
            )

    def relu(self, x: Tensor, *, name: str = "relu") -> Tensor:
        """Rectifier."""
        return self.unary("relu", x, name=name)

    def conv_bn_relu(
        self,
        x: Tensor,
        out: int,
        kernel: Size,
        stride: int = 1,
        padding: Size = 0,
        *,
        name: str = "conv",
    ) -> Tensor:
        """Convolution, batch norm and rectifier, three ops."""
        x = self.conv(x, out, kernel, stride, padding, name=name)
        x = self.batch_norm(x, name=f"{name}_bn")
        return self.relu(x, name=f"{name}_relu")

    def pool(
        self,
        x: Tensor,
        kernel: int,
        stride: int,
        padding: int = 0,
        *,
        kind: str = "max_pool",
        ceil: bool = False,
    ) -> Tensor:
        """Maximum or average pooling (`kind` "max_pool" or "avg_pool"); `ceil` rounds sizes up."""
        batch, channels, height, width = x.shape

        def side(length: int) -> int:
            span = length + 2 * padding - kernel
            return (-(-span // stride) if ceil else span // stride) + 1

        shape = (batch, channels, side(height), side(width))
        self._check_image(shape)
        return self.op(kind, (x,), shape, flops=math.prod(shape) * kernel * kernel)

    def global_pool(self, x: Tensor) -> Tensor:
        """Average over the image; leaves (batch, channels)."""
        return self.op("avg_pool", (x,), x.shape[:2], name="global_pool", flops=x.size)
