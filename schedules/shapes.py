"""Placement shapes: how the blocks of a model lie on D devices.

========== =========================================================================================
V          F0..F(D-1), B(D-1)..B0: a plain pipeline
X          two independent V chains, the second on the devices in reverse (two half-models or
           Chimera)
M          TP_F on all devices, V chain, TP_B on all devices (a tensor-parallel embedding)
NN         TP, F0..F(D/2-1), TP, F(D/2)..F(D-1) and the backward passes likewise (mT5)
K          two half-device forward branches, TP_F and TP_B on all devices, two backward branches
           (Flava)
interleaved  each device holds `chunks` stages, stage s on device s mod D (Megatron's interleaved
             1F1B)
wave       the stages go down and up the devices `waves` times: 2 * waves stages each (ZB-V, Hanayo)
========== =========================================================================================

Memory: a forward block adds 1 unit, its backward block frees it, tensor-parallel blocks of M and NN
change nothing. `mode=infer` keeps the F blocks and zeroes the memory. `split=1` cuts the backward
block into the part for the inputs (I, on the critical path) and the part for the weights (W, which
frees the memory).

References
----------
.. [1] Z. Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible
Schedule Search", HPCA
   2024 (the first five shapes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import networkx as nx

from placeopt.model.errors import InputError
from placeopt.model.query import parse_query, typed, without_none
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.solving.options import check_options, option

MODES = ("train", "infer")


@dataclass(frozen=True)
class ShapeOptions:
    """What a shape is made of; times are ticks."""

    devices: int = option(4, "number of devices", low=1, high=256)
    forward: int = option(1, "span of a forward block", low=1)
    backward: int = option(3, "span of a backward block", low=1)
    tensor: int = option(1, "span of a tensor-parallel block", low=1)
    mode: str = option("train", "train, or infer for the forward blocks only", choices=MODES)
    split: bool = option(False, "cut B into I and W")
    input: int = option(0, "span of I; 0 for backward - weight", low=0)
    weight: int = option(0, "span of W; 0 for half of backward, rounded down (at least 1)", low=0)
    lag: int = option(0, "communication between blocks that have no device in common", low=0)
    chunks: int = option(2, "stages per device of interleaved", low=1, high=1000)
    waves: int = option(1, "waves of wave", low=1, high=1000)

    def __post_init__(self) -> None:
        check_options(self, "shape")
        if self.split and self.backward < 2 and not (self.input and self.weight):
            raise InputError(
                "shape option split: needs backward >= 2, or the spans input and weight"
            )

    @property
    def weight_span(self) -> int:
        """Ticks of a W block."""
        return self.weight or max(
            1, (self.backward - self.input if self.input else self.backward // 2)
        )

    @property
    def input_span(self) -> int:
        """Ticks of an I block."""
        return self.input or max(1, self.backward - self.weight_span)


class _Chain:
    """Collects blocks; every helper returns those that the next block waits for."""

    def __init__(self, options: ShapeOptions) -> None:
        self.options = options
        self.places = list(range(options.devices))
        self.blocks: list[Block] = []

    def add(
        self,
        name: str,
        kind: str,
        devices: tuple[int, ...],
        span: int,
        memory: int,
        after: list[Block],
        stage: int = -1,
    ) -> list[Block]:
        waits = tuple(
            (before.name, 0 if set(before.devices) & set(devices) else self.options.lag)
            for before in after
        )
        self.blocks.append(Block(name, kind, devices, span, (memory,) * len(devices), waits, stage))
        return self.blocks[-1:]

    def forward(
        self, places: list[int], after: list[Block], first: int = 0, tag: str = ""
    ) -> list[Block]:
        """Add F blocks of the stages first, first + 1, ... on the devices `places`."""
        for stage, device in enumerate(places, first):
            after = self.add(
                f"F{tag}{stage}", "F", (device,), self.options.forward, 1, after, stage
            )
        return after

    def backward(
        self, places: list[int], after: list[Block], first: int = 0, tag: str = ""
    ) -> list[Block]:
        """Add the backward blocks of those stages, last stage first."""
        o = self.options
        for stage, device in reversed([*enumerate(places, first)]):
            if o.split:
                after = self.add(f"I{tag}{stage}", "I", (device,), o.input_span, 0, after, stage)
                self.add(f"W{tag}{stage}", "W", (device,), o.weight_span, -1, after, stage)
            else:
                after = self.add(f"B{tag}{stage}", "B", (device,), o.backward, -1, after, stage)
        return after

    def everywhere(self, name: str, kind: str, after: list[Block], memory: int = 0) -> list[Block]:
        """Add a tensor-parallel block on all devices."""
        return self.add(name, kind, tuple(self.places), self.options.tensor, memory, after)

    def there_and_back(self, places: list[int], after: list[Block], tag: str = "") -> list[Block]:
        """Add the F blocks of the stages on the devices `places`, then their backward blocks."""
        return self.backward(places, self.forward(places, after, tag=tag), tag=tag)


def check_mode(mode: str) -> None:
    """Refuse a mode that is neither training nor inference."""
    if mode not in MODES:
        raise InputError(f"mode: expected train or infer, received '{mode}'")


def _v(chain: _Chain) -> None:
    chain.there_and_back(chain.places, [])


def _x(chain: _Chain) -> None:
    chain.there_and_back(chain.places, [], tag="a")
    chain.there_and_back(chain.places[::-1], [], tag="b")


def _m(chain: _Chain) -> None:
    after = chain.everywhere("TF", "F", [])
    after = chain.there_and_back(chain.places, after)
    chain.everywhere("TB", "B", after)


def _nn(chain: _Chain) -> None:
    low, high = _halves(chain)
    after = chain.everywhere("TF0", "F", [])
    after = chain.forward(low, after)
    after = chain.everywhere("TF1", "F", after)
    after = chain.forward(high, after, first=len(low))
    after = chain.backward(high, after, first=len(low))
    after = chain.everywhere("TB1", "B", after)
    after = chain.backward(low, after)
    chain.everywhere("TB0", "B", after)


def _k(chain: _Chain) -> None:
    left, right = _halves(chain)
    after = chain.forward(left, [], tag="a") + chain.forward(right, [], tag="b")
    after = chain.everywhere("TF", "F", after, memory=1)
    after = chain.everywhere("TB", "B", after, memory=-1)
    chain.backward(left, after, tag="a")
    chain.backward(right, after, tag="b")


def _interleaved(chain: _Chain) -> None:
    chain.there_and_back(chain.places * chain.options.chunks, [])


def _wave(chain: _Chain) -> None:
    chain.there_and_back((chain.places + chain.places[::-1]) * chain.options.waves, [])


def _halves(chain: _Chain) -> tuple[list[int], list[int]]:
    half, odd = divmod(len(chain.places), 2)
    if odd:
        raise InputError(
            "shape option devices: this shape needs an even number, received "
            f"{chain.options.devices}"
        )
    return chain.places[:half], chain.places[half:]


SHAPES: dict[str, tuple[Callable[[_Chain], None], str]] = {
    "V": (_v, "a pipeline: F0..F(D-1), B(D-1)..B0"),
    "X": (_x, "two independent pipelines in opposite directions"),
    "M": (_m, "a pipeline between tensor-parallel blocks on all devices"),
    "NN": (_nn, "two half pipelines with tensor-parallel blocks before and between them (mT5)"),
    "K": (_k, "two branches on half the devices each that meet in a tensor-parallel block (Flava)"),
    "interleaved": (_interleaved, "stage s on device s mod D, `chunks` stages per device"),
    "wave": (_wave, "stages go down and up the devices `waves` times (ZB-V, Hanayo)"),
}


def shape(
    name: str,
    *,
    memory: Any = None,
    micro_batches: int = 8,
    tick_seconds: float = 1e-9,
    **options: Any,
) -> PipelineProblem:
    """Return the problem of the shape `name`.

    Parameters
    ----------
    memory : capacity of every device, or one per device; None for no limit.
    options : fields of `ShapeOptions`.

    Raises
    ------
    InputError
        If the shape or an option is unknown or out of range.
    """
    if name not in SHAPES:
        raise InputError(f"shape '{name}' is not known; known: {', '.join(SHAPES)}")
    known = ShapeOptions.__dataclass_fields__
    for key in options:
        if key not in known:
            raise InputError(
                f"shape option '{key}' is not known; known: "
                f"{', '.join([*known, 'memory', 'micro_batches'])}"
            )
    chain = _Chain(ShapeOptions(**options))
    SHAPES[name][0](chain)
    blocks = chain.blocks if chain.options.mode == "train" else only_forward(chain.blocks)
    given = "&".join(
        f"{key}={int(value) if isinstance(value, bool) else value}"
        for key, value in options.items()
    )
    return PipelineProblem.from_blocks(
        f"shape:{name}" + (f"?{given}" if given else ""),
        blocks,
        [f"device{i}" for i in range(chain.options.devices)],
        capacity=memory,
        micro_batches=micro_batches,
        tick_seconds=tick_seconds,
    )


def only_forward(blocks: list[Block]) -> list[Block]:
    """Return the F blocks with their memory zeroed: inference.

    What waits for a block that is left out waits for the F blocks before that one.
    """
    forward = {block.name for block in blocks if block.kind == "F"}
    if not forward:
        raise InputError("mode infer: the table has no block of kind F")
    waits = nx.DiGraph((before, block.name) for block in blocks for before, _ in block.after)
    found = []
    for block in blocks:
        if block.kind == "F":
            after = [(before, lag) for before, lag in block.after if before in forward]
            for before, _ in block.after:
                if before not in forward:
                    after += [(name, 0) for name in sorted(nx.ancestors(waits, before) & forward)]
            found.append(replace(block, memory=(), after=tuple(after)))
    return found


def shape_from_text(text: str, **overrides: Any) -> PipelineProblem:
    """Read `shape:NAME?option=value&...`; `overrides` win over the text.

    Raises
    ------
    InputError
        If the name, an option or a value is not understood.
    """
    name, _, query = text.removeprefix("shape:").partition("?")
    options: dict[str, Any] = {
        key: value if key == "mode" else _number(key, value)
        for key, value in parse_query(query, f"'{text}'").items()
    }
    options |= without_none(overrides)
    if "split" in options:
        options["split"] = bool(options["split"])
    return shape(name, **options)


def _number(key: str, value: str) -> Any:
    read = partial(typed, where=f"shape option {key}")
    if key == "tick_seconds":
        return read(value, 1.0)
    numbers = [read(part, 1) for part in value.split(",")]
    return numbers if key == "memory" and len(numbers) > 1 else numbers[0]
