"""The proof-of-concept gate: minutes of checks before hours of training."""

import tempfile
from pathlib import Path

import dagster as dg

from assets.features import FeatureSet
from assets.metadata import table
from assets.resources import Progress, State, utc_now
from assets.subjects import features_subject, maker, poc_subject, require_same
from sluice.data.table import load_table
from sluice.failfast.gate import CHECKS, run_gate
from sluice.failfast.result import CheckResult, GateReport
from sluice.pipeline import PipelineSettings
from sluice.receipts import require


def poc_report_asset(pipeline: PipelineSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, "poc_report"],
        ins={"features": dg.AssetIn(key=[pipeline.name, "features"])},
        group_name=f"{pipeline.name}_training",
        kinds={"pytorch"},
        owners=list(pipeline.owners),
        description="What a few seconds on real data say about a training of hours. Writes the "
        "receipt that training asks for (POC-1..5). Refuses features that did not pass their "
        "checks.",
    )
    def poc_report(
        context: dg.AssetExecutionContext,
        state: State,
        progress: dg.ResourceParam[Progress],
        features: FeatureSet,
    ) -> dg.MaterializeResult[GateReport]:
        data = features.table.digest
        require_same(
            "The features",
            made_for=features.maker,
            now=maker(pipeline),
            remedy="Materialize features first.",
        )
        subject = poc_subject(pipeline, data)
        finished: list[CheckResult] = []

        def heard(result: CheckResult) -> None:
            finished.append(result)
            context.log.info(f"{result.requirement} {result.name}: {result.outcome}")
            progress(f"{result.name}: {result.outcome}", done=len(finished), total=len(CHECKS))

        with state.ledger() as ledger, tempfile.TemporaryDirectory() as folder:
            checked = features_subject(pipeline, data)
            require(ledger.find_receipt("features", checked), gate="features", subject=checked)
            report = run_gate(
                pipeline.loaded_workload,
                load_table(features.table, state.store),
                features.folds,
                pipeline.model,
                pipeline.training,
                pipeline.poc,
                level="minimum",
                seed=pipeline.seeds[0],
                folder=Path(folder),
                clock=utc_now,
                on_result=heard,
            )
            ledger.record_receipt(report.receipt(subject, utc_now()))
        return dg.MaterializeResult(
            value=report,
            metadata={
                "passed": report.passed,
                "seconds": report.seconds,
                "checks": table(
                    [
                        {
                            "check": f"{r.requirement} {r.name}",
                            "outcome": r.outcome,
                            "seen": r.summary,
                            "seconds": r.seconds,
                        }
                        for r in report.results
                    ]
                ),
            },
        )

    return poc_report
