"""The ends of a schedule hold little work: the only step that may have to be believed."""

from proof_checker.reading import INFINITE, demand, numbers, require, words_of


def front(state, words, _refute):
    """["front", weights, [t, W], [s, W']]: the first t and last s ticks hold too little.

    The energy of an op is the least weights[class] * time over its classes; a device of class c
    delivers weights[c] per tick that it runs the op, in all at least its energy. The first t ticks
    hold at most W of it, counted up to the energy of each op, the last s at most W', and the T - t
    - s ticks in between, a number that is not negative, at most what all devices deliver: if the
    energies of all ops are more, S does not exist. These are exactly two windows that do not
    overlap. That a window holds at most W is known if all devices deliver no more in it; otherwise
    it is believed. What is true of schedules says nothing of loads, whose ops keep no order.
    """
    require(state.problem.objective == "makespan", "front: expected a makespan")
    weights, first, last = words_of(words, 3)
    weights = numbers(weights, len(state.count))
    fronts = numbers(first, 2), numbers(last, 2)
    width = sum(y * x for x, y in zip(state.count, weights, strict=True))
    between = state.most - fronts[0][0] - fronts[1][0]
    demand(between >= 0, f"the first and the last ticks, {fronts}, do not overlap")
    left = sum(energy(state, v, weights) for v in range(state.num_ops))
    for side, (ticks, most) in zip(("first", "last"), fronts, strict=True):
        if most < width * ticks:
            believe(state, side, ticks, most, weights)
        left -= min(most, width * ticks)
    demand(left > between * width, f"the ticks between the fronts {fronts} hold the rest")
    state.closed = True


def energy(state, v, weights):
    """Return the least energy of an op."""
    return min((weights[c] * state.time[v][c] for c in state.classes(v)), default=INFINITE)


def believe(state, side, ticks, most, weights):
    """Note that the energy of a window is taken on trust, and in which case."""
    require(state.believed is not None, "nothing may be believed in a segment")
    said = f"the {side} {ticks} ticks of a schedule of at most {state.most} hold at most {most}"
    said += f" of energy, where devices of classes {state.kind} weigh {weights}"
    if state.cases:
        said += ", in the case that " + " and ".join(state.cases)
    state.believed.append(said)


STEPS = {"front": front}
