"""Schedules: retraining when data, code or settings changed, and verification of the registry."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sluice.assets.best_config import BestConfig
from sluice.assets.features import FeatureSet
from sluice.assets.receipt_subjects import feature_producer, search_subject
from sluice.assets.record_io_manager import read_latest_record
from sluice.assets.resources import SluiceState
from sluice.assets.source_asset import LoadAsset, asset_loader
from sluice.config.pipeline import ScheduleSettings
from sluice.config.resolved import SearchInputs
from sluice.pipelines.active_run import describe_active_run
from sluice.pipelines.jobs import training_job_name
from sluice.pipelines.source_poll import SourcePoll, SourceUnavailable
from sluice.registry.records import Version
from sluice.training.code import identify_code
from sluice.training.code_identity import describe_changes
from sluice.training.members import TrainedModels


def retrain_schedule(
    pipeline: str,
    job: UnresolvedAssetJobDefinition,
    settings: ScheduleSettings,
    inputs: SearchInputs,
    *,
    seeds: tuple[int, ...],
) -> dg.ScheduleDefinition:
    """Return the schedule that starts the training job when an input of the training changed."""
    source_poll = SourcePoll(inputs.base.workload)

    @dg.schedule(
        name=f"{pipeline}_retrain_schedule",
        job=job,
        cron_schedule=settings.cron,
        execution_timezone=settings.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Retrains when rows of the source, code, settings or seeds have changed since "
        "the newest candidate. Also retrains if the source is too slow to compare its rows. "
        "Otherwise skips with the reason.",
    )
    def schedule(
        context: dg.ScheduleEvaluationContext, sluice_state: dg.ResourceParam[SluiceState]
    ) -> dg.RunRequest | dg.SkipReason:
        active_run = describe_active_run(context.instance, training_job_name(pipeline))
        if active_run:
            return dg.SkipReason(f"{active_run} Later changes are handled by the next tick.")
        return request_retraining(
            pipeline,
            inputs,
            seeds,
            sluice_state,
            source_poll,
            load_asset=asset_loader(context),
        )

    return schedule


def verification_schedule(
    pipeline: str, job: UnresolvedAssetJobDefinition, settings: ScheduleSettings
) -> dg.ScheduleDefinition:
    """Return the schedule that verifies the registry."""
    return dg.ScheduleDefinition(
        name=f"{pipeline}_registry_verification_schedule",
        job=job,
        cron_schedule=settings.verify_cron,
        execution_timezone=settings.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Verifies the registry and its artifacts. An inconsistency fails the run.",
    )


def request_retraining(
    pipeline: str,
    inputs: SearchInputs,
    seeds: tuple[int, ...],
    state: SluiceState,
    source_poll: SourcePoll,
    *,
    load_asset: LoadAsset | None = None,
) -> dg.RunRequest | dg.SkipReason:
    """Return a run request whose tags name the changes, or the reason to skip."""
    trained_models = read_latest_record(
        TrainedModels, state.home.records, pipeline, "trained_models"
    )
    with state.ledger() as ledger:
        version = ledger.version_of(pipeline, trained_models.candidate) if trained_models else None
    source_state = source_poll.read_state(load_asset)
    if isinstance(source_state, SourceUnavailable):
        if source_state.is_slow:  # the rows may have changed, so train
            return dg.RunRequest(tags={"sluice/changed": f"unknown: {source_state.reason}"})
        return dg.SkipReason(source_state.reason)
    if trained_models is None or version is None:
        return dg.RunRequest(tags={"sluice/changed": "no candidate exists yet"})
    changes = find_changes(pipeline, inputs, seeds, trained_models, source_state.digest, state)
    if changes:
        return dg.RunRequest(
            tags={"sluice/changed": ", ".join(changes), "sluice/since_version": str(version.number)}
        )
    return dg.SkipReason(_no_change_reason(version, source_state.digest))


def find_changes(
    pipeline: str,
    inputs: SearchInputs,
    seeds: tuple[int, ...],
    trained_models: TrainedModels,
    source_digest: str,
    state: SluiceState,
) -> tuple[str, ...]:
    """Return the names of the inputs that changed since the newest candidate.

    Args:
        pipeline: Name of the pipeline.
        inputs: Current settings and code.
        seeds: Current seeds.
        trained_models: Models of the newest candidate.
        source_digest: Digest of the current rows of the source.
        state: State folder, which contains the records of the stages.
    """
    base = inputs.base
    code_identity = identify_code(base.workload, base.model)
    features = read_latest_record(FeatureSet, state.home.records, pipeline, "features")
    best_config = read_latest_record(BestConfig, state.home.records, pipeline, "best_config")
    changes: dict[str, None] = {}
    if (
        features is None
        or features.table.digest != trained_models.data
        or features.raw != source_digest
    ):
        changes["data"] = None
    is_same_code = code_identity.digest == trained_models.code
    # The digest of the producer also changes with the code, which is compared below.
    producer = feature_producer(base.workload, path=base.path)
    if features is None or (is_same_code and features.maker != producer):
        changes["workload"] = None
    if best_config is None or best_config.found != trained_models.config:
        changes["config"] = None
    else:
        current_subject = search_subject(inputs, best_config.subject["data"])
        names_by_role = {"rules": "search"}  # the rules of this subject are the search settings
        for role, digest in current_subject.items():
            if role != "code" and best_config.subject.get(role) != digest:
                changes[names_by_role.get(role, role)] = None
    if not is_same_code:
        changes[describe_changes(code_identity, trained_models.code_identity)] = None
    if trained_models.seeds != seeds:
        changes["seeds"] = None
    return tuple(changes)


def _no_change_reason(version: Version, source_digest: str) -> str:
    return (
        f"Nothing changed since version {version.number} of {version.registered_at:%Y-%m-%d %H:%M} "
        f"UTC: the source contains the same rows ({source_digest[:12]}), and code, settings and "
        "seeds are the same. A training would produce the same models."
    )
