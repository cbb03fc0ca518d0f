"""Convolutional networks on images: AlexNet, VGG-16, SqueezeNet, DenseNet-121, NASNet-A cells,
Inception-V3 (without the auxiliary classifier) and ResNets (the stride on the 3 x 3 convolution).

References
----------
A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv:1404.5997,
2014. K. Simonyan, A. Zisserman, "Very deep convolutional networks for large-scale image
      recognition", ICLR 2015.
F. N. Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and < 0.5 MB
model size", arXiv:1602.07360, 2016.
G. Huang, Z. Liu, L. van der Maaten, K. Q. Weinberger, "Densely connected convolutional networks",
CVPR 2017. B. Zoph, V. Vasudevan, J. Shlens, Q. V. Le, "Learning transferable architectures for
scalable image recognition", CVPR 2018.
C. Szegedy, V. Vanhoucke, S. Ioffe, J. Shlens, Z. Wojna, "Rethinking the Inception architecture for
computer vision", CVPR 2016.
K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", CVPR 2016.
"""

from __future__ import annotations

from placeopt.instances.generators import built
from placeopt.instances.generators.builder import GraphBuilder, Size, Tensor, height_and_width
from placeopt.model.errors import InputError


class Images(GraphBuilder):
    """Builds networks on square images of three colours.

    Parameters
    ----------
    batch, image, classes : number of images, their height and width, and of classes.
    """

    def __init__(
        self, name: str, batch: int = 1, image: int = 224, classes: int = 1000, dtype_bytes: int = 4
    ) -> None:
        super().__init__(name, dtype_bytes)
        self.images, self.classes = self.input(batch, 3, image, image), classes

    def head(self, x: Tensor) -> None:
        """Average over the image and classify."""
        with self.layer("head"):
            self.linear(self.global_pool(x), self.classes)


@built(Images)
def alexnet(b: Images) -> None:
    """Build AlexNet in its one-tower form (Krizhevsky 2014, "One weird trick")."""
    x = b.images
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
    _classifier(b, x)


@built(Images)
def vgg16(b: Images) -> None:
    """Build VGG-16, configuration D of Simonyan and Zisserman (2015)."""
    x = b.images
    for block, (out, repeats) in enumerate(
        [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)], start=1
    ):
        with b.layer(f"block{block}"):
            for _ in range(repeats):
                x = b.relu(b.conv(x, out, 3, 1, 1, bias=True))
            x = b.pool(x, 2, 2)
    _classifier(b, x)


def _classifier(b: Images, x: Tensor) -> None:
    """Append the three fully connected layers that AlexNet and VGG share."""
    side = 7 if x.shape[2] >= 7 else 6
    with b.layer("classifier"):
        if x.shape[2] != side:
            x = b.op("avg_pool", (x,), (*x.shape[:2], side, side), flops=x.size)
        x = b.reshape(x, (x.shape[0], x.size // x.shape[0]), kind="flatten")
        for position in (1, 2):
            x = b.relu(b.linear(x, 4096, name=f"fc{position}"))
        b.linear(x, b.classes, name="fc3")


@built(Images)
def squeezenet(b: Images) -> None:
    """Build SqueezeNet 1.0 (Iandola et al. 2016, table 1)."""
    with b.layer("stem"):
        x = b.relu(b.conv(b.images, 96, 7, 2, bias=True))
        x = b.pool(x, 3, 2, ceil=True)
    for position, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64), start=2):
        expand = 4 * squeeze
        with b.layer(f"fire{position}"):
            s = b.relu(b.conv(x, squeeze, 1, bias=True, name="squeeze"))
            one = b.relu(b.conv(s, expand, 1, bias=True, name="expand1"))
            three = b.relu(b.conv(s, expand, 3, 1, 1, bias=True, name="expand3"))
            x = b.concat((one, three))
            if position in (4, 8):
                x = b.pool(x, 3, 2, ceil=True)
    with b.layer("head"):
        b.global_pool(b.relu(b.conv(x, b.classes, 1, bias=True)))


