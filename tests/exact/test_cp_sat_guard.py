"""Every CP-SAT model of the project against brute force, on small cases: the installed OR-tools
must answer rightly.

OR-tools 9.15 calls wrong values OPTIMAL where optional intervals of different sizes share their
variables of start and end. So every model that is solved here is searched for such intervals, and
so is the source.
"""

from __future__ import annotations

import ast
import itertools
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import stream_oracle
from ortools.sat.python import cp_model
from random_pipelines import random_tree_pipeline
from sharding_problems import draw_linked, oracle
from stream_samples import few_jobs

import placeopt as po
from placeopt.makespan.bounds.analysis import Analysis
from placeopt.makespan.bounds.front import FrontModel, Fronts
from placeopt.makespan.bounds.relaxation import relax
from placeopt.makespan.bounds.segments import _Model as SegmentModel
from placeopt.makespan.proof.witness import has_no_solution
from placeopt.model.cp_sat import solve_interruptibly
from placeopt.schedules.bounds import smallest_excess
from placeopt.schedules.cyclic import CyclicModel
from placeopt.schedules.problem import Block, PipelineProblem
from placeopt.schedules.tessel import _AssignmentModel, _assignments
from placeopt.schedules.time_optimal import _MakespanModel
from placeopt.sharding.compact import condense, draft_of
from placeopt.sharding.exact_rest import solve_rest
from placeopt.solvers.exact.latency_tactics import LatencyCpModel
from placeopt.solvers.exact.makespan_model import MakespanModel
from placeopt.solvers.exact.period_tactics import PeriodCpModel
from placeopt.streams import offline_bound

sys.path.extend(
    str(Path(__file__).resolve().parents[1] / folder)
    for folder in ("exact", "attack", "bounds", "schedules")
)
import brute_force
from alternative_model import optimal_makespan
from case import Case, draw
from compare import problem_of, solver_answer
from test_front import fork_with_twins, most_energy
from test_tessel import best_of_all_orders

pytestmark = pytest.mark.jit

TESTS = Path(__file__).resolve().parents[1]
PACKAGE = TESTS.parent / "placeopt"


def shared_intervals(model):
    """Names of optional intervals with equal variables of start and end, and different sizes."""
    first, found = {}, []
    for constraint in model.proto.constraints:
        # protocol buffers of OR-tools before 9.15, and its own since
        is_interval = (
            constraint.has_interval()
            if hasattr(constraint, "has_interval")
            else constraint.HasField("interval")
        )
        if not is_interval or not constraint.enforcement_literal:
            continue
        start, size, end = (
            _expression(getattr(constraint.interval, key)) for key in ("start", "size", "end")
        )
        # an end that is the start plus the size has no variable of its own
        if end[0] and start[0] and end[0] != start[0]:
            known = first.setdefault((start, end), size)
            if known != size:
                found.append(constraint.name)
    return found


def _expression(linear):
    """Return a linear expression as its terms and its offset."""
    return tuple(sorted(zip(linear.vars, linear.coeffs, strict=True))), linear.offset


@pytest.fixture
def solved(monkeypatch):
    """Files whose models are solved, counted; each model is searched for intervals that share their
    variables.
    """
    seen = Counter()

    class Model(cp_model.CpModel):
        """A model that knows where it was made."""

        def __init__(self, *given):
            super().__init__(*given)
            self.made_in = Path(sys._getframe(1).f_code.co_filename).resolve()

        def clone(self):
            copy = super().clone()
            copy.made_in = self.made_in
            return copy

    solve = cp_model.CpSolver.solve

    def checked(solver, model, *more):
        assert shared_intervals(model) == []
        status = solve(solver, model, *more)
        seen[model.made_in.name] += status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
        return status

    monkeypatch.setattr(cp_model, "CpModel", Model)
    monkeypatch.setattr(cp_model.CpSolver, "solve", checked)
    return seen


def cases(objective, seeds, **changes):
    """Yield (seed, case, problem, optimum) of drawn cases that have a solution."""
    for seed in seeds:
        case = draw(random.Random(seed), objective)
        for key, value in changes.items():
            setattr(case, key, value)
        try:
            problem = problem_of(case)
        except po.InputError:
            continue
        if (
            max(map(max, case.compute)) < 2**40
        ):  # beyond, a grid or a coarser unit answers, not the model
            yield seed, case, problem, brute_force.optimum(case)


