"""Whether ranks share the rows fairly: none twice, none missing, labels alike (TRACE-5).

Shape legend: N = rows of the data set, R = ranks.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.base.errors import ContractError
from sluice.probes.result import ProbeResult, failed
from sluice.training.batches import epoch_order
from sluice.training.ranks import Split

NAME, REQUIREMENT = "shards", "TRACE-5"

_UNLIKELY = 1e-6
"""Below this chance the labels of ranks are not alike."""

_MOST_CLASSES = 100
"""More different labels than these are numbers, and are cut into quarters."""

_EXPECTED = 5
"""Fewest rows of a label that a rank must expect for a chi-square."""


def probe_shards(
    rows_of_ranks: Sequence[Iterable[int]],
    *,
    num_rows: int,
    labels_N: NDArray[Any] | None,
    most_uneven_rows: int,
) -> ProbeResult:
    """Look for rows on several ranks, rows on none, uneven ranks and labels that differ.

    A few rows less than there are ranks may be twice or missing: samplers fill up or cut the end.

    Args:
        rows_of_ranks: Row numbers of each rank in one epoch, in order.
        num_rows: N.
        labels_N: Label of each row; None when there is none to compare.
        most_uneven_rows: Rows that one rank may have more than another.

    Raises:
        ContractError: There are fewer than two ranks, a row is outside, or labels are too few.
    """
    ranks = [np.asarray(list(rows), np.int64) for rows in rows_of_ranks]
    world = len(ranks)
    if world < 2:
        raise ContractError(
            f"Shards are compared between at least two ranks, got {world}.",
            fix="Give the rows of every rank.",
        )
    for rank, rows in enumerate(ranks):
        outside = rows[(rows < 0) | (rows >= num_rows)]
        if outside.size:
            raise ContractError(
                f"Rows must be 0 to {num_rows - 1}, rank {rank} has {int(outside[0])}.",
                fix="Give positions in the data set, not keys.",
            )
    if labels_N is not None and len(labels_N) != num_rows:
        raise ContractError(
            f"A label for each of {num_rows} rows is needed, got {len(labels_N)}.",
            fix="Give the labels of the whole data set, in row order.",
        )
    numbers, offence = _membership(ranks, num_rows, most_uneven_rows)
    chance = None if labels_N is None else _chance_of_labels(ranks, labels_N)
    if chance is not None:
        numbers["chance_of_labels"] = chance
    if offence is None and chance is not None and not chance >= _UNLIKELY:
        offence = (
            f"The labels of the {world} ranks are not alike: by chance so far apart with "
            f"probability {chance:.2g} ({_most_apart(ranks, labels_N)}).",
            "Ranks take blocks of rows that are sorted by label, or by time.",
            "Shuffle all rows with one seed before they are split among ranks.",
        )
    if offence is not None:
        return failed(NAME, REQUIREMENT, *offence, numbers)
    labels = "not compared" if chance is None else f"alike (chance {chance:.2g})"
    return ProbeResult(
        name=NAME,
        requirement=REQUIREMENT,
        outcome="pass",
        seen=f"{num_rows:,} rows on {world} ranks: {numbers['rows_twice']} on several, "
        f"{numbers['rows_missing']} on none, {numbers['fewest_rows']} to {numbers['most_rows']} "
        f"rows a rank, labels {labels}.",
        numbers=numbers,
    )


def sampled_rows(
    make_sampler: Callable[[int, int], Iterable[int]], *, world: int
) -> list[list[int]]:
    """Return the rows of each rank, from a sampler made with (rank, world)."""
    return [[int(row) for row in make_sampler(rank, world)] for rank in range(world)]


def split_rows(num_rows: int, *, batch_rows: int, world: int, seed: int) -> list[list[int]]:
    """Return the rows of each rank as the trainer splits its batches, in its first epoch."""
    parts = epoch_order(num_rows, seed=seed, epoch=1).split(batch_rows)
    ranks: list[list[int]] = []
    for rank in range(world):
        split = Split(rank=rank, world=world)
        # A rank without a row of a batch is lent one, which weighs nothing.
        own = [split.own(part) for part in parts if split.share(part, lambda y: float(len(y))) > 0]
        ranks.append([int(row) for rows in own for row in rows])
    return ranks


def _membership(
    ranks: list[NDArray[np.int64]], num_rows: int, most_uneven_rows: int
) -> tuple[dict[str, float | int | str], tuple[str, str, str] | None]:
    world, sizes = len(ranks), [len(rows) for rows in ranks]
    held = Counter(int(row) for rows in ranks for row in rows)
    on_several = Counter(int(row) for rows in ranks for row in set(rows.tolist()))
    shared = sorted(row for row, count in on_several.items() if count > 1)
    twice = sorted(row for row, count in held.items() if count > 1)
    missing = sorted(set(range(num_rows)) - held.keys())
    numbers: dict[str, float | int | str] = {
        "ranks": world,
        "rows_twice": len(twice),
        "rows_missing": len(missing),
        "fewest_rows": min(sizes),
        "most_rows": max(sizes),
    }
    if len(shared) >= world:
        alike = " All ranks have the same rows." if len(shared) == num_rows == max(sizes) else ""
        return numbers, (
            f"{len(shared):,} of {num_rows:,} rows are on several ranks, the first is row "
            f"{shared[0]}; {len(missing):,} are on none.{alike}",
            "No sampler that splits, or one that every rank seeds differently.",
            "Use a DistributedSampler with the same seed on every rank.",
        )
    if len(twice) >= world:
        return numbers, (
            f"{len(twice):,} of {num_rows:,} rows come twice on one rank, the first is row "
            f"{twice[0]}.",
            "The sampler draws with replacement, or repeats rows.",
            "Draw each row once an epoch.",
        )
    if len(missing) >= world:
        return numbers, (
            f"{len(missing):,} of {num_rows:,} rows are on no rank, the first is row {missing[0]}.",
            "The split leaves a part out, or is made for more ranks than there are.",
            "Split by the real number of ranks.",
        )
    if max(sizes) - min(sizes) > most_uneven_rows:
        return numbers, (
            f"Rank {int(np.argmax(sizes))} has {max(sizes):,} rows and rank "
            f"{int(np.argmin(sizes))} has {min(sizes):,}.",
            "Ranks that take unequal numbers of steps wait for each other for ever, and rows of "
            "small ranks weigh more.",
            "Give each rank the same number of rows: fill up or cut the end.",
        )
    return numbers, None


def _chance_of_labels(ranks: list[NDArray[np.int64]], labels_N: NDArray[Any]) -> float | None:
    """Return the chi-square's chance that labels are split at random; None with too few rows."""
    from scipy.stats import chi2_contingency

    table = _table(ranks, labels_N)[0]
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / max(table.sum(), 1)
    enough = table[:, (expected >= _EXPECTED).all(axis=0)]
    if enough.shape[1] < 2 or not enough.sum(axis=1).all():
        return None
    return float(chi2_contingency(enough, correction=False).pvalue)


def _most_apart(ranks: list[NDArray[np.int64]], labels_N: NDArray[Any] | None) -> str:
    assert labels_N is not None
    table, names = _table(ranks, labels_N)
    shares = table / table.sum(axis=1, keepdims=True)
    worst = int(np.argmax(shares.max(axis=0) - shares.min(axis=0)))
    by_rank = ", ".join(f"{share:.1%}" for share in shares[:8, worst])
    return f"label {names[worst]} has {by_rank} of the rows by rank"


def _table(
    ranks: list[NDArray[np.int64]], labels_N: NDArray[Any]
) -> tuple[NDArray[np.float64], list[str]]:
    """Return counts by rank and label, and the labels' names."""
    values, codes = np.unique(labels_N, return_inverse=True)
    names = [str(value) for value in values]
    if len(values) > _MOST_CLASSES:
        edges = np.quantile(labels_N, [0.25, 0.5, 0.75])
        codes, names = np.searchsorted(edges, labels_N), [f"quarter {i + 1}" for i in range(4)]
    counts = [np.bincount(codes[rows], minlength=len(names)) for rows in ranks]
    return np.array(counts, np.float64), names
