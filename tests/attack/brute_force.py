"""Every placement, order and slot of a small Case, executed and valued by definition. Shares no
code with placeopt.
"""

from __future__ import annotations

from itertools import permutations, product

QUEUES = ("fifo", "priority", "planned")


# --- constraints
# ---------------------------------------------------------------------------------------


def allowed(case, device):
    """Whether compatibility, colocation and static capacity hold."""
    home = {}
    used = [0] * case.num_devices
    for op, d in enumerate(device):
        if case.compute[op][d] < 0 or (
            case.colocation[op] >= 0 and home.setdefault(case.colocation[op], d) != d
        ):
            return False
        used[d] += case.resident[op]
    return all(used[d] <= case.capacity[d] for d in range(case.num_devices))


def placements(case):
    """Yield every placement that satisfies the static constraints."""
    for device in product(range(case.num_devices), repeat=case.num_ops):
        if allowed(case, device):
            yield device


# --- makespan
# ------------------------------------------------------------------------------------------


class Execution:
    """One run of a placement, step by step as docs/concepts.md says."""

    def __init__(self, case, device, rank, queue):
        self.case, self.device, self.rank, self.queue = case, device, rank, queue
        self.inputs = [
            [t for t, readers in enumerate(case.consumers) if v in readers]
            for v in range(case.num_ops)
        ]
        self.start, self.end = {}, {}
        self.sent = {}  # (tensor, destination) -> (start, end)
        self.flying = []  # (end, what, channel or device)
        self.here = set()  # (tensor, device) available
        self.ready_at = {}
        self.waiting = []  # (tensor, destination, requested)
        self.busy_channels, self.busy_devices = set(), set()

    def key_of_transfer(self, tensor, d, requested):
        """Rank of a request in its channel's queue."""
        if self.queue == "fifo":
            return requested, tensor, d
        readers = [v for v in self.case.consumers[tensor] if self.device[v] == d]
        return min(self.rank[v] for v in readers), tensor, d

    def key_of_op(self, v):
        """Rank of an op in its device's queue."""
        return (self.ready_at[v] if self.queue == "fifo" else self.rank[v], v)

    def run(self):
        """Return the makespan, or None where a planned order waits for itself."""
        now = 0
        self.note_ready(now)
        while True:
            while self.complete(now) or self.start_transfers(now) or self.start_ops(now):
                pass
            later = [entry[0] for entry in self.flying]
            if not later:
                break
            now = min(later)
        if len(self.end) < self.case.num_ops:
            return None
        return max(self.end.values())

    def note_ready(self, now):
        """Note the ops whose inputs are all there."""
        for v, inputs in enumerate(self.inputs):
            if v not in self.ready_at and all((t, self.device[v]) in self.here for t in inputs):
                self.ready_at[v] = now

    def complete(self, now):
        """Complete everything that ends now; whether anything did."""
        any_ended = False
        while True:
            ended = [entry for entry in self.flying if entry[0] == now]
            if not ended:
                return any_ended
            any_ended = True
            self.flying = [entry for entry in self.flying if entry[0] != now]
            for _, what, place in ended:
                if what[0] == "op":
                    self.busy_devices.discard(place)
                    self.finish_op(what[1], now)
                else:
                    self.busy_channels.discard(place)
                    self.here.add((what[1], what[2]))
            self.note_ready(now)

    def finish_op(self, op, now):
        """Free the device and ask for the op's tensors elsewhere."""
        self.end[op] = now
        home = self.device[op]
        for t, u in enumerate(self.case.producer):
            if u != op:
                continue
            self.here.add((t, home))
            for d in sorted({self.device[v] for v in self.case.consumers[t]} - {home}):
                if self.case.channel[home][d] < 0:
                    self.send(t, d, now)
                else:
                    self.waiting.append((t, d, now))

    def send(self, tensor, d, now):
        """Start a transfer."""
        home = self.device[self.case.producer[tensor]]
        end = now + self.case.transfer[tensor][self.case.link_class[home][d]]
        self.sent[tensor, d] = (now, end)
        self.flying.append((end, ("transfer", tensor, d), self.case.channel[home][d]))

    def start_transfers(self, now):
        """Let every idle channel start one request; whether one takes no time."""
        instant = False
        channels = sorted({self.channel_of(t, d) for t, d, _ in self.waiting} - self.busy_channels)
        for c in channels:
            requests = [r for r in self.waiting if self.channel_of(r[0], r[1]) == c]
            chosen = min(requests, key=lambda r: self.key_of_transfer(*r))
            if self.queue == "planned" and chosen[:2] != self.next_planned(c):
                continue
            self.waiting.remove(chosen)
            self.send(chosen[0], chosen[1], now)
            self.busy_channels.add(c)
            instant |= self.sent[chosen[0], chosen[1]][1] == now
        return instant

    def channel_of(self, tensor, d):
        """Channel of a tensor's way to a device."""
        return self.case.channel[self.device[self.case.producer[tensor]]][d]

    def next_planned(self, channel):
        """The transfer that a planned channel waits for."""
        everything = []
        for t, u in enumerate(self.case.producer):
            for d in {self.device[v] for v in self.case.consumers[t]} - {self.device[u]}:
                if self.channel_of(t, d) == channel and (t, d) not in self.sent:
                    everything.append(self.key_of_transfer(t, d, 0))
        first = min(everything)
        return first[1], first[2]

    def start_ops(self, now):
        """Let every idle device start one ready op; whether one takes no time."""
        instant = False
        for d in range(self.case.num_devices):
            if d in self.busy_devices:
                continue
            left = [
                v for v in range(self.case.num_ops) if self.device[v] == d and v not in self.start
            ]
            ready = [v for v in left if v in self.ready_at]
            if not ready:
                continue
            op = min(ready, key=self.key_of_op)
            if self.queue == "planned" and op != min(left, key=lambda v: (self.rank[v], v)):
                continue
            end = now + self.case.compute[op][d]
            self.start[op] = now
            self.flying.append((end, ("op", op), d))
            self.busy_devices.add(d)
            instant |= end == now
        return instant


