"""Run an exported plan of GPT-2 on local gloo processes and compare its losses with one process's.

    python results/plans/gloo_gpt2.py TORCH_JSON OUT_JSON [--hidden 768 --heads 12 --vocab 50257
    --seq 64 --steps 3]

TORCH_JSON is the torch.json of `placeopt plan ... --out`: ranks, groups, layers of each stage,
schedule. Every rank builds its stage, takes its passes in the order of the schedule, sends
activations and gradients to its neighbours, and sums the gradients of its stage's replicas before a
step of SGD. One process runs the same batches on the whole model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

RATE = 0.05


class Embeddings(nn.Module):
    """Tokens and positions."""

    def __init__(self, vocab: int, seq: int, hidden: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return embedded tokens."""
        return self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))


class Block(nn.Module):
    """One layer of GPT-2: attention and feed-forward, each behind a layer norm."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.down(nn.functional.gelu(self.up(self.ln2(x)), approximate="tanh"))


def module_of(layer: int, count: int, size: dict[str, int]) -> nn.Module:
    """Return layer 0 .. count - 1: embeddings, blocks, layer norm, head; the same weights in every
    process.
    """
    torch.manual_seed(1000 + layer)
    if layer == 0:
        return Embeddings(size["vocab"], size["seq"], size["hidden"])
    if layer == count - 1:
        return nn.Linear(size["hidden"], size["vocab"], bias=False)
    if layer == count - 2:
        return nn.LayerNorm(size["hidden"])
    return Block(size["hidden"], size["heads"])


def batch_of(step: int, batch: int, size: dict[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and the tokens that follow them."""
    torch.manual_seed(step)
    tokens = torch.randint(size["vocab"], (batch, size["seq"] + 1))
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits: torch.Tensor, target: torch.Tensor, samples: int) -> torch.Tensor:
    """Return this micro-batch's part of the mean loss over all samples of a step."""
    whole = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
    return whole / (samples * target.shape[1])


def alone(config: dict, size: dict[str, int], steps: int) -> list[float]:
    """Losses of one process, micro-batch by micro-batch."""
    count = sum(len(layers) for layers in config["layers"])
    model = nn.Sequential(*(module_of(layer, count, size) for layer in range(count)))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    samples = config["micro_batch"] * config["micro_batches"] * len(config["groups"]["pipeline"])
    losses = []
    for step in range(steps):
        tokens, target = batch_of(step, samples, size)
        optimizer.zero_grad()
        total = 0.0
        for part, wanted in zip(
            tokens.split(config["micro_batch"]), target.split(config["micro_batch"]), strict=True
        ):
            loss = loss_of(model(part), wanted, samples)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


def run_rank(rank: int, config: dict, size: dict[str, int], steps: int, out: str) -> None:
    """Run one rank of the plan."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=config["world_size"])
    data = [dist.new_group(ranks) for ranks in config["groups"]["data"]]
    stage = next(i for i, ranks in enumerate(config["groups"]["data"]) if rank in ranks)
    replica = config["groups"]["data"][stage].index(rank)
    line, count = (
        config["groups"]["pipeline"][replica],
        sum(len(layers) for layers in config["layers"]),
    )
    model = nn.Sequential(*(module_of(layer, count, size) for layer in config["layers"][stage]))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    micro, rounds, replicas = (
        config["micro_batch"],
        config["micro_batches"],
        len(config["groups"]["pipeline"]),
    )
    shape = (micro, size["seq"], size["hidden"])
    last, losses = stage == len(line) - 1, []
    for step in range(steps):
        tokens, target = (
            t[replica * micro * rounds :][: micro * rounds]
            for t in batch_of(step, micro * rounds * replicas, size)
        )
        parts, wanted = tokens.split(micro), target.split(micro)
        kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        sends, total = [], torch.zeros(1)
        optimizer.zero_grad()
        for cell in config["schedule"][stage]:
            action, j = re.fullmatch(rf"{stage}([FB])(\d+)", cell).groups()
            j = int(j)
            if action == "F":
                x = parts[j]
                if stage:
                    x = torch.empty(shape)
                    dist.recv(x, line[stage - 1], tag=2 * j)
                    x.requires_grad_()
                y = model(x)
                if last:
                    y = loss_of(y, wanted[j], micro * rounds * replicas)
                    total += y.detach()
                else:
                    sends.append((dist.isend(y.detach(), line[stage + 1], tag=2 * j), y))
                kept[j] = x, y
            else:
                x, y = kept.pop(j)
                gradient = None
                if not last:
                    gradient = torch.empty(shape)
                    dist.recv(gradient, line[stage + 1], tag=2 * j + 1)
                y.backward(gradient)
                if stage:
                    sends.append((dist.isend(x.grad, line[stage - 1], tag=2 * j + 1), x))
        for work, _ in sends:
            work.wait()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=data[stage])
        optimizer.step()
        dist.all_reduce(total)
        losses.append(total.item())
    if rank == 0:
        Path(out).write_text(json.dumps(losses))
    dist.destroy_process_group()


def main() -> None:
    """Run both and write the losses."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    for key, default in (
        ("hidden", 768),
        ("heads", 12),
        ("vocab", 50257),
        ("seq", 64),
        ("steps", 3),
    ):
        parser.add_argument(f"--{key}", type=int, default=default)
    given = parser.parse_args()
    config = json.loads(given.config.read_text())
    size = {key: getattr(given, key) for key in ("hidden", "heads", "vocab", "seq")}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    part = given.out.with_suffix(".part")
    mp.spawn(run_rank, (config, size, given.steps, str(part)), nprocs=config["world_size"])
    plan = json.loads(part.read_text())
    part.unlink()
    given.out.write_text(json.dumps({"plan": plan, "alone": alone(config, size, given.steps)}))
    print(given.out.read_text())


if __name__ == "__main__":
    main()