def small_pipelines():
    """Yield chains of blocks that walk over devices and back, under tight memory."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        devices = [int(d) for d in rng.integers(0, 2, 2)]
        blocks = []
        for i, d in enumerate(devices):
            after = ((f"F{i - 1}", int(rng.integers(0, 3))),) if i else ()
            blocks.append(Block(f"F{i}", "F", (d,), int(rng.integers(1, 3)), (1,), after))
        for i in (1, 0):
            after = ((f"F{i}" if i else "B1", int(rng.integers(0, 3))),)
            blocks.append(Block(f"B{i}", "B", (devices[i],), int(rng.integers(1, 4)), (-1,), after))
        yield PipelineProblem.from_blocks(
            f"chain{seed}", blocks, ["a", "b"], capacity=int(rng.integers(1, 4))
        )


def repeats(problem, period):
    """Whether some pattern of this period is valid, by trying all starts.

    In a chain, all that follows an edge can begin a period earlier where the edge waits that long;
    what a micro-batch allocates is then freed earlier, so a start within a period after the block
    before it is enough.
    """
    spans, n = problem.span.tolist(), problem.num_blocks
    lag = {v: (u, gap) for u, v, gap in problem.edges}

    def busy(start):
        slots = Counter(
            (d, (s + x) % period)
            for v, s in start.items()
            for x in range(spans[v])
            for d in problem.devices_of(v)
        )
        return max(slots.values()) > 1

    def fits(start):
        for v, s in start.items():
            for d in problem.devices_of(v):
                held = 0
                for (
                    w,
                    other,
                ) in (
                    start.items()
                ):  # how many times w has begun by the start of v in a late repetition
                    held += int(problem.memory[w, d]) * ((s - other) // period)
                if held + sum(int(problem.memory[w, d]) for w in start) > int(problem.capacity[d]):
                    return False
        return True

    def extend(v, start):
        if v == n:
            return fits(start)
        u, gap = lag.get(v, (None, 0))
        ready = 0 if u is None else start[u] + spans[u] + gap
        for s in range(ready, ready + (1 if v == 0 else period)):
            more = {**start, v: s}
            if not busy(more) and extend(v + 1, more):
                return True
        return False

    return extend(0, {})


# --- one check per family of models
# -------------------------------------------------------------------------


def check_makespan():
    """The whole model, contention and peak memory included; without contention it is exact."""
    for seed, case, problem, best in cases("makespan", range(70), memory="peak"):
        assert solver_answer(case, problem, best, "cp-sat", seed) == [], seed
    exact = 0
    for seed, case, problem, best in cases("makespan", range(70, 130)):
        if best is None or problem.num_channels or case.memory == "peak":
            continue
        model = MakespanModel(Analysis(problem), 0, best)
        solver = one_worker()
        status = solver.solve(model.model)
        assert status == cp_model.OPTIMAL, seed
        assert round(solver.objective_value) == best, seed
        exact += 1
    assert exact > 10


def check_windows():
    """What large neighbourhood search finds is valid and no better than the best."""
    for seed, case, problem, best in cases("makespan", range(300, 360)):
        assert solver_answer(case, problem, best, "lns", seed, evaluations=12) == [], seed


def check_second_model():
    """The model that judges the first one."""
    for seed, case, problem, best in cases("makespan", range(130, 200)):
        answer = optimal_makespan(problem)
        if best is None:
            assert answer is None or problem.num_channels or case.memory == "peak", seed
        elif problem.num_channels == 0 and case.memory == "static":
            assert answer == (best, best), seed
        else:
            assert answer is not None, seed
            assert answer[0] <= best, seed


def check_period():
    """The model of the period."""
    for seed, case, problem, best in cases("period", range(60)):
        assert solver_answer(case, problem, best, "cp-sat", seed) == [], seed
        if best is not None and len(set(map(tuple, zip(*case.compute, strict=True)))) < 8:
            model = PeriodCpModel(problem, best, 0)
            solver = one_worker()
            assert (
                solver.solve(model.cp) == cp_model.INFEASIBLE
                or round(solver.objective_value) >= best
            ), seed


def check_latency():
    """The model of the latency."""
    for seed, case, problem, best in cases("latency", range(40)):
        assert solver_answer(case, problem, best, "cp-sat", seed) == [], seed
        if best is not None:
            assert one_worker().solve(LatencyCpModel(problem, best).cp) in (
                cp_model.OPTIMAL,
                cp_model.INFEASIBLE,
            ), seed


def check_fronts():
    """The most energy of a window."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        relaxation = relax(fork_with_twins(rng, classes=1 + seed % 2))
        weights = rng.integers(1, 3, len(relaxation.class_size))
        front = Fronts(
            relaxation, np.zeros_like(relaxation.compute), weights, backwards=False, num_workers=1
        )
        window = int(rng.integers(4, 12))
        best = most_energy(front, window)
        assert FrontModel(front, list(front.order), window, window * front.width).maximum(20) == (
            best,
            best,
        ), seed


