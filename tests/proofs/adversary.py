"""An adversary of the checker: derivations that no honest writer writes, at an optimum that brute
force knows.

At T = optimum a solution of T ticks exists, so that no derivation may close, whatever its words
are. The same derivations at T = optimum - 1 should close often: a test that nothing passes shows
nothing. Derivations are those of the writer, changed, and random ones whose words are near the
numbers of the problem; words are missing, extra, reversed, repeated, negative and out of range. A
step that the checker refuses is left out, so that what it lets pass adds up; nothing may be
believed, or what closes by belief does not count. At the optimum a derivation also counts as closed if the state that it leaves says
something that is false of an optimal schedule that brute force found. The checker refuses by its
own two errors: any other exception is a fault too.
"""

from __future__ import annotations

import copy
import itertools
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "attack")]

import brute_force  # noqa: E402 - tests/ is no package
import case as cases  # noqa: E402
import compare  # noqa: E402
from sharding_problems import draw, draw_dense, draw_huge, draw_linked, oracle  # noqa: E402
from tampering import load_checker, plain  # noqa: E402
from test_segments import draw_fork  # noqa: E402

from placeopt.makespan.bounds.analysis import Analysis  # noqa: E402
from placeopt.makespan.bounds.congestion import partitions, pins_of  # noqa: E402
from placeopt.makespan.proof.supposition import Supposition  # noqa: E402
from placeopt.makespan.proof.witness import (  # noqa: E402
    load_witness,
    makespan_witness,
    raise_by_segments,
    segment_flows,
)
from placeopt.model.errors import InputError  # noqa: E402
from placeopt.model.uniform_flow import flows  # noqa: E402
from placeopt.sharding.witness import sharding_witness  # noqa: E402

LARGEST = 2**49
"""Ticks up to which writers look for lemmas in floating point."""

checker = load_checker()


@dataclass
class Tally:
    """Derivations of a family, how many of them closed at the optimum (never, please), and how many
    just below it.
    """

    derivations: int = 0
    at_optimum: int = 0
    below: int = 0
    steps: int = 0
    first: str = ""

    def add(self, other: Tally) -> None:
        """Add the counts of other derivations."""
        for key in ("derivations", "at_optimum", "below", "steps"):
            setattr(self, key, getattr(self, key) + getattr(other, key))
        self.first = self.first or other.first


def attacked(family, seed, count):
    """Return the tally of `count` derivations against one problem, an empty one where it has no
    solution.
    """
    rng, tally = random.Random(f"{family} {seed}"), Tally()
    found = (sharding_target if family == "sharding" else placement_target)(rng, family)
    if found is None:
        return tally
    closes, derivation = found
    for _ in range(count):
        words = derivation()
        at, below = closes(1, words), closes(0, words)
        tally.add(
            Tally(
                1, at[0], below[0], at[1] + below[1], f"{family} {seed}: {words}" if at[0] else ""
            )
        )
    return tally


# --- placements
# -------------------------------------------------------------------------------------------


def placement_target(rng, family):
    """Return what follows a derivation at an optimum or below it, and what draws one; None for no
    problem.
    """
    forks = [cases.draw, cases.draw, draw_fork, draw_fork, draw_join]
    case = rng.choice(forks)(rng) if family == "makespan" else cases.draw(rng, family)
    if case.objective != family:
        return None
    try:
        problem = compare.problem_of(case)
    except InputError:
        return None
    best = brute_force.optimum(case)
    if best is None or not 0 < best < LARGEST:
        return None
    edges, placement = family == "makespan", checker.Placement(plain(problem))
    writer = (
        makespan_witness(problem, best, "test", 1.0)
        if edges
        else load_witness(problem, best, "test")
    )
    honest = plain_words(writer.content["steps"])
    if edges and case.num_ops > 3:
        honest = (
            plain_words(
                raise_by_segments(Supposition(problem, best), Analysis(problem), float("inf"))
            )
            + plain_words(flow_delays(problem, best))
            + honest
        )
    flowing = flow_words(problem)
    truth = schedule_of(case, best) if edges else (placement_of(case, best), None)
    of = random.Random(best)  # any partition of the devices may be called islands
    islands = [of.randrange(2) for _ in range(case.num_devices)] if edges else ()
    islands = writer.content.get("islands", islands)

    def ends(more, steps, believed):
        state = checker.Supposition(placement, best - 1 + more, believed, edges, islands)
        passed = 0
        for step in steps:
            if followed(state, step):
                passed += 1
            if state.closed:
                break
        if believed:  # whatever follows from that
            return False, passed
        return state.closed or bool(more and says_false(case, state, *truth, islands)), passed

    def closes(more, steps):
        beliefs = (None, []) if "'front'" in str(steps) else (None,)
        found = [ends(more, steps, believed) for believed in beliefs]
        return any(closed for closed, _ in found), sum(passed for _, passed in found)

    kind = checker.Supposition(placement, best, None, edges).kind
    draws = Draws(rng, case, best, kind, flowing, *truth)
    return closes, lambda: draws.derivation(honest)


