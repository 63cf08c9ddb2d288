"""Asset ``raw_data``: rows of the source, stored under the digest of their content."""

import dagster as dg

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.metadata import column_schema, preview
from sluice.assets.resources import RECORDS, SluiceState
from sluice.assets.source_asset import provide_source, source_inputs
from sluice.assets.spans import spanned
from sluice.data.table import TableRecord, save_table
from sluice.findings.user_code import wrap_user_errors
from sluice.workloads.workload import Workload


def raw_data_asset(pipeline: str, workload: Workload) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline, "raw_data"],
        ins=source_inputs(workload),
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=pipeline,
        kinds={"pandas", "parquet"},
        description="Rows of the data source, unchanged. The data version is the digest of their "
        "content, so identical rows have the same version regardless of file and format.",
    )
    @spanned
    def raw_data(
        context: dg.AssetExecutionContext,
        /,
        sluice_state: dg.ResourceParam[SluiceState],
        **inputs: object,
    ) -> dg.MaterializeResult[TableRecord]:
        with (
            provide_source(workload, inputs),
            wrap_user_errors("load_rows of the workload"),
        ):
            frame = workload.load_rows()
        record = save_table(frame, sluice_state.store)
        context.log.info(f"{record.num_rows} rows, {record.first_label} to {record.last_label}")
        return dg.MaterializeResult(
            value=record,
            data_version=dg.DataVersion(record.digest),
            metadata={
                "dagster/row_count": record.num_rows,
                "dagster/column_schema": column_schema(workload.raw_schema),
                "from": str(record.first_label),
                "to": str(record.last_label),
                "digest": record.digest,
                "rows": preview(frame),
            },
        )

    return raw_data