def check_segments():
    """Ops between two others that take no time, on devices of one or two classes."""
    for seed in range(25):
        rng = random.Random(seed)
        n, k = rng.choice([3, 4]), rng.choice([2, 3])
        kinds = rng.choice([(k,), (1, k - 1)])
        ticks = [tuple(rng.randint(1, 5) for _ in kinds) for _ in range(n)]
        ticks[0] = ticks[-1] = (0,) * len(kinds)
        pairs = sorted({(0, v) for v in range(1, n)} | {(v, n - 1) for v in range(n - 1)})
        edges = [(u, v, 0, rng.randint(0, 4)) for u, v in pairs]
        case = Case(
            [[t for t, size in zip(row, kinds, strict=True) for _ in range(size)] for row in ticks],
            [u for u, *_ in edges],
            [[v] for _, v, *_ in edges],
            [[pay] for *_, pay in edges],
            [[0] * k] * k,
            [[-1] * k] * k,
            [0] * n,
            [2**62] * k,
            [0] * len(edges),
            [-1] * n,
            backward=[False] * n,
            io_class=[0] * k,
        )
        assert SegmentModel(ticks, edges, kinds, []).least(
            time.perf_counter() + 20
        ) == brute_force.best_makespan(case), seed


def check_statements():
    """Statements of proofs: ops that may run on lanes, with rows that hold under conditions,
    against all assignments.
    """
    told = Counter()
    for seed in range(40):
        rng = random.Random(seed)
        variables = {"s0": [0, 3], "s1": [0, 3], "x0": [0, 1], "x1": [0, 1], "y0": [0, 1]}
        lanes = [
            [["s0", rng.randint(1, 3), "x0"], ["s1", rng.randint(1, 3), "x1"]],
            [["s0", rng.randint(1, 4), "y0"]],
        ]
        rows = [
            [
                [[rng.choice([-1, 1]), rng.choice(list(variables))] for _ in range(2)],
                rng.randint(-1, 2),
                rng.choice([[], ["x0"], ["x1", "y0"]]),
            ]
            for _ in range(5)
        ]
        rows.append([[[1, "x0"], [1, "x1"], [1, "y0"]], 2, []])
        names = list(variables)
        possible = False
        for values in itertools.product(*(range(a, b + 1) for a, b in variables.values())):
            at = dict(zip(names, values, strict=True))
            holds = all(
                sum(f * at[name] for f, name in terms) >= least or not all(at[g] for g in given)
                for terms, least, given in rows
            )
            apart = all(
                at[a[0]] + a[1] <= at[b[0]]
                or at[b[0]] + b[1] <= at[a[0]]
                or not (at[a[2]] and at[b[2]])
                for lane in lanes
                for a, b in itertools.combinations(lane, 2)
            )
            possible = possible or (holds and apart)
        answer = has_no_solution(
            {"variables": variables, "rows": rows, "alone": lanes}, 10, num_workers=1
        )
        assert answer == (not possible), seed
        told[answer] += 1
    assert min(told[True], told[False]) > 5