def flow_words(problem):
    """Return steps of flows between all ops, whatever they show."""
    if problem.objective == "period":
        pays = problem.transfer[:, np.maximum(problem.io_class, 0)] * (problem.io_class >= 0)
        weights = [(["leaving"], pays.min(axis=1))]
    else:
        weights = [(["crossing", part.label], part.weight) for part in partitions(problem)]
    pins, found = pins_of(problem), []
    for words, weight in weights:
        flow = next(flows(problem.min_compute, pins, weight, kept=True), None) if pins else None
        if flow is not None:
            found.append(plain_words([*words, *flow.words(problem.num_ops, pins)]))
    return found


def flow_delays(problem, best):
    """Return the steps of delays of segments that flows show."""
    found = segment_flows(problem, Analysis(problem).evidence(0), float("inf"))
    return [["segment", [list(x) for x in alike], t, [step]] for alike, t, step in found if t > 0]


def draw_join(rng):
    """Return a case of three devices and a last op that several ops feed."""
    case = draw_fork(rng)
    while len({tuple(row) for row in case.channel}) > 1 or case.num_devices != 2:
        case = draw_fork(rng)
    case.producer, case.consumers = [0, 1, 2], [[3], [3], [rng.choice([0, 1, 3])]]
    case.transfer, case.tensor_bytes = case.transfer[:3], case.tensor_bytes[:3]
    alike = rng.random() < 0.5
    case.compute = [
        [*row, row[0] if alike else max(0, row[1] + rng.randint(-2, 2))] for row in case.compute
    ]
    case.link_class, case.channel = (
        [[row[0]] * 3 for row in (*x, x[0])] for x in (case.link_class, case.channel)
    )
    case.capacity, case.io_class = [*case.capacity, case.capacity[0]], [*case.io_class, 0]
    return case


def placement_of(case, best):
    """Return a placement of the best period."""
    every = itertools.product(range(case.num_devices), repeat=case.num_ops)
    return next(device for device in every if brute_force.period(case, device) == best)


def schedule_of(case, best):
    """Return the devices and the (start, end) of every op of a schedule of the best makespan."""
    for device in brute_force.placements(case):
        for rank in itertools.permutations(range(case.num_ops)):
            for queue in ("priority", "planned", "fifo"):
                if brute_force.makespan(case, device, rank, queue) == best:
                    run = brute_force.Execution(case, device, rank, queue)
                    run.run()
                    return device, [(run.start[v], run.end[v]) for v in range(case.num_ops)]
    raise AssertionError


def says_false(case, state, device, runs, islands):
    """Whether what a state says is not true of a placement, or of a schedule; see
    `proof_checker.supposition`.
    """
    at = [state.kind[d] for d in device]
    if any(state.time[v][c] != case.compute[v][device[v]] for v, c in enumerate(at)):
        return True
    if any(device[w] != device[v] for v, members in enumerate(state.group) for w in members):
        return True
    if any(device[u] == device[v] for u, v in state.apart):
        return True
    if runs is None:
        return bool(state.edges or state.waits) or any(map(any, state.head + state.tail))
    if any(
        start < state.head[v][at[v]] or state.most - end < state.tail[v][at[v]]
        for v, (start, end) in enumerate(runs)
    ):
        return True
    gaps = {(u, v): runs[v][0] - runs[u][1] for u, v in (*state.edges, *state.waits)}
    if any(gaps[pair] < ticks for pair, ticks in state.waits.items()):
        return True
    if any(
        gaps[u, v] < ticks and islands[device[u]] != islands[device[v]]
        for (u, v), ticks in state.far.items()
    ):
        return True
    return any(
        gaps[u, v] < (free if device[u] == device[v] else pay)
        for (u, v), (free, pay) in state.edges.items()
    )


def plain_words(value):
    """Return steps as JSON holds them: lists, no numbers of numpy."""
    if isinstance(value, (list, tuple)):
        return [plain_words(x) for x in value]
    return value if value is None or isinstance(value, str) else int(value)


