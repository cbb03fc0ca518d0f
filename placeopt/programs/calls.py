"""Program: a model of the user's own as a list of calls, and the device that a placement gives
every one of them.

A placement names the ops of a graph, from which readers have folded and fused calls away
(constants, views of weights, dropout, batch norms). Such a call goes where its first input is, else
where its first reader is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placeopt.model.arrays import Ints, by_key, by_number
from placeopt.model.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Call:
    """One call of an operator.

    Attributes
    ----------
    module : path of the module that makes it ("h.3.attn"), "" for the model itself.
    inputs : calls whose results it reads, distinct, in the order of its arguments.
    weights : names of the stored tensors that it reads ("h.3.attn.weight").
    free : whether it only looks at its input in another way (a view, one of several results).
    """

    name: str
    kind: str
    module: str
    inputs: tuple[int, ...]
    weights: tuple[str, ...] = ()
    free: bool = False


@dataclass(frozen=True, eq=False)
class Program:
    """Calls in an order in which every one finds its inputs; `modules` are the paths of all
    modules, where known.
    """

    name: str
    calls: tuple[Call, ...]
    weights: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def num_calls(self) -> int:
        """Number of calls."""
        return len(self.calls)

    @cached_property
    def readers(self) -> list[list[int]]:
        """Calls that read the results of each call."""
        reads = ((j, i) for i, call in enumerate(self.calls) for j in call.inputs)
        return by_number(self.num_calls, reads)


def homes(program: Program, placed: Mapping[str, int]) -> Ints:
    """Return the device of every call, shape (num_calls,).

    Parameters
    ----------
    placed : device by op name, from a placement.

    Raises
    ------
    InputError
        If an op of the placement is no call of the model (those of the backward pass excepted,
        which run where their forward op does), or none of them is.
    """
    device = {call.name: placed.get(call.name, -1) for call in program.calls}
    strange = [
        name for name in placed if name not in device and name.rpartition("/")[0] not in placed
    ]
    if strange or max(device.values(), default=-1) < 0:
        name = strange[0] if strange else next(iter(placed), "")
        otherwise = "is it a placement of this model, read with the same options?"
        hint = did_you_mean(name, device, otherwise)
        raise InputError(f"placement: op '{name}' is no call of model '{program.name}'; {hint}")
    return spread(program, device)


def constants(program: Program, placed: Collection[str]) -> set[int]:
    """Return the calls that are folded away and read nothing that is not, no stored tensor either:
    positions and masks, which a module makes wherever it reads them.

    Parameters
    ----------
    placed : names of the ops of a placement.
    """
    found: set[int] = set()
    for i, call in enumerate(program.calls):
        if call.name not in placed and not call.weights and found.issuperset(call.inputs):
            found.add(i)
    return found


def spread(program: Program, placed: Mapping[str, int]) -> Ints:
    """Return the device (or another number) of every call: its own, else that of its first input,
    else that of its first reader, else 0.
    """
    found = [placed.get(call.name, -1) for call in program.calls]
    for i, call in enumerate(program.calls):
        if found[i] < 0:
            found[i] = next((found[j] for j in call.inputs if found[j] >= 0), -1)
    for i in reversed(range(program.num_calls)):
        if found[i] < 0:
            found[i] = next((found[j] for j in program.readers[i] if found[j] >= 0), -1)
    return np.array([max(where, 0) for where in found], np.int64)


def segments(program: Program, label: Sequence[int]) -> list[list[int]]:
    """Cut the calls into runs of one label that can be executed whole, one after the other.

    The level of a call is the largest number of changes of label on a path to it; calls of one
    label and level are one segment. An edge between two segments raises the level or keeps it
    within one label, so the segments have no circle.
    """
    level = [0] * program.num_calls
    for i, call in enumerate(program.calls):
        level[i] = max((level[j] + (label[j] != label[i]) for j in call.inputs), default=0)
    table = by_key((key, i) for i, key in enumerate(zip(level, label, strict=True)))
    return [table[key] for key in sorted(table)]
