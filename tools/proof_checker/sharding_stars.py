"""Stars: what the neighbours of a node may use together while it has one of its strategies (H. D.
Sherali, W. P. Adams, 1990).

A node that is live at time t uses there at least the least usage of its strategies that keep the
limit C by themselves; the room is C less all of these, and usages are counted above them. At every
t, for every strategy x of a node v that is chosen, the neighbours w of v that are live at t use

    sum over w of usage of w  <=  room - usage of x, if v is live at t,

since v, its neighbours and all others keep the limit; if x is not chosen, there is nothing to keep.
With a price L >= 0 on this row, in units of 2^-(k + q), [v, x, t, L], the pair of x with y costs
L usage(y) more, for every strategy y of a neighbour, and x costs L (room - usage(x)) less: no
choice that keeps the limit costs more in all. Both are rounded down.
"""

from proof_checker.reading import INFINITE, NUMBER, require, table, whole
from proof_checker.sharding import sums_before


def with_stars(problem, stars, q, node, tables):
    """Change the costs of nodes and tables, in units of 2^-k, by stars [v, x, t, L]."""
    require(not stars or problem.limit < INFINITE, "stars: expected none, as usage has no limit")
    least = [min((u for u in row if u <= problem.limit), default=0) for row in problem.usage]
    around, least_before = neighbours(tables, len(node)), sums_before(changes_of(problem, least))
    for v, x, t, price in table(stars, None, 4, 0, NUMBER):
        whole(v, 0, len(node) - 1)
        whole(x, 0, len(node[v]) - 1)
        room = problem.limit - least_before(t + 1)
        own = problem.usage[v][x] - least[v] if is_live(problem, v, t) else 0
        node[v][x] += -price * (room - own) >> q
        for w in filter(lambda w, t=t: is_live(problem, w, t), around[v]):
            more = [price * (usage - least[w]) >> q for usage in problem.usage[w]]
            raise_row(tables, v, w, x, more)


def changes_of(problem, amounts):
    """Return [time, change] of what the live nodes have together, each a given amount."""
    rows = list(zip(problem.interval, amounts, strict=True))
    return [(start, x) for (start, _), x in rows] + [(end, -x) for (_, end), x in rows]


def is_live(problem, v, t):
    """Whether a node is live at a time."""
    start, end = problem.interval[v]
    return start <= t < end


def neighbours(tables, count):
    """Return the neighbours of every node."""
    found = [[] for _ in range(count)]
    for u, v in tables:
        found[u].append(v)
        found[v].append(u)
    return found


def raise_row(tables, v, w, x, more):
    """Add to what the strategies of w cost together with the strategy x of v."""
    for y, amount in enumerate(more):
        if v < w:
            tables[v, w][x][y] += amount
        else:
            tables[w, v][y][x] += amount
