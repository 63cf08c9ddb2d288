"""Rows that each rank of a distributed run receives, and whether ranks average gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.records.batches import EpochRecord, LoaderRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loaders import loader_epochs, training_loader_indices
from sluice.trace.rules._helpers.sketches import common_threshold, hash_share_up_to, values_up_to


class ShardSettings(Settings):
    """Thresholds of the comparison of the rows that ranks receive."""

    min_copy_share: float = Field(
        0.9, gt=0, le=1, description="Share of common rows from which two shards are copies."
    )
    max_shard_share: float = Field(
        0.75,
        gt=0,
        le=1,
        description="Share of the dataset's rows per rank up to which the dataset is divided.",
    )
    min_shared_rows: int = Field(
        8,
        ge=1,
        description="Rows that two ranks must share: a sampler that evens out the shards repeats "
        "a few rows.",
    )
    min_shared_share: float = Field(
        0.03, gt=0, le=1, description="Share of the rows of a rank that must be on another rank."
    )


@dataclass(frozen=True, slots=True)
class LoaderShards:
    """One epoch of one loader that all ranks train on; ranks in ascending order."""

    loaders: tuple[LoaderRecord, ...]
    epochs: tuple[EpochRecord, ...]
    settings: ShardSettings

    @property
    def overlap(self) -> tuple[int, int]:
        """Number of rows that one rank shares with another, and of how many: the worst pair.

        Rows are compared by content, because row numbers may belong to different tables.
        """
        limit = common_threshold([e.contents for e in self.epochs])
        sets = [values_up_to(limit, e.contents) for e in self.epochs]
        pairs = [(len(a & b), min(len(a), len(b))) for a, b in combinations(sets, 2) if a and b]
        return max(pairs, default=(0, 0), key=lambda pair: pair[0] / pair[1])

    @property
    def repeats(self) -> float:
        """Share of a rank's rows that the rank receives more than once: the worst rank."""
        return max(
            1 - len(e.contents.values) / e.num_contents
            if e.num_contents and e.contents.is_complete
            else 0.0
            for e in self.epochs
        )

    @property
    def has_same_order(self) -> bool:
        """Whether all ranks received the same row numbers in the same order."""
        recorded = {(e.order, e.num_indices) for e in self.epochs}
        return len(recorded) == 1 and self.epochs[0].num_indices > 0

    @property
    def is_divided(self) -> bool:
        """Whether each rank's loader yields only a part of the dataset that it was built on."""
        if any(loader.replicas > 1 for loader in self.loaders):
            return True
        return all(
            e.is_finished and 0 < e.num_indices < self.settings.max_shard_share * loader.num_rows
            for e, loader in zip(self.epochs, self.loaders, strict=True)
        )

    @property
    def are_copies(self) -> bool:
        """Whether the dataset is not divided: every rank receives the rows of the others."""
        shared, of = self.overlap
        if self.is_divided:
            return shared >= self.settings.min_copy_share * of and self.has_same_order
        if all(e.is_finished and e.num_contents >= e.num_indices > 0 for e in self.epochs):
            return shared >= self.settings.min_copy_share * of
        return True

    @property
    def is_overlapping(self) -> bool:
        """Whether ranks share more rows than each rank repeats within its own shard."""
        shared, of = self.overlap
        is_shared = shared >= max(
            self.settings.min_shared_rows, self.settings.min_shared_share * of
        )
        return is_shared and self.repeats < shared / of / 4

    @property
    def missing(self) -> tuple[int, int]:
        """Estimated number of rows that no rank receives, and of how many; (0, 0) when unknown."""
        rows = {loader.num_rows for loader in self.loaders}
        if len(rows) != 1 or not all(e.is_finished and e.num_indices for e in self.epochs):
            return 0, 0
        limit = common_threshold([e.row_numbers for e in self.epochs])
        seen = frozenset().union(*(values_up_to(limit, e.row_numbers) for e in self.epochs))
        of = round(rows.pop() * hash_share_up_to(limit))
        return max(of - len(seen), 0), of


def find_shards(traces: Sequence[Trace], settings: ShardSettings) -> tuple[LoaderShards, ...]:
    """Return the first epoch of each loader that all ranks train on."""
    found = []
    for index in sorted(frozenset.intersection(*map(training_loader_indices, traces))):
        epochs = [next(iter(loader_epochs(trace, index)), None) for trace in traces]
        loaders = [next((x for x in t.loaders if x.index == index), None) for t in traces]
        recorded = tuple(e for e in epochs if e is not None)
        known = tuple(x for x in loaders if x is not None)
        if len(recorded) == len(known) == len(traces):
            found.append(LoaderShards(known, recorded, settings))
    return tuple(found)


def synchronizes_gradients(traces: Sequence[Trace]) -> bool:
    """Whether every rank averages its gradients with the others, by a wrapper or manually."""
    return all(trace.wrappers for trace in traces)
