"""Runs gloo_worker.py on this machine's loopback, and returns what every rank printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

WORKER = Path(__file__).with_name("gloo_worker.py")


def run_ranks(ranks: int, folder: Path, job: str, *arguments: object) -> list[str]:
    """Start the ranks of a job; fail with the ranks' last words if one of them does."""
    said = Path(tempfile.mkdtemp(prefix="ranks-", dir=folder))
    worker = subprocess.Popen(
        [sys.executable, str(WORKER), str(ranks), str(said), job, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        start_new_session=True,
    )
    try:
        code = worker.wait(timeout=200)
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
    assert code == 0, "\n".join(file.read_text()[-2000:] for file in said.glob("*.err"))
    return [(said / f"{rank}.out").read_text() for rank in range(ranks)]
