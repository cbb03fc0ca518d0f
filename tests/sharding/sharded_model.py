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
