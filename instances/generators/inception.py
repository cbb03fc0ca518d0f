"""Inception-V3 (Szegedy et al. 2016), without the auxiliary classifier.

References
----------
C. Szegedy, V. Vanhoucke, S. Ioffe, J. Shlens, Z. Wojna, "Rethinking the Inception architecture for
computer vision", CVPR 2016.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.instances.generators.builder import GraphBuilder, Tensor
from placeopt.instances.generators.table import generator

if TYPE_CHECKING:
    from placeopt.model.graph import OpGraph


@generator()
def inception_v3(
    *,
    batch: int = 1,
    image: int = 299,
    classes: int = 1000,
    dtype_bytes: int = 4,
    name: str = "inception-v3",
) -> OpGraph:
    """Build Inception-V3: five 35 x 35, five 17 x 17 and three 8 x 8 modules with their
    reductions.
    """
    b = GraphBuilder(name, dtype_bytes)
    with b.layer("stem"):
        x = b.conv_bn_relu(b.input(batch, 3, image, image), 32, 3, 2, name="conv1")
        x = b.conv_bn_relu(x, 32, 3, name="conv2")
        x = b.conv_bn_relu(x, 64, 3, 1, 1, name="conv3")
        x = b.pool(x, 3, 2)
        x = b.conv_bn_relu(x, 80, 1, name="conv4")
        x = b.conv_bn_relu(x, 192, 3, name="conv5")
        x = b.pool(x, 3, 2)
    for position, pooled in enumerate((32, 64, 64)):
        with b.layer(f"mixed_a{position}"):
            x = _module_a(b, x, pooled)
    with b.layer("reduction_a"):
        x = _reduction_a(b, x)
    for position, width in enumerate((128, 160, 160, 192)):
        with b.layer(f"mixed_b{position}"):
            x = _module_b(b, x, width)
    with b.layer("reduction_b"):
        x = _reduction_b(b, x)
    for position in range(2):
        with b.layer(f"mixed_c{position}"):
            x = _module_c(b, x)
    with b.layer("head"):
        b.linear(b.global_pool(x), classes)
    return b.build()


def _pooled(b: GraphBuilder, x: Tensor, out: int) -> Tensor:
    return b.conv_bn_relu(b.pool(x, 3, 1, 1, kind="avg_pool"), out, 1, name="pooled")


def _module_a(b: GraphBuilder, x: Tensor, pooled: int) -> Tensor:
    """Figure 5 of the paper: 1 x 1, 5 x 5, double 3 x 3 and pooled branches."""
    one = b.conv_bn_relu(x, 64, 1, name="one")
    five = b.conv_bn_relu(x, 48, 1, name="five1")
    five = b.conv_bn_relu(five, 64, 5, 1, 2, name="five2")
    three = b.conv_bn_relu(x, 64, 1, name="three1")
    three = b.conv_bn_relu(three, 96, 3, 1, 1, name="three2")
    three = b.conv_bn_relu(three, 96, 3, 1, 1, name="three3")
    return b.concat((one, five, three, _pooled(b, x, pooled)), 1)


def _reduction_a(b: GraphBuilder, x: Tensor) -> Tensor:
    single = b.conv_bn_relu(x, 384, 3, 2, name="single")
    double = b.conv_bn_relu(x, 64, 1, name="double1")
    double = b.conv_bn_relu(double, 96, 3, 1, 1, name="double2")
    double = b.conv_bn_relu(double, 96, 3, 2, name="double3")
    return b.concat((single, double, b.pool(x, 3, 2)), 1)


def _module_b(b: GraphBuilder, x: Tensor, width: int) -> Tensor:
    """Figure 6: factorised 7 x 7 branches."""
    row, column = ((1, 7), (0, 3)), ((7, 1), (3, 0))
    one = b.conv_bn_relu(x, 192, 1, name="one")
    single = b.conv_bn_relu(x, width, 1, name="single1")
    single = b.conv_bn_relu(single, width, row[0], 1, row[1], name="single2")
    single = b.conv_bn_relu(single, 192, column[0], 1, column[1], name="single3")
    double = b.conv_bn_relu(x, width, 1, name="double1")
    for position, (kernel, padding) in enumerate((column, row, column, row), start=2):
        out = 192 if position == 5 else width
        double = b.conv_bn_relu(double, out, kernel, 1, padding, name=f"double{position}")
    return b.concat((one, single, double, _pooled(b, x, 192)), 1)


def _reduction_b(b: GraphBuilder, x: Tensor) -> Tensor:
    three = b.conv_bn_relu(x, 192, 1, name="three1")
    three = b.conv_bn_relu(three, 320, 3, 2, name="three2")
    seven = b.conv_bn_relu(x, 192, 1, name="seven1")
    seven = b.conv_bn_relu(seven, 192, (1, 7), 1, (0, 3), name="seven2")
    seven = b.conv_bn_relu(seven, 192, (7, 1), 1, (3, 0), name="seven3")
    seven = b.conv_bn_relu(seven, 192, 3, 2, name="seven4")
    return b.concat((three, seven, b.pool(x, 3, 2)), 1)


def _module_c(b: GraphBuilder, x: Tensor) -> Tensor:
    """Figure 7: 3 x 3 filters expanded to parallel 1 x 3 and 3 x 1."""
    one = b.conv_bn_relu(x, 320, 1, name="one")
    three = b.conv_bn_relu(x, 384, 1, name="three1")
    wide = [
        b.conv_bn_relu(three, 384, (1, 3), 1, (0, 1), name="three2a"),
        b.conv_bn_relu(three, 384, (3, 1), 1, (1, 0), name="three2b"),
    ]
    double = b.conv_bn_relu(x, 448, 1, name="double1")
    double = b.conv_bn_relu(double, 384, 3, 1, 1, name="double2")
    wide += [
        b.conv_bn_relu(double, 384, (1, 3), 1, (0, 1), name="double3a"),
        b.conv_bn_relu(double, 384, (3, 1), 1, (1, 0), name="double3b"),
    ]
    return b.concat((one, *wide, _pooled(b, x, 192)), 1)
