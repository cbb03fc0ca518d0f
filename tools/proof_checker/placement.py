"""Placement problems: n ops on k devices, m tensors between ops, and what every solution obeys.

An op takes compute[v][d] ticks on device d, -1 where it cannot run. A tensor goes from the device
of its producer to every other device with a consumer, once, in transfer[t][c] ticks over a link of
class c. Resident bytes stay on the device of their op; a capacity of 2^62 means no limit, which is
why all bytes of a problem add up to less. Ops with the same label >= 0 in `colocation` share a
device.
"""

from proof_checker.graphs import sorted_order
from proof_checker.reading import (
    NUMBER,
    choice,
    demand,
    distinct,
    entries,
    fields,
    numbers,
    require,
    table,
    texts,
    whole,
)

UNLIMITED = 2**62
REQUIRED = (
    "name memory objective contiguity pipeline compute producer consumers transfer link_class"
    " channel resident capacity colocation tensor_bytes io_class"
)
OPTIONAL = "slots op_names device_names op_types meta backward"


class Placement:
    """A placement problem; the names of fields are those of its JSON.

    `edges` are (producer, consumer, tensor), `order` is an order of the ops along them, `groups`
    are the ops that share a device: colocated ones, and single ones.
    """

    def __init__(self, data):
        fields(data, REQUIRED, OPTIONAL)
        self._read_ops(data)
        self._read_devices(data)
        self._read_tensors(data)
        self._read_words(data)
        size = sum(self.resident) + self.num_devices * sum(self.size)
        require(size < UNLIMITED, "all bytes add up to less than 2^62")
        self.edges = [(u, v, t) for t, u in enumerate(self.producer) for v in self.consumers[t]]
        self.order = sorted_order(self.num_ops, [(u, v) for u, v, _ in self.edges])
        demand(self.order is not None, "the graph has no cycle")
        groups = {}
        for v, label in enumerate(self.colocation):
            groups.setdefault(label if label >= 0 else ("op", v), []).append(v)
        self.groups = list(groups.values())

    def _read_ops(self, data):
        rows = entries(data["compute"])
        require(rows and entries(rows[0]), "compute: expected at least one op and one device")
        n, k = self.num_ops, self.num_devices = len(rows), len(rows[0])
        self.compute = table(rows, n, k, -1, NUMBER)
        self.resident = numbers(data["resident"], n, 0, NUMBER)
        self.colocation = numbers(data["colocation"], n, -NUMBER, NUMBER)
        self.backward = numbers(data.get("backward", [0] * n), n, 0, 1)
        numbers(data.get("meta", [-1] * n), n, -1, NUMBER)
        texts(data.get("op_names", [""] * n), n)
        texts(data.get("op_types", [""] * n), n)

    def _read_devices(self, data):
        k = self.num_devices
        self.capacity = numbers(data["capacity"], k, 0, NUMBER)
        self.channel = table(data["channel"], k, k, -1, NUMBER)
        texts(data.get("device_names", [""] * k), k)

    def _read_tensors(self, data):
        n, k = self.num_ops, self.num_devices
        self.producer = numbers(data["producer"], None, 0, n - 1)
        m = len(self.producer)
        self.size = numbers(data["tensor_bytes"], m, 0, NUMBER)
        self.consumers = [
            distinct(row, n) if row else [] for row in table(data["consumers"], m, None)
        ]
        rows = entries(data["transfer"], m)
        classes = len(entries(rows[0])) if m else NUMBER
        self.transfer = table(rows, m, classes, 0, NUMBER)
        self.link = table(data["link_class"], k, k, -NUMBER, NUMBER)
        for d, row in enumerate(self.link if m else ()):
            numbers(row[:d] + row[d + 1 :], k - 1, 0, classes - 1)  # the diagonal means nothing
        self.io = numbers(data["io_class"], k, -1, classes - 1)

    def _read_words(self, data):
        texts([data["name"]], 1)
        whole(data.get("slots", 1), 1, NUMBER)
        self.memory = choice(data["memory"], "static peak")
        self.objective = choice(data["objective"], "makespan period latency")
        self.contiguity = choice(data["contiguity"], "chain convex none")
        self.pipeline = choice(data["pipeline"], "1f1b gpipe")

    def devices(self, solution):
        """Return the device of every op: compatible, colocated together, within capacities."""
        n, k = self.num_ops, self.num_devices
        fields(solution, "device", "priority")
        if solution.get("priority") is not None:  # the schedule says what came of it
            numbers(solution["priority"], n, -NUMBER, NUMBER)
        device, held = numbers(solution["device"], n, 0, k - 1), [0] * k
        for v, d in enumerate(device):
            demand(self.compute[v][d] >= 0, f"op {v} cannot run on device {d}")
            held[d] += self.resident[v]
        for members in self.groups:
            together = len({device[v] for v in members}) == 1
            demand(together, f"colocated ops {members[:3]} are on several devices")
        for d, room in enumerate(self.capacity):
            demand(held[d] <= room, f"device {d} holds {held[d]} bytes, its capacity is {room}")
        return device
