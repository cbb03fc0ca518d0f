"""Kernel of `plan-stages`: the least fill and closing of plans whose stages keep to a period.

Stages are laid from the last one backwards, so that the micro-batches in flight are known. A label
at (cut i, class c) after p stages holds the devices used, the fill, the longest all-reduce and
optimizer step so far and the open period of its first stage, which still lacks the transfers over
the cut before it; a label that is not better in any of these is dropped. Labels that cannot get the
rest of the layers onto the devices left, at any of some prices, or cannot end below the value known
are dropped as well.

Repetends (`placeopt.plans.step_schedules` has the recursion) are searched for all periods P of a
range low..limit at once. A stage has q = ceil((z + period) / P) - 1 micro-batches between its
forward and its backward pass, z being what the stages behind it take, and waits until q P where
that is later. With the limit in place of the first P and low in place of the second, no q and no
wait is larger than for any P of the range, by induction from the last stage: the value is a lower
bound for the whole range, and exact where low = limit. Both grow with z, the period and the pass of
the stage, so that a label that is less in all of them, with no less room in memory, is never worse.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeopt.model.arrays import Ints
from placeopt.model.compiled import entry, inner_kernel

FILL, SYNC, UPDATE, OPEN, PASS, ROOM, CUT, CLASS, PARENT, NEXT, USED = range(11)
"""Columns of a label: ticks, where its first stage begins and its class, links, and from USED on
devices used of each kind.

