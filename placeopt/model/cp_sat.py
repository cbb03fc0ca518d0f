"""CP-SAT runs: the one place that makes a solver and sets its limits.

The number of workers is always given, since by default CP-SAT takes every core.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from placeopt.model.threads import call_interruptibly

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


def cp_solver(
    *,
    workers: int,
    seconds: float = math.inf,
    effort: float = math.inf,
    seed: int = 0,
    **parameters: Any,
) -> cp_model.CpSolver:
    """Return a CP-SAT solver with its limits set.

    Parameters
    ----------
    workers : threads of the search.
    seconds : wall-clock limit; an infinite one is none.
    effort : limit in CP-SAT's deterministic time, the same on every machine; an infinite one is
        none.
    seed : of the search's random numbers; any integer.
    parameters : further fields of `SatParameters`, by name.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    limits = {"max_time_in_seconds": max(0.01, seconds), "max_deterministic_time": effort}
    chosen = {name: limit for name, limit in limits.items() if math.isfinite(limit)}
    chosen |= {"num_workers": workers, "random_seed": seed % 2**31}
    for name, value in (chosen | parameters).items():
        setattr(solver.parameters, name, value)
    return solver


def solve_interruptibly(search: Any, model: Any, callback: Any = None) -> Any:
    """Return `search.solve(model, callback)`; on Ctrl-C stop the search, then raise
    KeyboardInterrupt.
    """
    # after CP-SAT's own handler, SIGINT would end the process
    search.parameters.catch_sigint_signal = False
    return call_interruptibly(lambda: search.solve(model, callback), search.stop_search)