def check_rest():
    """What is left of a sharding problem."""
    for seed in range(25):
        problem, data = draw_linked(seed, nodes=5)
        draft, fits = draft_of(problem)
        truth = min(oracle(data).values(), default=None)
        if truth is None or truth > 10**9:
            continue
        condensed = condense(draft, fits)
        c, upper = condensed.compact, truth + 5 - condensed.offset
        rest = solve_rest(c, upper, seconds=10)
        assert rest.bound + condensed.offset == truth, seed
        again = truth - condensed.offset
        assert solve_rest(c, again, seconds=10).choice is None, seed


def check_streams():
    """The offline bound with blocks."""
    for seed in range(5):
        problem = few_jobs(seed, jobs=5)
        exact = offline_bound(problem, method="exact")
        assert (exact.exact, exact.blocked) == (
            True,
            problem.num_jobs - stream_oracle.most_completed(problem),
        ), seed


def check_patterns():
    """Cyclic schedules: a period is possible just where some pattern is."""
    for problem in small_pipelines():
        for period in range(
            int(problem.work.max()), int(problem.span.sum() + problem.lag.sum()) + 1
        ):
            possible = repeats(problem, period)
            for latency in (False, True):
                model = CyclicModel(problem, period, for_latency=latency)
                status, _ = model.solve(10, num_workers=1, seed=0)
                assert (status == "infeasible") == (not possible), (problem.name, period, latency)


def check_assignments():
    """Tessel's models: the best of all assignments of micro-batches is the least period."""
    for problem in small_pipelines():
        most = int(problem.span.sum() + problem.lag.sum())
        least = next(
            (p for p in range(int(problem.work.max()), most + 1) if repeats(problem, p)), None
        )
        found = [
            _AssignmentModel(problem, index, most).solve(1, seconds=10, seed=0)
            for index in _assignments(problem, problem.num_blocks)
        ]
        assert min((x.period for x in found if x is not None), default=None) == least, problem.name


def check_whole_schedules():
    """All instances of two micro-batches."""
    for problem in small_pipelines():
        if smallest_excess(problem, 5) > 0:
            continue
        given = problem.replace(micro_batches=2)
        model, solver = (
            _MakespanModel(given, 2 * int(given.span.sum() + given.lag.sum()), 0),
            one_worker(),
        )
        assert solver.solve(model.model) == cp_model.OPTIMAL, problem.name
        least = round(solver.objective_value) * model.unit
        assert least == best_of_all_orders(given, 2), problem.name


def check_memory_limits():
    """The least memory of one micro-batch, against all orders of its blocks."""
    for seed in range(40):
        problem = random_tree_pipeline(seed)
        if problem.num_blocks > 6:
            continue
        best = None
        for order in itertools.permutations(range(problem.num_blocks)):
            if all(order.index(u) < order.index(v) for u, v, _ in problem.edges):
                held = np.cumsum(problem.memory[list(order)], axis=0)
                grows = problem.memory[list(order)] > 0
                over = np.where(grows, held - problem.capacity[None, :], -(10**9)).max()
                best = over if best is None else min(best, over)
        assert smallest_excess(problem, 10) == best, seed


