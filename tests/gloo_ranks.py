"""Runs gloo_worker.py once per rank, on this machine's loopback, and returns what every rank
printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("gloo_worker.py")


def run_ranks(ranks: int, folder: Path, job: str, *arguments: object) -> list[str]:
    """Start the ranks of a job; fail with a rank's last words if one of them does."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    given = [str(argument) for argument in arguments]
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(ranks), str(folder / "init"), job, *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(ranks)
    ]
    outputs = []
    try:
        outputs = [worker.communicate(timeout=200) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, err) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, err[-2000:]
    return [out for out, _ in outputs]
