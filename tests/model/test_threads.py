"""The helpers that make threads: order, errors, early ends, and who waits for whom."""

from __future__ import annotations

import threading

import pytest

from placeopt.model.threads import (
    BackgroundCall,
    _openblas,
    call_together,
    map_threads,
    one_blas_thread,
    parallel_slices,
    start_thread,
)


def test_results_come_in_the_order_of_the_items():
    """The first item ends last, and is yielded first."""
    last = threading.Event()

    def one(i):
        assert last.wait(20) if i == 0 else True
        if i == 2:
            last.set()
        return i * i

    assert list(map_threads(one, range(3), 3)) == [0, 1, 4]


@pytest.mark.parametrize("end", ["failure", "caller"])
def test_an_early_end_waits_for_what_has_begun_and_drops_the_rest(end):
    """When an item fails, or the caller stops, no item begins any more and none is at work."""
    begun, ended, go = [], [], threading.Event()

    def one(i):
        if i == 0:
            return i
        begun.append(i)
        if i == 1 and end == "failure":
            raise ValueError("first")
        assert go.wait(20)
        ended.append(i)
        return i

    results = map_threads(one, range(100), 2, end)
    assert next(results) == 0
    threading.Timer(0.2, go.set).start()
    if end == "failure":
        with pytest.raises(ValueError, match="first"):
            next(results)
        assert sorted(ended) == sorted(
            i for i in begun if i > 1
        )  # those that wait end in any order
    else:
        results.close()
        assert sorted(ended) == sorted(begun)
    assert len(begun) < 10


def test_slices_cover_every_item_once():
    """However many threads share them."""
    for count in (1, 2, 7, 1000):
        for threads in (1, 2, 3):
            seen = [0] * count

            def run(part, seen=seen):
                for i in range(part.start, part.stop):
                    seen[i] += 1

            parallel_slices(run, count, work=10**9, threads=threads)
            assert seen == [1] * count


def test_a_background_call_tells_its_result_or_its_error():
    """`ended` waits at most so long; `result` returns or raises."""
    go = threading.Event()
    call = BackgroundCall(lambda: go.wait(20))
    assert not call.ended()
    call.begin("named")
    assert not call.ended(0.01)
    assert "named" in [thread.name for thread in threading.enumerate()]
    go.set()
    assert call.ended(20)
    assert call.result()
    failing = BackgroundCall(lambda: 1 // 0)
    failing.begin("failing")
    assert failing.ended(20)
    with pytest.raises(ZeroDivisionError):
        failing.result()


def test_calls_run_at_the_same_time_and_all_are_waited_for():
    """Each waits for the other, which one thread could not do."""
    meeting, after = threading.Barrier(3), []
    call_together([lambda i=i: (meeting.wait(20), after.append(i)) for i in range(3)])
    assert sorted(after) == [0, 1, 2]


def test_a_thread_is_a_daemon_unless_the_end_must_wait():
    """The end of the process waits for threads that are no daemons."""
    daemon = start_thread(int, name="one")
    waits = start_thread(int, daemon=False)
    assert (daemon.daemon, daemon.name, waits.daemon) == (True, "one", False)


def test_linear_algebra_is_kept_on_one_thread_for_a_block_only():
    """Where numpy has its own OpenBLAS, as in its wheels; else nothing happens."""
    library = _openblas()

    def used():
        return library and library.scipy_openblas_get_num_threads64_()

    before = used()
    with one_blas_thread():
        assert used() in (None, 1)
    assert used() == before