def peak_memory(case, run):
    """Largest bytes on each device: resident, and tensors from their start to their last reader's
    end.
    """
    spans = []
    for t, u in enumerate(case.producer):
        home = run.device[u]
        ends = [run.end[v] for v in case.consumers[t] if run.device[v] == home]
        ends += [end for (tensor, _), (_, end) in run.sent.items() if tensor == t]
        spans.append((home, run.start[u], max([run.end[u], *ends]), case.tensor_bytes[t]))
        for (tensor, d), (begin, end) in run.sent.items():
            if tensor == t:
                last = max([end] + [run.end[v] for v in case.consumers[t] if run.device[v] == d])
                spans.append((d, begin, last, case.tensor_bytes[t]))
    resident = [
        sum(case.resident[v] for v in range(case.num_ops) if run.device[v] == d)
        for d in range(case.num_devices)
    ]
    peak = list(resident)
    for d in range(case.num_devices):
        for moment in {span[1] for span in spans}:
            live = sum(
                size for where, begin, end, size in spans if where == d and begin <= moment < end
            )
            peak[d] = max(peak[d], resident[d] + live)
    return peak


def makespan(case, device, rank, queue):
    """Return the makespan of a placement, None where a constraint is broken or the order waits for
    itself.
    """
    if not allowed(case, device):
        return None
    run = Execution(case, device, rank, queue)
    value = run.run()
    if value is None:
        return None
    if case.memory == "peak":
        peak = peak_memory(case, run)
        if any(peak[d] > case.capacity[d] for d in range(case.num_devices)):
            return None
    return value


def fastest(case, device, rank):
    """Return the best value of a placement over the executions it allows, None if there is none."""
    queues = QUEUES if rank is not None else ("fifo",)
    values = [makespan(case, device, rank or [0] * case.num_ops, queue) for queue in queues]
    return min((value for value in values if value is not None), default=None)


def orders(case):
    """Yield the ranks that are tried: all of up to five ops. Of more, those along the edges, which
    suffice without contention and lives of tensors: each device can have any order that does not
    wait for itself.
    """
    pairs = [(u, v) for u, row in zip(case.producer, case.consumers, strict=True) for v in row]
    if case.num_ops > 5 and (
        case.memory == "peak" or any(c >= 0 for row in case.channel for c in row)
    ):
        raise ValueError("expected at most five ops where channels or lives of tensors matter")
    for rank in permutations(range(case.num_ops)):
        if case.num_ops <= 5 or all(rank[u] < rank[v] for u, v in pairs):
            yield rank


def orders_that_differ(case, device):
    """Yield the ranks of `orders`, of those by which the ops of every device and the transfers of
    every channel come in the same order only one: they are executed alike.
    """
    sent = [
        (case.channel[device[u]][d], t, d)
        for t, u in enumerate(case.producer)
        for d in sorted({device[v] for v in case.consumers[t]} - {device[u]})
        if case.channel[device[u]][d] >= 0
    ]
    seen = set()
    for rank in orders(case):
        first = {
            (t, d): min(rank[v] for v in case.consumers[t] if device[v] == d) for _, t, d in sent
        }
        ops = sorted(range(case.num_ops), key=lambda v, rank=rank: (device[v], rank[v]))
        transfers = sorted(sent, key=lambda x, first=first: (x[0], first[x[1:]], x))
        executed = (*ops, *transfers)
        if executed not in seen:
            seen.add(executed)
            yield rank


def best_makespan(case):
    """Return the least makespan over all placements, orders and executions; None if nothing is
    feasible.
    """
    best = None
    for device in placements(case):
        values = [makespan(case, device, [0] * case.num_ops, "fifo")]
        for rank in orders_that_differ(case, device):
            values += [
                makespan(case, device, rank, "priority"),
                makespan(case, device, rank, "planned"),
            ]
        found = [value for value in values if value is not None]
        if found and (best is None or min(found) < best):
            best = min(found)
    return best


# --- period
# --------------------------------------------------------------------------------------------


