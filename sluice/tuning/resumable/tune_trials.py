"""What the wrapper does to Tune's own trials and controller.

Everything here that is not public in Ray Tune is named here and nowhere else.
"""

from pathlib import PurePosixPath
from typing import Any

from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint
from ray.tune.schedulers import TrialScheduler


def reported_checkpoint(trial: Any, result: dict[str, Any]) -> str:
    """Return the path of the checkpoint that came with a result; empty without one."""
    name = result.get("checkpoint_dir_name")
    return "" if not name else str(PurePosixPath(trial.storage.trial_fs_path, name))


def set_checkpoint(trial: Any, path: str, result: dict[str, Any]) -> None:
    """Let a trial start from a checkpoint, or from nothing where the path is empty."""
    latest = None
    if path:
        checkpoint = Checkpoint(path, filesystem=trial.storage.storage_filesystem)
        latest = _TrainingResult(checkpoint=checkpoint, metrics=dict(result))
    trial.run_metadata.checkpoint_manager._latest_checkpoint_result = latest
    trial.run_metadata.invalidate_cache()
    trial.invalidate_json_state()


def keep_folder(trial: Any, checkpoint: str) -> None:
    """Let a trial that an earlier process ran write on in the folder of its checkpoints."""
    path = PurePosixPath(checkpoint)
    if path.parent.parent != PurePosixPath(trial.storage.experiment_fs_path):
        return
    trial.relative_logdir = path.parent.name
    trial.storage.trial_dir_name = path.parent.name
    number = path.name.rsplit("_", 1)[-1]
    if number.isdigit():
        trial.storage.current_checkpoint_index = int(number)


def continue_held(controller: Any, trial: Any) -> None:
    """Let a trial train on that was kept waiting after its last result."""
    controller = getattr(controller, "_tune_controller", controller)
    if trial.is_saving:
        controller._cached_trial_decisions[trial.trial_id] = TrialScheduler.CONTINUE
    else:
        controller._schedule_trial_train(trial)


def pause(controller: Any, trial: Any) -> None:
    """Take a trial's worker away; it goes on from its last reported checkpoint."""
    controller = getattr(controller, "_tune_controller", controller)
    controller._cached_trial_decisions.pop(trial.trial_id, None)
    if trial.is_saving:
        trial.temporary_state.saving_to = None
    controller.pause_trial(trial, should_checkpoint=False)


def stop(controller: Any, trial: Any) -> None:
    """End a trial."""
    controller = getattr(controller, "_tune_controller", controller)
    if trial.is_saving:
        trial.temporary_state.saving_to = None
    controller._cached_trial_decisions.pop(trial.trial_id, None)
    controller.stop_trial(trial)
