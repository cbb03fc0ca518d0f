"""The graphs of the studies of policies: families to develop on, and families set apart.

What is trained is trained on TRAINING, what is chosen is chosen on CHOICE or DEVELOPMENT; what is
reported is of TEST, whose families have no graph among the former. Sizes, the number of devices, the part of communication and the kind of
devices are drawn at random for each graph.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import placeopt as po

Draw = Callable[[np.random.Generator], str]


def _of(name: str, **ranges: tuple[int, int]) -> Draw:
    """Return a function that draws a specification; `ranges` of options, both ends included."""

    def draw(rng: np.random.Generator) -> str:
        options = [f"{key}={rng.integers(low, high + 1)}" for key, (low, high) in ranges.items()]
        return f"gen:{name}?{'&'.join(options)}"

    return draw


HEURISTICS = (
    *("heft", "cpop", "peft", "etf", "critical-path"),
    *("m-etf", "m-sct", "m-topo", "dsc", "edge-zeroing"),
)
"""What the best heuristic is the best of."""

SEEDS = (0, 10**6)

DEVELOPMENT: dict[str, Draw] = {
    "layered": _of("layered", layers=(5, 20), width=(4, 14), degree=(1, 4), seed=SEEDS),
    "fork-join": _of("fork-join", stages=(2, 8), branches=(3, 14), length=(1, 4), seed=SEEDS),
    "series-parallel": _of("series-parallel", ops=(60, 250), branches=(2, 6), seed=SEEDS),
    "in-tree": _of("in-tree", depth=(4, 6), seed=SEEDS),
    "lu": _of("lu", tiles=(4, 8), seed=SEEDS),
    "ffnn": _of("ffnn", layers=(1, 3), shards=(2, 3)),
    "chain-mm": _of("chain-mm", shards=(2, 5)),
    "bert": _of("bert", layers=(1, 3)),
    "rnn-lm": _of("rnn-lm", layers=(1, 3), steps=(4, 10)),
    "squeezenet": lambda rng: "gen:squeezenet",
}
"""Families on which walks are fitted."""

TRAINING: dict[str, Draw] = {
    "layered": DEVELOPMENT["layered"],
    "series-parallel": _of("series-parallel", ops=(40, 160), branches=(2, 6), seed=SEEDS),
    "lu": _of("lu", tiles=(4, 7), seed=SEEDS),
    "ffnn": _of("ffnn", layers=(1, 3), shards=(2, 3)),
    "ffnn-training": lambda rng: f"gen:ffnn?layers=1&shards={rng.integers(2, 4)}&training=1",
    "chain-mm": _of("chain-mm", shards=(2, 4)),
    "bert": _of("bert", layers=(1, 2)),
    "bert-training": lambda rng: "gen:bert?layers=1&training=1",
    "rnn-lm": _of("rnn-lm", layers=(1, 3), steps=(4, 9)),
    "squeezenet": lambda rng: "gen:squeezenet",
    "squeezenet-training": lambda rng: "gen:squeezenet?training=1",
}
"""Families on which the list scheduler is trained."""

CHOICE: dict[str, Draw] = {
    "fork-join": DEVELOPMENT["fork-join"],
    "in-tree": DEVELOPMENT["in-tree"],
    "gpt2": _of("gpt2", layers=(1, 2)),
    "resnet50": lambda rng: "gen:resnet50",
}
"""Families by which its weights and settings are chosen."""

TEST: dict[str, Draw] = {
    "cholesky": _of("cholesky", tiles=(5, 10), seed=SEEDS),
    "fft": lambda rng: f"gen:fft?points={rng.choice([16, 32])}&seed={rng.integers(*SEEDS)}",
    "stencil": _of("stencil", rows=(3, 5), columns=(3, 5), steps=(4, 9), seed=SEEDS),
    "out-tree": _of("out-tree", depth=(5, 7), seed=SEEDS),
    "planted": _of("planted", ops=(80, 250), degree=(1, 3), seed=SEEDS),
    "llama-block": lambda rng: f"gen:llama-block?shards={rng.choice([2, 4])}",
    "llama-layer": lambda rng: f"gen:llama-layer?shards={rng.choice([2, 4])}",
    "moe": _of("moe", experts=(4, 10)),
    "inception": lambda rng: "gen:inception-v3",
    "nasnet": _of("nasnet-cell", cells=(2, 5)),
    "nmt": _of("nmt", layers=(1, 2), source=(3, 6), target=(3, 6)),
    "mt5": _of("mt5", layers=(1, 2)),
}
"""Families on which they are tried."""

LARGE: dict[str, Draw] = {
    "cholesky": _of("cholesky", tiles=(22, 32), seed=SEEDS),
    "fft": lambda rng: f"gen:fft?points={rng.choice([256, 512])}&seed={rng.integers(*SEEDS)}",
    "stencil": _of("stencil", rows=(6, 9), columns=(6, 9), steps=(50, 90), seed=SEEDS),
    "out-tree": _of("out-tree", depth=(11, 12), seed=SEEDS),
    "planted": _of("planted", ops=(2500, 8000), degree=(1, 3), seed=SEEDS),
    "nasnet": lambda rng: f"gen:nasnet-cell?cells={rng.integers(100, 200)}",
}
"""Families of TEST with more than 2000 ops."""


def drawn(
    split: dict[str, Draw], seed: int, devices: int | None = None
) -> tuple[str, po.PlacementProblem]:
    """Return the name and a graph of a family, which come in turn, on devices drawn at random, or
    on so many.

    Transfers take 0.1 to 5 times as long as the ops, in the mean; on a third of the graphs devices
    differ in speed by a factor of up to 4, and on a third every op likes other devices best.
    """
    family = list(split)[seed % len(split)]
    rng = np.random.default_rng([seed, len(split)])
    source = split[family](rng)
    k = int(rng.choice([2, 3, 4, 5, 6, 8, 10, 12]))
    k = devices or k
    problem = po.load(
        source, cluster=f"{k}xP100?contention=none" if _real(family) else f"uniform:{k}"
    )
    work = problem.min_compute.astype(np.float64)
    kind = rng.integers(3)
    slower = np.ones((problem.num_ops, k))
    if kind > 0:
        slower = np.exp(rng.uniform(0, np.log(4), (1 if kind == 1 else problem.num_ops, k)))
    scale = 1e6 / max(1.0, work.mean())
    compute = np.maximum(work[:, None] > 0, np.round(work[:, None] * scale * slower))
    size = problem.transfer.mean(axis=1)
    ratio = float(np.exp(rng.uniform(np.log(0.1), np.log(5.0))))
    mean = size[problem.edge_tensor].mean() if problem.num_edges else 1.0
    ticks = np.round(problem.transfer * (ratio * compute.mean() / max(1e-9, mean)))
    problem = problem.replace(
        compute=compute.astype(np.int64), transfer=ticks.astype(np.int64), tick_seconds=1e-9
    )
    return f"{family}-{seed}", problem


def varied(split: dict[str, Draw], seed: int) -> tuple[str, po.PlacementProblem]:
    """Return the name and a graph of a split, more than half of them changed: beside or ahead of
    another one, with edges that point the other way, with ops and tensors of other sizes.
    """
    name, problem = drawn(split, seed)
    rng = np.random.default_rng([seed, len(split), 1])
    if rng.random() > 0.6:
        return name, problem
    costs, tensors = problem.compute, _tensors(problem)
    if rng.random() < 0.35:
        other = drawn(split, int(rng.integers(*SEEDS)), problem.num_devices)[1]
        costs, tensors = _joined(problem, other, in_series=rng.random() < 0.5)
    if rng.random() < 0.5:
        tensors = [(reader, [op], ticks) for op, readers, ticks in tensors for reader in readers]
    for_ops, for_tensors = rng.uniform(0.1, 1.0, 2) * (rng.random(2) < 0.6)
    costs = np.round(costs * np.exp(rng.normal(0, for_ops, (len(costs), 1))))
    ticks = np.array([ticks for _, _, ticks in tensors]).reshape(-1, 1)
    ticks = np.round(ticks * np.exp(rng.normal(0, for_tensors, ticks.shape)))
    readers = [readers for _, readers, _ in tensors]
    return f"{name}-varied", po.PlacementProblem(
        name=name,
        compute=costs.astype(np.int64),
        producer=np.array([op for op, _, _ in tensors], np.int64),
        consumer_ptr=np.cumsum([0, *map(len, readers)]),
        consumer=np.concatenate([np.zeros(0, np.int64), *readers]).astype(np.int64),
        transfer=ticks.astype(np.int64),
    )


Tensor = tuple[int, list[int], int]
"""Its producer, its readers, ticks of a transfer."""


def _tensors(problem: po.PlacementProblem, first: int = 0) -> list[Tensor]:
    """Return the tensors that are read, ops numbered from `first`."""
    rows = zip(problem.producer.tolist(), problem.transfer.max(axis=1).tolist(), strict=True)
    found = (
        (op + first, [v + first for v in problem.readers_of(t)], ticks)
        for t, (op, ticks) in enumerate(rows)
    )
    return [tensor for tensor in found if tensor[1]]


def _joined(
    one: po.PlacementProblem, other: po.PlacementProblem, *, in_series: bool
) -> tuple[np.ndarray, list[Tensor]]:
    """Return the costs and tensors of two graphs; in series an op reads all that ends the first,
    and all that begins the second reads its output.
    """
    n = one.num_ops
    costs = np.concatenate([one.compute, other.compute])
    tensors = _tensors(one) + _tensors(other, n)
    if in_series and tensors:
        ticks = int(np.median([ticks for _, _, ticks in tensors]))
        ends = set(range(n)) - set(one.producer.tolist())
        begins = set(range(n, len(costs))) - set((other.consumer + n).tolist())
        tensors += [(op, [len(costs)], ticks) for op in sorted(ends)]
        tensors.append((len(costs), sorted(begins), ticks))
        costs = np.concatenate([costs, costs.min(axis=0, keepdims=True)])
    return costs, tensors


def _real(family: str) -> bool:
    """Whether the times of a family come from a cost model, not from its generator."""
    return family.removesuffix("-training") in (
        *("bert", "gpt2", "resnet50", "rnn-lm", "squeezenet"),
        *("moe", "inception", "nasnet", "nmt", "mt5"),
    )
