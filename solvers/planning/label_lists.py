"""Compiled lists of labels: rows of one array, each of which says in a column of its own which one
follows.
"""

from __future__ import annotations

from placeopt.model.compiled import inner_kernel


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
