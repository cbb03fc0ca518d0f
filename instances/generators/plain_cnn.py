"""Classic convolutional networks: AlexNet, VGG-16 and SqueezeNet.

References
----------
A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997,
2014. K. Simonyan, A. Zisserman, "Very deep convolutional networks for large-scale image
      recognition", ICLR 2015.
F. N. Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and < 0.5 MB
model size", arXiv:1602.07360, 2016.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeopt.instances.generators.builder import GraphBuilder, Tensor
from placeopt.instances.generators.table import generator

if TYPE_CHECKING:
    from placeopt.model.graph import OpGraph


@generator()
def alexnet(
    *,
    batch: int = 1,
    image: int = 224,
    classes: int = 1000,
    dtype_bytes: int = 4,
    name: str = "alexnet",
) -> OpGraph:
    """Build AlexNet in its one-tower form (Krizhevsky 2014, "One weird trick")."""
    b = GraphBuilder(name, dtype_bytes)
    x = b.input(batch, 3, image, image)
    plan = [
        (64, 11, 4, 2, True),
        (192, 5, 1, 2, True),
        (384, 3, 1, 1, False),
        (256, 3, 1, 1, False),
        (256, 3, 1, 1, True),
    ]
    for position, (out, kernel, stride, padding, pooled) in enumerate(plan, start=1):
        with b.layer(f"conv{position}"):
            x = b.relu(b.conv(x, out, kernel, stride, padding, bias=True))
            if pooled:
                x = b.pool(x, 3, 2)
    return _classifier(b, x, classes)


@generator()
def vgg16(
    *,
    batch: int = 1,
    image: int = 224,
    classes: int = 1000,
    dtype_bytes: int = 4,
    name: str = "vgg16",
) -> OpGraph:
    """Build VGG-16, configuration D of Simonyan and Zisserman (2015)."""
    b = GraphBuilder(name, dtype_bytes)
    x = b.input(batch, 3, image, image)
    for block, (out, repeats) in enumerate(
        [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], start=1
    ):
        with b.layer(f"block{block}"):
            for _ in range(repeats):
                x = b.relu(b.conv(x, out, 3, 1, 1, bias=True))
            x = b.pool(x, 2, 2)
    return _classifier(b, x, classes)


def _classifier(b: GraphBuilder, x: Tensor, classes: int) -> OpGraph:
    """Append the three fully connected layers that AlexNet and VGG share."""
    side = 7 if x.shape[2] >= 7 else 6
    with b.layer("classifier"):
        if x.shape[2] != side:
            x = b.op("avg_pool", (x,), (*x.shape[:2], side, side), flops=x.size)
        x = b.reshape(x, (x.shape[0], x.size // x.shape[0]), kind="flatten")
        for position in (1, 2):
            x = b.relu(b.linear(x, 4096, name=f"fc{position}"))
        b.linear(x, classes, name="fc3")
    return b.build()


@generator()
def squeezenet(
    *,
    batch: int = 1,
    image: int = 224,
    classes: int = 1000,
    dtype_bytes: int = 4,
    name: str = "squeezenet",
) -> OpGraph:
    """Build SqueezeNet 1.0 (Iandola et al. 2016, table 1)."""
    b = GraphBuilder(name, dtype_bytes)
    with b.layer("stem"):
        x = b.relu(b.conv(b.input(batch, 3, image, image), 96, 7, 2, bias=True))
        x = b.pool(x, 3, 2, ceil=True)
    for position, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64), start=2):
        expand = 4 * squeeze
        with b.layer(f"fire{position}"):
            s = b.relu(b.conv(x, squeeze, 1, bias=True, name="squeeze"))
            one = b.relu(b.conv(s, expand, 1, bias=True, name="expand1"))
            three = b.relu(b.conv(s, expand, 3, 1, 1, bias=True, name="expand3"))
            x = b.concat((one, three), 1)
            if position in (4, 8):
                x = b.pool(x, 3, 2, ceil=True)
    with b.layer("head"):
        b.global_pool(b.relu(b.conv(x, classes, 1, bias=True)))
    return b.build()
