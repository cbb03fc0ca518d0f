"""`learned-list`: a list scheduler whose priorities and choices of devices were learned on other
graphs.

One pass takes the best scores; further ones draw ops and devices by them. Nothing is learned on the
problem: every pass is a list schedule of at most a few milliseconds on some hundred ops.

References
----------
- H. Topcuoglu, S. Hariri, M.-Y. Wu. Performance-effective and low-complexity task scheduling for
  heterogeneous computing. IEEE TPDS 13(3), 2002. (HEFT, from which the weights began.)
- WeCAN: weighted cross-attention networks for scheduling on heterogeneous devices.
  arXiv 2603.23249. (One pass of scores, and a decoding that reaches every schedule.)
- T. Salimans et al. Evolution strategies as a scalable alternative to reinforcement learning. 2017.
  (Training.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from placeopt.solvers.heuristics.heuristic import Heuristic
from placeopt.solvers.policy.list_policy import ListPolicy, facts_of, trained
from placeopt.solving.options import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placeopt.model.placement import Placement
    from placeopt.solvers.heuristics.context import Context
    from placeopt.solving.tracker import Tracker


@dataclass(frozen=True)
class LearnedList(Heuristic):
    """A list scheduler with learned scores: the best ones first, then samples."""

    name: ClassVar[str] = "learned-list"
    kernels: ClassVar[tuple[str, ...]] = ("ranks", "lists", "learned-lists")

    passes: int = option(
        64, low=1, meaning="schedules: the first takes the best scores, the others are drawn"
    )
    policy: str = option(
        "", meaning="policy file; empty for the package's, heft for the one before any training"
    )

    def propose(self, context: Context, tracker: Tracker[Placement]) -> Iterator[Placement | None]:
        """Yield the schedule of the best scores, then drawn ones."""
        policy = first_policy(self.policy)
        facts, rng = facts_of(context), tracker.rng()
        for index in range(self.passes):
            random = int(rng.integers(1, 2**62)) if index else None
            yield context.fitted(policy.schedule(context, facts, random=random))


def first_policy(name: str) -> ListPolicy:
    """Return the policy that an option names."""
    if name == "heft":
        return ListPolicy.heft()
    return ListPolicy.load(name) if name else trained()