def io(case, tensor, d):
    """Ticks to move a tensor between a device and host memory."""
    return 0 if case.io_class[d] < 0 else case.transfer[tensor][case.io_class[d]]


def period(case, device):
    """Return the largest device load of a placement, None where a constraint is broken."""
    if not allowed(case, device) or not contiguous(case, device):
        return None
    loads = {(p, d): 0 for p in (False, True) for d in range(case.num_devices)}
    for v, d in enumerate(device):
        loads[case.backward[v], d] += case.compute[v][d]
    for t, u in enumerate(case.producer):
        home = device[u]
        away = {device[v] for v in case.consumers[t]} - {home}
        for d in away:
            loads[case.backward[u], d] += io(case, t, d)
        if away:
            loads[case.backward[u], home] += io(case, t, home)
    devices = range(case.num_devices)
    if case.pipeline == "gpipe":
        return max(loads[False, d] for d in devices) + max(loads[True, d] for d in devices)
    return max(loads[False, d] + loads[True, d] for d in devices)


def order_pairs(case):
    """Return the pairs of ops (before, after) that contiguity speaks of."""
    pairs = set()
    mates = {}
    for v, group in enumerate(case.colocation):
        mates.setdefault(("group", group) if group >= 0 else ("op", v), []).append(v)
    orphan = set()
    for members in mates.values():
        if all(case.backward[v] for v in members):
            orphan.update(members)
    for t, u in enumerate(case.producer):
        for v in case.consumers[t]:
            if not case.backward[u] and not case.backward[v]:
                pairs.add((u, v))
            elif (
                case.contiguity == "chain"
                and case.backward[u]
                and case.backward[v]
                and (u in orphan or v in orphan)
            ):
                pairs.add((v, u))
    return pairs


def contiguous(case, device):
    """Whether the devices' forward sets are as the problem's contiguity asks."""
    if case.contiguity == "none":
        return True
    pairs = order_pairs(case)
    if case.contiguity == "chain":
        return any(
            all(order[device[u]] <= order[device[v]] for u, v in pairs)
            for order in orders_of(sorted({device[v] for pair in pairs for v in pair}))
        )
    return all(not leaves_and_returns(pairs, device, v) for v in range(case.num_ops))


def orders_of(used):
    """Yield every order of the devices in use, as a table from device to position."""
    for sequence in permutations(used):
        yield {d: i for i, d in enumerate(sequence)}


def leaves_and_returns(pairs, device, start):
    """Whether a path from `start` leaves its device and comes back to it."""
    stack, seen = [(start, False)], set()
    while stack:
        u, left = stack.pop()
        for a, b in pairs:
            if a != u:
                continue
            now_left = left or device[b] != device[start]
            if now_left and device[b] == device[start]:
                return True
            if (b, now_left) not in seen:
                seen.add((b, now_left))
                stack.append((b, now_left))
    return False


def best_period(case):
    """Return the least period over all placements, None if nothing is feasible."""
    values = (
        period(case, device) for device in product(range(case.num_devices), repeat=case.num_ops)
    )
    return min((value for value in values if value is not None), default=None)


# --- latency
# -------------------------------------------------------------------------------------------


def latency(case, device, slot):
    """Return the end of the last op or slot, None where a constraint is broken or slots wait for
    each other.
    """
    if not allowed(case, device):
        return None
    unit = [
        ("pool", v) if case.io_class[d] < 0 else ("slot", d, slot[v]) for v, d in enumerate(device)
    ]
    if any(
        case.io_class[device[v]] >= 0 and not 0 <= slot[v] < case.slots for v in range(case.num_ops)
    ):
        return None
    takes = {
        u: sum(case.compute[v][device[v]] for v in range(case.num_ops) if unit[v] == u)
        for u in unit
    }
    before = {u: set() for u in unit}
    for t, p in enumerate(case.producer):
        readers = {unit[v] for v in case.consumers[t]} - {unit[p]}
        for u in readers:
            before[u].add(unit[p])
            if u[0] == "slot":
                takes[u] += io(case, t, u[1])
        if readers and unit[p][0] == "slot":
            takes[unit[p]] += io(case, t, unit[p][1])
    for u in before:
        before[u] |= {w for w in before if u[0] == w[0] == "slot" and w[1] == u[1] and w[2] < u[2]}
    ends = {}
    while len(ends) < len(before):
        free = [u for u in before if u not in ends and before[u] <= ends.keys()]
        if not free:
            return None
        for u in free:
            ends[u] = takes[u] + max((ends[w] for w in before[u]), default=0)
    return max(ends.values())


def best_latency(case):
    """Return the least latency over all placements and slots, None if nothing is feasible."""
    best = None
    for device in placements(case):
        choices = [range(case.slots) if case.io_class[d] >= 0 else (0,) for d in device]
        for slot in product(*choices):
            value = latency(case, device, slot)
            if value is not None and (best is None or value < best):
                best = value
    return best


def optimum(case):
    """Return the best value of a case by its objective, None if nothing is feasible."""
    return {"makespan": best_makespan, "period": best_period, "latency": best_latency}[
        case.objective
    ](case)
