"""Hand a registered candidate to the tracking mirror, which may fail without stopping anything."""

import os

from assets.resources import State
from assets.trained_models import epochs
from sluice.pipeline import PipelineSettings
from sluice.registry.records import Version
from sluice.tracking.tracked_run import Scalar, Split, TrackedRun, unit_task
from sluice.tracking.wandb_mirror import mirror
from sluice.training.members import TrainedModels

LOSSES: tuple[tuple[Split, str], ...] = (("train", "train_loss"), ("val", "val_loss"))


def mirror_version(
    pipeline: PipelineSettings, state: State, version: Version, trained: TrainedModels
) -> str:
    """Mirror config, curves, metrics and manifest of a version (TRK-1); say what became of it."""
    curves = [
        Scalar(
            split=split,
            task=unit_task(int(line["seed"]), int(line["fold_id"])),
            metric="loss",
            value=float(line[column]),
            epoch=int(line["epoch"]),
        )
        for line in epochs(trained.event_log, state.store).to_dict("records")
        for split, column in LOSSES
    ]
    results = [
        Scalar(split="test", metric=name, value=value)
        for name, value in version.lineage.metrics.items()
    ]
    run = TrackedRun(
        name=f"{pipeline.name}-{version.number}",
        pipeline=pipeline.name,
        candidate=version.candidate,
        config=version.lineage.resolved_config,
        manifest=version.lineage.model_dump(mode="json"),
        scalars=(*curves, *results),
        tags=(pipeline.model.architecture,),
    )
    return mirror(run, pipeline.tracking, folder=state.home.wandb, environ=os.environ).reason
