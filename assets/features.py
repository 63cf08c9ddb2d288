"""Asset ``features``: the feature frame and its walk-forward folds."""

import sys

import dagster as dg
from pydantic import Field

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.metadata import REUSED, column_schema, preview, table
from sluice.assets.partitioned_features import (
    StoredPartition,
    WorkloadSource,
    compute_partitioned_features,
)
from sluice.assets.receipt_subjects import feature_producer, raw_subject, require_same
from sluice.assets.record_io_manager import read_latest_record
from sluice.assets.resources import RECORDS, ProgressReporter, SluiceState
from sluice.assets.spans import spanned
from sluice.base.pluralize import pluralize
from sluice.base.receipts import require
from sluice.base.settings import Record
from sluice.cluster.settings import ComputeSettings
from sluice.data.folds import Fold
from sluice.data.table import TableRecord, load_table, save_table
from sluice.findings.user_code import wrap_user_errors
from sluice.workloads.workload import Workload


class FeatureSet(Record):
    """Stored feature frame (features, target and auxiliary columns) with its folds."""

    table: TableRecord
    raw: str = Field(description="Digest of the raw rows from which the features were computed.")
    maker: str = Field(description="Digest of the workload, its settings and its code.")
    folds: tuple[Fold, ...]
    partitions: tuple[StoredPartition, ...] = Field(
        (), description="Partitions of a workload that declares ``feature_partitions``."
    )


def features_asset(
    pipeline: str, workload: Workload, *, path: str, compute: ComputeSettings
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline, "features"],
        ins={"raw_data": dg.AssetIn(key=[pipeline, "raw_data"])},
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=pipeline,
        kinds={"pandas", "parquet"},
        description="Feature frame with one row per example: features computed from current and "
        "past rows, the target, and the walk-forward folds. Requires raw rows that passed their "
        "checks.",
    )
    @spanned
    def features(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[SluiceState],
        sluice_progress: dg.ResourceParam[ProgressReporter],
        raw_data: TableRecord,
    ) -> dg.MaterializeResult[FeatureSet]:
        with sluice_state.ledger() as ledger:
            subject = raw_subject(workload, raw_data.digest)
            require(ledger.find_receipt("raw_data", subject), gate="raw_data", subject=subject)
        raw = load_table(raw_data, sluice_state.store)
        producer = feature_producer(workload, path=path)
        partitions: tuple[StoredPartition, ...] = ()
        num_reused = 0
        with wrap_user_errors("compute_features or plan_folds of the workload"):
            if workload.feature_partitions is None:
                frame = workload.compute_features(raw)
            else:
                latest_features = read_latest_record(
                    FeatureSet, sluice_state.home.records, pipeline, "features"
                )
                computed_features = compute_partitioned_features(
                    workload,
                    raw,
                    latest_features.partitions
                    if latest_features is not None and latest_features.maker == producer
                    else (),
                    source=WorkloadSource(
                        path=path,
                        settings=workload.settings.model_dump(mode="json"),
                        sys_path=tuple(folder for folder in sys.path if folder),
                    ),
                    compute=compute,
                    store=sluice_state.store,
                    progress=sluice_progress,
                )
                frame, partitions = computed_features.frame, computed_features.partitions
                num_reused = computed_features.num_reused
                context.log.info(
                    f"{len(partitions) - num_reused} of {len(partitions)} partitions "
                    "computed, the others are unchanged"
                )
            folds = workload.plan_folds(frame)
        record = FeatureSet(
            table=save_table(frame, sluice_state.store),
            raw=raw_data.digest,
            maker=producer,
            folds=folds,
            partitions=partitions,
        )
        context.log.info(
            f"{len(frame)} rows, {pluralize(len(workload.feature_columns), 'feature')}"
        )
        return dg.MaterializeResult(
            value=record,
            data_version=dg.DataVersion(record.table.digest),
            metadata={
                "dagster/row_count": record.table.num_rows,
                "dagster/column_schema": column_schema(workload.feature_schema),
                "digest": record.table.digest,
                **({REUSED: f"{num_reused} of {len(partitions)} partitions"} if num_reused else {}),
                "target": workload.target_column,
                "folds": table(
                    [
                        {
                            "fold": fold.fold_id,
                            **{
                                name: f"{frame.index[rows.start]:%Y-%m-%d} to "
                                f"{frame.index[rows.stop - 1]:%Y-%m-%d} ({len(rows)})"
                                if hasattr(frame.index, "strftime")
                                else f"{rows.start} to {rows.stop - 1} ({len(rows)})"
                                for name, rows in (
                                    ("train", fold.train),
                                    ("validation", fold.val),
                                    ("test", fold.test),
                                )
                            },
                        }
                        for fold in folds
                    ]
                ),
                "rows": preview(frame),
            },
        )

    return features


def require_current_features(
    features: FeatureSet, raw_data: TableRecord, workload: Workload, *, path: str
) -> None:
    """Raise an error if the features were computed from other rows, or by another workload.

    Raises:
        GateBlocked: The rows, the workload, its settings or its code differ.
    """
    remedy = "Materialize features first."
    require_same(
        "The features' raw rows", made_for=features.raw, current=raw_data.digest, remedy=remedy
    )
    producer = feature_producer(workload, path=path)
    require_same("The features", made_for=features.maker, current=producer, remedy=remedy)
