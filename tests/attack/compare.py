"""Hold everything the package says of a small problem against brute force; return every difference
in words.
"""

from __future__ import annotations

import random

import brute_force
import numpy as np

import placeopt as po
from placeopt.model.errors import InputError, Refused, SolverError
from placeopt.model.objective import INFEASIBLE, objective_of
from placeopt.solving.registry import specs

DETERMINISTIC = {"num_workers": 1}


def problem_of(case):
    """Return the PlacementProblem of a Case."""
    pointer = [0]
    for readers in case.consumers:
        pointer.append(pointer[-1] + len(readers))
    return po.PlacementProblem.from_arrays(
        compute=case.compute,
        producer=np.array(case.producer, dtype=np.int64),
        consumer_ptr=pointer,
        consumer=np.array([v for readers in case.consumers for v in readers], dtype=np.int64),
        transfer=np.array(case.transfer, dtype=np.int64).reshape(
            len(case.producer), -1 if case.transfer else 1
        ),
        link_class=case.link_class,
        channel=case.channel,
        resident=case.resident,
        capacity=case.capacity,
        tensor_bytes=np.array(case.tensor_bytes, dtype=np.int64),
        colocation=case.colocation,
        memory=case.memory,
        objective=case.objective,
        contiguity=case.contiguity,
        pipeline=case.pipeline,
        backward=case.backward,
        io_class=case.io_class,
        slots=case.slots,
    )


def solvable(draw, seeds):
    """Yield (seed, problem, optimum) of every drawn case that is a problem and has a solution."""
    for seed in seeds:
        case = draw(random.Random(seed))
        try:
            problem = problem_of(case)
        except InputError:
            continue
        best = brute_force.optimum(case)
        if best is not None:
            yield seed, problem, best


def true_value(case, solution):
    """Value of a solution by brute force, None if it is not valid."""
    device = [int(d) for d in solution.device]
    if case.objective == "makespan":
        rank = None if solution.priority is None else [int(r) for r in solution.priority]
        return brute_force.fastest(case, device, rank)
    if case.objective == "period":
        return brute_force.period(case, device)
    return brute_force.latency(case, device, slots_of(case, device, solution.priority))


def slots_of(case, device, priority):
    """Slot of every op: rank of its priority among those of its device."""
    slot = [0] * case.num_ops
    if priority is not None:
        for d in set(device):
            values = sorted({int(priority[v]) for v in range(case.num_ops) if device[v] == d})
            for v in range(case.num_ops):
                if device[v] == d and case.io_class[d] >= 0:
                    slot[v] = values.index(int(priority[v]))
    return slot


def evaluations(case, problem, rng):
    """Compare the evaluator and the judge on random placements, valid or not."""
    found = []
    objective = objective_of(problem)
    for _ in range(3):
        device = [rng.randrange(case.num_devices) for _ in range(case.num_ops)]
        rank = rng.sample(range(case.num_ops), case.num_ops) if rng.random() < 0.7 else None
        if case.objective == "latency":
            rank = None if rank is None else [r % 2 for r in rank]
        if case.objective == "period":
            rank = None
        solution = po.Placement(np.array(device), None if rank is None else np.array(rank))
        expected = true_value(case, solution)
        finished = objective.finish(problem, solution)
        if finished.value != expected:
            found.append(
                f"value of {device} {rank}: {finished.value} ({finished.violations}), brute force "
                f"{expected}"
            )
        if case.objective != "latency":
            row = objective.evaluate_batch(problem, np.array([device]))[0]
            plain = true_value(case, po.Placement(np.array(device)))
            if (None if row == INFEASIBLE else int(row)) != plain:
                found.append(f"batch value of {device}: {row}, brute force {plain}")
    return found


def bounds(case, problem, best, seconds):
    """Compare every bound with the optimum."""
    report = po.bound(problem, seconds=seconds)
    found = []
    if report.infeasible and best is not None:
        found.append(f"called infeasible ({report.infeasible}), brute force has {best}")
    if best is not None:
        for name, value in {**report.bounds, report.method: report.value}.items():
            if value > best:
                found.append(f"bound {name} {value} exceeds the optimum {best}")
    return found


def solver_answer(case, problem, best, name, seed, evaluations=60):
    """Run one solver and compare all it says."""
    from placeopt.solving.options import declared_options
    from placeopt.solving.registry import solver_class

    spec = specs("placement")[name]
    known = declared_options(solver_class(name))
    options = {key: value for key, value in DETERMINISTIC.items() if key in known}
    try:
        result = po.solve(
            problem,
            name,
            seconds=2.0,
            evaluations=evaluations if spec.search else None,
            seed=seed,
            **options,
        )
    except Refused:
        return []
    except (InputError, SolverError) as error:
        return [f"{name} raised {type(error).__name__}: {error}"]
    found = []
    if result.solution is not None:
        expected = true_value(case, result.solution)
        if expected != result.value:
            found.append(
                f"{name} reports {result.value}, brute force values its solution {expected}"
            )
    if best is None and result.solution is not None:
        found.append(f"{name} found {result.value} where nothing is feasible")
    if best is not None and result.lower_bound > best:
        found.append(
            f"{name} proves {result.lower_bound} ({result.bound_method}), the optimum is {best}"
        )
    if result.status == "optimal" and result.value != best:
        found.append(f"{name} calls {result.value} optimal, the optimum is {best}")
    if result.status == "infeasible" and best is not None:
        found.append(f"{name} says infeasible ({result.message}), brute force has {best}")
    return found


def solvers_of(objective):
    """Names of the solvers of an objective."""
    found = specs("placement").items()
    return sorted(
        name
        for name, spec in found
        if objective in spec.objectives and spec.target.startswith("placeopt.")
    )


EXACT = {"makespan": ["cp-sat"], "period": ["ideal-dp", "cp-sat", "milp"], "latency": ["cp-sat"]}


def attack(case, rng, *, num_solvers=1, exact=0.2, bound_seconds=0.0):
    """Return every difference between the package and brute force on one case.

    Parameters
    ----------
    num_solvers : solvers drawn at random. exact : chance of running each exact solver.
    """
    problem = problem_of(case)
    best = brute_force.optimum(case)
    found = evaluations(case, problem, rng) + bounds(case, problem, best, bound_seconds)
    names = rng.sample(
        solvers_of(case.objective), min(num_solvers, len(solvers_of(case.objective)))
    )
    names += [name for name in EXACT[case.objective] if rng.random() < exact]
    for name in dict.fromkeys(names):
        found += solver_answer(case, problem, best, name, rng.randrange(1000))
    return found
