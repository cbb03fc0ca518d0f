"""Pipeline problems: blocks of one micro-batch on devices, to be repeated for many micro-batches.

A block occupies its devices at the same time for `span` ticks, changes what each of them holds by
its `memory` when it starts, and starts `lag` ticks after the end of each block that it waits for,
or later. Micro-batches are alike and independent: every block of each of them runs once. A device
runs one block at a time and never holds more than its capacity. What a micro-batch frees on a
device it allocated there before, in whatever order its blocks run.
"""

from proof_checker.graphs import sorted_order
from proof_checker.pipeline_memory import never_below_zero
from proof_checker.reading import (
    NUMBER,
    choice,
    demand,
    entries,
    fields,
    numbers,
    require,
    texts,
    whole,
)

REQUIRED = "name devices micro_batches blocks"
BLOCK = "name kind devices span memory after stage"


class Pipeline:
    """A pipeline problem: per block its devices, span, changes of memory, and what it waits for.

    `after` holds (block before, lag); `work` are the ticks of each device per micro-batch;
    `order` is an order of the blocks along what they wait for.
    """

    def __init__(self, data):
        fields(data, REQUIRED, "capacity")
        self.objective = "pipeline-period"
        names = texts(entries(data["devices"]), len(data["devices"]))
        require(names and len(set(names)) == len(names), "devices: expected names, each once")
        self.num_devices, rows = len(names), entries(data["blocks"])
        texts([data["name"]], 1)
        self.micro_batches = whole(data["micro_batches"], 1, NUMBER)
        self.capacity = [None] * len(names)
        if "capacity" in data:
            self.capacity = numbers(data["capacity"], len(names), 0, NUMBER)
        self.num_blocks = len(rows)
        blocks = texts([fields(row, BLOCK)["name"] for row in rows], len(rows))
        require(rows and len(set(blocks)) == len(rows), "blocks: expected names, each once")
        self.devices, self.span, self.memory, self.after = [], [], [], []
        for row in rows:
            self._read_block(row, names, blocks)
        self._order_and_work()
        self._check_memory()

    def _order_and_work(self):
        pairs = [(u, v) for v, before in enumerate(self.after) for u, _ in before]
        self.order = sorted_order(self.num_blocks, pairs)
        demand(self.order is not None, "no block waits for itself")
        self.work = [sum(self.span[b] for b in self.on(d)) for d in range(self.num_devices)]

    def _check_memory(self):
        earlier = [0] * self.num_blocks  # bit u: whether the block waits for u
        for v in self.order:
            for u, _ in self.after[v]:
                earlier[v] |= earlier[u] | 1 << u
        for d in range(self.num_devices):
            changes = [row.get(d, 0) for row in self.memory]
            demand(sum(changes) == 0, f"a micro-batch leaves nothing on device {d}")
            demand(never_below_zero(changes, earlier), f"device {d} frees what was allocated")

    def _read_block(self, row, names, blocks):
        choice(row["kind"], "F B I W other")
        whole(row["stage"], -1, NUMBER)
        self.span.append(whole(row["span"], 1, NUMBER))
        here = [place(x, names) for x in entries(row["devices"])]
        require(here and len(set(here)) == len(here), "expected devices of a block, each once")
        self.devices.append(here)
        changes = numbers(row["memory"], len(here), -NUMBER, NUMBER)
        self.memory.append(dict(zip(here, changes, strict=True)))
        before = []
        for wait in entries(row["after"]):
            known = {"block": wait, "lag": 0} if type(wait) is str else fields(wait, "block lag")
            before.append((place(known["block"], blocks), whole(known["lag"], 0, NUMBER)))
        self.after.append(before)

    def on(self, device):
        """Return the blocks that occupy a device."""
        return [b for b, here in enumerate(self.devices) if device in here]


def place(name, names):
    """Return the index of a name."""
    require(type(name) is str and name in names, "expected the name of a device or a block")
    return names.index(name)