@built(Images)
def densenet121(b: Images, *, growth: int = 32) -> None:
    """Build DenseNet-121 (Huang et al. 2017, table 1): bottleneck layers, compression 0.5."""
    with b.layer("stem"):
        x = b.conv_bn_relu(b.images, 2 * growth, 7, 2, 3)
        x = b.pool(x, 3, 2, 1)
    blocks = (6, 12, 24, 16)
    for block, layers in enumerate(blocks):
        features = [x]
        for layer in range(layers):
            with b.layer(f"block{block + 1}/{layer}"):
                y = b.concat(features) if len(features) > 1 else features[0]
                y = b.relu(b.batch_norm(y))
                y = b.conv_bn_relu(y, 4 * growth, 1, name="conv1")
                features.append(b.conv(y, growth, 3, 1, 1, name="conv2"))
        last = block + 1 == len(blocks)
        with b.layer("head" if last else f"transition{block + 1}"):
            x = b.relu(b.batch_norm(b.concat(features)))
            if not last:
                x = b.pool(b.conv(x, x.shape[1] // 2, 1), 2, 2, kind="avg_pool")
    b.head(x)


@built(Images, batch=32, image=32, classes=10)
def nasnet(b: Images, *, cells: int = 6, filters: int = 32) -> None:
    """Build a stack of NASNet-A cells (Zoph et al. 2018, figure 4).

    Parameters
    ----------
    cells : number of cells; the cells at one third and two thirds reduce the image and double the
    filters.
    filters : filters per op of the first cells.
    """
    with b.layer("stem"):
        x = b.batch_norm(b.conv(b.images, 3 * filters, 3, 1, 1))
    previous = x
    reductions = {cells // 3, 2 * cells // 3} if cells >= 3 else set()
    for cell in range(cells):
        with b.layer(f"cell{cell}"):
            build = _normal_cell
            if cell in reductions:
                filters, build = 2 * filters, _reduction_cell
            h0 = _squeeze(b, previous, filters, x.shape[2], "squeeze_previous")
            h1 = _squeeze(b, x, filters, x.shape[2], "squeeze")
            previous, x = x, build(b, h0, h1, filters)
    with b.layer("head"):
        x = b.relu(x)
    b.head(x)


def _squeeze(b: GraphBuilder, x: Tensor, filters: int, side: int, name: str) -> Tensor:
    """Bring a cell input to `filters` channels and the given image side, its own or half of it."""
    return b.batch_norm(b.conv(b.relu(x), filters, 1, -(-x.shape[2] // side), name=name))


def _average(b: GraphBuilder, x: Tensor) -> Tensor:
    """Average over 3 x 3 pixels, which keeps the size of the image."""
    return b.pool(x, 3, 1, 1, kind="avg_pool")


def _separable(b: GraphBuilder, x: Tensor, kernel: int, filters: int, stride: int = 1) -> Tensor:
    """Separable convolution, applied twice as in the paper."""
    for step in (stride, 1):
        x = b.relu(x)
        x = b.conv(
            x, x.shape[1], kernel, step, kernel // 2, groups=x.shape[1], name=f"depthwise{kernel}"
        )
        x = b.batch_norm(b.conv(x, filters, 1, name=f"pointwise{kernel}"))
    return x


def _normal_cell(b: GraphBuilder, h0: Tensor, h1: Tensor, f: int) -> Tensor:
    blocks = [
        b.add(_separable(b, h1, 3, f), h1),
        b.add(_separable(b, h0, 3, f), _separable(b, h1, 5, f)),
        b.add(_average(b, h1), h0),
        b.add(_average(b, h0), _average(b, h0)),
        b.add(_separable(b, h0, 5, f), _separable(b, h0, 3, f)),
    ]
    return b.concat([h0, *blocks])


def _reduction_cell(b: GraphBuilder, h0: Tensor, h1: Tensor, f: int) -> Tensor:
    first = b.add(_separable(b, h0, 7, f, 2), _separable(b, h1, 5, f, 2))
    second = b.add(b.pool(h1, 3, 2, 1), _separable(b, h0, 7, f, 2))
    third = b.add(b.pool(h1, 3, 2, 1, kind="avg_pool"), _separable(b, h0, 5, f, 2))
    fourth = b.add(b.pool(h1, 3, 2, 1), _separable(b, first, 3, f))
    fifth = b.add(_average(b, first), second)
    return b.concat([second, third, fourth, fifth])


@built(Images, image=299)
def inception_v3(b: Images) -> None:
    """Build Inception-V3: five 35 x 35, five 17 x 17 and three 8 x 8 modules with their
    reductions.
    """
    with b.layer("stem"):
        x = b.conv_bn_relu(b.images, 32, 3, 2, name="conv1")
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
    b.head(x)


def _pooled(b: GraphBuilder, x: Tensor, out: int) -> Tensor:
    return b.conv_bn_relu(_average(b, x), out, 1, name="pooled")


def _branch(b: GraphBuilder, x: Tensor, name: str, *convs: tuple[int, Size]) -> Tensor:
    """Convolutions (channels, kernel) one after the other, which keep the size of the image."""
    for position, (out, kernel) in enumerate(convs, start=1):
        height, width = height_and_width(kernel)
        padding = height // 2, width // 2
        x = b.conv_bn_relu(x, out, kernel, 1, padding, name=f"{name}{position}")
    return x


_ROW, _COLUMN = (1, 7), (7, 1)


def _module_a(b: GraphBuilder, x: Tensor, pooled: int) -> Tensor:
    """Figure 5 of the paper: 1 x 1, 5 x 5, double 3 x 3 and pooled branches."""
    one = b.conv_bn_relu(x, 64, 1, name="one")
    five = _branch(b, x, "five", (48, 1), (64, 5))
    three = _branch(b, x, "three", (64, 1), (96, 3), (96, 3))
    return b.concat((one, five, three, _pooled(b, x, pooled)))


def _reduction_a(b: GraphBuilder, x: Tensor) -> Tensor:
    single = b.conv_bn_relu(x, 384, 3, 2, name="single")
    double = _branch(b, x, "double", (64, 1), (96, 3))
    double = b.conv_bn_relu(double, 96, 3, 2, name="double3")
    return b.concat((single, double, b.pool(x, 3, 2)))


def _module_b(b: GraphBuilder, x: Tensor, width: int) -> Tensor:
    """Figure 6: factorised 7 x 7 branches."""
    one = b.conv_bn_relu(x, 192, 1, name="one")
    single = _branch(b, x, "single", (width, 1), (width, _ROW), (192, _COLUMN))
    factors = (width, _COLUMN), (width, _ROW), (width, _COLUMN), (192, _ROW)
    double = _branch(b, x, "double", (width, 1), *factors)
    return b.concat((one, single, double, _pooled(b, x, 192)))


def _reduction_b(b: GraphBuilder, x: Tensor) -> Tensor:
    three = _branch(b, x, "three", (192, 1))
    three = b.conv_bn_relu(three, 320, 3, 2, name="three2")
    seven = _branch(b, x, "seven", (192, 1), (192, _ROW), (192, _COLUMN))
    seven = b.conv_bn_relu(seven, 192, 3, 2, name="seven4")
    return b.concat((three, seven, b.pool(x, 3, 2)))


def _module_c(b: GraphBuilder, x: Tensor) -> Tensor:
    """Figure 7: 3 x 3 filters expanded to parallel 1 x 3 and 3 x 1."""
    one = b.conv_bn_relu(x, 320, 1, name="one")
    wide = _expanded(b, _branch(b, x, "three", (384, 1)), "three2")
    wide += _expanded(b, _branch(b, x, "double", (448, 1), (384, 3)), "double3")
    return b.concat((one, *wide, _pooled(b, x, 192)))


def _expanded(b: GraphBuilder, x: Tensor, name: str) -> list[Tensor]:
    return [
        b.conv_bn_relu(x, 384, (1, 3), 1, (0, 1), name=f"{name}a"),
        b.conv_bn_relu(x, 384, (3, 1), 1, (1, 0), name=f"{name}b"),
    ]


_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


@built(Images)
def resnet(b: Images, *, depth: int = 50) -> None:
    """Build a bottleneck ResNet of 50, 101 or 152 layers on square images."""
    if depth not in _BLOCKS:
        raise InputError(
            f"generator '{b.name}': option 'depth' expects 50, 101 or 152, received {depth}"
        )
    with b.layer("stem"):
        x = b.conv_bn_relu(b.images, 64, 7, 2, 3)
        x = b.pool(x, 3, 2, 1)
    for stage, blocks in enumerate(_BLOCKS[depth]):
        width = 64 << stage
        for block in range(blocks):
            with b.layer(f"stage{stage + 1}/{block}"):
                x = _bottleneck(b, x, width, stride=2 if stage and not block else 1)
    b.head(x)


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
