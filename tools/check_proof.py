#!/usr/bin/env python3
"""Check proofs that `placeopt verify --proof FILE` wrote: recompute the value, verify the bound, say what was believed.

    python check_proof.py FILE ...                        (JSON, plain or gzip)
Plain Python on purpose: standard library only, nothing of placeopt. docs/proofs.md says what every step means and why it
holds. Exit code 0: all claims hold; 1: the first false statement is printed; 2: a file is no proof.
"""
import copy
import gzip
import hashlib
import json
import sys
from itertools import pairwise

INFINITE = float("inf")  # only compared with and added to whole numbers, which is exact
MOST = 2**63 - 1
FIELDS = "believed digest format lower_bound objective problem schedule solution value version witness"
class UnreadableError(Exception):
    """The file is no proof: a wrong type, a missing field, a number out of range."""
class FalseStatementError(Exception):
    """A statement of the proof does not hold."""
def demand(holds, statement, error=FalseStatementError):  # refuse the proof unless a statement holds
    if not holds:
        raise error(statement)
# --- reading ---------------------------------------------------------------------------------------------
def parse(text):  # the content of a JSON text: no key twice, whole numbers only
    def unique(pairs):
        demand(len(dict(pairs)) == len(pairs), f"a key occurs twice among {[key for key, _ in pairs][:9]}", UnreadableError)
        return dict(pairs)
    def refuse(constant):
        raise UnreadableError(f"expected whole numbers, received {constant}")
    return json.loads(text, object_pairs_hook=unique, parse_constant=refuse, parse_float=refuse)
def ints(value, shape=(), low=0, high=MOST):  # a whole number, or lists of them of a shape (None: of any length), in a range
    if not shape:
        if type(value) is not int or not low <= value <= high:
            raise UnreadableError(f"expected a whole number in {low}..{high}, received {str(value)[:40]}")
        return value
    if type(value) is not list or shape[0] not in (None, len(value)):
        raise UnreadableError(f"expected a list of {shape[0] or 'some'} entries, received {str(value)[:40]}")
    return [ints(x, shape[1:], low, high) for x in value]
def distinct(value, size):  # distinct indices below `size`, at least one
    found = ints(value, (None,), 0, size - 1)
    demand(0 < len(found) == len(set(found)), f"expected distinct indices, received {str(value)[:40]}", UnreadableError)
    return found
def sorted_order(n, edges):  # 0..n-1 such that every edge goes forwards, None if there is a cycle
    after, waits = [[] for _ in range(n)], [0] * n
    for u, v in edges:
        after[u].append(v)
        waits[v] += 1
    order = [v for v in range(n) if not waits[v]]
    for v in order:
        for w in after[v]:
            waits[w] -= 1
            order += [w] * (not waits[w])
    return order if len(order) == n else None
# --- placements: problem and value -----------------------------------------------------------------------
class Placement:  # a placement problem; the names are those of its JSON
    def __init__(self, data):
        n, k, m = self.num_ops, self.num_devices, _ = len(data["compute"]), len(data["compute"][0]), len(data["producer"])
        self.compute, self.producer = ints(data["compute"], (n, k), -1), ints(data["producer"], (m,), 0, n - 1)
        self.consumers = [distinct(row, n) if row else [] for row in ints(data["consumers"], (m, None))]
        classes = len(data["transfer"][0]) if m else MOST
        self.transfer, self.link = ints(data["transfer"], (m, classes)), ints(data["link_class"], (k, k), -MOST)
        ints([c for d in range(k) for e, c in enumerate(self.link[d]) if e != d], (None,), 0, classes - 1)
        self.channel, self.io = ints(data["channel"], (k, k), -1), ints(data["io_class"], (k,), -1, classes - 1)
        self.resident, self.capacity = ints(data["resident"], (n,)), ints(data["capacity"], (k,))
        self.size, self.colocation = ints(data["tensor_bytes"], (m,)), ints(data["colocation"], (n,), -MOST)
        self.backward = ints(data.get("backward", [0] * n), (n,), 0, 1)
        kinds = {"memory": "static peak", "contiguity": "chain convex none", "pipeline": "1f1b gpipe"}
        self.memory, self.contiguity, self.pipeline = (x.split()[x.split().index(data[key])] for key, x in kinds.items())
        self.edges = [(u, v, t) for t, u in enumerate(self.producer) for v in self.consumers[t]]
        self.order = sorted_order(n, [(u, v) for u, v, _ in self.edges])
        demand(self.order is not None, "the graph has no cycle")
        self.groups = {}  # colocated ops, and single ones
        for v, label in enumerate(self.colocation):
            self.groups.setdefault(label if label >= 0 else ("op", v), []).append(v)
    def devices(self, solution):  # the device of every op: compatible, colocated, within the capacities
        device = ints(solution["device"], (self.num_ops,), 0, self.num_devices - 1)
        for v, d in enumerate(device):
            demand(self.compute[v][d] >= 0, f"op {v} cannot run on device {d}")
        for members in self.groups.values():
            demand(len({device[v] for v in members}) == 1, f"colocated ops {members[:3]} are on several devices")
        for d, room in enumerate(self.capacity):
            demand(sum(b for b, e in zip(self.resident, device) if e == d) <= room, f"device {d} holds too many bytes")
        return device
