"""Ctrl-C during CP-SAT: the search stops and KeyboardInterrupt is raised, as in plain Python code.

CP-SAT would take the signal for itself and return as if its time were over, and its times are no evidence
either: it may end before its limit. So it runs in a thread while the main thread waits for signals.
"""

from __future__ import annotations

import threading
from typing import Any


def solve_interruptibly(solver: Any, model: Any, callback: Any = None) -> Any:
    """Return `solver.solve(model, callback)`; on Ctrl-C stop the search first, then raise KeyboardInterrupt."""
    solver.parameters.catch_sigint_signal = False
    if threading.current_thread() is not threading.main_thread():
        return solver.solve(model, callback)
    answer: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(solver.solve(model, callback))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="cp-sat")
    try:
        thread.start()
        while thread.is_alive():
            thread.join(1.0)
    except KeyboardInterrupt:
        solver.stop_search()
        if thread.ident is not None:
            thread.join()
        raise
    if failure:
        raise failure[0]
    return answer[0]
