"""When a pipeline retrains by itself, if anything changed, and when its registry is verified."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sluice.assets.best_config import BestConfig
from sluice.assets.features import FeatureSet
from sluice.assets.records import newest_record
from sluice.assets.resources import State
from sluice.assets.subjects import maker, search_subject
from sluice.config.pipeline import PipelineSettings
from sluice.pipelines.jobs import training_name
from sluice.pipelines.source_look import NoAnswer, SourceLook
from sluice.pipelines.under_way import under_way
from sluice.registry.records import Version
from sluice.training.code import identify_code
from sluice.training.code_identity import describe_changes
from sluice.training.members import TrainedModels


def retrain_schedule(
    pipeline: PipelineSettings, job: UnresolvedAssetJobDefinition
) -> dg.ScheduleDefinition:
    """Start the training job on the pipeline's cron when its outcome could be another one."""
    source = SourceLook(pipeline)

    @dg.schedule(
        name=f"{pipeline.name}_retrain_schedule",
        job=job,
        cron_schedule=pipeline.schedule.cron,
        execution_timezone=pipeline.schedule.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Retrain when the source's rows, the code or the settings changed since the "
        "newest candidate; else skip, and say so.",
    )
    def schedule(
        context: dg.ScheduleEvaluationContext, sluice_state: dg.ResourceParam[State]
    ) -> dg.RunRequest | dg.SkipReason:
        busy = under_way(context.instance, training_name(pipeline))
        if busy:
            return dg.SkipReason(f"{busy} What changed since is for the next tick.")
        return request_retraining(pipeline, sluice_state, source)

    return schedule


def verification_schedule(
    pipeline: PipelineSettings, job: UnresolvedAssetJobDefinition
) -> dg.ScheduleDefinition:
    """Verify the registry on the pipeline's own cron, whatever changed."""
    return dg.ScheduleDefinition(
        name=f"{pipeline.name}_registry_verification_schedule",
        job=job,
        cron_schedule=pipeline.schedule.verify_cron,
        execution_timezone=pipeline.schedule.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Check the registry and its artifacts; a finding fails the run.",
    )


def request_retraining(
    pipeline: PipelineSettings, state: State, source: SourceLook
) -> dg.RunRequest | dg.SkipReason:
    """Return a run whose tags name what changed, or what is the same and since when."""
    trained = newest_record(TrainedModels, state.home.records, pipeline.name, "trained_models")
    with state.ledger() as ledger:
        version = ledger.version_of(pipeline.name, trained.candidate) if trained else None
    answer = source.ask()
    if isinstance(answer, NoAnswer):
        if answer.is_slow:  # what is not known to be the same is trained on
            return dg.RunRequest(tags={"sluice/changed": f"unknown: {answer.reason}"})
        return dg.SkipReason(answer.reason)
    if trained is None or version is None:
        return dg.RunRequest(tags={"sluice/changed": "there is no candidate yet"})
    changed = what_changed(pipeline, trained, answer.digest, state)
    if changed:
        return dg.RunRequest(
            tags={"sluice/changed": ", ".join(changed), "sluice/since_version": str(version.number)}
        )
    return dg.SkipReason(_same(version, answer.digest))


def what_changed(
    pipeline: PipelineSettings, trained: TrainedModels, raw: str, state: State
) -> tuple[str, ...]:
    """Return what differs from what the newest candidate was made of; empty for nothing.

    Args:
        pipeline: With its present settings and code.
        trained: The newest candidate's models.
        raw: Digest of the rows that the source holds now.
        state: Where the stages' records are.
    """
    code = identify_code(pipeline.loaded_workload, pipeline.model)
    features = newest_record(FeatureSet, state.home.records, pipeline.name, "features")
    best = newest_record(BestConfig, state.home.records, pipeline.name, "best_config")
    changed: dict[str, None] = {}
    if features is None or features.table.digest != trained.data or features.raw != raw:
        changed["data"] = None
    is_same_code = code.digest == trained.code
    if features is None or (is_same_code and features.maker != maker(pipeline)):
        changed["workload"] = None
    if best is None or best.found != trained.config:
        changed["config"] = None
    else:
        now = search_subject(pipeline, best.subject["data"])
        words = {"rules": "search"}
        for role, digest in now.items():
            if role != "code" and best.subject.get(role) != digest:
                changed[words.get(role, role)] = None
    if not is_same_code:
        changed[describe_changes(code, trained.code_identity)] = None
    if trained.seeds != pipeline.seeds:
        changed["seeds"] = None
    return tuple(changed)


def _same(version: Version, raw: str) -> str:
    return (
        f"Nothing changed since version {version.number} of {version.registered_at:%Y-%m-%d %H:%M} "
        f"UTC: the source holds the same rows ({raw[:12]}), and code, settings and seeds are the "
        "same. Training again would make the same models."
    )
