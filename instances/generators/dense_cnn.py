"""Convolutional networks with dense wiring: DenseNet-121 and NASNet-A cells.

References
----------
G. Huang, Z. Liu, L. van der Maaten, K. Q. Weinberger, "Densely connected convolutional networks",
CVPR 2017. B. Zoph, V. Vasudevan, J. Shlens, Q. V. Le, "Learning transferable architectures for
scalable image recognition", CVPR 2018.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.instances.generators.builder import GraphBuilder, Tensor
from placeopt.instances.generators.table import generator

if TYPE_CHECKING:
    from placeopt.model.graph import OpGraph


@generator()
def densenet121(
    *,
    batch: int = 1,
    image: int = 224,
    classes: int = 1000,
    growth: int = 32,
    dtype_bytes: int = 4,
    name: str = "densenet121",
) -> OpGraph:
    """Build DenseNet-121 (Huang et al. 2017, table 1): bottleneck layers, compression 0.5."""
    b = GraphBuilder(name, dtype_bytes)
    with b.layer("stem"):
        x = b.conv_bn_relu(b.input(batch, 3, image, image), 2 * growth, 7, 2, 3)
        x = b.pool(x, 3, 2, 1)
    blocks = (6, 12, 24, 16)
    for block, layers in enumerate(blocks):
        features = [x]
        for layer in range(layers):
            with b.layer(f"block{block + 1}/{layer}"):
                y = b.concat(features, 1) if len(features) > 1 else features[0]
                y = b.relu(b.batch_norm(y))
                y = b.conv_bn_relu(y, 4 * growth, 1, name="conv1")
                features.append(b.conv(y, growth, 3, 1, 1, name="conv2"))
        with b.layer(f"transition{block + 1}" if block + 1 < len(blocks) else "head"):
            x = b.relu(b.batch_norm(b.concat(features, 1)))
            if block + 1 < len(blocks):
                x = b.pool(b.conv(x, x.shape[1] // 2, 1), 2, 2, kind="avg_pool")
            else:
                b.linear(b.global_pool(x), classes)
    return b.build()


@generator()
def nasnet(
    *,
    cells: int = 6,
    filters: int = 32,
    batch: int = 32,
    image: int = 32,
    classes: int = 10,
    dtype_bytes: int = 4,
    name: str = "nasnet-cell",
) -> OpGraph:
    """Build a stack of NASNet-A cells (Zoph et al. 2018, figure 4).

    Parameters
    ----------
    cells : number of cells; the cells at one third and two thirds reduce the image and double the
    filters.
    filters : filters per op of the first cells.
    """
    b = GraphBuilder(name, dtype_bytes)
    with b.layer("stem"):
        x = b.batch_norm(b.conv(b.input(batch, 3, image, image), 3 * filters, 3, 1, 1))
    previous = x
    reductions = {cells // 3, 2 * cells // 3} if cells >= 3 else set()
    for cell in range(cells):
        with b.layer(f"cell{cell}"):
            if cell in reductions:
                filters *= 2
                x, previous = _reduction_cell(b, previous, x, filters), x
            else:
                x, previous = _normal_cell(b, previous, x, filters), x
    with b.layer("head"):
        b.linear(b.global_pool(b.relu(x)), classes)
    return b.build()


def _squeeze(b: GraphBuilder, x: Tensor, filters: int, side: int, name: str) -> Tensor:
    """Bring a cell input to `filters` channels and the given image side."""
    stride = x.shape[2] // side
    return b.batch_norm(b.conv(b.relu(x), filters, 1, max(1, stride), name=name))


def _separable(b: GraphBuilder, x: Tensor, kernel: int, filters: int, stride: int = 1) -> Tensor:
    """Separable convolution, applied twice as in the paper."""
    for step in (stride, 1):
        x = b.relu(x)
        x = b.conv(
            x, x.shape[1], kernel, step, kernel // 2, groups=x.shape[1], name=f"depthwise{kernel}"
        )
        x = b.batch_norm(b.conv(x, filters, 1, name=f"pointwise{kernel}"))
    return x


def _normal_cell(b: GraphBuilder, previous: Tensor, x: Tensor, f: int) -> Tensor:
    side = x.shape[2]
    h0, h1 = _squeeze(b, previous, f, side, "squeeze_previous"), _squeeze(b, x, f, side, "squeeze")
    blocks = [
        b.add(_separable(b, h1, 3, f), h1),
        b.add(_separable(b, h0, 3, f), _separable(b, h1, 5, f)),
        b.add(b.pool(h1, 3, 1, 1, kind="avg_pool"), h0),
        b.add(b.pool(h0, 3, 1, 1, kind="avg_pool"), b.pool(h0, 3, 1, 1, kind="avg_pool")),
        b.add(_separable(b, h0, 5, f), _separable(b, h0, 3, f)),
    ]
    return b.concat([h0, *blocks], 1)


def _reduction_cell(b: GraphBuilder, previous: Tensor, x: Tensor, f: int) -> Tensor:
    side = x.shape[2]
    h0, h1 = _squeeze(b, previous, f, side, "squeeze_previous"), _squeeze(b, x, f, side, "squeeze")
    first = b.add(_separable(b, h0, 7, f, 2), _separable(b, h1, 5, f, 2))
    second = b.add(b.pool(h1, 3, 2, 1), _separable(b, h0, 7, f, 2))
    third = b.add(b.pool(h1, 3, 2, 1, kind="avg_pool"), _separable(b, h0, 5, f, 2))
    fourth = b.add(b.pool(h1, 3, 2, 1), _separable(b, first, 3, f))
    fifth = b.add(b.pool(first, 3, 1, 1, kind="avg_pool"), second)
    return b.concat([second, third, fourth, fifth], 1)
