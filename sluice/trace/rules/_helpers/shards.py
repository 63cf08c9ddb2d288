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
    """Thresholds that decide whether ranks receive separate, overlapping or equal rows.

    A shard is the set of rows that one rank receives.
    """

    min_copy_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Two shards count as copies if at least this share of the smaller shard's rows "
        "are also in the other shard.",
    )
    max_shard_share: float = Field(
        0.75,
        gt=0,
        le=1,
        description="The dataset counts as divided if the loader of every rank yields less than "
        "this share of the rows.",
    )
    min_shared_rows: int = Field(
        8,
        ge=1,
        description="Two shards count as overlapping only if they share at least this number of "
        "rows. Fewer shared rows are normal: a DistributedSampler repeats a few rows so that all "
        "shards have the same length.",
    )
    min_shared_share: float = Field(
        0.03,
        gt=0,
        le=1,
        description="Two shards count as overlapping only if at least this share of the smaller "
        "shard's rows are also in the other shard.",
    )
    min_shared_to_repeated: float = Field(
        4.0,
        ge=1,
        description="Two shards count as overlapping only if the share of common rows is more than "
        "this factor times the share of repeated rows within a shard. Sampling with replacement "
        "repeats rows within a shard as well as between shards.",
    )


@dataclass(frozen=True, slots=True)
class LoaderShards:
    """One epoch of one loader that all ranks train on. The tuples have one item per rank."""

    loader_by_rank: tuple[LoaderRecord, ...]
    epoch_by_rank: tuple[EpochRecord, ...]
    settings: ShardSettings

    @property
    def overlap(self) -> tuple[int, int]:
        """Number of rows that two ranks share, and number of rows of the smaller shard.

        Of all pairs of ranks, the pair with the largest share of common rows is used. Rows are
        compared by content, because row indices may belong to different tables. If the sketches are
        incomplete, only a sample of the rows is compared and counted.
        """
        max_hash = common_threshold([e.contents for e in self.epoch_by_rank])
        row_sets = [values_up_to(max_hash, e.contents) for e in self.epoch_by_rank]
        overlaps = [
            (len(a & b), min(len(a), len(b))) for a, b in combinations(row_sets, 2) if a and b
        ]
        return max(overlaps, default=(0, 0), key=lambda overlap: overlap[0] / overlap[1])

    @property
    def repeated_share(self) -> float:
        """Share of the rows of a rank that repeat an earlier row, on the rank with most repeats."""
        return max(
            1 - len(e.contents.values) / e.num_contents
            if e.num_contents and e.contents.is_complete
            else 0.0
            for e in self.epoch_by_rank
        )

    @property
    def has_same_order(self) -> bool:
        """Whether all ranks received the same row indices in the same order."""
        distinct_orders = {(e.order, e.num_indices) for e in self.epoch_by_rank}
        return len(distinct_orders) == 1 and self.epoch_by_rank[0].num_indices > 0

    @property
    def is_divided(self) -> bool:
        """Whether a sampler shards the dataset, or every rank's loader yields only a part of it."""
        if any(loader.replicas > 1 for loader in self.loader_by_rank):
            return True
        return all(
            e.is_finished and 0 < e.num_indices < self.settings.max_shard_share * loader.num_rows
            for e, loader in zip(self.epoch_by_rank, self.loader_by_rank, strict=True)
        )

    @property
    def may_be_copies(self) -> bool:
        """Whether two ranks receive the same rows, as far as the recorded rows show.

        If the dataset is divided, all ranks must also receive the rows in the same order. If the
        dataset is not divided, and not all rows of the epoch were recorded, the result is True.
        """
        num_shared_rows, num_rows = self.overlap
        has_same_rows = num_shared_rows >= self.settings.min_copy_share * num_rows
        if self.is_divided:
            return has_same_rows and self.has_same_order
        if all(e.is_finished and e.num_contents >= e.num_indices > 0 for e in self.epoch_by_rank):
            return has_same_rows
        return True

    @property
    def is_overlapping(self) -> bool:
        """Whether two ranks share far more rows than any rank repeats within its own shard."""
        num_shared_rows, num_rows = self.overlap
        settings = self.settings
        min_shared_rows = max(settings.min_shared_rows, settings.min_shared_share * num_rows)
        return num_shared_rows >= min_shared_rows and (
            self.repeated_share * settings.min_shared_to_repeated < num_shared_rows / num_rows
        )

    @property
    def missing_rows(self) -> tuple[int, int]:
        """Estimated number of dataset rows that no rank receives, and number of compared rows.

        If the sketches are incomplete, only a sample of the rows is compared. (0, 0) if unknown.
        """
        dataset_sizes = {loader.num_rows for loader in self.loader_by_rank}
        if len(dataset_sizes) != 1 or not all(
            e.is_finished and e.num_indices for e in self.epoch_by_rank
        ):
            return 0, 0
        max_hash = common_threshold([e.row_numbers for e in self.epoch_by_rank])
        received_rows = frozenset().union(
            *(values_up_to(max_hash, e.row_numbers) for e in self.epoch_by_rank)
        )
        num_rows = round(dataset_sizes.pop() * hash_share_up_to(max_hash))
        return max(num_rows - len(received_rows), 0), num_rows


def find_shards(traces: Sequence[Trace], settings: ShardSettings) -> tuple[LoaderShards, ...]:
    """Return the first recorded epoch of each loader that all ranks train on."""
    shards = []
    for index in sorted(frozenset.intersection(*map(training_loader_indices, traces))):
        epochs = [e for trace in traces for e in loader_epochs(trace, index)[:1]]
        loaders = [next((x for x in trace.loaders if x.index == index), None) for trace in traces]
        recorded_loaders = tuple(loader for loader in loaders if loader is not None)
        if len(epochs) == len(recorded_loaders) == len(traces):
            shards.append(LoaderShards(recorded_loaders, tuple(epochs), settings))
    return tuple(shards)


def synchronizes_gradients(traces: Sequence[Trace]) -> bool:
    """Whether every rank averages its gradients with the others, by a wrapper or manually."""
    return all(trace.wrappers for trace in traces)
