"""Linear and mixed-integer programs by HiGHS (through scipy): the one place that calls it.

HiGHS works in floating point, so nothing that it says is a proof: callers round its multipliers and
evaluate their bound in integers, or check its solution exactly. Ctrl-C ends a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placeopt.model.arrays import Array, Floats
from placeopt.model.threads import call_interruptibly

LEAST_TOLERANCE = 1e-10
"""The least that HiGHS takes for what rows and reduced costs may be off."""


def linear_program(
    cost: Floats,
    *,
    below: tuple[Any, Floats] | None = None,
    equal: tuple[Any, Floats] | None = None,
    bounds: Any = (0, None),
    seconds: float | None = None,
    iterations: int | None = None,
    method: str = "highs",
    exactly: bool = False,
) -> Any:
    """Minimise cost x subject to A x <= b (`below`), A x = b (`equal`) and `bounds` on x.

    `exactly` asks for the least tolerance that HiGHS takes. Returns scipy's answer: `status` (0
    optimal, 1 out of time or iterations, 2 infeasible), `x` or None, `fun`, and the marginals of
    `ineqlin` and `eqlin`.
    """
    from scipy.optimize import linprog

    upper, limit = below or (None, None)
    matrix, right = equal or (None, None)
    options: dict[str, float] = {} if seconds is None else {"time_limit": max(0.01, seconds)}
    options |= {} if iterations is None else {"maxiter": iterations}
    if exactly:
        options |= dict.fromkeys(
            ("primal_feasibility_tolerance", "dual_feasibility_tolerance"), LEAST_TOLERANCE
        )
    return call_interruptibly(
        lambda: linprog(
            cost,
            A_ub=upper,
            b_ub=limit,
            A_eq=matrix,
            b_eq=right,
            bounds=bounds,
            method=method,
            options=options,
        )
    )


def integer_program(
    cost: Floats,
    integral: Array,
    rows: Sequence[tuple[Any, Any, Any]],
    bounds: tuple[Any, Any],
    **options: Any,
) -> Any:
    """Minimise cost x subject to low <= A x <= high for each (A, low, high) of `rows`.

    `integral` says which columns are integers, `bounds` are the least and largest values of x,
    `options` those of HiGHS (time_limit, node_limit, mip_rel_gap, disp). Returns scipy's answer.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    constraints = [LinearConstraint(matrix, low, high) for matrix, low, high in rows]
    return call_interruptibly(
        lambda: milp(
            cost,
            integrality=integral,
            bounds=Bounds(*bounds),
            constraints=constraints,
            options=options,
        )
    )