def followed(state, step):
    """Whether the checker let a step pass."""
    try:
        checker.follow(state, step)
    except (checker.FalseStatementError, checker.UnreadableError):
        return False
    return True


class Draws:
    """Random derivations about one case."""

    def __init__(self, rng, case, best, kind, flowing, device, runs):
        self.flowing = flowing
        self.rng, self.n, self.best, self.devices = rng, case.num_ops, best, case.num_devices
        self.times = [max(row) for row in case.compute]
        self.classes, self.at, self.runs = max(kind) + 1, [kind[d] for d in device], runs
        ticks = [t for row in [*case.compute, *case.transfer] for t in row if 0 <= t <= best]
        sums = [a + b for a in ticks for b in ticks if a + b <= best]
        self.numbers = sorted({0, 1, best, best - 1, *ticks, *sums, *(best - t for t in ticks)})
        self.edges = [
            (u, v)
            for u, targets in zip(case.producer, case.consumers, strict=True)
            for v in targets
        ]

    def derivation(self, honest):
        """Return steps: the writer's, changed or not, among random ones, or only such."""
        kind = self.rng.random()
        if kind < 0.15:
            return self.changed(self.crowd() + honest, self.rng.choice([0, 0, 1, 2]))
        if kind < 0.2:  # every list of a segment twice
            honest = [
                [name, [*words[0], *words[0]], *words[1:]] if name == "segment" else [name, *words]
                for name, *words in honest
            ]
        if kind < 0.35:
            return self.changed(honest, self.rng.choice([0, 1, 1, 2, 4]))
        steps = [self.step(2) for _ in range(self.rng.randint(3, 12))]
        if kind < 0.7:
            steps += self.changed(honest, self.rng.choice([1, 2, 4]))
            if self.rng.random() < 0.5:
                self.rng.shuffle(steps)
        return self.changed(steps, self.rng.choice([0, 0, 1, 3]))

    def crowd(self):
        """Return steps that part some ops, more than there are devices if there are so many, and
        what follows from that.
        """
        ops = self.rng.sample(range(self.n), self.n)
        if self.rng.random() < 0.6:
            ops.sort(key=lambda v: -self.times[v])
        ops = ops[: self.devices + 1]
        steps = [["apart", u, v, [u, v]] for u, v in itertools.combinations(ops, 2)]
        after = [self._sweep(0), self._sweep(0), ["clique", ops]]
        return [*steps, *self.rng.sample(after, 3)]

    def changed(self, steps, times):
        """Return steps with some words changed, missing, repeated, reversed or put elsewhere."""
        return mutated(self.rng, steps, times, [*self.numbers, self.n, -1, self.n - 1, 2**130])

    def op(self):
        """Return an op."""
        return self.rng.randrange(self.n)

    def some(self):
        """Return different ops, at least one."""
        return self.rng.sample(range(self.n), self.rng.randint(1, self.n))

    def ticks(self):
        """Return ticks up to the optimum, mostly sums of those of the problem."""
        return (
            self.rng.choice(self.numbers)
            if self.rng.random() < 0.7
            else self.rng.randint(0, self.best)
        )

    def lemma(self, backwards):
        """Return a lemma of a sweep, often one that is false of the best schedule by a tick."""
        v, words = self.op(), [self.some()]
        if self.rng.random() < 0.4:
            words.append(self.weights())
        if self.runs is None or self.rng.random() < 0.4:
            return [v, self.rng.randrange(self.classes), self.ticks(), *words]
        start, end = self.runs[v]
        return [v, self.at[v], 1 + (self.best - end if backwards else start), *words]

    def weights(self, most=3):
        """Return a weight, or a price, per class."""
        if self.rng.random() < 0.4:
            return [1] * self.classes
        return [self.rng.randint(0, most) for _ in range(self.classes)]

    def step(self, depth):
        """Return a random step; `depth` says how many may still be inside one another."""
        names = ["sweep"] * 4 + [
            "same",
            "apart",
            "clique",
            "window",
            "window",
            "ends",
            "ends",
            "pigeons",
            "front",
        ]
        names += ["branch", "branch", "segment"] if depth else []
        names += ["flow"] * 4 if self.flowing else []
        return getattr(self, "_" + self.rng.choice(names))(depth)

    def inner(self, depth):
        """Return steps of a case or a segment."""
        return [self.step(depth - 1) for _ in range(self.rng.randint(1, 4))]

    def _sweep(self, _depth):
        backwards = self.rng.randrange(2)
        return [
            "sweep",
            backwards,
            [self.lemma(backwards) for _ in range(self.rng.choice([0, 0, 1, 1, 1, 2]))],
        ]

    def _same(self, _depth):
        u, v = (
            self.rng.choice(self.edges)
            if self.edges and self.rng.random() < 0.7
            else (self.op(), self.op())
        )
        return ["same", u, v]

    def _apart(self, _depth):
        u, v = self.op(), self.op()
        return ["apart", u, v, [u, v] if self.rng.random() < 0.6 else self.some()]

    def _clique(self, _depth):
        return ["clique", self.some()]

    def _window(self, _depth):
        begin, end = sorted((self.ticks(), self.ticks()))
        if self.rng.random() < 0.3:
            begin, end = 0, self.best - self.rng.randrange(2)
        prices = [0] * self.classes if self.rng.random() < 0.6 else self.weights(1)
        return ["window", begin, end, self.weights(), prices]

    def _ends(self, _depth):
        ops = list(range(self.n)) if self.rng.random() < 0.4 else self.some()
        fork, join = (self.op() if self.rng.random() < 0.5 else None for _ in range(2))
        return ["ends", ops, fork, join][: self.rng.choice([2, 3, 4, 4])]

    def _pigeons(self, _depth):
        return ["pigeons", self.some(), self.rng.randint(1, 2)]

    def _front(self, _depth):
        width = self.devices * self.rng.randint(1, 3)
        fronts = [
            [t, self.rng.choice([width * t, width * t + 1, self.ticks()])]
            for t in (self.ticks(), self.ticks())
        ]
        return [
            "front",
            self.weights(),
            *fronts,
            *([self.rng.choice(fronts)] if self.rng.random() < 0.3 else []),
        ]

    def _flow(self, _depth):
        step = copy.deepcopy(self.rng.choice(self.flowing))
        sent, rounds, (units, _) = step[-1], step[-2], step[-4:-2]
        way, v = self.rng.choice(["none", "more", "less", "rounds"]), self.op()
        if way in ("more", "less"):  # of one op or all: as if nothing were to be sent, or more
            units[v] = units[v] * 2 if way == "more" else units[v] // 2
        elif way == "rounds":
            step[-2] = self.rng.choice([rounds + 1, 2 * rounds, 0])
        for _ in range(self.rng.choice([0, 0, 1, 2]) if sent and sent[0] else 0):
            row = self.rng.choice(self.rng.choice(sent))  # a detour, or a row that loses something
            a, b = self.rng.randrange(len(row)), self.rng.randrange(len(row))
            much = self.rng.choice([1, abs(row[a]), -row[a], 2**20])
            row[a] += much
            row[b] -= much if self.rng.random() < 0.8 else 0
        return step

    def _branch(self, depth):
        kind = self.rng.choice(["share", "class", "order"])
        v = self.rng.randrange(self.classes) if kind == "class" else self.op()
        return ["branch", kind, self.op(), v, self.inner(depth), self.inner(depth)]

    def _segment(self, depth):
        lists = [sorted(self.some()) for _ in range(self.rng.choice([1, 2, 2]))]
        if self.rng.random() < 0.5:
            lists = [list(range(self.n))] * self.rng.choice([1, 1, 2])
        ticks, last = max(1, self.ticks()), len(lists[0]) - 1
        if (
            self.runs is not None and self.rng.random() < 0.5
        ):  # false of the best schedule by a tick
            ticks = max(1, 1 + self.runs[lists[0][-1]][0] - self.runs[lists[0][0]][1])
        if self.rng.random() < 0.3:
            return ["segment", lists, ticks, self.inner(depth)]
        steps = [
            ["sweep", 0, []],
            ["sweep", 1, []],
            ["window", 0, ticks - 1, self.weights(1), [0] * self.classes],
            ["ends", list(range(1, last)), 0, last],
            ["ends", list(range(last + 1)), 0, last],
        ]
        steps = self.rng.sample(steps, self.rng.randint(1, 4))
        return ["segment", lists, ticks, [steps[0]] if self.rng.random() < 0.4 else steps]