With repetends FILL leaves the first stage out, PASS is its part, and ROOM less the micro-batches
that fit; 0 otherwise.
"""

COMPARED = {False: 4, True: 6}
"""So many first columns, less being better as it is in the devices used, are compared without and
with repetends."""

MIDDLE, FIRST_SHORT, FIRST_LONG = range(3)
"""Third index of `before`: the stage before the cut is inside, or first of at most three stages, or
first of more."""

INSIDE, LAST = range(2)
"""Third index of `behind`: whether the stage behind the cut is the last one."""

PERIOD, FILLING = range(2)
PRECISION = 4096
"""Bounds on periods are met to this part."""

NONE = 2**62


class StepArrays(NamedTuple):
    """What the kernel reads (C classes, L layers, K kinds of devices, P prices).

    Plans have least_stages..most_stages stages. The k-th stage from the end, k >= 1, keeps need[k]
    micro-batches.
    """

    compute: Ints  # (C, L + 1, L + 1) ticks of the layers first..last - 1, -1: impossible
    fill: Ints  # (C, L + 1, L + 1) what a stage adds to the fill, transfers apart
    last_fill: Ints  # (C, L + 1) the same of a last stage that begins at a layer
    flight: Ints  # (C, L + 1, L + 1) most micro-batches that fit
    sync: Ints  # (C, L + 1, L + 1) all-reduce, with the optimizer where these are not apart
    update: Ints  # (C, L + 1, L + 1) optimizer, where it is apart
    used: Ints  # (C, K) devices of each kind
    before: Ints  # (C, C, 3, 2, L + 1) share of the stage before each cut, of period and fill
    behind: Ints  # (C, C, 2, 2, L + 1)
    least_fill: Ints  # (L + 1,) of the layers before each cut
    least_sync: int
    least_update: int
    pool: Ints  # (K,) devices there are
    price: Ints  # (P, K)
    need: Ints  # (most_stages + 1,)
    least_stages: int
    most_stages: int
    compared: int
    rounds: int
    fills_period: int  # 1 where the fill is counted as a period at least


@inner_kernel
def _total(counts, start, price):  # type: ignore[no-untyped-def]
    """Return the price of counts[start:]."""
    total = 0
    for kind in range(len(price)):
        total += counts[start + kind] * price[kind]
    return total


@inner_kernel
def _too_many(pool, row):  # type: ignore[no-untyped-def]
    """Whether a label uses more devices than there are."""
    for kind in range(len(pool)):
        if row[USED + kind] > pool[kind]:
            return True
    return False


@inner_kernel
def least_prices(spans, price, limit):  # type: ignore[no-untyped-def]
    """Return the least priced devices for the layers before each cut, per price, with stages of
    compute <= limit.

    `spans` is (compute, flight, used) as in `StepArrays`. Transfers and the micro-batches in flight
    beyond one are left out, so that no plan needs less.
    """
    compute, flight, used = spans
    classes, width = compute.shape[0], compute.shape[1]
    found, cost = np.full((len(price), width), NONE, np.int64), np.empty(classes, np.int64)
    for k in range(len(price)):
        found[k, 0] = 0
        for c in range(classes):
            cost[c] = _total(used[c], 0, price[k])
        for last in range(1, width):
            for first in range(last):
                if found[k, first] >= NONE:
                    continue
                for c in range(classes):
                    ticks = compute[c, first, last]
                    if 0 <= ticks <= limit and flight[c, first, last] > 0:
                        found[k, last] = min(found[k, last], found[k, first] + cost[c])
    return found


@entry
def least_stage_period(spans, price, pool, low, high):  # type: ignore[no-untyped-def]
    """Return a limit in low..high below which the devices do not do, near the largest one; `high` +
    1 if none does.
    """
    middle, top = high, high
    while True:
        found = least_prices(spans, price, middle)
        enough = True
        for k in range(len(price)):
            supply = _total(pool, 0, price[k])
            enough = enough and found[k, -1] <= supply
        if enough:
            high = middle
        elif middle == top:
            return top + 1
        else:
            low = middle + 1
        if high - low <= low // PRECISION:
            return low
        middle = (low + high) // 2


@inner_kernel
def _hopeless(arrays, left, row, cutoff):  # type: ignore[no-untyped-def]
    """Whether a label cannot become a plan below `cutoff`; `left`: what it may spend at each price
    before each cut.
    """
    cut = row[CUT]
    if _too_many(arrays.pool, row):
        return True
    closing = max(row[SYNC], arrays.least_sync) + max(row[UPDATE], arrays.least_update)
    if row[FILL] + row[PASS] + arrays.least_fill[cut] + closing >= cutoff:
        return True
    for k in range(len(arrays.price)):
        if _total(row, USED, arrays.price[k]) > left[k, cut]:
            return True
    return False


@inner_kernel
def _insert(labels, head, used, row, compared):  # type: ignore[no-untyped-def]
    """Add a label to the list of its cut and class unless one there is as good; drop those that it
    beats.
    """
    cut, c = row[CUT], row[CLASS]
    previous, at = -1, head[cut, c]
    while at >= 0:
        better, worse = True, True
        for k in range(compared):
            better = better and row[k] <= labels[at, k]
            worse = worse and row[k] >= labels[at, k]
        for k in range(USED, len(row)):
            better = better and row[k] <= labels[at, k]
            worse = worse and row[k] >= labels[at, k]
        if worse:
            return used
        following = labels[at, NEXT]
        if better:
            unlink(labels, NEXT, head, (cut, c), previous, at)
        else:
            previous = at
        at = following
    return put_first(labels, NEXT, head, (cut, c), used, row)


@inner_kernel
def _last_stages(arrays, table, left, limit, cutoff):  # type: ignore[no-untyped-def]
    """Lay every possible last stage."""
    labels, head, used = table
    classes, end = arrays.compute.shape[0], arrays.compute.shape[1] - 1
    row = np.zeros(labels.shape[1], np.int64)
    row[PARENT] = -1
    for first in range(end):
        for c in range(classes):
            ticks = arrays.compute[c, first, end]
            if ticks < 0 or ticks > limit or arrays.flight[c, first, end] < arrays.need[1]:
                continue
            row[USED:] = arrays.used[c]
            row[OPEN], row[CUT], row[CLASS] = ticks, first, c
            row[SYNC], row[UPDATE] = arrays.sync[c, first, end], arrays.update[c, first, end]
            if arrays.compared > ROOM:
                row[PASS], row[ROOM] = arrays.last_fill[c, first], -arrays.flight[c, first, end]
            else:
                row[FILL] = arrays.last_fill[c, first]
            if not _hopeless(arrays, left, row, cutoff):
                used = _insert(labels, head, used, row, arrays.compared)
    return labels, head, used


@inner_kernel
def _passed(arrays, label, period, low, limit):  # type: ignore[no-untyped-def]
    """Return the fill of a label whose first stage has a period, waits of a repetend included;
    NONE: too many in flight.
    """
    if arrays.compared <= ROOM:
        return label[FILL]
    between = (label[FILL] + period - 1) // max(1, limit)
    if min(between + 1, arrays.rounds) > -label[ROOM]:
        return NONE
    return max(label[FILL], between * low) + label[PASS]


@inner_kernel
def _lay_before(arrays, table, at, stages, bounds):  # type: ignore[no-untyped-def]
    """Lay every possible stage before the label `at`, which has `stages` - 1 stages; `bounds`:
    left, low, limit, cutoff.
    """
    labels, head, used = table
    left, low, limit, cutoff = bounds
    cut, c = labels[at, CUT], labels[at, CLASS]
    row = np.zeros(labels.shape[1], np.int64)
    row[PARENT] = at
    end = LAST if stages == 2 else INSIDE
    for d in range(arrays.compute.shape[0]):
        period = labels[at, OPEN] + arrays.behind[d, c, end, PERIOD, cut]
        passed = NONE if period > limit else _passed(arrays, labels[at], period, low, limit)
        if passed >= NONE:
            continue
        for kind in range(len(arrays.pool)):
            row[USED + kind] = labels[at, USED + kind] + arrays.used[d, kind]
        if _too_many(arrays.pool, row):
            continue
        for first in range(cut - 1, -1, -1):
            ticks = arrays.compute[d, first, cut]
            if ticks < 0 or arrays.flight[d, first, cut] < arrays.need[stages]:
                continue
            place = MIDDLE if first > 0 else (FIRST_SHORT if stages <= 3 else FIRST_LONG)
            row[OPEN] = ticks + arrays.before[d, c, place, PERIOD, cut]
            if row[OPEN] > limit:
                continue
            row[FILL] = (
                passed
                + arrays.behind[d, c, end, FILLING, cut]
                + arrays.before[d, c, place, FILLING, cut]
            )
            if arrays.compared > ROOM:
                row[PASS], row[ROOM] = arrays.fill[d, first, cut], -arrays.flight[d, first, cut]
            else:
                row[FILL] += arrays.fill[d, first, cut]
            row[SYNC] = max(labels[at, SYNC], arrays.sync[d, first, cut])
            row[UPDATE] = max(labels[at, UPDATE], arrays.update[d, first, cut])
            row[CUT], row[CLASS] = first, d
            if _hopeless(arrays, left, row, cutoff):
                continue
            if used == len(labels):
                grown = np.empty((2 * used, labels.shape[1]), np.int64)
                grown[:used] = labels
                labels = grown
            used = _insert(labels, head, used, row, arrays.compared)
    return labels, head, used


@entry
def search_period(arrays, low, limit, cutoff):  # type: ignore[no-untyped-def]
    """Return (labels, best label or -1, its fill + closing): the least one below `cutoff` with
    periods of at most `limit`.

    With repetends, whose period is low..limit, that is a lower bound; where the fill is a period at
    least, it is of plans with a period of at least `low`.
    """
    classes, width = arrays.compute.shape[0], arrays.compute.shape[1]
    left = -least_prices((arrays.compute, arrays.flight, arrays.used), arrays.price, limit)
    for k in range(len(left)):
        left[k] += _total(arrays.pool, 0, arrays.price[k])
    head = np.full((width, classes), -1, np.int64)
    table = (np.empty((4096 + width * classes, USED + len(arrays.pool)), np.int64), head, 0)
    table = _last_stages(arrays, table, left, limit, cutoff)
    best = -1
    for stages in range(1, arrays.most_stages + 1):
        labels, head, used = table
        for c in range(classes):
            at = head[0, c] if stages >= arrays.least_stages else -1
            while at >= 0:
                passed = _passed(arrays, labels[at], labels[at, OPEN], low, limit)
                passed = max(passed, low * arrays.fills_period)
                value = passed + labels[at, SYNC] + labels[at, UPDATE]
                if value < cutoff:
                    best, cutoff = at, value
                at = labels[at, NEXT]
        if stages == arrays.most_stages:
            break
        following = np.full((width, classes), -1, np.int64)
        start = used
        table = (labels, following, used)
        for cut in range(1, width - 1):
            for c in range(classes):
                at = head[cut, c]
                while at >= 0:
                    table = _lay_before(arrays, table, at, stages + 1, (left, low, limit, cutoff))
                    at = table[0][at, NEXT]
        if table[2] == start:
            break
    return table[0][: table[2]].copy(), best, cutoff


# --- lists of labels: rows of one array, each of which says in a column of its own which follows


@inner_kernel
def unlink(labels, link, head, where, previous, at):  # type: ignore[no-untyped-def]
    """Take label `at` out of the list that begins at head[where]; it follows `previous`, -1 if it
    is the first.

    Parameters
    ----------
    link : column that says which label follows, -1 for none.
    """
    if previous < 0:
        head[where] = labels[at, link]
    else:
        labels[previous, link] = labels[at, link]


@inner_kernel
def put_first(labels, link, head, where, used, row):  # type: ignore[no-untyped-def]
    """Write a row to labels[used] and put it in front of the list that begins at head[where];
    return `used` + 1.
    """
    labels[used] = row
    labels[used, link] = head[where]
    head[where] = used
    return used + 1
