"""Two cases, one of which S is in, each refuted. Reference: J. Carlier, E. Pinson (1989)."""

from proof_checker.graphs import sorted_order
from proof_checker.reading import INFINITE, choice, demand, pair_of, whole, words_of


def branch(state, words, refute):
    """["branch", kind, u, v, steps, steps]: S is in the first case or in the second one.

    `share`: u and v share a device, or not. `class`: u is on a device of class v, or not. `order`,
    of two ops that share a device: u comes before v in the order of S, and so ends before v starts,
    or the other way round; as all edges go forwards in this order, edges that form a cycle
    contradict it. Each case is a copy of the state: what is found in it holds in it alone.
    """
    kind, u, v, *parts = words_of(words, 5)
    cases = CASES[choice(kind, " ".join(CASES))](state, u, v)
    for (case, said), steps in zip(cases, parts, strict=True):
        case.cases = (*state.cases, said)
        refute(case, steps)
    state.closed = True


def share_cases(state, u, v):
    """Return the cases that two ops share a device, or not."""
    pair_of(u, v, state.num_ops)
    joined, separated = state.copy(), state.copy()
    joined.join(u, v)
    separated.separate(u, v)
    said = f"ops {u} and {v} are on one device", f"ops {u} and {v} are on two devices"
    return (joined, said[0]), (separated, said[1])


def class_cases(state, u, c):
    """Return the cases that an op is on a device of a class, or not."""
    whole(u, 0, state.num_ops - 1)
    whole(c, 0, len(state.count) - 1)
    on, off = state.copy(), state.copy()
    on.narrow(u, [c])
    off.narrow(u, [d for d in state.classes(u) if d != c])
    return (on, f"op {u} is on class {c}"), (off, f"op {u} is not on class {c}")


def order_cases(state, u, v):
    """Return the cases that an op comes before another one on their device, or after it."""
    pair_of(u, v, state.num_ops)
    demand(state.group[u] is state.group[v], f"ops {u} and {v} may run at once")
    return tuple(
        (in_order(state, *pair), "op {} is before op {}".format(*pair)) for pair in ((u, v), (v, u))
    )


def in_order(state, u, v):
    """Return the case that u comes before v on their device."""
    case = state.copy()
    free = case.edges.get((u, v), [0, 0])[0]
    case.edges[u, v] = [free, INFINITE]
    order = sorted_order(case.num_ops, case.edges)
    if order is None:
        case.closed = True
    else:
        case.order = order
    return case


CASES = {"share": share_cases, "class": class_cases, "order": order_cases}
STEPS = {"branch": branch}
