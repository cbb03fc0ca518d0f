"""The models of own_models.py: a GPT-2, a ResNet and parallel experts in torch; control flow and a
symbolic batch in ONNX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Made = tuple[Any, tuple[Any, ...]]


def gpt2(quick: bool) -> Made:
    """Return a GPT-2 of four layers with separate projections of queries, keys and values, and
    token ids.
    """
    import torch
    from torch import nn

    width, layers, batch, tokens, words = (64, 2, 2, 16, 100) if quick else (384, 4, 8, 128, 2000)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v, self.c_proj = (nn.Linear(width, width) for _ in range(4))
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            y = self.ln_1(x)
            q, k, v = (
                part(y).view(b, t, 4, c // 4).transpose(1, 2) for part in (self.q, self.k, self.v)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
            return x + self.mlp(self.ln_2(x))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(tokens, width)
            self.h, self.ln_f = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)
            self.lm_head = nn.Linear(width, words, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
            for block in self.h:
                x = block(x)
            return self.lm_head(self.ln_f(x))

    torch.manual_seed(0)
    return Gpt().eval(), (torch.randint(0, words, (batch, tokens)),)


def resnet(quick: bool) -> Made:
    """Return a ResNet of eight blocks, and images."""
    import torch
    from torch import nn

    width, batch, size = (8, 2, 16) if quick else (48, 8, 48)

    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = (
                nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outside),
            )
            self.conv2, self.bn2 = (
                nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outside),
            )
            self.short = (
                nn.Conv2d(inside, outside, 1, stride, bias=False)
                if inside != outside
                else nn.Identity()
            )

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(y + self.short(x))

    stages = [
        Block(max(1, i) * width if i else width, (i + 1) * width, 1 + (i > 0)) for i in range(3)
    ]
    body = [
        block
        for i, first in enumerate(stages)
        for block in (first, Block((i + 1) * width, (i + 1) * width, 1))
    ]
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1),
        *body,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3 * width, 10),
    )
    return net.eval(), (torch.randn(batch, 3, size, size),)


def experts(quick: bool) -> Made:
    """Return three layers of four dense experts each, whose results are added: there is work for
    two devices.
    """
    import torch
    from torch import nn

    width, rows = (64, 8) if quick else (512, 512)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                for _ in range(4)
            )

        def forward(self, x: Any) -> Any:
            made = [expert(x) for expert in self.experts]
            return x + (made[0] + made[1]) + (made[2] + made[3])

    torch.manual_seed(0)
    return nn.Sequential(Layer(), Layer(), Layer()).eval(), (torch.randn(rows, width),)


def control_flow(path: Path, quick: bool) -> tuple[dict[str, Any], dict[str, int]]:
    """Write two branches with an If and a Loop each between products; return feeds and
    dimensions.
    """
    from onnx import TensorProto, helper, numpy_helper, save

    size = 32 if quick else 448
    rng = np.random.default_rng(0)

    def value(name: str, shape: list[int], kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    square = [size, size]
    weights = [
        numpy_helper.from_array((rng.normal(size=square) / size**0.5).astype(np.float32), f"w{i}")
        for i in range(6)
    ]
    weights += [
        numpy_helper.from_array(np.array(3, dtype=np.int64), "trips"),
        numpy_helper.from_array(np.array(0, dtype=np.float32), "zero"),
    ]
    nodes, node = [], helper.make_node
    for b in range(2):
        then = helper.make_graph(
            [node("MatMul", [f"a{b}", f"w{b}"], [f"then{b}"])],
            f"then{b}",
            [],
            [value(f"then{b}", square)],
        )
        other = helper.make_graph(
            [node("Neg", [f"a{b}"], [f"else{b}"])], f"else{b}", [], [value(f"else{b}", square)]
        )
        body = helper.make_graph(
            [
                node("Identity", ["go"], ["go_out"]),
                node("MatMul", ["state", f"w{2 + b}"], ["product"]),
                node("Tanh", ["product"], ["state_out"]),
            ],
            f"body{b}",
            [
                value("turn", [], TensorProto.INT64),
                value("go", [], TensorProto.BOOL),
                value("state", square),
            ],
            [value("go_out", [], TensorProto.BOOL), value("state_out", square)],
        )
        nodes += [
            node("MatMul", ["x", f"w{4 + b}"], [f"a{b}"], f"first{b}"),
            node("ReduceSum", [f"a{b}"], [f"total{b}"], f"total{b}", keepdims=0),
            node("Greater", [f"total{b}", "zero"], [f"positive{b}"], f"greater{b}"),
            node(
                "If",
                [f"positive{b}"],
                [f"chosen{b}"],
                f"choice{b}",
                then_branch=then,
                else_branch=other,
            ),
            node("Loop", ["trips", "", f"chosen{b}"], [f"looped{b}"], f"loop{b}", body=body),
            node("Softmax", [f"looped{b}"], [f"out{b}"], f"softmax{b}"),
        ]
    nodes.append(node("Add", ["out0", "out1"], ["y"], "join"))
    graph = helper.make_graph(nodes, "control", [value("x", square)], [value("y", square)], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return {"x": rng.normal(size=square).astype(np.float32)}, {}


def symbolic(path: Path, quick: bool) -> tuple[dict[str, Any], dict[str, int]]:
    """Write two towers of products over a symbolic batch; return feeds and dimensions."""
    from onnx import TensorProto, helper, numpy_helper, save

    width, batch, depth = (32, 4, 2) if quick else (640, 256, 4)
    rng = np.random.default_rng(0)
    weights, nodes, tops = [], [], []
    for tower in range(2):
        at = "x"
        for i in range(depth):
            name = f"{tower}.{i}"
            weights.append(
                numpy_helper.from_array(
                    (rng.normal(size=(width, width)) / width**0.5).astype(np.float32), f"w{name}"
                )
            )
            nodes += [
                helper.make_node(
                    "MatMul", [at, f"w{name}"], [f"a{name}"], f"/towers.{tower}/layers.{i}/MatMul"
                ),
                helper.make_node(
                    "Tanh", [f"a{name}"], [f"b{name}"], f"/towers.{tower}/layers.{i}/Tanh"
                ),
            ]
            at = f"b{name}"
        tops.append(at)
    nodes += [
        helper.make_node("Mul", tops, ["z"], "/Mul"),
        helper.make_node("ReduceMean", ["z"], ["y"], "/ReduceMean", axes=[1]),
    ]
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("x", width), ("y", 1))
    )
    graph = helper.make_graph(nodes, "symbolic", [given], [made], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return {"x": rng.normal(size=(batch, width)).astype(np.float32)}, {"batch": batch}


TORCH: dict[str, Callable[[bool], Made]] = {
    "GPT-2 (torch)": gpt2,
    "ResNet (torch)": resnet,
    "experts (torch)": experts,
}
ONNX: dict[str, Callable[[Path, bool], tuple[dict[str, Any], dict[str, int]]]] = {
    "If and Loop (ONNX)": control_flow,
    "symbolic batch (ONNX)": symbolic,
}