def places(value):
    """Yield every (list, index) inside a value."""
    if isinstance(value, list):
        for i, x in enumerate(value):
            yield value, i
            yield from places(x)


def mutated(rng, value, times, numbers):
    """Return a copy of a list in which something was changed at random places."""
    value = copy.deepcopy(value)
    for _ in range(times):
        spots = list(places(value))
        if not spots:
            break
        where, i = rng.choice(spots)
        way = rng.choice(
            [
                "number",
                "number",
                "near",
                "near",
                "near",
                "drop",
                "repeat",
                "reverse",
                "copy",
                "swap",
            ]
        )
        if way == "number":
            where[i] = rng.choice(numbers)
        elif way == "near" and type(where[i]) is int:
            where[i] += rng.choice([-1, 1, 1, 2, -2])
        elif way == "drop":
            del where[i]
        elif way == "repeat":
            where.insert(i, copy.deepcopy(where[i]))
        elif way == "reverse":
            where.reverse()
        elif way == "copy":
            source, j = rng.choice(spots)
            where[i] = copy.deepcopy(source[j]) if source[j] is not value else where[i]
        elif way == "swap":
            j = rng.randrange(len(where))
            where[i], where[j] = where[j], where[i]
    return value


# --- sharding
# ---------------------------------------------------------------------------------------------


