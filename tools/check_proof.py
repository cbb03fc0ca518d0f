#!/usr/bin/env python3
"""Check proofs that `placeopt verify --proof FILE` wrote: python check_proof.py FILE ...

Standard library only. The checker is the package `proof_checker` beside this file, whose files say
what they check and why it holds; docs/proofs.md tells the same as a table. As one file that runs
anywhere:

    python3 -m zipapp tools -o check_proof.pyz -m check_proof:command
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from proof_checker.command import command, main
from proof_checker.derivation import STEPS, follow, refute
from proof_checker.makespan_value import makespan
from proof_checker.period_value import period
from proof_checker.pipeline import Pipeline
from proof_checker.pipeline_period import pattern_period, work_bound
from proof_checker.placement import Placement
from proof_checker.proof import check
from proof_checker.reading import FalseStatementError, UnreadableError, parse
from proof_checker.sharding import Sharding, sharding_cost
from proof_checker.sharding_bound import sharding_bound
from proof_checker.supposition import Supposition

__all__ = [
    "STEPS",
    "FalseStatementError",
    "Pipeline",
    "Placement",
    "Sharding",
    "Supposition",
    "UnreadableError",
    "check",
    "command",
    "follow",
    "main",
    "makespan",
    "parse",
    "pattern_period",
    "period",
    "refute",
    "sharding_bound",
    "sharding_cost",
    "work_bound",
]

if __name__ == "__main__":
    command()
