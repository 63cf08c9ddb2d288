"""What rules between ranks share: the rows of each rank, and whether ranks learn together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from sluice.trace.evidence.batches import EpochPrint, LoaderFact
from sluice.trace.evidence.trace import Trace
from sluice.trace.rules.loaders import epochs_of, learned_from
from sluice.trace.sketches import limit_of, share_below, up_to

_WHOLE = 0.9
_PART = 0.75


@dataclass(frozen=True, slots=True)
class Shards:
    """One epoch of one loader that all ranks learn from: the first rank first."""

    loaders: tuple[LoaderFact, ...]
    epochs: tuple[EpochPrint, ...]

    @property
    def overlap(self) -> tuple[int, int]:
        """Rows of one rank that another one has, too, and of how many: the worst pair.

        Told by the contents of rows, as row numbers may be those of different tables.
        """
        limit = limit_of([e.contents for e in self.epochs])
        sets = [up_to(limit, e.contents) for e in self.epochs]
        pairs = [(len(a & b), min(len(a), len(b))) for a, b in combinations(sets, 2) if a and b]
        return max(pairs, default=(0, 0), key=lambda pair: pair[0] / pair[1])

    @property
    def repeats(self) -> float:
        """Share of the rows of one rank that it has twice itself: the worst rank."""
        return max(
            1 - len(e.contents.values) / e.num_contents
            if e.num_contents and e.contents.is_whole
            else 0.0
            for e in self.epochs
        )

    @property
    def has_same_order(self) -> bool:
        """All ranks were given the same row numbers in the same order."""
        told = {(e.order, e.num_indices) for e in self.epochs}
        return len(told) == 1 and self.epochs[0].num_indices > 0

    @property
    def is_divided(self) -> bool:
        """Each rank's loader gives a part of the rows that it was made over."""
        if any(loader.replicas > 1 for loader in self.loaders):
            return True
        return all(
            e.is_finished and 0 < e.num_indices < _PART * loader.num_rows
            for e, loader in zip(self.epochs, self.loaders, strict=True)
        )

    @property
    def are_copies(self) -> bool:
        """Nobody divides the rows: what one rank has, every other has."""
        shared, of = self.overlap
        if self.is_divided:
            return shared >= _WHOLE * of and self.has_same_order
        if all(e.is_finished and e.num_contents >= e.num_indices > 0 for e in self.epochs):
            return shared >= _WHOLE * of
        return True

    @property
    def missing(self) -> tuple[int, int]:
        """Rows that no rank has, and of how many, from a sample of them; (0, 0) when unknown."""
        rows = {loader.num_rows for loader in self.loaders}
        if len(rows) != 1 or not all(e.is_finished and e.num_indices for e in self.epochs):
            return 0, 0
        limit = limit_of([e.numbers for e in self.epochs])
        seen = frozenset().union(*(up_to(limit, e.numbers) for e in self.epochs))
        of = round(rows.pop() * share_below(limit))
        return max(of - len(seen), 0), of


def shards_in(traces: Sequence[Trace]) -> tuple[Shards, ...]:
    """Return the first epoch of each loader that all ranks learn from."""
    found = []
    for index in sorted(frozenset.intersection(*map(learned_from, traces))):
        epochs = [next(iter(epochs_of(trace, index)), None) for trace in traces]
        loaders = [next((x for x in t.loaders if x.index == index), None) for t in traces]
        told = tuple(e for e in epochs if e is not None)
        known = tuple(x for x in loaders if x is not None)
        if len(told) == len(known) == len(traces):
            found.append(Shards(known, told))
    return tuple(found)


def learns_together(traces: Sequence[Trace]) -> bool:
    """Tell whether every rank has something that makes the weights those of all ranks."""
    return all(trace.wrappers for trace in traces)
