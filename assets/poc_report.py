"""Asset ``poc_report``: the proof-of-concept gate, whose checks take seconds."""

import dagster as dg

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.features import FeatureSet, require_current_features
from sluice.assets.metadata import table
from sluice.assets.receipt_subjects import features_subject, poc_subject
from sluice.assets.resources import RECORDS, ProgressReporter, SluiceState, utc_now
from sluice.assets.spans import spanned
from sluice.base.receipts import require
from sluice.config.poc_settings import PocSettings
from sluice.config.resolved import TrainingInputs
from sluice.data.table import TableRecord
from sluice.failfast.gate.inputs import StoredData
from sluice.failfast.gate.messages import CheckStarted
from sluice.failfast.gate.plan import GatePlan
from sluice.failfast.gate.request import GateRequest, PipelineTarget
from sluice.failfast.gate.supervisor import supervise
from sluice.failfast.result import CheckResult, GateReport


def poc_report_asset(
    pipeline: str,
    inputs: TrainingInputs,
    poc: PocSettings,
    *,
    seed: int,
    guarded_metrics: tuple[str, ...],
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline, "poc_report"],
        ins={name: dg.AssetIn(key=[pipeline, name]) for name in ("raw_data", "features")},
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=pipeline,
        kinds={"pytorch"},
        description="Proof-of-concept gate: quick checks of data, loss, gradients and learning. "
        "They use a small part of the real data, before hours of training. Writes the receipt that "
        "search and training require. Requires features that passed their checks. Runs in a "
        "separate process, which is stopped if it hangs.",
    )
    @spanned
    def poc_report(
        context: dg.AssetExecutionContext,
        sluice_state: dg.ResourceParam[SluiceState],
        sluice_progress: dg.ResourceParam[ProgressReporter],
        raw_data: TableRecord,
        features: FeatureSet,
    ) -> dg.MaterializeResult[GateReport]:
        data_digest = features.table.digest
        require_current_features(features, raw_data, inputs.workload, path=inputs.path)
        subject = poc_subject(inputs, poc, data_digest)
        request = GateRequest(
            target=PipelineTarget(
                name=pipeline,
                path=inputs.path,
                workload_settings=inputs.workload_settings,
                model=inputs.model,
                training=inputs.training,
                poc=poc,
                guarded_metrics=guarded_metrics,
                stored_data=StoredData(
                    raw=raw_data,
                    features=features.table,
                    folds=features.folds,
                    artifacts=sluice_state.home.artifacts,
                ),
            ),
            level="full",
            seed=seed,
        )
        with sluice_state.ledger() as ledger:
            required_subject = features_subject(
                inputs.workload, data_digest, path=inputs.path, look_ahead=poc.look_ahead
            )
            require(
                ledger.find_receipt("features", required_subject),
                gate="features",
                subject=required_subject,
            )
            run = supervise(
                request,
                folder=sluice_state.home.gates,
                on_event=_GateProgress(context, sluice_progress),
            )
            report = run.report
            ledger.record_receipt(report.receipt(subject, utc_now()))
        return dg.MaterializeResult(
            value=report,
            metadata={
                "passed": report.passed,
                "seconds": report.seconds,
                "log": dg.MetadataValue.path(str(run.log)) if run.log else "could not be written",
                "checks": table(
                    [
                        {
                            "check": r.name,
                            "outcome": r.outcome,
                            "result": r.summary,
                            "seconds": r.seconds,
                        }
                        for r in report.results
                    ]
                ),
                **hard_examples(report),
            },
        )

    return poc_report


class _GateProgress:
    """Writes the messages of the POC gate to Dagster's log and reports its progress."""

    def __init__(self, context: dg.AssetExecutionContext, progress: ProgressReporter) -> None:
        self._log = context.log
        self._progress = progress
        self._num_done = 0
        self._num_checks = 1

    def __call__(self, message: GatePlan | CheckStarted | CheckResult) -> None:
        match message:
            case GatePlan(checks=checks):
                self._num_checks = len(checks) + 1  # the last one checks the run time of the gate
            case CheckStarted(name=name):
                self._progress(name, num_done=self._num_done, total=self._num_checks)
            case CheckResult():
                self._num_done += 1
                self._log.info(
                    f"{message.name}: {message.outcome} after "
                    f"{message.seconds:.2f} s. {message.summary}"
                )
                text = f"{message.name}: {message.outcome}"
                self._progress(text, num_done=self._num_done, total=self._num_checks)


def hard_examples(report: GateReport) -> dict[str, dg.MetadataValue]:
    """Return the hardest examples of the mini training as metadata; empty if not reported."""
    rows = [
        {
            "row": example.row,
            **({"example": example.description} if example.description else {}),
            "loss": example.loss,
            "loss / median": example.times_median,
            "unusual features": ", ".join(
                f"{s.feature} {s.value:.4g} ({s.deviations:+.1f} std)"
                for s in example.unusual_features
            ),
        }
        for result in report.results
        for example in result.examples
    ]
    return {"hardest examples": table(rows)} if rows else {}