def alone(runs, what):  # refuse runs (start, end) of one resource that overlap, also those of no length inside others
    demand(all(start >= end for (_, end), (start, _) in pairwise(sorted(runs))), f"{what} runs one thing at a time")
def makespan(p, solution, schedule):  # the end of a schedule that keeps every rule of execution; idling is allowed
    device, start = p.devices(solution), ints(schedule["start"], (p.num_ops,))
    end = [s + p.compute[v][device[v]] for v, s in enumerate(start)]
    there, lanes = {(t, device[u]): (start[u], end[u]) for t, u in enumerate(p.producer)}, {}  # tensors: when they come
    for t, e, begin in ints(schedule["transfers"], (None, 3)):
        demand((t, e) not in there and device[p.producer[t]] != e, f"tensor {t} comes to device {e} twice")
        demand(any(device[v] == e for v in p.consumers[t]), f"nothing needs tensor {t} on device {e}")
        home, ready, lasts = device[p.producer[t]], end[p.producer[t]], p.transfer[t][p.link[device[p.producer[t]]][e]]
        demand(begin >= ready if p.channel[home][e] >= 0 else begin == ready, f"tensor {t} leaves for device {e} at {begin}")
        there[t, e] = begin, begin + lasts
        lanes.setdefault(p.channel[home][e], []).append(there[t, e])
    for _, v, t in p.edges:
        demand(start[v] >= there.get((t, device[v]), (0, INFINITE))[1], f"op {v} starts at {start[v]}, before tensor {t} is there")
    for channel, runs in lanes.items():
        alone(runs if channel >= 0 else [], f"channel {channel}")
    for d, room in enumerate(p.capacity):
        alone([(start[v], end[v]) for v in range(p.num_ops) if device[v] == d], f"device {d}")
        held, changes = sum(b for b, e in zip(p.resident, device) if e == d), []
        for (t, e), (begin, last) in there.items() if p.memory == "peak" else ():
            if e == d:  # until its last reader here ends, and at home until the last transfer has ended
                home = device[p.producer[t]] == d
                last = max(last, *(end[v] for v in p.consumers[t] if device[v] == d),
                           *(there.get((t, x), (0, 0))[1] for x in range(p.num_devices) if home), 0)
                changes += [(begin, p.size[t]), (last, -p.size[t])] if last > begin else []
        for moment, change in sorted(changes):  # what ends at a moment is gone before anything begins
            held += change
            demand(held <= room, f"device {d} holds {held} bytes at {moment}")
    return max(end)
