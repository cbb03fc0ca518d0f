"""Memory that is freed only after what allocates it, whatever the order of the blocks is."""


def never_below_zero(changes, before):
    """Whether the changes of one micro-batch on a device add up to 0 or more at every moment of
    every order of its blocks.

    Bit u of `before[v]` says that v waits for u, directly or not. Each unit that a block frees is
    given to it by a block that it waits for and that allocated it. If all are given, what has been
    freed at a moment was allocated before, whatever the order. If a block lacks one, let R be this
    block and all that could be asked to pass on what they were given (`way_to_spare`): whatever the
    blocks before R allocate was given to R, and it is not enough. With R and all that R waits for
    first, the sum is below 0.
    """
    spare = {u: change for u, change in enumerate(changes) if change > 0}
    given = {u: {} for u in spare}
    for block, change in enumerate(changes):
        lacking = -change
        while lacking > 0:
            way = way_to_spare(block, spare, given, before)
            if way is None:
                return False
            lacking -= pass_on(way, lacking, spare, given)
    return True


def way_to_spare(block, spare, given, before):
    """Return [taker, giver, taker, giver, ...] from a block to a giver with units to spare, None if
    there is none: each taker waits for the giver after it, whose units can replace those that the
    giver before it gave this taker.
    """
    ways, waiting = {block: [block]}, [block]
    for taker in waiting:  # it grows while it is read
        for giver in spare:
            if not before[taker] >> giver & 1:
                continue
            if spare[giver] > 0:
                return [*ways[taker], giver]
            for other in given[giver]:
                if other not in ways:
                    ways[other] = [*ways[taker], giver, other]
                    waiting.append(other)
    return None


def pass_on(way, lacking, spare, given):
    """Give units along a way, as many as are lacking, there to spare, and there to replace; return
    how many.
    """
    takers, givers = way[::2], way[1::2]
    replaced = list(zip(givers[:-1], takers[1:], strict=True))
    units = min(lacking, spare[givers[-1]], *(given[u][v] for u, v in replaced))
    spare[givers[-1]] -= units
    for u, v in replaced:
        given[u][v] -= units
        if not given[u][v]:
            del given[u][v]
    for u, v in zip(givers, takers, strict=True):
        given[u][v] = given[u].get(v, 0) + units
    return units