FAMILIES = {
    "makespan_model.py": check_makespan,
    "lns.py": check_windows,
    "alternative_model.py": check_second_model,
    "period_tactics.py": check_period,
    "latency_tactics.py": check_latency,
    "front.py": check_fronts,
    "segments.py": check_segments,
    "witness.py": check_statements,
    "exact_rest.py": check_rest,
    "bound.py": check_streams,
    "cyclic.py": check_patterns,
    "tessel.py": check_assignments,
    "time_optimal.py": check_whole_schedules,
    "bounds.py": check_memory_limits,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_those_of_brute_force(name, solved):
    """Optimal and infeasible mean it, in every family of models, and the models are solved in
    earnest.
    """
    FAMILIES[name]()
    assert solved[name] >= 5


def test_every_model_has_a_family():
    """A file that makes a model is listed above."""
    made = {
        path.name
        for path in [*sources(), TESTS / "exact" / "alternative_model.py"]
        if "CpModel()" in path.read_text()
        and path.name != "solve.py"  # which solves an empty one, to load the library
    }
    assert made == set(FAMILIES)


def sources():
    """Yield the files of the package, those behind links included."""
    for folder in (PACKAGE, *(link.resolve() for link in PACKAGE.iterdir() if link.is_symlink())):
        yield from sorted(folder.rglob("*.py"))


ENDS_OF_THEIR_OWN = {("makespan_model.py", "_live"), ("alternative_model.py", "_lives_at")}
"""Where optional intervals have sizes that vary: each has a variable of its own for its end (seen
below)."""


def test_intervals_of_varying_size_have_an_end_of_their_own():
    """No other function makes one, and in these the end of every one is a variable that the
    function makes.
    """
    found = set()
    for path in [*sources(), TESTS / "exact" / "alternative_model.py"]:
        text = path.read_text()
        functions = ast.walk(ast.parse(text)) if "new_optional_interval_var" in text else ()
        for function in functions:
            if not isinstance(function, ast.FunctionDef):
                continue
            new = {
                name.id: line.lineno
                for line in ast.walk(function)
                if isinstance(line, ast.Assign) and "new_int_var" in ast.unparse(line.value)
                for target in line.targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            }
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(
                    "new_optional_interval_var"
                ):
                    found.add((path.name, function.name))
                    end = call.args[2]
                    assert isinstance(end, ast.Name), (path, call.lineno)
                    assert end.id in new, (path, call.lineno)
    assert found == ENDS_OF_THEIR_OWN


def test_the_search_for_shared_variables_finds_them():
    """Intervals of two sizes with the same start and end are seen; of a fixed size, or with ends of
    their own, they are not.
    """
    model = cp_model.CpModel()
    start, end, other = (model.new_int_var(0, 9, name) for name in ("s", "e", "o"))
    x, y = model.new_bool_var("x"), model.new_bool_var("y")
    model.new_optional_interval_var(start, 3, end, x, "three")
    assert shared_intervals(model) == []
    model.new_optional_interval_var(start, 3, end, y, "again")
    model.new_optional_interval_var(start, 4, other, y, "other")
    model.new_optional_fixed_size_interval_var(start, 5, x, "fixed")
    model.new_optional_fixed_size_interval_var(start, 6, y, "fixed")
    assert shared_intervals(model) == []
    model.new_optional_interval_var(start, 5, end, y, "five")
    assert shared_intervals(model) == ["five"]


def test_rows_beyond_32_bits_keep_their_conditions():
    """Conditional rows whose literals add up to 2^31 or more hold only where they should: OR-tools
    9.15 called 41 364 343 749 the least of the first, and the second infeasible.
    """
    cp, top = cp_model.CpModel(), 50_664_002_540
    first, held, late, last, cut, paid, a, b, c = map(cp.new_bool_var, "firstheld")
    load, most = cp.new_int_var(0, top, "load"), cp.new_int_var(20_443_544_300, top, "most")
    cp.add_bool_or([~held, cut, first])
    cp.add_bool_or([~late, paid, last])
    cp.add_bool_or([~first, ~a, held])
    cp.add_bool_or([~held, ~b, late])
    for x, y in ((late, b), (last, c), (b, a), (c, b)):
        cp.add_implication(x, y)
    ticks = 1_571_093_849, 39_793_249_900, 245_179_294, 723_242_542, 2_251_523_443, 1_465_116_956
    cp.add(load == cp_model.LinearExpr.weighted_sum([first, held, late, last, cut, paid], ticks))
    cp.add(load <= most)
    cp.minimize(most)
    solver = one_worker()
    assert solve_interruptibly(solver, cp) == cp_model.OPTIMAL
    assert solver.objective_value == 20_443_544_300

    cp, top = cp_model.CpModel(), 2**36
    fast, slow, here, there = map(cp.new_bool_var, "fsht")
    start, middle, end, path = (cp.new_int_var(0, top, x) for x in "smep")
    cp.add_exactly_one(fast, slow)
    cp.add_exactly_one(here, there)
    for x, before, after, least in (
        (fast, start, middle, 1_790_879_198),
        (slow, start, middle, 834_770_888),
        (here, middle, end, 294_095_282),
    ):
        cp.add(after - before >= least).only_enforce_if(x)
    cp.add(path >= 26_562_335_300 * there)
    cp.add(path <= start)
    cp.minimize(end)
    assert solve_interruptibly(one_worker(), cp) == cp_model.OPTIMAL


def one_worker():
    """Return a solver as the tests use it."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 20
    return solver
