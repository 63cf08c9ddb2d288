"""From a verdict to the job that acts on it: thin, because a sensor is cut off after a minute."""

from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.tags import RUN_KEY_TAG

from sluice.assets.candidate import CANDIDATE, RECEIPT, VERDICT, VERSION
from sluice.assets.resources import State, utc_now
from sluice.assets.rollout import ROLLOUT
from sluice.base.errors import GateBlocked
from sluice.config.pipeline import PipelineSettings
from sluice.pipelines.asked_run import asked_run
from sluice.pipelines.jobs import PRODUCTION, promotion_name, rollout_name
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.state import Rollout
from sluice.rollout_control.drive import live_servers

START_EVERY_S = 600
"""A start that failed is tried again after this long at most: a run key is good for one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Where a model stands, as far as its next promotion is concerned."""

    production: int | None
    """Number of the version in production."""

    rollout: Rollout | None
    """The model's last one."""

    num_servers: int
    """Servers that answer for the model now."""

    at: datetime


def situation(ledger: RolloutLedger, model: str, *, now: datetime) -> Situation:
    """Read where a model stands."""
    return Situation(
        production=ledger.production_number(model),
        rollout=ledger.rollout(model),
        num_servers=len(live_servers(ledger, model, now=now)),
        at=now,
    )


def promotion_sensor(
    pipeline: PipelineSettings, jobs: list[UnresolvedAssetJobDefinition]
) -> dg.SensorDefinition:
    """Start a rollout, or a promotion, when the newest candidate's verdict says PROMOTE."""
    key = dg.AssetKey([pipeline.name, "candidate"])

    @dg.sensor(
        jobs=jobs,
        name=f"{pipeline.name}_promotion_sensor",
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=30,
        description="Decides nothing: reads the verdict on the newest candidate and, when it says "
        "PROMOTE, starts its rollout; or its promotion, where there is nothing to roll out "
        "against.",
    )
    def sensor(
        context: dg.SensorEvaluationContext, sluice_state: dg.ResourceParam[State]
    ) -> dg.RunRequest | dg.SkipReason:
        event = context.instance.get_latest_materialization_event(key)
        if event is None:
            return dg.SkipReason("There is no candidate yet.")
        with sluice_state.ledger() as ledger:
            return next_request(pipeline, event, ledger, context.instance, now=utc_now())

    return sensor


def next_request(
    pipeline: PipelineSettings,
    event: dg.EventLogEntry,
    ledger: RolloutLedger,
    instance: dg.DagsterInstance,
    *,
    now: datetime,
) -> dg.RunRequest | dg.SkipReason:
    """Return the run that the newest candidate needs now, or why none is started.

    Args:
        pipeline: Whose candidate it is.
        event: Materialization of the candidate.
        ledger: Whether the evidence still allows it; nothing is changed.
        instance: What became of a run that was started for it.
        now: Present time.
    """
    request = request_promotion(pipeline, event, situation(ledger, pipeline.name, now=now))
    if isinstance(request, dg.SkipReason):
        return request
    version = int(request.tags["sluice/version"])
    refusal = _refusal(pipeline, ledger, version)
    if refusal:
        return dg.SkipReason(
            f"The gate said PROMOTE for version {version}, and it is kept back: {refusal}"
        )
    asked = asked_run(instance, {RUN_KEY_TAG: str(request.run_key)})
    if asked is not None:
        return dg.SkipReason(
            f"The gate says PROMOTE for version {version}, and {asked}. If nothing comes of it, "
            f"another is started after {_next_start(now):%H:%M} UTC."
        )
    return request


def request_promotion(
    pipeline: PipelineSettings, event: dg.EventLogEntry, now: Situation
) -> dg.RunRequest | dg.SkipReason:
    """Return what one materialization of a candidate asks for.

    Args:
        pipeline: Whose candidate it is.
        event: Materialization of the candidate.
        now: Where the model stands.
    """
    materialization = event.asset_materialization
    metadata = materialization.metadata if materialization else {}
    verdict = metadata[VERDICT].value if VERDICT in metadata else "no verdict"
    if verdict != "PROMOTE":
        return dg.SkipReason(f"The verdict on the newest candidate is {verdict}.")
    version, receipt = int(str(metadata[VERSION].value)), str(metadata[RECEIPT].value)
    if version == now.production:
        return dg.SkipReason(f"Version {version} is in production already.")
    is_first = now.production is None or pipeline.rollout is None
    waits = "" if is_first else _waits(pipeline.name, version, now)
    if waits:
        return dg.SkipReason(waits)
    asset = PRODUCTION if is_first else ROLLOUT
    return dg.RunRequest(
        # A start that failed is asked for again; one that worked is under way, and waited for.
        run_key=f"{receipt}:{asset} {_slot(now.at)}",
        job_name=promotion_name(pipeline) if is_first else rollout_name(pipeline),
        run_config={"ops": {f"{pipeline.name}__{asset}": {"config": {"version": version}}}},
        tags={
            "sluice/candidate": str(metadata[CANDIDATE].value)[:12],
            "sluice/version": str(version),
        },
    )


def _refusal(pipeline: PipelineSettings, ledger: RolloutLedger, version: int) -> str:
    """Return why no run could bring a version into production; "" when one can."""
    try:
        ledger.require_promotable(pipeline.name, version, rules=pipeline.promotion_rules)
    except GateBlocked as blocked:
        return str(blocked)
    return ""


def _slot(at: datetime) -> int:
    return int(at.timestamp() // START_EVERY_S)


def _next_start(at: datetime) -> datetime:
    return datetime.fromtimestamp((_slot(at) + 1) * START_EVERY_S, UTC)


def _waits(model: str, version: int, now: Situation) -> str:
    """Return why no rollout of a version can start now; "" when one can."""
    last = now.rollout
    if last is not None and not last.is_over:
        whose = "its own" if last.version == version else f"that of version {last.version}"
        return f"A rollout is under way, {whose} ({last.phase}): sluice rollout status {model}"
    if last is not None and last.version == version and last.phase == "rolled_back":
        return (
            f"Version {version} was rolled back ({last.id[:8]}) and is not tried again by itself: "
            f"sluice rollout status {model}"
        )
    if not now.num_servers:
        return (
            f"The gate says PROMOTE for version {version}, and no server answers for {model} that "
            f"could show it real traffic. Start one: sluice serve {model} (a pipeline of your own: "
            "sluice serve with the path of its YAML)"
        )
    return ""