def period(p, solution, _schedule):  # the largest load of a device; contiguity as the problem asks for
    device, load = p.devices(solution), [[0, 0] for _ in p.capacity]
    for v, d in enumerate(device):
        load[d][p.backward[v]] += p.compute[v][d]
    for t, u in enumerate(p.producer):  # a tensor costs its sender and every receiver once
        others = {device[v] for v in p.consumers[t]} - {device[u]}
        for d in (others | {device[u]} if others else others):
            load[d][p.backward[u]] += p.transfer[t][p.io[d]] if p.io[d] >= 0 else 0
    late = {v for members in p.groups.values() if all(p.backward[v] for v in members) for v in members}
    pairs = [(u, v) for u, v, _ in p.edges if not p.backward[u] and not p.backward[v]]
    if p.contiguity == "chain":
        pairs += [(v, u) for u, v, _ in p.edges if p.backward[u] and p.backward[v] and (u in late or v in late)]
        crossing = {(device[u], device[v]) for u, v in pairs if device[u] != device[v]}
        demand(sorted_order(p.num_devices, crossing) is not None, "the devices form no chain")
    left = [set() for _ in device]  # devices that a path to the op has left
    for u in p.order if p.contiguity == "convex" else ():
        demand(device[u] not in left[u], f"a path leaves device {device[u]} and comes back at op {u}")
        for v in (v for x, v in pairs if x == u):
            left[v] |= left[u] | ({device[u]} - {device[v]})
    return sum(max(x) for x in zip(*load)) if p.pipeline == "gpipe" else max(map(sum, load))
