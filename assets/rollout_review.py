"""What the labels say of a rollout, and the rows it failed on (ROLL-2, DATA-5).

Too slow for the sensor that drives the rollout: rows are read, and losses computed.
"""

import os

import dagster as dg

from sluice.assets.config_schema import NO_CONFIG
from sluice.assets.resources import RECORDS, State, utc_now
from sluice.assets.rollout import ROLLOUT
from sluice.assets.traced import traced
from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.config.pipeline import PipelineSettings
from sluice.evaluation.suites.library import SuiteLibrary
from sluice.findings.user_code import users_code
from sluice.rollout_control.failures import FailedRows, keep_failures
from sluice.rollout_control.quality import note_quality_of
from sluice.rollout_control.report import save_rollout_page

REVIEW = "rollout_review"


class RolloutReview(Record):
    """What was found about one rollout."""

    rollout: str
    phase: str
    quality: str
    failed: FailedRows | None


def rollout_review_asset(pipeline: PipelineSettings) -> dg.AssetsDefinition:
    """Build the asset for one pipeline."""

    @dg.asset(
        key=[pipeline.name, REVIEW],
        deps=[dg.AssetKey([pipeline.name, ROLLOUT])],
        io_manager_key=RECORDS,
        config_schema=NO_CONFIG,
        group_name=f"{pipeline.name}_promotion",
        kinds={"pandas"},
        owners=list(pipeline.owners),
        description="The gate on live rows whose labels have arrived, for the rollout under way; "
        "and once one was rolled back, the rows it failed on as a regression suite that every "
        "later candidate runs.",
    )
    @traced
    def rollout_review(
        context: dg.AssetExecutionContext, sluice_state: dg.ResourceParam[State]
    ) -> dg.MaterializeResult[RolloutReview]:
        workload = pipeline.loaded_workload
        with users_code("load_rows or compute_features of the workload"):
            frame = workload.compute_features(workload.load_rows())
        library = SuiteLibrary(sluice_state.home.suites / pipeline.name, sluice_state.store)
        with sluice_state.ledger() as ledger:
            verdict = note_quality_of(ledger, pipeline, sluice_state.store, frame, utc_now())
            rollout = ledger.rollout(pipeline.name)
            if rollout is None:
                raise ContractError(
                    f"{pipeline.name} never had a rollout that could be reviewed.",
                    fix="Start one first; the promotion sensor does when a gate says PROMOTE.",
                )
            failed = None
            if rollout.phase == "rolled_back":
                failed = keep_failures(ledger, rollout.id, workload, frame, library, utc_now())
            known = ledger.observations.quality(rollout.id)
            page = save_rollout_page(
                ledger,
                rollout.id,
                failed=failed,
                home=sluice_state.home,
                environ=os.environ,
                now=utc_now(),
            )
        review = RolloutReview(
            rollout=rollout.id,
            phase=rollout.phase,
            quality=known[-1].reason if known else "No verdict yet: too few labels have arrived.",
            failed=failed,
        )
        context.log.info(f"{'new verdict' if verdict else 'no new verdict'}: {review.quality}")
        return dg.MaterializeResult(
            value=review,
            metadata={
                "rollout": rollout.id,
                "phase": rollout.phase,
                "on live labels": known[-1].outcome if known else "none yet",
                "why": review.quality,
                "rows it failed on": failed.reason if failed else "it was not rolled back",
                "page": dg.MetadataValue.url(page.url),
            },
        )

    return rollout_review
