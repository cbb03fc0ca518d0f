"""The same seed gives the same answer under every hash seed and number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from random_problems import random_problem
from placeopt.model.result import Budget
from placeopt.solving.registry import make_solver
from placeopt.solvers.heuristics import SPECS
for seed in (1, 2, 3):
    problem = random_problem(np.random.default_rng(seed), max_ops=40, incompatible=False)
    problem = problem.replace(capacity=problem.capacity * 0 + problem.resident.sum())
    for spec in SPECS:
        result = make_solver(spec.name).solve(problem, Budget(evaluations=300), seed=seed)
        print(spec.name, result.objective, result.queue, result.evaluations, result.solution.device.tolist(),
              None if result.solution.priority is None else result.solution.priority.tolist(), flush=True)
os._exit(0)  # taking numba down takes most of a second
"""


@pytest.mark.jit
def test_hash_seed_and_threads_do_not_matter():
    """Two processes with different hash seeds and thread counts print the same placements, op by
    op.
    """
    outputs = []
    for hash_seed, threads in (("1", "1"), ("777", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PLACEOPT_THREADS": threads}
        command = [sys.executable, "-c", SCRIPT, str(Path(__file__).resolve().parents[1])]
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert run.returncode == 0, run.stderr
        outputs.append(run.stdout.splitlines())
    assert len(outputs[0]) == 3 * 15
    assert outputs[0] == outputs[1]
