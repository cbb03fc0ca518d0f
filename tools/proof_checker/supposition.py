"""Suppose a solution of at most T ticks: what is then known of it, until a contradiction.

Of a makespan the supposed thing is one schedule S that ends by T. Of a period (`edges` false) it is
one placement with loads of at most T: as a device that runs its ops one after the other needs no
more than its load, it is a schedule S of independent ops that ends by T. (Under `gpipe` too: the
loads of one device add up to no more than the sum of the largest ones.) Order the ops of S by
start, then end, then by an order of the ops along the edges. Of two ops on one device the earlier
one in this order ends before the other starts, and every edge goes forwards in it, ops without
length included.

What the state says of S, each of which every step keeps true:

- devices with equal columns of times are one class; `time[v][c]` is None where v is not on class c
- if v is on class c, at least `head[v][c]` ticks pass before its start, `tail[v][c]` after its end
- ops with the same list in `group` share a device; pairs in `apart` do not
- `edges[u, v]` = [free, pay]: v comes after u in the order of S, at least `free` ticks pass between
  the end of u and the start of v, and `pay` if they are on two devices. `free` > 0 says that they
  are.
- `far[u, v]`: so many ticks pass between the ends of an edge if they are on two islands, which are
  any partition of the devices; at most `island_size` devices are on one
- `waits[u, v]`: so many ticks pass between them, whatever devices they are on
- `tensors`: [ticks by link, [producer, ops that read it]]; where a reader is on another device the
  tensor is sent there, after the end of its producer and before the reader starts

INFINITE stands for a delay that cannot be: the ops are not on two devices, or S does not exist.
`closed` says that a contradiction is reached, `cases` in words which cases S is known to be in.
`believed` collects statements that are taken on trust; it is None where nothing may be.
"""

from proof_checker.reading import INFINITE


class Supposition:
    """What is known of S; see the head of this file."""

    def __init__(self, problem, most, believed, edges=True, islands=()):
        self.problem, self.most, self.believed, self.closed = problem, most, believed, False
        self.cases, self.apart, self.waits = (), [], {}
        self.resident = problem.resident
        tensors = zip(problem.transfer, problem.producer, problem.consumers, strict=True)
        self.tensors = [[ticks, [u, *readers]] for ticks, u, readers in tensors]
        able, self.group = devices_of(problem)
        self.kind, self.time = classes_of(problem, able)
        width = len(self.time[0])
        self.count = [self.kind.count(c) for c in range(width)]  # devices of every class
        self.head, self.tail = ([[0] * width for _ in self.time] for _ in range(2))
        self.edges = first_delays(problem, able, self.group) if edges else {}
        self.far = far_delays(problem, able, islands) if islands else {}
        self.island_size = max(map(islands.count, islands), default=problem.num_devices)
        self.order = problem.order if edges else list(range(self.num_ops))

    def copy(self):
        """Return a state that can be changed without this one; both believe into one list."""
        other = object.__new__(Supposition)
        other.__dict__.update(self.__dict__)
        for key in ("time", "head", "tail"):
            setattr(other, key, [row[:] for row in getattr(self, key)])
        other.edges = {pair: costs[:] for pair, costs in self.edges.items()}
        other.group, other.apart, other.waits = self.group[:], self.apart[:], dict(self.waits)
        return other

    @property
    def num_ops(self):
        """Number of ops."""
        return len(self.time)

    def classes(self, v):
        """Return the classes of devices that an op may be on."""
        return [c for c, ticks in enumerate(self.time[v]) if ticks is not None]

    def fastest(self, v):
        """Return the least ticks of an op."""
        return min((self.time[v][c] for c in self.classes(v)), default=INFINITE)

    def splits(self):
        """Return the pairs of groups that do not share a device, by first ops, both ways round."""
        found = {(self.group[u][0], self.group[v][0]) for u, v in self.apart}
        return found | {(b, a) for a, b in found}

    def narrow(self, v, allowed):
        """Drop the classes that are not allowed, and those on which head, time and tail pass T."""
        for c in self.classes(v):
            long = self.head[v][c] + self.time[v][c] + self.tail[v][c] > self.most
            if c not in allowed or long:
                self.time[v][c] = None
        self.closed |= not self.classes(v)

    def join(self, u, v):
        """Note that two ops share a device, and so all that share it with them.

        They cannot be on a class that one of them is not on; pairs that are apart, and edges that
        say so (free > 0), contradict it.
        """
        members = self.group[u]
        if members is not self.group[v]:
            members = members + self.group[v]
        for w in members:
            self.group[w] = members
        self.closed |= any(self.group[a] is self.group[b] for a, b in self.apart)
        for (a, b), costs in self.edges.items():
            if self.group[a] is members and self.group[b] is members:
                self.closed |= costs[0] > 0
                costs[1] = INFINITE
        common = [c for c in self.classes(u) if all(self.time[w][c] is not None for w in members)]
        for w in members:
            self.narrow(w, common)

    def separate(self, u, v):
        """Note that two ops, and all that share theirs, are on two devices: edges are paid."""
        self.closed |= self.group[u] is self.group[v]
        self.apart.append((u, v))
        sides = {self.group[u][0], self.group[v][0]}
        for (a, b), costs in self.edges.items():
            if {self.group[a][0], self.group[b][0]} == sides:
                costs[0] = costs[1]