# --- placements: suppose a solution of at most `most` ticks, and derive a contradiction ------------------------
class Supposition:  # what schedules of at most `most` ticks obey; without edges: solutions with loads of at most that
    def __init__(self, p, most, believed, edges=True):
        self.p, self.most, self.believed, self.closed = p, most, believed, False
        n, k = p.num_ops, p.num_devices
        able, self.group = [None] * n, [None] * n  # devices that an op may use; ops that must share one with it
        for members in p.groups.values():
            weight = sum(p.resident[v] for v in members)
            here = tuple(weight <= p.capacity[d] and all(p.compute[v][d] >= 0 for v in members) for d in range(k))
            for v in members:
                able[v], self.group[v] = here, members
        columns = [tuple(p.compute[v][d] if able[v][d] else None for v in range(n)) for d in range(k)]
        kinds = list(dict.fromkeys(columns))
        self.kind = [kinds.index(column) for column in columns]  # class of every device
        self.count = [self.kind.count(c) for c in range(len(kinds))]  # devices of every class
        self.time = [[column[v] for column in kinds] for v in range(n)]  # ticks by class, None: cannot run there
        self.head, self.tail = ([[0] * len(kinds) for _ in range(n)] for _ in range(2))  # to the start; from the end
        self.apart, self.edges, self.waits, costs = [], {}, {}, {}  # pairs that cannot share; (u, v) -> delay [ever, on two]
        for u, v, t in p.edges if edges else ():
            if (able[u], able[v]) not in costs:
                pairs = [(d, e) for d in range(k) for e in range(k) if able[u][d] and able[v][e]]
                costs[able[u], able[v]] = {p.link[d][e] for d, e in pairs if d != e}, [p.capacity[d] for d, e in pairs if d == e]
            links, room = costs[able[u], able[v]]
            pay = max(min((p.transfer[t][c] for c in links), default=INFINITE), self.edges.get((u, v), [0, 0])[1])
            shared = self.group[u] is self.group[v] or (room and p.resident[u] + p.resident[v] <= max(room))
            self.edges[u, v] = [0 if shared else pay, INFINITE if self.group[u] is self.group[v] else pay]
        self.order = p.order if edges else list(range(n))
    def classes(self, v):  # the classes of devices on which an op can run
        return [c for c, ticks in enumerate(self.time[v]) if ticks is not None]
    def fastest(self, v):  # the least ticks of an op
        return min((ticks for ticks in self.time[v] if ticks is not None), default=INFINITE)
    def narrow(self, v, allowed):  # drop classes that are not allowed, and those on which an op cannot meet the horizon
        for c in self.classes(v):
            if c not in allowed or self.head[v][c] + self.time[v][c] + self.tail[v][c] > self.most:
                self.time[v][c] = None
        self.closed |= not self.classes(v)
    def splits(self):  # the pairs of groups that cannot share a device, by their first ops
        return {(self.group[a][0], self.group[b][0]) for u, v in self.apart for a, b in ((u, v), (v, u))}
    def join(self, u, v):  # let two ops share a device, with all that share it already
        members = self.group[u] if self.group[u] is self.group[v] else self.group[u] + self.group[v]
        for w in members:
            self.group[w] = members
        self.closed |= any(self.group[a] is self.group[b] for a, b in self.apart)
        for (a, b), costs in self.edges.items():
            if self.group[a] is members and self.group[b] is members:
                self.closed, costs[1] = self.closed or costs[0] > 0, INFINITE
        for w in members:
            self.narrow(w, [c for c in self.classes(w) if all(self.time[x][c] is not None for x in members)])
    def separate(self, u, v):  # let two ops be on two devices, with all that share theirs
        self.closed |= self.group[u] is self.group[v]
        self.apart.append((u, v))
        for (a, b), costs in self.edges.items():
            if {self.group[a][0], self.group[b][0]} == {self.group[u][0], self.group[v][0]}:
                costs[0] = costs[1]
    def before(self, backwards):  # the ops in order, and what comes before each of them: (op, delay ever, on two devices)
        into = {}
        for (u, v), costs in [*self.edges.items(), *self.waits.items()]:
            into.setdefault(u if backwards else v, []).append((v if backwards else u, *costs))
        return self.order[::-1] if backwards else self.order, into
    def delays(self, v, between, into, split):  # least ticks from the end of ops to the start of v: ever, and on two devices
        near, apart = {v: 0}, {v: INFINITE}
        for w in reversed(between):
            if w in near:
                if w != v and self.group[w] is self.group[v]:
                    apart[w] = INFINITE
                elif (self.group[w][0], self.group[v][0]) in split:
                    near[w] = max(near[w], apart[w])
                run = 0 if w == v else self.fastest(w)
                for u, free, pay in into.get(w, ()):
                    near[u] = max(near.get(u, 0), free + run + near[w])
                    apart[u] = max(apart.get(u, 0), min(pay + run + near[w], INFINITE if free else run + apart[w]))
        return near, apart
    def late(self, v, c, limit, before, far, near, apart):  # whether v on class c starts after `limit`: ops before it do not fit
        work, away, here, others = 0, 0, [], []
        for u in before:
            if u not in near or u == v:
                return False
            elsewhere = [d for d in self.classes(u) if d != c or self.count[c] > 1]
            elsewhere = [d for d in elsewhere if far[u][d] + self.time[u][d] + apart[u] <= limit]
            ticks = [self.time[u][d] for d in elsewhere]
            if ticks:
                away += min(ticks)
                others.append((min(far[u][d] for d in elsewhere), apart[u]))
            if self.time[u][c] is not None and far[u][c] + self.time[u][c] + near[u] <= limit:
                ticks.append(self.time[u][c])
                here.append((far[u][c], near[u]))
            if not ticks:
                return True
            work += min(ticks)
        room = [max(0, limit - min(a for a, _ in x) - min(b for _, b in x)) if x else 0 for x in (here, others)]
        return work > room[0] + min(away, (self.p.num_devices - 1) * room[1])
    # Steps are allowed only where they follow from what is known; `closed` says that a contradiction is reached.
    def prove(self, steps):  # follow steps to a contradiction
        for name, *words in steps:
            if not self.closed:
                getattr(self, "step_" + name)(*words)
        demand(self.closed, "the steps end without a contradiction")
    def step_sweep(self, backwards, lemmas):  # raise heads or tails along edges, and by lemmas [op, class, ticks, ops before it]
        far, (order, into) = self.tail if backwards else self.head, self.before(backwards)
        of, place, split = {}, {v: i for i, v in enumerate(order)}, self.splits()
        for v, c, ticks, before in lemmas:
            of.setdefault((v, ints(c, (), 0, len(self.count) - 1)), []).append((ints(ticks), distinct(before, len(order))))
        for v in order:
            for c in self.classes(v):
                for u, free, pay in into.get(v, ()):
                    ends = [far[u][d] + self.time[u][d] + (free if d == c else max(free, pay)) for d in self.classes(u)]
                    far[v][c] = max(far[v][c], min(ends, default=INFINITE))
                for ticks, before in (x for x in of.get((v, c), ()) if x[0] > far[v][c]):
                    near, apart = self.delays(v, order[min(place[u] for u in before) : place[v] + 1], into, split)
                    demand(self.late(v, c, ticks - 1, before, far, near, apart), f"lemma: op {v} is not as late as {ticks}")
                    far[v][c] = ticks
            self.narrow(v, self.classes(v))
    def step_segment(self, copies, ticks, steps):  # from the end of the first of some ops to the start of the last, ever
        seen = None
        for ops in copies:
            part, place, groups = copy.copy(self), {v: i for i, v in enumerate(distinct(ops, self.p.num_ops))}, {}
            part.p, part.most, part.believed, part.apart, part.waits = copy.copy(self.p), ints(ticks) - 1, None, [], {}
            part.p.num_ops, part.p.resident, part.order = len(ops), [self.p.resident[v] for v in ops], list(range(len(ops)))
            part.edges = {(place[u], place[v]): x[:] for (u, v), x in self.edges.items() if u in place and v in place}
            inside = [{*part.order[:-1]}, {*part.order[1:]}] == [*map(set, zip(*part.edges))]
            demand(inside and all(u < v for u, v in part.edges), f"ops {ops[:9]} run after the first and before the last of them")
            part.time = [[t and 0 for t in self.time[v]] if v in (ops[0], ops[-1]) else self.time[v][:] for v in ops]
            part.head, part.tail = ([[0] * len(self.count) for _ in ops] for _ in range(2))
            part.group = [groups.setdefault(id(self.group[v]), [place[w] for w in self.group[v] if w in place]) for v in ops]
            alike = str((part.time, sorted(part.edges.items()), part.group, part.p.resident))
            part.closed, seen, self.waits[ops[0], ops[-1]] = alike == seen, alike, (ticks, ticks)
            part.prove(steps)
    def step_same(self, u, v):  # two ops share a device: none is left for one of them alone, or a transfer would be late
        pay = self.edges.get((u, v), [0, 0])[1]
        for c in self.classes(ints(u)):
            for d in self.classes(ints(v)):
                long = self.head[u][c] + self.time[u][c] + pay + self.time[v][d] + self.tail[v][d] > self.most
                demand((long and (u, v) in self.edges) or (c == d and self.count[c] == 1), f"ops {u} and {v} may be apart")
        self.join(u, v)
    def step_apart(self, u, v, ops):  # two ops cannot share a device: these would have to, and take too long or too many bytes
        demand({*distinct(ops, self.p.num_ops)} <= {*self.group[ints(u)], *self.group[ints(v)]}, f"{ops} need not be with {u}, {v}")
        for c in range(len(self.count)) if sum(self.p.resident[w] for w in ops) <= max(self.p.capacity) else ():
            least = sum(INFINITE if self.time[w][c] is None else self.time[w][c] for w in ops)
            least += min(self.head[w][c] for w in ops) + min(self.tail[w][c] for w in ops)
            demand(least > self.most, f"ops {u} and {v} may share a device")
        self.separate(u, v)
    def step_clique(self, ops):  # more ops than devices cannot all be on devices of their own
        split, first = self.splits(), [self.group[u][0] for u in distinct(ops, self.p.num_ops)]
        self.closed = len(ops) > self.p.num_devices and all((a, b) in split for i, a in enumerate(first) for b in first[:i])
    def step_window(self, begin, end, weights, prices):  # more weighted work (and priced bytes) lies in a window than is on offer
        weights, prices = (ints(x, (len(self.count),)) for x in (weights, prices))
        width, need = ints(end, (), 0, self.most) - ints(begin, (), 0, end), 0
        for members in {id(x): x for x in self.group}.values():
            cost = []
            for c, (y, z) in enumerate(zip(weights, prices)):
                if all(self.time[v][c] is not None for v in members):
                    inside = [max(0, min(self.time[v][c], width, self.head[v][c] + self.time[v][c] - begin,
                                         end - self.most + self.tail[v][c] + self.time[v][c])) for v in members]
                    cost.append(y * sum(inside) + z * sum(self.p.resident[v] for v in members))
            need += min(cost, default=INFINITE)
        offer = width * sum(y * x for x, y in zip(self.count, weights))
        self.closed = need > offer + sum(prices[c] * room for c, room in zip(self.kind, self.p.capacity))
    def step_ends(self, ops, fork=None, join=None):  # devices that run these ops idle before their first and after their last one
        idle, work = [], sum(self.fastest(v) for v in distinct(ops, self.p.num_ops))
        for far, op, backwards in ((self.head, fork, True), (self.tail, join, False)):  # from a fork, to a join: one is near
            near, apart = ({}, {}) if op is None else self.delays(op, *self.before(backwards), self.splits())
            known = [(min(far[v][c] for c in self.classes(v)), near.get(v, 0), apart.get(v, 0)) for v in ops]
            idle.append([min(max(x, y) for x, y, _ in known), *sorted(max(x, z) for x, _, z in known)][op is None :])
        many = min(len(ops), self.p.num_devices)
        self.closed = all(sum(idle[0][:j]) + work + sum(idle[1][:j]) > j * self.most for j in range(1, many + 1))
    def step_pigeons(self, ops, few):  # of `few` times the number of devices plus one ops, `few` + 1 share a device
        work = sorted(self.fastest(v) for v in distinct(ops, self.p.num_ops))
        self.closed = len(ops) > ints(few, (), 1) * self.p.num_devices and sum(work[: few + 1]) > self.most
    def step_branch(self, kind, u, v, first, second):  # two cases: a device shared or not; an order on it; a class or not
        cases = [copy.deepcopy(self, {id(x): x for x in (self.p, self.believed)}) for _ in range(2)]
        ints([u, v], (2,), 0, self.p.num_ops - 1)
        if kind == "class":
            cases[0].narrow(u, [v])
            cases[1].narrow(u, [c for c in self.classes(u) if c != v])
        elif kind == "share":
            cases[0].join(u, v)
            cases[1].separate(u, v)
        else:
            demand(kind == "order" and self.group[u] is self.group[v] and u != v, f"ops {u} and {v} may run at once")
            for case, edge in zip(cases, ((u, v), (v, u))):
                case.edges[edge] = [case.edges.get(edge, [0])[0], INFINITE]
                case.order = sorted_order(self.p.num_ops, case.edges)
                case.closed |= case.order is None
        for case, steps in zip(cases, (first, second)):
            case.prove(steps)
        self.closed = True
    def step_front(self, weights, *fronts):  # first and last ticks, each [ticks, energy they hold], leave too much in between
        width = sum(y * x for x, y in zip(self.count, ints(weights, (len(self.count),))))
        energy = [min(weights[c] * self.time[v][c] for c in self.classes(v)) for v in range(self.p.num_ops)]
        left, between = sum(energy), self.most - sum(ints(ticks) for ticks, _ in fronts)
        for side, (ticks, most) in zip(("first", "last"), fronts):
            if ints(most) < width * ticks:
                words = f"the {side} {ticks} ticks of a schedule of at most {self.most} hold at most {most} of energy"
                self.believed.append(f"{words}, where devices of classes {self.kind} weigh {weights}")
            left -= min(most, width * ticks)
        self.closed = between >= 0 and left > between * width
