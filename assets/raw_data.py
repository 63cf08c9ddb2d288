"""The rows as the source holds them, under their content digest."""

import dagster as dg

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.metadata import column_schema, preview
from sluice.assets.resources import RECORDS, State
from sluice.assets.traced import traced
from sluice.config.pipeline import PipelineSettings
from sluice.data.table import TableRecord, save_table
from sluice.findings.user_code import users_code


def raw_data_asset(pipeline: PipelineSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, "raw_data"],
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=f"{pipeline.name}_data",
        kinds={"pandas", "parquet"},
        owners=list(pipeline.owners),
        description="Rows as the source holds them. The data version is the digest of their "
        "content: the same rows are the same version, whatever file they came in.",
    )
    @traced
    def raw_data(
        context: dg.AssetExecutionContext, sluice_state: dg.ResourceParam[State]
    ) -> dg.MaterializeResult[TableRecord]:
        workload = pipeline.loaded_workload
        with users_code("load_rows of the workload"):
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
