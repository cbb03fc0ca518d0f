"""Shared fixtures: where the instances are, and which tests need compiled speed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of the real instances; tests that need it are skipped where it is absent."""
    folder = Path(
        os.environ.get("PLACEOPT_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
    )
    if not folder.is_dir():
        pytest.skip(
            f"the instance data is absent: set PLACEOPT_DATA to its folder (looked in {folder})"
        )
    return folder


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile all kernels on all cores before workers share out the tests: they would wait for one
    another.
    """
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        return
    from placeopt.solving.compilation import GROUPS, cached, compile_cold

    if os.environ.get("NUMBA_DISABLE_JIT") != "1":
        compile_cold([group for group in GROUPS.values() if not cached(group)])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need compiled speed when numba is interpreted."""
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        for item in items:
            if item.get_closest_marker("jit") or item.get_closest_marker("slow"):
                item.add_marker(
                    pytest.mark.skip(reason="needs compiled kernels; NUMBA_DISABLE_JIT=1 is set")
                )
