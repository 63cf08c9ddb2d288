"""Tests the split of rows over ranks: duplicate and missing rows, distribution of labels.

Shape legend: N = rows of the data set, R = ranks.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.base.format_range import format_range
from sluice.probes.result import ProbeResult, failed
from sluice.training.ranks import RankShard
from sluice.training.row_order import epoch_order

NAME = "shards"

_MIN_P_VALUE = 1e-6
"""p-value below which the label distributions of the ranks count as different."""

_MAX_CLASSES = 100
"""Maximum number of distinct labels that are compared one by one. With more, the sorted labels are
grouped into quarters with about equal numbers of rows."""

_MIN_EXPECTED_ROWS = 5
"""A label is part of the chi-squared test only if at least this number of its rows is expected on
every rank."""


def probe_shards(
    rows_of_ranks: Sequence[Iterable[int]],
    *,
    num_rows: int,
    labels_N: NDArray[Any] | None,
    max_row_difference: int,
) -> ProbeResult:
    """Find rows on several ranks or on none, unequal shards, and different label distributions.

    Duplicated or missing rows are a fault only if their number is not below the number of ranks:
    samplers repeat or drop rows at the end to give all ranks the same number of rows.

    Args:
        rows_of_ranks: Row numbers of each rank in one epoch, in order.
        num_rows: Number of rows of the data set (N).
        labels_N: Label of each row; None to skip the comparison of label distributions.
        max_row_difference: Maximum difference between the row counts of two ranks without a fault.

    Raises:
        ContractError: There are fewer than two ranks, a row is out of range, or the number of
            labels is wrong.
    """
    ranks = [np.asarray(list(rows), np.int64) for rows in rows_of_ranks]
    world_size = len(ranks)
    if world_size < 2:
        raise ContractError(
            f"Shards of at least two ranks are required, got {world_size}.",
            fix="Pass the rows of every rank.",
        )
    for rank, rows in enumerate(ranks):
        invalid_rows = rows[(rows < 0) | (rows >= num_rows)]
        if invalid_rows.size:
            raise ContractError(
                f"Rows must be from 0 to {num_rows - 1}, rank {rank} has {int(invalid_rows[0])}.",
                fix="Pass positions in the data set, not index labels.",
            )
    if labels_N is not None and len(labels_N) != num_rows:
        raise ContractError(
            f"A label for each of {num_rows} rows is required, got {len(labels_N)}.",
            fix="Pass the labels of the whole data set, in row order.",
        )
    numbers, fault_texts = _find_split_fault(ranks, num_rows, max_row_difference)
    p_value = None if labels_N is None else _label_p_value(ranks, labels_N)
    if p_value is not None:
        numbers["labels_p_value"] = p_value
    if fault_texts is None and p_value is not None and not p_value >= _MIN_P_VALUE:
        fault_texts = (
            f"The labels of the {world_size} ranks have different distributions: p-value "
            f"{p_value:.2g} of a chi-squared test "
            f"({_describe_largest_difference(ranks, labels_N)}).",
            "Ranks get contiguous blocks of rows that are sorted by label or by time.",
            "Shuffle all rows with one seed before they are split over the ranks.",
        )
    if fault_texts is not None:
        return failed(NAME, *fault_texts, numbers)
    labels_text = "not compared"
    if p_value is not None:
        labels_text = f"equally distributed (p-value {p_value:.2g})"
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"{num_rows:,} rows on {world_size} ranks: {numbers['rows_twice']} duplicated, "
        f"{numbers['rows_missing']} missing, "
        f"{format_range(numbers['min_rows'], numbers['max_rows'])} rows per rank, labels "
        f"{labels_text}.",
        numbers=numbers,
    )


def sampled_rows(
    make_sampler: Callable[[int, int], Iterable[int]], *, world_size: int
) -> list[list[int]]:
    """Return the rows of each rank, from a sampler constructed with (rank, world_size)."""
    return [[int(row) for row in make_sampler(rank, world_size)] for rank in range(world_size)]


def split_rows(num_rows: int, *, batch_rows: int, world_size: int, seed: int) -> list[list[int]]:
    """Return the rows that each rank gets from the trainer in its first epoch."""
    batches = epoch_order(num_rows, seed=seed, epoch=1).part(0, num_rows).split(batch_rows)
    ranks: list[list[int]] = []
    for rank in range(world_size):
        shard = RankShard(rank=rank, world_size=world_size)
        # A rank without a row of a batch has a placeholder row with weight 0, which is omitted.
        rows_by_batch = [
            shard.local_rows(batch)
            for batch in batches
            if shard.share(batch, lambda y: float(len(y))) > 0
        ]
        ranks.append([int(row) for rows in rows_by_batch for row in rows])
    return ranks


def _find_split_fault(
    ranks: list[NDArray[np.int64]], num_rows: int, max_row_difference: int
) -> tuple[dict[str, float | int | str], tuple[str, str, str] | None]:
    """Return the measured numbers, and observation, cause and fix of the first fault, or None."""
    world_size, sizes = len(ranks), [len(rows) for rows in ranks]
    occurrences_by_row = Counter(int(row) for rows in ranks for row in rows)
    num_ranks_by_row = Counter(int(row) for rows in ranks for row in set(rows.tolist()))
    shared_rows = sorted(row for row, count in num_ranks_by_row.items() if count > 1)
    duplicate_rows = sorted(row for row, count in occurrences_by_row.items() if count > 1)
    missing_rows = sorted(set(range(num_rows)) - occurrences_by_row.keys())
    numbers: dict[str, float | int | str] = {
        "ranks": world_size,
        "rows_twice": len(duplicate_rows),
        "rows_missing": len(missing_rows),
        "min_rows": min(sizes),
        "max_rows": max(sizes),
    }
    if len(shared_rows) >= world_size:
        are_identical = len(shared_rows) == num_rows == max(sizes)
        remark = " All ranks have the same rows." if are_identical else ""
        return numbers, (
            f"{len(shared_rows):,} of {num_rows:,} rows are on several ranks (the first is row "
            f"{shared_rows[0]}), and {len(missing_rows):,} are on no rank.{remark}",
            "There is no distributed sampler, or the ranks use different seeds.",
            "Use a DistributedSampler with the same seed on every rank.",
        )
    if len(duplicate_rows) >= world_size:
        return numbers, (
            f"{len(duplicate_rows):,} of {num_rows:,} rows are duplicated within a rank; the first "
            f"is row {duplicate_rows[0]}.",
            "The sampler draws with replacement, or repeats rows.",
            "Draw each row once per epoch.",
        )
    if len(missing_rows) >= world_size:
        return numbers, (
            f"{len(missing_rows):,} of {num_rows:,} rows are on no rank; the first is row "
            f"{missing_rows[0]}.",
            "The split omits some rows, or assumes more ranks than exist.",
            "Split by the actual number of ranks.",
        )
    if max(sizes) - min(sizes) > max_row_difference:
        return numbers, (
            f"Rank {int(np.argmax(sizes))} has {max(sizes):,} rows and rank "
            f"{int(np.argmin(sizes))} has {min(sizes):,}.",
            "Ranks with unequal numbers of steps block each other, and rows of smaller ranks get "
            "more weight.",
            "Give each rank the same number of rows: repeat or drop rows at the end.",
        )
    return numbers, None


def _label_p_value(ranks: list[NDArray[np.int64]], labels_N: NDArray[Any]) -> float | None:
    """Return the p-value of a chi-squared test that all ranks have the same label distribution.

    Returns None if fewer than two labels have enough expected rows on every rank, or if a rank has
    none of these labels.
    """
    from scipy.stats import chi2_contingency

    table = _label_table(ranks, labels_N)[0]
    expected_counts = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / max(table.sum(), 1)
    is_frequent = (expected_counts >= _MIN_EXPECTED_ROWS).all(axis=0)
    tested_table = table[:, is_frequent]
    if tested_table.shape[1] < 2 or not tested_table.sum(axis=1).all():
        return None
    return float(chi2_contingency(tested_table, correction=False).pvalue)


def _describe_largest_difference(
    ranks: list[NDArray[np.int64]], labels_N: NDArray[Any] | None
) -> str:
    """Describe the shares by rank of the label whose share differs most between ranks."""
    assert labels_N is not None
    table, names = _label_table(ranks, labels_N)
    shares = table / table.sum(axis=1, keepdims=True)
    index = int(np.argmax(shares.max(axis=0) - shares.min(axis=0)))
    shares_text = ", ".join(f"{share:.1%}" for share in shares[:8, index])
    return f"shares of label {names[index]} by rank: {shares_text}"


def _label_table(
    ranks: list[NDArray[np.int64]], labels_N: NDArray[Any]
) -> tuple[NDArray[np.float64], list[str]]:
    """Return the number of rows by rank and label, and the names of the labels."""
    values, codes = np.unique(labels_N, return_inverse=True)
    names = [str(value) for value in values]
    if len(values) > _MAX_CLASSES:
        edges = np.quantile(codes, [0.25, 0.5, 0.75])
        codes = np.searchsorted(edges, codes)
        names = [f"quarter {i + 1}" for i in range(4)]
    counts = [np.bincount(codes[rows], minlength=len(names)) for rows in ranks]
    return np.array(counts, np.float64), names
