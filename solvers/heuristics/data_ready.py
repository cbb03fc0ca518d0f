"""A compiled step of list schedulers and walks: when the inputs of an op are on a device."""

# mypy: disable-error-code="assignment, return-value, no-any-return"
# (a jitted integer is an int64 or an int alike, which the type checker cannot know)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placeopt.model.compiled import inlined

if TYPE_CHECKING:
    from placeopt.model.arrays import Ints


@inlined
def data_ready(graph: Any, costs: Any, device_of: Ints, finish: Ints, op: int, device: int) -> int:
    """Time at which all inputs of `op` are on `device`, transfers never waiting for each other.

    Parameters
    ----------
    graph : tuple with `predecessors`. costs : tuple with `transfer` and `link_class`, which may be
    the same.
    """
    ready = np.int64(0)
    for e in range(graph.predecessors.pointer[op], graph.predecessors.pointer[op + 1]):
        source = graph.predecessors.op[e]
        arrival = finish[source]
        if device_of[source] != device:
            arrival += costs.transfer[
                graph.predecessors.tensor[e], costs.link_class[device_of[source], device]
            ]
        ready = max(ready, arrival)
    return ready
