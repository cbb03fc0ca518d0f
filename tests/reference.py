"""The slow, obvious oracle: the execution model, step by step, with lists, dicts and no
cleverness.
"""

from __future__ import annotations


def run(problem, device, rank=None, queue="fifo"):
    """Return (makespan, start, finish, transfers) where transfers maps (tensor, destination) to
    (start, finish).

    Returns None if a planned order deadlocks.
    """
    n, k, m = problem.num_ops, problem.num_devices, problem.num_tensors
    device = [int(d) for d in device]
    rank = [0] * n if rank is None else [int(r) for r in rank]
    consumers = [
        [int(v) for v in problem.consumer[problem.consumer_ptr[t] : problem.consumer_ptr[t + 1]]]
        for t in range(m)
    ]
    producer = [int(u) for u in problem.producer]
    compute, transfer = problem.compute.tolist(), problem.transfer.tolist()
    channel, link = problem.channel.tolist(), problem.link_class.tolist()
    inputs = [[t for t in range(m) if v in consumers[t]] for v in range(n)]
    outputs = [[t for t in range(m) if producer[t] == u] for u in range(n)]

    def destinations(tensor):
        return sorted({device[v] for v in consumers[tensor]} - {device[producer[tensor]]})

    def transfer_key(tensor, d, requested):
        if queue == "fifo":
            return (requested, tensor, d)
        return (min(rank[v] for v in consumers[tensor] if device[v] == d), tensor, d)

    start, finish = {}, {}
    available = {}  # (tensor, device) -> time
    ready_time = {}
    requests = {}  # channel -> list of (tensor, destination, time requested)
    sending = {}  # channel -> (tensor, destination)
    flying = {}  # (tensor, destination) -> (start, finish)
    landed = set()
    completed = set()
    running = {}  # device -> op
    plan = {
        d: sorted((v for v in range(n) if device[v] == d), key=lambda v: (rank[v], v))
        for d in range(k)
    }
    lanes = {}
    for t in range(m):
        for d in destinations(t):
            c = channel[device[producer[t]]][d]
            if c >= 0:
                lanes.setdefault(c, []).append((t, d))
    for lane in lanes.values():
        lane.sort(key=lambda x: transfer_key(x[0], x[1], 0))

    def duration(tensor, d):
        return transfer[tensor][link[device[producer[tensor]]][d]]

    def update_ready(time):
        for v in range(n):
            if v not in ready_time and all((t, device[v]) in available for t in inputs[v]):
                ready_time[v] = time

    time = 0
    update_ready(0)
    while True:
        # 1. complete everything that ends at `time`, until nothing is left.
        again = True
        while again:
            again = False
            for d in list(running):
                u = running[d]
                if finish[u] == time:
                    again = True
                    del running[d]
                    completed.add(u)
                    for t in outputs[u]:
                        available[t, d] = time
                        for target in destinations(t):
                            c = channel[d][target]
                            if c < 0:
                                flying[t, target] = (time, time + duration(t, target))
                            else:
                                requests.setdefault(c, []).append((t, target, time))
            for pair, (_, end) in flying.items():
                if end == time and pair not in landed:
                    again = True
                    landed.add(pair)
                    available[pair] = time
                    for c in [c for c, busy in sending.items() if busy == pair]:
                        del sending[c]
        update_ready(time)
        # 2. idle channels start one transfer each.
        instant = False
        for c, waiting in requests.items():
            if c in sending or not waiting:
                continue
            if queue == "planned":
                t, d = lanes[c][0]
                if (t, d) not in [(x, y) for x, y, _ in waiting]:
                    continue
                chosen = next(x for x in waiting if x[:2] == (t, d))
                lanes[c].pop(0)
            else:
                chosen = min(waiting, key=lambda x: transfer_key(*x))
            waiting.remove(chosen)
            t, d, _ = chosen
            sending[c] = (t, d)
            flying[t, d] = (time, time + duration(t, d))
            instant |= duration(t, d) == 0
        if instant:
            continue
        # 3. idle devices start one op each.
        for d in range(k):
            if d in running:
                continue
            if queue == "planned":
                if not plan[d] or plan[d][0] not in ready_time:
                    continue
                u = plan[d].pop(0)
            else:
                ready = [
                    v for v in range(n) if device[v] == d and v in ready_time and v not in start
                ]
                if not ready:
                    continue
                u = min(ready, key=lambda v: (ready_time[v] if queue == "fifo" else rank[v], v))
            start[u] = time
            finish[u] = time + compute[u][d]
            running[d] = u
            instant |= finish[u] == time
        if instant:
            continue
        # 4. advance.
        if len(completed) == n:
            break
        ends = [finish[u] for u in running.values()] + [
            end for _, end in flying.values() if end > time
        ]
        if not ends:
            return None
        time = min(ends)
    return max(finish.values()), [start[v] for v in range(n)], [finish[v] for v in range(n)], flying


def peak(problem, device, start, finish, transfers):
    """Largest bytes per device: resident plus live tensors, by looking at every moment something
    starts.
    """
    spans = []
    for t in range(problem.num_tensors):
        u = int(problem.producer[t])
        readers = [
            int(v) for v in problem.consumer[problem.consumer_ptr[t] : problem.consumer_ptr[t + 1]]
        ]
        places = {int(device[u]): [start[u], finish[u]]}
        for (tensor, d), (a, b) in transfers.items():
            if tensor == t:
                places[d] = [a, b]
                places[int(device[u])][1] = max(places[int(device[u])][1], b)
        for v in readers:
            place = places[int(device[v])]
            place[1] = max(place[1], finish[v])
        spans += [(d, a, b, int(problem.tensor_bytes[t])) for d, (a, b) in places.items()]
    result = []
    for d in range(problem.num_devices):
        fixed = sum(int(problem.resident[v]) for v in range(problem.num_ops) if device[v] == d)
        moments = {a for x, a, _, _ in spans if x == d} | {-1}
        result.append(
            max(
                fixed + sum(s for x, a, b, s in spans if x == d and a <= time < b)
                for time in moments
            )
        )
    return result
