"""The jobs of a pipeline, such as search, training, drift, rollout and promotion.

Each job runs in one process: its stages are sequential, the training starts workers, and the
imports of a process per step would take seconds.
"""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sluice.assets.approval import APPROVAL
from sluice.assets.drift_report import DRIFT_REPORT
from sluice.assets.rollout import ROLLOUT
from sluice.assets.rollout_review import REVIEW
from sluice.checks.approval import APPROVED
from sluice.checks.registry import CONSISTENT
from sluice.pipelines.executor import one_process

PRODUCTION_MODEL = "production_model"


def training_job(pipeline: str, *, purpose: str) -> UnresolvedAssetJobDefinition:
    """Return the job from raw rows to a candidate; ``purpose`` describes the model."""
    return dg.define_asset_job(
        training_job_name(pipeline),
        selection=dg.AssetSelection.assets([pipeline, "candidate"]).upstream(),
        description=f"{purpose} From raw rows to a registered candidate with a "
        "verdict; does not promote.".strip(),
        executor_def=one_process,
    )


def training_job_name(pipeline: str) -> str:
    """Return the name of the training job."""
    return f"{pipeline}_training"


def drift_job(pipeline: str) -> UnresolvedAssetJobDefinition:
    """Return the job that compares new windows with the drift reference of production."""
    return dg.define_asset_job(
        drift_job_name(pipeline),
        selection=dg.AssetSelection.assets([pipeline, DRIFT_REPORT]),
        description="Tests new windows for drift of rows, requests, predictions, embeddings, "
        "latency and losses.",
        executor_def=one_process,
    )


def drift_job_name(pipeline: str) -> str:
    """Return the name of the drift job."""
    return f"{pipeline}_drift"


def search_job(pipeline: str) -> UnresolvedAssetJobDefinition:
    """Return the job from raw rows to the best settings."""
    return dg.define_asset_job(
        search_job_name(pipeline),
        selection=dg.AssetSelection.assets([pipeline, "best_config"]).upstream(),
        description="From raw rows through their checks and the POC gate to the search; trains no "
        "candidate.",
        executor_def=one_process,
    )


def search_job_name(pipeline: str) -> str:
    """Return the name of the search job."""
    return f"{pipeline}_search"


def rollout_job(pipeline: str, *, checks_approval: bool) -> UnresolvedAssetJobDefinition:
    """Return the job that starts a rollout; ``checks_approval`` adds the approval check."""
    selection = dg.AssetSelection.assets([pipeline, ROLLOUT])
    return dg.define_asset_job(
        rollout_job_name(pipeline),
        selection=selection | _approval_check(pipeline) if checks_approval else selection,
        description="Starts to send traffic to a version with the verdict PROMOTE. The rollout "
        "sensor continues from there.",
        executor_def=one_process,
    )


def review_job(pipeline: str) -> UnresolvedAssetJobDefinition:
    """Return the job that reviews a rollout once labels have arrived."""
    return dg.define_asset_job(
        review_job_name(pipeline),
        selection=dg.AssetSelection.assets([pipeline, REVIEW]),
        description="Applies the promotion gate to live rows whose labels have arrived. After a "
        "rollback, saves the rows on which the challenger failed as a regression suite.",
        executor_def=one_process,
    )


def review_job_name(pipeline: str) -> str:
    """Return the name of the review job."""
    return f"{pipeline}_rollout_review"


def rollout_job_name(pipeline: str) -> str:
    """Return the name of the rollout job."""
    return f"{pipeline}_rollout"


def verification_job(pipeline: str) -> UnresolvedAssetJobDefinition:
    """Return the job that verifies the registry; its run fails if the registry is inconsistent."""
    return dg.define_asset_job(
        f"{pipeline}_registry_verification",
        selection=dg.AssetSelection.checks(
            dg.AssetCheckKey(dg.AssetKey([pipeline, PRODUCTION_MODEL]), CONSISTENT)
        ),
        description="Verifies this model in the registry, and the whole log, as 'sluice registry "
        "verify' does.",
        executor_def=one_process,
    )


def promotion_job_name(pipeline: str) -> str:
    """Return the name of the promotion job."""
    return f"{pipeline}_promotion"


def promotion_job(pipeline: str, *, checks_approval: bool) -> UnresolvedAssetJobDefinition:
    """Return the job that promotes a version; ``checks_approval`` adds the approval check."""
    # The check of the registry is omitted: it reads every artifact, and has its own schedule.
    selection = dg.AssetSelection.assets([pipeline, PRODUCTION_MODEL]).without_checks()
    return dg.define_asset_job(
        promotion_job_name(pipeline),
        selection=selection | _approval_check(pipeline) if checks_approval else selection,
        description="Moves the production pointer to a version that has the required receipts.",
        executor_def=one_process,
    )


def approval_job(pipeline: str) -> UnresolvedAssetJobDefinition:
    """Return the job with which a person approves a promotion in the launchpad."""
    return dg.define_asset_job(
        f"{pipeline}_approval",
        selection=dg.AssetSelection.assets([pipeline, APPROVAL]) | _approval_check(pipeline),
        description="Records your approval of a version: enter version, actor and reason in the "
        "launchpad. The promotion sensor continues from there.",
        executor_def=one_process,
    )


def _approval_check(pipeline: str) -> dg.AssetSelection:
    check_key = dg.AssetCheckKey(dg.AssetKey([pipeline, "candidate"]), APPROVED)
    return dg.AssetSelection.checks(check_key)
