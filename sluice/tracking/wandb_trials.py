"""The trials of a search as live runs of Weights & Biases, by Ray Tune's own callback."""

from collections.abc import Mapping
from typing import Any

from sluice.tracking.wandb_mirror import TrackingSettings


def trial_callbacks(
    settings: TrackingSettings, *, group: str, environ: Mapping[str, str]
) -> list[Any]:
    """Return the callbacks that send each trial of a search while it trains.

    Args:
        settings: Where to; only with mode 'online', since an offline run is nothing to look at
            while it is written, and only with a key.
        group: Group of the runs, one for each search.
        environ: The caller's environment, for the key.

    Returns:
        One callback, or none.
    """
    if settings.mode != "online" or not environ.get("WANDB_API_KEY"):
        return []
    return [wandb_callback(settings, group=group, mode="online", folder=None)]


def wandb_callback(settings: TrackingSettings, *, group: str, mode: str, folder: str | None) -> Any:
    """Return Ray Tune's callback with runs that keep their identity over a restart.

    Args:
        settings: Project, entity and tags.
        group: Group of the runs.
        mode: Mode of ``wandb.init``.
        folder: Where wandb writes; its own choice when absent.
    """
    from ray.air.integrations.wandb import WandbLoggerCallback

    class TrialRuns(WandbLoggerCallback):
        """Names the run of a trial by the group and the trial's number."""

        def _start_logging_actor(self, trial: Any, exclude: list[str], **options: Any) -> None:
            number = trial.trial_id.rpartition("_")[2]
            options |= {"id": f"{group}-{number}", "name": f"trial {int(number)}"}
            super()._start_logging_actor(trial, exclude, **options)

    return TrialRuns(
        project=settings.project,
        group=group,
        excludes=["curve", "checkpoint_dir_name", "should_checkpoint", "reason"],
        log_config=True,
        entity=settings.entity,
        tags=list(settings.tags),
        mode=mode,
        dir=folder,
        resume="allow",
    )
