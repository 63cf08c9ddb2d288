"""Losses of one model on one test window by seed and row, and their table format.

Shape legend: S = seeds, N = test rows.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.digests import digest_json
from sluice.base.errors import ContractError, SourceError
from sluice.base.files import write_atomic
from sluice.base.pluralize import pluralize
from sluice.base.settings import suggest_nearest
from sluice.evaluation.loss_columns import (
    CLUSTER,
    cluster_of_rows,
    integer_column,
    loss_values,
    parse_labels,
    require_columns,
    sort_by_time,
)

SUFFIXES = (".parquet", ".csv")
"""Suffixes of supported files of losses."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossTable:
    """Losses of one model or rule on one window; within a fold the rows are in time order.

    A rule without random seeds has ``seeds == ()`` and a single line of losses (S = 1). Such a rule
    is deterministic, whereas a model with one seed is random.

    Losses may be NaN or infinite, because a diverged seed is evidence and remains in the table.

    Raises:
        ContractError: Shapes disagree, a seed or a (fold, row) is repeated, or the table is empty.
    """

    subject: str
    """Digest of the model or rule."""

    window: str
    """Digest of the scored data and rows."""

    seeds: tuple[int, ...]
    fold_N: NDArray[np.int64]
    """Fold id of each row."""
    label_N: NDArray[np.str_]
    """Label of each row, such as its date."""
    loss_SN: NDArray[np.float64]

    cluster_N: NDArray[np.str_] | None = None
    """Cluster of each row, such as the day of several assets; None without clusters."""

    source: str = ""
    """Display name for messages, such as the name of the file; '' to use the digest."""

    def __post_init__(self) -> None:
        expected_shape = (max(1, len(self.seeds)), self.label_N.size)
        num_rows = expected_shape[1]
        if self.cluster_N is not None and self.cluster_N.shape != (num_rows,):
            raise ContractError(
                f"Every row must have a cluster, got {self.cluster_N.size} for {num_rows} rows.",
                fix="Assign a cluster to every row, or to none.",
            )
        if (
            self.loss_SN.shape != expected_shape
            or self.fold_N.shape != (num_rows,)
            or num_rows == 0
        ):
            raise ContractError(
                f"Losses must have shape (seeds, rows) = {expected_shape} with at least one row, "
                f"got losses {self.loss_SN.shape} and folds {self.fold_N.shape}.",
                fix="Score every seed on every row.",
            )
        if len(set(self.seeds)) != len(self.seeds):
            raise ContractError(
                f"Seeds must be distinct, got {self.seeds}.", fix="Score each seed once."
            )
        fold_rows = pd.MultiIndex.from_arrays([self.fold_N, self.label_N])
        if not fold_rows.is_unique:
            fold, label = fold_rows[fold_rows.duplicated()][0]
            raise ContractError(
                "A (fold, row) must occur once per seed, got "
                f"{pluralize(int(fold_rows.duplicated().sum()), 'duplicate')}, first fold "
                f"{fold}, row {label}.",
                fix="Remove the duplicates; label the rows uniquely.",
            )

    @property
    def display_name(self) -> str:
        """Name of the table in messages."""
        return self.source or self.subject[:12]

    @property
    def is_deterministic(self) -> bool:
        """Whether the table belongs to a rule without random seeds."""
        return not self.seeds

    @property
    def num_rows(self) -> int:
        """Number of test rows over all folds, N."""
        return int(self.label_N.size)

    @property
    def diverged_seeds(self) -> tuple[int, ...]:
        """Seeds with at least one non-finite loss. They are reported, and never excluded."""
        diverged_indices = np.flatnonzero(~np.isfinite(self.loss_SN).all(axis=1))
        return tuple(self.seeds[index] for index in diverged_indices) if self.seeds else ()

    @property
    def num_distinct_seeds(self) -> int:
        """Number of seeds; seeds whose losses are equal bit by bit count once."""
        return len({row.tobytes() for row in self.loss_SN}) if self.seeds else 0

    def aligned_to(self, other: "LossTable") -> "LossTable":
        """Return this table with its rows in the order of ``other``.

        Raises:
            ContractError: The windows or the rows differ; the message names the differences.
        """
        has_same_rows = np.array_equal(self.fold_N, other.fold_N) and np.array_equal(
            self.label_N, other.label_N
        )
        if has_same_rows and self.window == other.window:
            return self._require_same_clusters(other)
        own_fold_rows = pd.MultiIndex.from_arrays([self.fold_N, self.label_N])
        other_fold_rows = pd.MultiIndex.from_arrays([other.fold_N, other.label_N])
        only_own, only_other = (
            own_fold_rows.difference(other_fold_rows),
            other_fold_rows.difference(own_fold_rows),
        )
        if len(only_own) or len(only_other):
            raise ContractError(
                f"Both arms must be scored on the same (fold, row) pairs: {len(only_own)} are "
                f"only in {self.display_name}{_describe_first(only_own)}, {len(only_other)} only "
                f"in {other.display_name}{_describe_first(only_other)}.",
                fix="Score both models on the same rows; label the rows the same way.",
            )
        if self.window != other.window:
            raise ContractError(
                f"Both arms must be scored on one window, got {self.window[:12]} and "
                f"{other.window[:12]} with the same row labels.",
                cause="The data changed between the two evaluations.",
                fix="Score both models again on the same data and folds.",
            )
        order_N = own_fold_rows.get_indexer(other_fold_rows)
        return LossTable(
            subject=self.subject,
            window=self.window,
            seeds=self.seeds,
            fold_N=self.fold_N[order_N],
            label_N=self.label_N[order_N],
            loss_SN=self.loss_SN[:, order_N],
            cluster_N=None if self.cluster_N is None else self.cluster_N[order_N],
            source=self.source,
        )._require_same_clusters(other)

    def _require_same_clusters(self, other: "LossTable") -> "LossTable":
        """Return this table if it has the same clusters as ``other``; raise an error otherwise."""
        own_clusters, other_clusters = self.cluster_N, other.cluster_N
        if (own_clusters is None) != (other_clusters is None) or not np.array_equal(
            [] if own_clusters is None else own_clusters,
            [] if other_clusters is None else other_clusters,
        ):
            raise ContractError(
                f"Both arms must have the same clusters, but the clusters of {self.display_name} "
                f"and {other.display_name} differ.",
                fix="Use the same column 'cluster' in both tables.",
            )
        return self

    def to_frame(self) -> pd.DataFrame:
        """Return the table in long format (seed, fold, row, loss); ``seed`` is empty without seeds.

        Clustered rows have an additional column ``cluster``.
        """
        seeds: Sequence[int | None] = self.seeds or (None,)
        clusters = {} if self.cluster_N is None else {CLUSTER: np.tile(self.cluster_N, len(seeds))}
        return pd.DataFrame(
            {
                "seed": pd.array(np.repeat(np.array(seeds, object), self.num_rows), dtype="Int64"),
                "fold": np.tile(self.fold_N, len(seeds)),
                "row": np.tile(self.label_N, len(seeds)),
                "loss": self.loss_SN.reshape(-1),
            }
            | clusters
        )

    @classmethod
    def from_frame(
        cls, frame: pd.DataFrame, *, subject: str, window: str | None = None
    ) -> "LossTable":
        """Build the table from the long format, with rows in any order.

        Rows are sorted by their labels: as numbers if all labels are numbers, as dates if all are
        ISO dates. Other labels must already be sorted as text.

        Args:
            frame: Columns seed, fold, row, loss. ``seed`` is empty in every row for a rule
                without seeds. An optional column ``cluster`` contains the cluster of each row.
            subject: Digest of the model or rule.
            window: Digest of the scored data and rows; None to use the digest of the (fold, row)
                pairs.

        Raises:
            ContractError: A column is missing or has an invalid value, a row occurs twice, a seed
                lacks rows that another seed has, or the labels do not determine the time order.
        """
        require_columns(frame)
        fold = integer_column(frame, "fold")
        seed = pd.Series(0, index=frame.index, dtype="int64")
        has_seeds = bool(frame["seed"].notna().any())
        if has_seeds:
            seed = integer_column(frame, "seed")
        parsed = pd.DataFrame(
            {
                "seed": seed,
                "fold": fold,
                "row": parse_labels(frame["row"]),
                "loss": loss_values(frame),
            }
        )
        is_repeated = parsed.duplicated(["seed", "fold", "row"])
        if is_repeated.any():
            repeated = parsed[is_repeated].iloc[0]
            raise ContractError(
                "A (seed, fold, row) must occur once, got "
                f"{pluralize(int(is_repeated.sum()), 'duplicate')}, first seed {repeated['seed']}, "
                f"fold {repeated['fold']}, row {repeated['row']}.",
                fix="Remove the duplicate rows.",
            )
        clusters = cluster_of_rows(frame, parsed)
        fold_rows = parsed[["fold", "row"]].drop_duplicates()
        fold_rows = sort_by_time(fold_rows)
        seeds = tuple(int(s) for s in sorted(parsed["seed"].unique()))
        present_triples = pd.MultiIndex.from_frame(parsed[["seed", "fold", "row"]])
        fold_N, label_N = fold_rows["fold"].to_numpy(np.int64), fold_rows["row"].to_numpy(np.str_)
        expected_triples = pd.MultiIndex.from_arrays(
            [
                np.repeat(seeds, len(fold_rows)),
                np.tile(fold_N, len(seeds)),
                np.tile(label_N, len(seeds)),
            ]
        )
        positions = present_triples.get_indexer(expected_triples)
        if (positions < 0).any():
            first_seed, first_fold, label = expected_triples[positions < 0][0]
            raise ContractError(
                f"Every seed must have every row, got {int((positions < 0).sum())} missing, first "
                f"seed {first_seed}, fold {first_fold}, row {label}.",
                fix="Score every seed on every row; write NaN where a seed failed.",
            )
        loss_SN = parsed["loss"].to_numpy(np.float64)[positions].reshape(len(seeds), len(fold_rows))
        return cls(
            subject=subject,
            window=window if window is not None else digest_of_rows(fold_N, label_N),
            seeds=seeds if has_seeds else (),
            fold_N=fold_N,
            label_N=label_N,
            loss_SN=loss_SN,
            cluster_N=None
            if clusters is None
            else clusters.loc[list(zip(fold_N, label_N, strict=True))].to_numpy(np.str_),
        )


