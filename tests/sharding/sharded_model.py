"""A small module whose parameters are worth sharding, for processes of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

WIDTH, WORDS, LAYERS = 64, 128, 2


class Block(nn.Module):
    """A residual block with a norm and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        """Return x and what the layers add."""
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """A language model without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.register_buffer("scale", torch.full((WIDTH,), 0.5))

    def forward(self, ids: Any) -> Any:
        """Return the logits of ids."""
        x = self.embed(ids) * self.scale + torch.arange(ids.shape[1], device=ids.device)[:, None]
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def make() -> tuple[Any, tuple[Any, ...]]:
    """Return the model and its inputs."""
    torch.manual_seed(0)
    return Model().eval(), (torch.randint(0, WORDS, (8, 16)),)


class Attention(nn.Module):
    """Causal attention with rotary positions, as in Llama."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """Return what every token takes from those before it."""
        batch, tokens, width = x.shape

        def heads(y: Any) -> Any:
            return y.view(batch, tokens, self.heads, -1).transpose(1, 2)

        def turned(y: Any) -> Any:
            one, other = y.chunk(2, -1)
            return y * cos + torch.cat((-other, one), -1) * sin

        q, k, v = turned(heads(self.q(x))), turned(heads(self.k(x))), heads(self.v(x))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, tokens, width))


class Norm(nn.Module):
    """A root mean square norm, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        """Return x of mean square one, scaled."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Layer(nn.Module):
    """A layer of Llama."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.first, self.second = Attention(width, heads), Norm(width), Norm(width)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """Return x and what attention and the feed-forward layers add."""
        x = x + self.attention(self.first(x), cos, sin)
        y = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A small Llama, its head tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH, 4) for _ in range(LAYERS))
        self.norm, self.head = Norm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        """Return the logits of ids."""
        x, size = self.embed(ids), WIDTH // 4
        speed = 10000.0 ** (-torch.arange(0, size, 2, device=ids.device) / size)
        angle = torch.arange(ids.shape[1], device=ids.device)[:, None] * speed
        angle = torch.cat((angle, angle), -1)
        for layer in self.layers:
            x = layer(x, angle.cos(), angle.sin())
        return self.head(self.norm(x))


def llama() -> tuple[Any, tuple[Any, ...]]:
    """Return the small Llama and its inputs."""
    torch.manual_seed(0)
    return Llama().eval(), (torch.randint(0, WORDS, (4, 16)),)


def layer() -> tuple[Any, tuple[Any, ...]]:
    """Return a layer and its inputs."""
    return nn.Linear(8, 8), (torch.zeros(4, 8),)