def placement_bound(p, data, believed):  # verify that no solution is below the claimed bound
    if ints(data["lower_bound"]) > 0:
        Supposition(p, data["lower_bound"] - 1, believed, data["objective"] == "makespan").prove(data["witness"]["steps"])
# --- sharding: one strategy per node under a limit on usage ---------------------------------------------------
class Sharding:  # a sharding problem; strategies of a node are a range of `cost` and `usage`
    def __init__(self, data):
        first = ints(data["node_ptr"], (None,))
        total, self.limit, self.interval = first[-1], ints(data["usage_limit"]), ints(data["interval"], (len(first) - 1, 2))
        demand(first[0] == 0 and all(a < b for a, b in pairwise(first)), "node_ptr rises")
        self.cost, self.usage = ([ints(data[key], (total,))[a:b] for a, b in pairwise(first)] for key in ("cost", "usage"))
        self.tables, flat = {}, iter(ints(data["edge_cost"], (None,)))  # (u, v), u < v -> costs by the strategies of u and of v
        for u, v in (distinct(pair, len(self.cost)) for pair in ints(data["edge"], (None, 2))):
            part = [[next(flat) for _ in self.cost[v]] for _ in self.cost[u]]
            (u, v), part = ((u, v), part) if u < v else ((v, u), [*zip(*part)])
            old = self.tables.setdefault((u, v), [[0] * len(part[0]) for _ in part])
            self.tables[u, v] = [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(old, part, strict=True)]