def devices_of(problem):
    """Return, per op, whether it can use each device, and the ops that share one with it.

    A group can use a device that all its ops can run on and that holds all their resident bytes.
    """
    able, group = [()] * problem.num_ops, [[]] * problem.num_ops
    for members in problem.groups:
        weight = sum(problem.resident[v] for v in members)
        here = tuple(
            weight <= room and all(problem.compute[v][d] >= 0 for v in members)
            for d, room in enumerate(problem.capacity)
        )
        for v in members:
            able[v], group[v] = here, members
    return able, group


def classes_of(problem, able):
    """Return the class of every device, and the ticks of ops by class: None where they are not."""
    columns = [
        tuple(problem.compute[v][d] if able[v][d] else None for v in range(problem.num_ops))
        for d in range(problem.num_devices)
    ]
    kinds = list(dict.fromkeys(columns))
    return [kinds.index(column) for column in columns], [
        list(row) for row in zip(*kinds, strict=True)
    ]


def first_delays(problem, able, group):
    """Return the delays that edges cause: (u, v) to [free, pay].

    On two devices the cheapest link between any two that they can use is paid, by the slowest
    tensor between them. On one device nothing is, but where no device that both can use holds the
    bytes of both they are on two. Ops of one group are on one.
    """
    found, known = {}, {}
    for u, v, t in problem.edges:
        key = able[u], able[v]
        if key not in known:
            known[key] = links_and_room(problem, *key)
        links, room = known[key]
        pay = min((problem.transfer[t][c] for c in links), default=INFINITE)
        pay = max(pay, found.get((u, v), [0, 0])[1])
        if group[u] is group[v]:
            found[u, v] = [0, INFINITE]
        elif problem.resident[u] + problem.resident[v] <= room:
            found[u, v] = [0, pay]
        else:
            found[u, v] = [pay, pay]
    return found


def far_delays(problem, able, islands):
    """Return the delays that edges cause between islands: (u, v) to ticks.

    The cheapest link between two devices of different islands that the ops can use is paid, by the
    slowest tensor between them.
    """
    found, known = {}, {}
    for u, v, t in problem.edges:
        key = able[u], able[v]
        if key not in known:
            here, there = ([d for d, able in enumerate(x) if able] for x in key)
            links = {problem.link[d][e] for d in here for e in there if islands[d] != islands[e]}
            known[key] = links
        ticks = min((problem.transfer[t][c] for c in known[key]), default=INFINITE)
        found[u, v] = max(ticks, found.get((u, v), 0))
    return found


def links_and_room(problem, first, second):
    """Return the links between two devices, and the largest capacity of one, for two ops."""
    here = [d for d, able in enumerate(first) if able]
    there = [e for e, able in enumerate(second) if able]
    links = {problem.link[d][e] for d in here for e in there if d != e}
    return links, max((problem.capacity[d] for d in here if d in there), default=-1)