def sharding_target(rng, _family):
    """Return what adds up a witness at an optimum or below it, and what draws one; None for no
    solution.
    """
    make = rng.choice([draw, draw_linked, draw_linked, draw_huge, draw_dense, draw_dense])
    seed = rng.randrange(10**9)
    problem, data = make(seed)
    best = min(oracle(data).values(), default=None)
    if best is None or best == 0:
        return None
    read = checker.Sharding(plain(problem))
    honest = {
        key: plain_words(x)
        for key, x in sharding_witness(problem, best, "test", 1.0).content.items()
    }
    sizes, last = np.diff(problem.node_ptr).tolist(), max(1, int(problem.interval.max()))
    scale = [1, 10, 10**6, 2**40, 2**62, 2**130]

    def closes(more, content):
        try:
            checker.sharding_bound(read, best + more, content, None)
        except (checker.FalseStatementError, checker.UnreadableError):
            return False, 0
        return True, 1

    def some(size):
        return [rng.randint(-rng.choice(scale[:4]), rng.choice(scale[:4])) for _ in range(size)]

    def star(bits):
        v = rng.randrange(len(sizes))
        dear = rng.choice([rng.randint(0, 9), rng.randint(0, 2 ** min(sum(bits), 60))])
        return [v, rng.randrange(sizes[v]), rng.randrange(last), dear]

    def squares():
        width, of = rng.randint(0, 3), rng.sample(range(len(sizes)), rng.randint(0, len(sizes)))
        rows = [[v, [some(width) for _ in range(sizes[v])]] for v in sorted(of)]
        return [rng.choice([0, 0, 1, 20]), some(width), rows]

    def derivation():
        content = [copy.deepcopy(honest.get(key, [])) for key in SHARDING]
        if rng.random() < 0.2:
            pairs = list(read.tables)
            content = [
                [rng.randint(0, 9), rng.randint(0, 9)],
                [[rng.randrange(4), rng.randint(0, 99)]],
                [[u, v, some(sizes[u]), some(sizes[v])] for u, v in pairs if rng.random() < 0.8],
                [],
                [],
            ]
        elif rng.random() < 0.3 and not content[4]:
            content = coarser(content, rng.randint(0, 2), rng.randint(0, 2))
        if rng.random() < 0.15:
            content[3] += [star(content[0]) for _ in range(rng.choice([1, 1, 2, 4]))]
        if rng.random() < 0.15:
            content[4] = squares()
        numbers = [0, 1, -1, best, *(rng.choice([-1, 1]) * x for x in scale)]
        content = mutated(rng, content, rng.choice([0, 0, 1, 1, 2, 5]), numbers)
        content = dict(zip(SHARDING, [*content, [], [], [], [], []][:5], strict=True))
        return {key: x for key, x in content.items() if key != "squares" or x}

    return closes, derivation


def coarser(content, cost_bits, price_bits):
    """Return a witness in coarser units, in which rounding counts."""
    (k, q), prices, messages, stars, squares = content
    shift, much = max(0, k - cost_bits), max(0, k + q - cost_bits - price_bits)
    sent = [[u, v, *([x >> shift for x in row] for row in both)] for u, v, *both in messages]
    return [
        [min(k, cost_bits), price_bits],
        [[time, price >> much] for time, price in prices],
        sent,
        [[v, x, time, price >> much] for v, x, time, price in stars],
        squares,
    ]


SHARDING = ("bits", "prices", "messages", "stars", "squares")
"""Parts of a witness of sharding."""

FAMILIES = ("makespan", "period", "sharding")