def write_losses(table: LossTable, path: Path) -> None:
    """Write the long format to ``path`` atomically, as Parquet or CSV by its suffix."""
    buffer = io.BytesIO()
    if _suffix(path) == ".csv":
        table.to_frame().to_csv(buffer, index=False)
    else:
        table.to_frame().to_parquet(buffer, index=False)
    write_atomic(path, buffer.getvalue())


def read_losses(path: Path, *, subject: str, window: str | None = None) -> LossTable:
    """Read a file that ``write_losses`` wrote, or any other table with the same four columns.

    Raises:
        SourceError: The file is missing, empty, or its format does not match its suffix.
        ContractError: The table violates the contract of ``LossTable.from_frame``.
    """
    suffix = _suffix(path)
    try:
        frame = pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
    except FileNotFoundError:
        names = [file.name for file in path.parent.glob(f"*{suffix}")]
        raise SourceError(
            f"There is no file {path}.{suggest_nearest(path.name, sorted(names))}",
            fix="Correct the path of the losses.",
        ) from None
    except (OSError, ValueError) as error:
        # The errors of pandas and pyarrow for unreadable tables are subclasses of these two.
        raise SourceError(
            f"The losses in {path} cannot be read: {error}",
            fix="Use a Parquet or CSV file with the columns seed, fold, row, loss.",
        ) from error
    return LossTable.from_frame(frame, subject=subject, window=window)


def _suffix(path: Path) -> str:
    if path.suffix not in SUFFIXES:
        raise SourceError(
            f"A loss file must end in {' or '.join(SUFFIXES)}, got {path}.",
            fix="Rename or convert the file.",
        )
    return path.suffix


def _describe_first(fold_rows: pd.MultiIndex) -> str:
    return f" (first: fold {fold_rows[0][0]}, row {fold_rows[0][1]})" if len(fold_rows) else ""


def digest_of_rows(fold_N: NDArray[np.int64], label_N: NDArray[np.str_]) -> str:
    """Return the digest of the (fold, row) pairs, the default of ``LossTable.window``."""
    return digest_json([fold_N.tolist(), label_N.tolist()])
