"""CP-SAT runs: the one place that makes a solver and sets its limits.

The number of workers is always given, since by default CP-SAT takes every core.

Presolve of CP-SAT 9.15 keeps some sums and coefficients in 32 bits: it drops the condition of a row
whose literals add up to more (google/or-tools issue 5293), and cuts off solutions of conditional
rows with larger times. The first is part of what looks for inclusions, the second of what keeps
only some optima. Models with such numbers are solved without both.
"""

from __future__ import annotations

import math
from itertools import chain
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
    if _passes_32_bits(model.proto):
        search.parameters.presolve_inclusion_work_limit = 0
        search.parameters.keep_all_feasible_solutions_in_presolve = True
    # after CP-SAT's own handler, SIGINT would end the process
    search.parameters.catch_sigint_signal = False
    return call_interruptibly(lambda: search.solve(model, callback), search.stop_search)


def _passes_32_bits(model: Any) -> bool:
    """Whether the terms of a row or of the objective may add up to 2^31."""
    ends = (x.domain for x in model.variables)
    most = [max(abs(x[0]), abs(x[len(x) - 1])) for x in ends]  # -1 is no index of it
    objective = [model.objective] if model.has_objective() else []
    rows = chain(objective, (row.linear for row in model.constraints if row.has_linear()))

    def reach(row: Any) -> int:  # -x - 1 is the negation of variable x
        terms = zip(row.coeffs, row.vars, strict=True)
        return sum(abs(ticks) * most[max(x, -x - 1)] for ticks, x in terms)

    return any(reach(row) >= 2**31 for row in rows)
