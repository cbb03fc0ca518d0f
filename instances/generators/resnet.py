"""ResNet-50, -101 and -152 (He et al. 2016, table 1), with the stride on the 3 x 3 convolution.

References
----------
K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", CVPR 2016.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.instances.generators.builder import GraphBuilder, Tensor
from placeopt.instances.generators.table import generator
from placeopt.model.errors import InputError

if TYPE_CHECKING:
    from placeopt.model.graph import OpGraph

_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


@generator()
def resnet(
    *,
    depth: int = 50,
    batch: int = 1,
    image: int = 224,
    classes: int = 1000,
    dtype_bytes: int = 4,
    name: str = "resnet",
) -> OpGraph:
    """Build a bottleneck ResNet of 50, 101 or 152 layers on square images."""
    if depth not in _BLOCKS:
        raise InputError(
            f"generator '{name}': option 'depth' expects 50, 101 or 152, received {depth}"
        )
    b = GraphBuilder(name, dtype_bytes)
    with b.layer("stem"):
        x = b.conv_bn_relu(b.input(batch, 3, image, image), 64, 7, 2, 3)
        x = b.pool(x, 3, 2, 1)
    for stage, blocks in enumerate(_BLOCKS[depth]):
        width = 64 << stage
        for block in range(blocks):
            with b.layer(f"stage{stage + 1}/{block}"):
                x = _bottleneck(b, x, width, stride=2 if stage and not block else 1)
    with b.layer("head"):
        b.linear(b.global_pool(x), classes)
    return b.build()


def _bottleneck(b: GraphBuilder, x: Tensor, width: int, stride: int) -> Tensor:
    shortcut = x
    if x.shape[1] != 4 * width:
        shortcut = b.batch_norm(
            b.conv(x, 4 * width, 1, stride, name="shortcut"), name="shortcut_bn"
        )
    y = b.conv_bn_relu(x, width, 1, name="conv1")
    y = b.conv_bn_relu(y, width, 3, stride, 1, name="conv2")
    y = b.batch_norm(b.conv(y, 4 * width, 1, name="conv3"), name="conv3_bn")
    return b.relu(b.add(y, shortcut))
