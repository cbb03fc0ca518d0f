"""One Dask cluster for all tests of the runtime: starting workers takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.runtime import DaskRuntime


@pytest.fixture(scope="session")
def dask_runtime() -> Iterator[DaskRuntime]:
    """Two workers of one thread each."""
    pytest.importorskip("distributed", reason="needs dask[distributed], the extra 'dask'")
    from placeopt.runtime import DaskRuntime

    with DaskRuntime(2, timeout=120) as runtime:
        yield runtime