def sharding_cost(p, solution, _schedule):  # the cost of a choice that keeps the limit
    chosen = ints(solution["strategies"], (len(p.cost),))
    for moment in {a for a, _ in p.interval}:
        live = [v for v, (a, b) in enumerate(p.interval) if a <= moment < b]
        demand(sum(p.usage[v][chosen[v]] for v in live) <= p.limit, f"the usage at {moment} passes the limit")
    return sum(x[s] for x, s in zip(p.cost, chosen)) + sum(x[chosen[u]][chosen[v]] for (u, v), x in p.tables.items())
def sharding_bound(p, data, _believed):  # least costs of nodes and edges under prices on usage, costs moved by messages
    k, q = ints(data["witness"]["bits"], (2,), 0, 64)
    prices, least = ints(data["witness"]["prices"], (None, 2)), 0
    paid = [sum(price for time, price in prices if a <= time < b) for a, b in p.interval]
    node = [[(c << k) + (y * u >> q) if a == b or u <= p.limit else INFINITE for c, u in zip(*x)]
            for y, (a, b), x in zip(paid, p.interval, zip(p.cost, p.usage))]
    sent = {(u, v): (to_u, to_v) for u, v, to_u, to_v in data["witness"]["messages"]}
    for (u, v), rows in p.tables.items():
        zero = [0] * len(node[u]), [0] * len(node[v])
        a, b = (ints(x, (len(y),), -MOST) for y, x in zip(zero, sent.get((u, v), zero)))
        least += min((c << k) - x - y for x, row in zip(a, rows) for y, c in zip(b, row))
        node[u], node[v] = ([x + y for x, y in zip(node[w], z)] for w, z in ((u, a), (v, b)))
    least += sum(map(min, node)) + (-sum(price for _, price in prices) * p.limit >> q)
    demand(data["lower_bound"] <= -(-least >> k), f"prices and messages prove {-(-least >> k)} only")
