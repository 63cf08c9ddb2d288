"""Asset ``rollout_review``: live quality of a rollout, and the rows on which it failed.

The review is an asset, because it is too slow for the rollout sensor: it reads rows and computes
losses.
"""

import os

import dagster as dg
from pydantic import Field

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.resources import RECORDS, SluiceState, utc_now
from sluice.assets.rollout import ROLLOUT
from sluice.assets.source_asset import provide_source, source_inputs
from sluice.assets.spans import spanned
from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.evaluation.settings import GateSettings
from sluice.evaluation.suites.library import SuiteLibrary
from sluice.findings.user_code import wrap_user_errors
from sluice.rollout_control.failures import FailedRows, save_failures_suite
from sluice.rollout_control.quality import evaluate_live_quality
from sluice.rollout_control.report import save_rollout_page
from sluice.workloads.workload import Workload

REVIEW = "rollout_review"


class RolloutReview(Record):
    """Result of the review of one rollout."""

    rollout: str = Field(description="Id of the rollout.")
    phase: str = Field(description="Phase of the rollout at the time of the review.")
    quality: str = Field(
        description="Reason of the newest verdict on labelled rows, or a text that too few labels "
        "have arrived."
    )
    failed: FailedRows | None = Field(
        description="Rows on which the challenger failed; None if it was not rolled back."
    )


def rollout_review_asset(
    pipeline: str, workload: Workload, gate: GateSettings
) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline, REVIEW],
        deps=[dg.AssetKey([pipeline, ROLLOUT])],
        ins=source_inputs(workload),
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=pipeline,
        kinds={"pandas"},
        description="Applies the promotion gate to live rows whose labels have arrived, while a "
        "rollout is in progress. After a rollback, it saves the rows on which the challenger "
        "failed as a regression suite for later candidates.",
    )
    @spanned
    def rollout_review(
        context: dg.AssetExecutionContext,
        /,
        sluice_state: dg.ResourceParam[SluiceState],
        **inputs: object,
    ) -> dg.MaterializeResult[RolloutReview]:
        with (
            provide_source(workload, inputs),
            wrap_user_errors("load_rows or compute_features of the workload"),
        ):
            frame = workload.compute_features(workload.load_rows())
        library = SuiteLibrary(sluice_state.home.suites / pipeline, sluice_state.store)
        with sluice_state.ledger() as ledger:
            verdict = evaluate_live_quality(
                ledger, pipeline, workload, gate, sluice_state.store, frame, utc_now()
            )
            rollout = ledger.rollout(pipeline)
            if rollout is None:
                raise ContractError(
                    f"{pipeline} has no rollout to review.",
                    fix="Start a rollout first. The promotion sensor starts one after a PROMOTE.",
                )
            failed_rows = None
            if rollout.phase == "rolled_back":
                failed_rows = save_failures_suite(
                    ledger, rollout.id, workload, frame, library, utc_now()
                )
            quality_results = ledger.observations.quality(rollout.id)
            page = save_rollout_page(
                ledger,
                rollout.id,
                failed_rows=failed_rows,
                home=sluice_state.home,
                environ=os.environ,
                now=utc_now(),
            )
        review = RolloutReview(
            rollout=rollout.id,
            phase=rollout.phase,
            quality=quality_results[-1].reason
            if quality_results
            else "No result yet: too few labels have arrived.",
            failed=failed_rows,
        )
        context.log.info(f"{'new result' if verdict else 'no new result'}: {review.quality}")
        return dg.MaterializeResult(
            value=review,
            metadata={
                "rollout": rollout.id,
                "phase": rollout.phase,
                "live quality": quality_results[-1].outcome if quality_results else "none yet",
                "reason": review.quality,
                "failed rows": failed_rows.reason
                if failed_rows
                else "The rollout was not rolled back.",
                "rollout report": dg.MetadataValue.url(page.url),
            },
        )

    return rollout_review
