"""Compiled decoding of (device, sequence): an exact evaluation that begins where something changed
and gives up early.

A sequence is a topological order. It is *decoded* by the serial schedule generation scheme: op by
op, each starts on its device as early as its inputs allow, in a gap between the ops there if one is
long enough. The schedules reachable are the active ones of the devices, which contain an optimal
one; those of `priority` execution (never idle) need not. Executed as `planned`, ranked by start,
such a schedule reproduces itself where transfers do not contend. (Kolisch, Serial and parallel
resource-constrained project scheduling methods revisited, 1996.)

References
----------
R. Kolisch, "Serial and parallel resource-constrained project scheduling methods revisited",
European Journal of Operational Research 90, 1996.
"""

from __future__ import annotations

# Kernels take NamedTuples of arrays, described where those are defined.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from placeopt.model.compiled import uncounted
from placeopt.solvers.heuristics.unit_reservation import data_ready

REJECTED = -1
"""Value of a decoding that was given up because the limit is passed."""


@uncounted
def update_tails(g, w, last):
    """Longest path from the start of each op to the end, for the ops at positions `last` and
    before.
    """
    for i in range(last, -1, -1):
        op = w.sequence[i]
        source = w.device[op]
        longest = 0
        for e in range(g.successors.pointer[op], g.successors.pointer[op + 1]):
            length = w.new_tail[g.successors.op[e]]
            d = w.device[g.successors.op[e]]
            if d != source:
                length += g.transfer[g.successors.tensor[e], g.link_class[source, d]]
            longest = max(longest, length)
        w.new_tail[op] = longest + g.compute[op, source]


@uncounted
def decode(g, w, first, limit):
    """Schedule the ops from position `first` on; return the makespan, REJECTED once it must exceed
    `limit`.

    The ops before keep the start they have in the current schedule. Needs `w.new_tail`; fills
    `w.new_start`, `w.new_finish` and `w.new_table`.
    """
    n, k = g.compute.shape
    device, start, finish = w.device, w.new_start, w.new_finish
    makespan = 0
    for d in range(k):
        kept = 0
        row = w.new_table[d]
        for i in range(w.held[d]):
            op = w.table[d, i]
            if w.position[op] < first:
                row[kept] = op
                kept += 1
        w.new_held[d] = kept
        if kept > 0:
            makespan = max(makespan, finish[row[kept - 1]])
    for i in range(first, n):
        op = w.sequence[i]
        d = device[op]
        time = data_ready(g, g, device, finish, op, d)
        row = w.new_table[d]
        size = w.new_held[d]
        cost = g.compute[op, d]
        at = size
        while at > 0 and finish[row[at - 1]] > time:
            at -= 1
        while at < size and time + cost > start[row[at]]:
            time = max(time, finish[row[at]])
            at += 1
        if time + w.new_tail[op] > limit:
            return REJECTED
        for j in range(size, at, -1):
            row[j] = row[j - 1]
        row[at] = op
        w.new_held[d] = size + 1
        start[op] = time
        finish[op] = time + cost
        makespan = max(makespan, time + cost)
    return makespan


@uncounted
def adopt(g, w, first, value):
    """Make the schedule just decoded the current one."""
    n = w.sequence.shape[0]
    for i in range(first, n):
        op = w.sequence[i]
        w.start[op] = w.new_start[op]
        w.finish[op] = w.new_finish[op]
    for op in range(n):
        w.tail[op] = w.new_tail[op]
    for d in range(w.held.shape[0]):
        w.held[d] = w.new_held[d]
        previous = -1
        for i in range(w.held[d]):
            op = w.new_table[d, i]
            w.table[d, i] = op
            w.before[op] = previous
            previous = op
    w.value[0] = value
    if value < w.value[1]:
        w.value[1] = value
        for i in range(n):
            w.best_device[i] = w.device[i]
            w.best_sequence[i] = w.sequence[i]