# --- all of it -----------------------------------------------------------------------------------------------
KINDS = {"makespan": (Placement, makespan, placement_bound), "period": (Placement, period, placement_bound),
         "cost": (Sharding, sharding_cost, sharding_bound)}
def check(data):  # check one proof; return what it claims and what had to be believed
    right = type(data) is dict and " ".join(sorted(data)) == FIELDS and (data["format"], data["version"]) == ("placeopt-proof", 1)
    demand(right, f"expected a placeopt-proof, version 1, with {FIELDS}", UnreadableError)
    text = json.dumps({key: x for key, x in data.items() if key != "digest"}, sort_keys=True, separators=(",", ":"))
    demand(hashlib.sha256(text.encode()).hexdigest() == data["digest"], "the digest is that of the content")
    types = [type(data[key]) for key in ("version", "believed", "schedule")] == [int, list, dict]
    demand(types, "version, believed, schedule: expected a whole number, a list, an object", UnreadableError)
    reader, value_of, prove = KINDS[data["objective"]]
    problem, believed = reader(data["problem"]), []
    value, bound, found = ints(data["value"]), ints(data["lower_bound"]), value_of(problem, data["solution"], data["schedule"])
    demand(found == value, f"the value is {found}, not {value}")
    demand(bound <= value, f"the bound {bound} is above the value {value}")
    prove(problem, data, believed)
    demand(believed == [x["statement"] for x in data["believed"]], "what has to be believed is written out, and nothing else")
    return f"value {value}, lower bound {bound} by {data['witness']['method']}", believed
def main(name):  # check one file and say so; return the exit code
    try:
        content = open(name, "rb").read()
        claim, believed = check(parse((gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()))
        print(f"{name}: accepted: {claim}; believed: {'nothing' if not believed else ''}", *believed, sep="\n  ")
        return 0
    except FalseStatementError as error:
        print(f"{name}: refused, this does not hold: {error}")
        return 1
    except Exception as error:  # whatever a file of the wrong shape runs into
        print(f"{name}: no proof: {type(error).__name__}: {error}")
        return 2

if __name__ == "__main__":
    sys.exit(max(map(main, sys.argv[1:]), default=2))
