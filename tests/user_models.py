"""Modules and ONNX models like a user's own: a GPT-2, a ResNet, control flow, symbolic dimensions;
all of them tiny.
"""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH, TOKENS, WORDS = 16, 8, 31


def gpt(
    layers: int = 3, width: int = WIDTH, batch: int = 2, tokens: int = TOKENS
) -> tuple[Any, tuple[Any, ...]]:
    """Return a GPT-2-like language model with tied embeddings, and token ids."""
    import torch
    from torch import nn

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (
                y.view(b, t, 4, c // 4).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(b, t, c))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(width), Attention(), nn.LayerNorm(width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(WORDS, width), nn.Embedding(tokens, width)
            self.h = nn.ModuleList(Block() for _ in range(layers))
            self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

        def forward(self, ids):
            x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
            for block in self.h:
                x = block(x)
            return self.lm_head(self.ln_f(x))

    torch.manual_seed(3)
    return Gpt().eval(), (torch.randint(0, WORDS, (batch, tokens)),)


def masked(layers: int = 2, width: int = WIDTH) -> tuple[Any, tuple[Any, ...]]:
    """Return a decoder that makes its positions and its mask itself, from the number of tokens."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(width, width)

        def forward(self, x, mask):
            return x + mask @ self.mix(x)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.position = nn.Embedding(WORDS, width), nn.Embedding(TOKENS, width)
            self.layers = nn.ModuleList(Block() for _ in range(layers))

        def forward(self, ids):
            rows = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)
            columns = torch.arange(ids.shape[1], device=ids.device)
            x = self.embed(ids) + self.position(rows)
            mask = (columns[:, None] >= rows).to(x.dtype)
            for layer in self.layers:
                x = layer(x, mask)
            return x

    torch.manual_seed(5)
    return Decoder().eval(), (torch.randint(0, WORDS, (2, TOKENS)),)


def resnet(batch: int = 2, width: int = 8, size: int = 16) -> tuple[Any, tuple[Any, ...]]:
    """Return a ResNet-like classifier with batch norms, and images."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.bn1, self.relu = nn.BatchNorm2d(outside), nn.ReLU()
            self.conv2, self.bn2 = (
                nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outside),
            )
            self.downsample = None
            if stride > 1:
                self.downsample = nn.Sequential(
                    nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
                )

        def forward(self, x):
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(y + (x if self.downsample is None else self.downsample(x)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1, self.relu = (
                nn.Conv2d(3, width, 3, 1, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            )
            self.layer1 = nn.Sequential(Block(width, width, 1), Block(width, width, 1))
            self.layer2 = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1))
            self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(2 * width, 10)

        def forward(self, x):
            x = self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))
            return self.fc(torch.flatten(self.pool(x), 1))

    torch.manual_seed(4)
    net = Net().eval()
    for module in net.modules():  # statistics that matter
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net, (torch.randn(batch, 3, size, size),)


def control_flow_model(path: Any) -> dict[str, np.ndarray]:
    """Write an ONNX model with an If and a Loop whose bodies read tensors from outside; return its
    feeds.
    """
    from onnx import TensorProto, checker, helper, numpy_helper, save

    def value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    rng = np.random.default_rng(5)
    weights = [
        numpy_helper.from_array(rng.normal(size=(8, 8)).astype(np.float32), name)
        for name in ("w0", "w1", "w2")
    ]
    weights += [
        numpy_helper.from_array(np.array(3, dtype=np.int64), "trips"),
        numpy_helper.from_array(np.array(0, dtype=np.float32), "zero"),
    ]
    then = helper.make_graph(
        [helper.make_node("MatMul", ["a", "w1"], ["then_out"], "then_mm")],
        "then",
        [],
        [value("then_out", [4, 8])],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["a"], ["else_out"], "else_neg")],
        "else",
        [],
        [value("else_out", [4, 8])],
    )
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_out"]),
            helper.make_node("Add", ["state", "b"], ["sum"], "body_add"),
            helper.make_node("Tanh", ["sum"], ["state_out"], "body_tanh"),
        ],
        "body",
        [
            value("turn", [], TensorProto.INT64),
            value("go", [], TensorProto.BOOL),
            value("state", [4, 8]),
        ],
        [value("go_out", [], TensorProto.BOOL), value("state_out", [4, 8])],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], "first"),
        helper.make_node("ReduceSum", ["a"], ["total"], "total", keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"], "greater"),
        helper.make_node("If", ["positive"], ["b"], "choice", then_branch=then, else_branch=other),
        helper.make_node("Relu", ["a"], ["c"], "side"),
        helper.make_node("Loop", ["trips", "", "c"], ["d"], "loop", body=body),
        helper.make_node("MatMul", ["d", "w2"], ["y"], "last"),
    ]
    graph = helper.make_graph(
        nodes, "flow", [value("x", [4, 8])], [value("y", [4, 8]), value("b", [4, 8])], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    checker.check_model(model)
    save(model, path)
    return {"x": rng.normal(size=(4, 8)).astype(np.float32)}


def symbolic_model(path: Any, batch: int = 3) -> dict[str, np.ndarray]:
    """Write an ONNX perceptron with a residual and a symbolic batch; return its feeds."""
    from onnx import TensorProto, checker, helper, numpy_helper, save

    rng = np.random.default_rng(6)
    names = [("w0", (8, 16)), ("w1", (16, 8)), ("w2", (8, 4))]
    weights = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in names
    ]
    weights.append(numpy_helper.from_array(np.array([-1, 2, 4], dtype=np.int64), "split"))
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], "/layers/layers.0/fc1/MatMul"),
        helper.make_node("Relu", ["a"], ["b"], "/layers/layers.0/act/Relu"),
        helper.make_node("MatMul", ["b", "w1"], ["c"], "/layers/layers.1/fc2/MatMul"),
        helper.make_node("Add", ["c", "x"], ["d"], "/layers/layers.1/Add"),
        helper.make_node("MatMul", ["d", "w2"], ["e"], "/head/fc/MatMul"),
        helper.make_node("Softmax", ["e"], ["y"], "/head/Softmax", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "symbolic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    checker.check_model(model)
    save(model, path)
    return {"x": rng.normal(size=(batch, 8)).astype(np.float32)}
