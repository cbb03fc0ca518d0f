"""The offline bound: how few jobs any policy could block, even one that knows all arrivals.

A job may start only when it arrives, with a degree that meets its deadline and ends before the
horizon; it then holds at least `width` servers for at least its shortest completion time. At every
arrival the running jobs hold at most S servers. Relaxing where on the grid the servers are, and
allowing fractions of jobs, gives the linear program

    max sum x_jd  s.t.  sum_d x_jd <= 1,
                        sum_{(j, d) running at a_k} width_jd x_jd <= S  for every arrival k,

whose value is an upper bound on the completed jobs of every policy, clairvoyant ones included. Any
prices y >= 0 of a server at an arrival prove it (weak duality): S sum_k y_k + sum_j max(0, max_d (1
- width_jd * what the servers cost while it runs)). HiGHS only suggests the prices; they are rounded
to multiples of a power of two and the bound is evaluated in integers, so that nothing has to be
trusted. With integer x (CP-SAT) the bound is tighter; with a block of the grid chosen for every job
it is the exact clairvoyant optimum under the uniform rule (free choice of the block, of which first
fit is one), for short streams.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from placeopt.model.arrays import Flags, Floats, Ints, running_sums, true_places
from placeopt.model.cp_sat import cp_solver, solve_interruptibly
from placeopt.model.errors import InputError, check_choice
from placeopt.model.linear_program import linear_program
from placeopt.model.shown import Shown
from placeopt.streams.problem import JobStreamProblem

METHODS = ("lp", "cp-sat", "exact")

Held = dict[int, list[Any]]
"""Server -> the literals of the blocks that hold it while one arrival is seen."""


@dataclass(frozen=True, repr=False)
class OfflineBound(Shown):
    """A lower bound on the blocked jobs of any policy.

    Attributes
    ----------
    blocked : at least so many jobs are blocked.
    method : "lp", "cp-sat" (integers) or "exact" (integers and blocks).
    exact : whether `blocked` is attained by a clairvoyant policy that may choose the blocks freely.
    """

    blocked: int
    num_jobs: int
    method: str
    exact: bool

    def shown(self) -> dict[str, str]:
        """Return the least number of blocked jobs and what proved it."""
        rate = f"{self.blocked} of {self.num_jobs} jobs ({self.blocking_rate:.2%})"
        return {"of": rate, "by": self.method, "attained": "yes" if self.exact else ""}

    @property
    def blocking_rate(self) -> float:
        """Lower bound on the blocking rate."""
        return self.blocked / self.num_jobs


class Options(NamedTuple):
    """Every (job, degree) that could complete: one column of the program."""

    job: Ints
    width: Ints  # servers
    last: Ints  # arrivals job .. last - 1 see it running


def offline_bound(
    problem: JobStreamProblem,
    *,
    method: str = "lp",
    seconds: float = 30.0,
    num_workers: int = 1,
    seed: int = 0,
) -> OfflineBound:
    """Return a lower bound on the blocked jobs of any policy, clairvoyant or not.

    Parameters
    ----------
    method : "lp", "cp-sat" or "exact" (at most 200 jobs, uniform rule).
    seconds, num_workers, seed : of CP-SAT.

    Raises
    ------
    InputError
        If the method is unknown or not applicable.
    """
    check_choice("offline bound", method, METHODS)
    options = completing_options(problem)
    if len(options.job) == 0:
        return OfflineBound(problem.num_jobs, problem.num_jobs, method, True)
    max_exact_jobs = 200
    if method == "exact" and (
        problem.num_jobs > max_exact_jobs or problem.jobs.config.rule != "uniform"
    ):
        raise InputError(
            f"offline bound: 'exact' takes at most {max_exact_jobs} jobs under the uniform rule, "
            f"received {problem.num_jobs} jobs under '{problem.jobs.config.rule}'; use lp or cp-sat"
        )
    completed = completed_at_prices(problem, options, _prices(problem, options, seconds))
    attained = False
    if method != "lp":
        blocks = method == "exact"
        found, proved = _integer(problem, options, blocks, seconds, num_workers, seed)
        # a relaxation's optimum is a bound; without a proof the solver's dual bound is one, and so
        # is the linear program's
        completed, attained = min(completed, found), proved and blocks
    return OfflineBound(problem.num_jobs - completed, problem.num_jobs, method, attained)


def hopeless_jobs(problem: JobStreamProblem) -> int:
    """Return how many jobs no degree can complete by their deadline and the horizon, even on an
    empty cluster.
    """
    return int(np.count_nonzero(~_completes(problem).any(axis=1)))


def _completes(problem: JobStreamProblem) -> Flags:
    """Whether each job, alone and split with each degree, would complete in time: (J, D)."""
    length = problem.jobs.arrays.jct[problem.model]
    fits = (length >= 0) & (length <= problem.deadline[:, None])
    return np.asarray(fits & (problem.arrival[:, None] + length <= problem.horizon))


def completing_options(problem: JobStreamProblem) -> Options:
    """Return every (job, degree) that could complete."""
    arrays = problem.jobs.arrays
    job, degree = np.nonzero(_completes(problem))
    kind = problem.model[job]
    last = np.searchsorted(problem.arrival, problem.arrival[job] + arrays.jct[kind, degree])
    return Options(job, arrays.width[kind, degree], np.maximum(last, job + 1))


def _prices(problem: JobStreamProblem, options: Options, seconds: float) -> Floats:
    """Return a price of a server at every arrival: the duals of the linear program, or, if HiGHS
    has none in time, the best price that is the same at all.

    The servers held at an arrival are a variable: those held at the one before, more where jobs
    start and less where they have ended. So a job that many arrivals see running takes no more room
    than others.
    """
    from scipy.sparse import coo_matrix, diags, hstack

    count, size = len(options.job), problem.num_jobs
    every, width = np.arange(count), options.width.astype(float)
    ending = options.last < size
    row = np.concatenate([options.job, options.last[ending]])
    column = np.concatenate([every, every[ending]])
    change = coo_matrix((np.concatenate([-width, width[ending]]), (row, column)), (size, count))
    held = hstack([change, diags([1.0, -1.0], [0, -1], (size, size))]).tocsr()
    once = coo_matrix((np.ones(count), (options.job, every)), (size, count + size)).tocsr()
    most = np.repeat([np.inf, problem.num_servers], [count, size])
    answer = linear_program(
        np.repeat([-1.0, 0.0], [count, size]),
        below=(once, np.ones(size)),
        equal=(held, np.zeros(size)),
        bounds=np.column_stack([np.zeros(count + size), most]),
        seconds=max(0.1, seconds),
        method="highs-ipm",
    )
    if answer.x is None:
        return np.full(size, _same_price(problem, options))
    return -np.asarray(answer.upper.marginals[count:])


def _same_price(problem: JobStreamProblem, options: Options) -> float:
    """Return the price at which the cheapest jobs, in servers times arrivals, fill the cluster."""
    least = np.full(problem.num_jobs, np.inf)
    np.minimum.at(least, options.job, options.width * (options.last - options.job))
    least.sort()
    full = int(np.searchsorted(np.cumsum(least), problem.num_servers * problem.num_jobs))
    return 1 / float(least[full]) if full < len(least) else 0.0


def completed_at_prices(problem: JobStreamProblem, options: Options, prices: Floats) -> int:
    """Return the upper bound on the completed jobs that prices prove, in integers, rounded down.

    Parameters
    ----------
    prices : of a server at every arrival; any will do, those outside 0..1 are taken for 0 or 1.
    """
    size, servers = problem.num_jobs, problem.num_servers
    # Prices are rounded down to multiples of 2^-40, a coarser grid where sums could pass 62 bits
    one = 1 << min(40, 61 - (size * servers).bit_length())
    price = np.floor(np.clip(np.nan_to_num(prices), 0.0, 1.0) * one).astype(np.int64)
    paid = running_sums(price)
    # a job is worth what is left of 1 after paying for its servers
    worth = one - options.width * (paid[options.last] - paid[options.job])
    best = np.zeros(size, np.int64)
    np.maximum.at(best, options.job, worth)
    return min(size, (servers * int(price.sum()) + sum(best.tolist())) // one)


def _integer(
    problem: JobStreamProblem,
    options: Options,
    blocks: bool,
    seconds: float,
    num_workers: int,
    seed: int,
) -> tuple[int, bool]:
    """Return (upper bound on the completed jobs, whether it is the optimum), by CP-SAT."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    size = problem.num_jobs
    taken: list[cp_model.IntVar] = []
    held: list[Held] = [{} for _ in range(size)]
    for k in range(len(options.job)):
        taken.append(model.new_bool_var(f"x{k}"))
        if blocks:
            _add_blocks(model, problem, options, k, taken[k], held)
    for job in range(size):
        model.add_at_most_one([taken[k] for k in true_places(options.job == job)])
    # Written as linear rows, not intervals: their linear relaxation is what proves the bound.
    for arrival in range(size):
        running = true_places((options.job <= arrival) & (arrival < options.last))
        load = sum(int(options.width[k]) * taken[k] for k in running)
        model.add(load <= problem.num_servers)
    for literals in itertools.chain.from_iterable(servers.values() for servers in held):
        model.add_at_most_one(literals)
    model.maximize(sum(taken))
    solver = cp_solver(workers=num_workers, seconds=seconds, seed=seed)
    status = solve_interruptibly(solver, model)
    # the model minimises minus the completed jobs; 0 is no bound yet, as any job alone completes
    bound = -int(solver.response_proto.inner_objective_lower_bound) or size
    return min(size, bound), status == cp_model.OPTIMAL


def _add_blocks(
    model: Any, problem: JobStreamProblem, options: Options, k: int, taken: Any, held: list[Held]
) -> None:
    """Let the k-th option hold one block of its size if it is taken; note by arrival in `held`
    which servers that takes.
    """
    blocks = list(problem.jobs.topology.blocks.of_size(int(options.width[k])))
    seen = range(int(options.job[k]), int(options.last[k]))
    places = [model.new_bool_var(f"b{k}_{i}") for i in range(len(blocks))]
    for servers, here in zip(blocks, places, strict=True):
        for server, arrival in itertools.product(servers, seen):
            held[arrival].setdefault(server, []).append(here)
    model.add(sum(places) == taken)
