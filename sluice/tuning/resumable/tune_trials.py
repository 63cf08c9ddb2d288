"""Reads and changes Tune's own trials and controller.

This module contains all uses of private attributes of Ray Tune.
"""

import contextlib
import os
from pathlib import Path, PurePosixPath
from typing import Any

from ray import cloudpickle
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint
from ray.tune.error import TuneError
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.trainable.function_trainable import FunctionTrainable

_MAX_PENDING_TRIALS = 1000
"""Value of Tune's limit on trials without a worker. It is high, because the study has its own
limit."""


def unwrap(controller: Any) -> Any:
    """Return Tune's controller without its wrapper."""
    return getattr(controller, "_tune_controller", controller)


def allow_parallel_starts(controller: Any) -> None:
    """Let Tune start several trials at a time, even with a searcher.

    By default, Tune starts trials from a searcher one after another.
    """
    if "TUNE_MAX_PENDING_TRIALS_PG" not in os.environ:
        unwrap(controller)._max_pending_trials = _MAX_PENDING_TRIALS


def raise_original_errors(controller: Any) -> None:
    """Let ``Tuner.fit`` raise the original exception of a callback instead of a ``TuneError``."""
    controller = unwrap(controller)
    controller._fail_fast = controller.RAISE


def retry_failed_resets(controller: Any) -> None:
    """Let Tune requeue a trial whose worker could not be reset, instead of ending the trial.

    A worker that Tune reuses must end its previous trial within two seconds by default. Otherwise
    Tune sets the next trial to 'ERROR' without notifying the scheduler. This function lets Tune
    remove such a worker instead, so that the worker causes at most one retry.
    """
    controller = unwrap(controller)
    if "_on_trial_reset" in vars(controller):
        return
    original_callback = controller._on_trial_reset

    def on_trial_reset(trial: Any, success: bool) -> None:
        if success:
            original_callback(trial, success)
        else:
            requeue(controller, trial)

    controller._on_trial_reset = on_trial_reset


def requeue(controller: Any, trial: Any) -> None:
    """Remove the worker of a trial that has not started, and start the trial on another worker."""
    controller = unwrap(controller)
    controller._resetting_trials.discard(trial)
    controller._unstage_trial_with_resources(trial)
    controller._try_recover(trial, exc=TuneError("The worker did not end its previous trial."))


def has_all_trials(controller: Any) -> bool:
    """Return whether Tune has created all trials."""
    return bool(unwrap(controller)._search_alg.is_finished())


def is_function(trial: Any) -> bool:
    """Return whether the trainable is a function, and not a subclass of ``Trainable``."""
    trainable = trial.get_trainable_cls()
    return isinstance(trainable, type) and issubclass(trainable, FunctionTrainable)


def error_of(trial: Any) -> tuple[Exception | None, str]:
    """Return the exception with which a trial failed, and the last line of its traceback.

    Tune has written both to files on this machine. The exception is None if Tune could not store
    it.
    """
    error, text = None, ""
    with contextlib.suppress(OSError):
        text = Path(trial.error_file).read_text().strip().rsplit("\n", 1)[-1]
    with contextlib.suppress(OSError, TypeError):  # TypeError: Tune could not pickle the error
        error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    return error, text or repr(error)


def has_worker(controller: Any, trial: Any) -> bool:
    """Return whether Ray has granted the resources of a trial's worker.

    The worker may not have started yet.
    """
    controller = unwrap(controller)
    if trial.status == Trial.RUNNING:
        return True
    actor = controller._trial_to_actor.get(trial)
    return actor is not None and (
        actor in controller._actor_manager._live_actors_to_ray_actors_resources
    )


def count_workers(controller: Any) -> tuple[int, int]:
    """Return the number of running workers, and the number of workers that wait for resources."""
    controller = unwrap(controller)
    manager = controller._actor_manager
    return manager.num_live_actors, manager.num_pending_actors


def has_idle_worker(controller: Any) -> bool:
    """Return whether Tune keeps a worker that no trial uses."""
    return bool(unwrap(controller)._actor_cache.num_cached_objects)


def reported_checkpoint(trial: Any, result: dict[str, Any]) -> str:
    """Return the path of the checkpoint that a trial reported with a result; "" without one."""
    name = result.get("checkpoint_dir_name")
    return "" if not name else str(PurePosixPath(trial.storage.trial_fs_path, name))


def set_checkpoint(trial: Any, path: str, result: dict[str, Any]) -> None:
    """Set the checkpoint from which a trial starts; an empty path means initial weights."""
    latest_result = None
    if path:
        checkpoint = Checkpoint(path, filesystem=trial.storage.storage_filesystem)
        latest_result = _TrainingResult(checkpoint=checkpoint, metrics=dict(result))
    trial.run_metadata.checkpoint_manager._latest_checkpoint_result = latest_result
    trial.run_metadata.invalidate_cache()
    trial.invalidate_json_state()


def reuse_folder(trial: Any, checkpoint: str) -> None:
    """Let a trial of an earlier process continue to write to its checkpoint folder."""
    path = PurePosixPath(checkpoint)
    if path.parent.parent != PurePosixPath(trial.storage.experiment_fs_path):
        return
    trial.relative_logdir = path.parent.name
    trial.storage.trial_dir_name = path.parent.name


def skip_written_checkpoints(trial: Any, checkpoint: str) -> None:
    """Prevent the next worker of a trial from overwriting checkpoints of the previous worker.

    Tune counts a checkpoint of a trial only when the save has ended. If a worker is removed during
    a save, the storage contains a checkpoint that Tune has not counted, and possibly another
    checkpoint that the worker has not reported.

    Args:
        trial: One of Tune's trials, without a worker.
        checkpoint: Path of the last checkpoint that the trial reported; empty if it reported none.
    """
    index_text = PurePosixPath(checkpoint).name.rsplit("_", 1)[-1]
    last_index = int(index_text) if index_text.isdigit() else -1
    storage = trial.storage
    storage.current_checkpoint_index = max(storage.current_checkpoint_index, last_index) + 1


def set_status(controller: Any, trial: Any, status: str) -> None:
    """Set the status of a trial that is registered with Tune."""
    unwrap(controller)._set_trial_status(trial, status)


def resume_trial(controller: Any, trial: Any) -> None:
    """Continue a trial that kept its worker and waited after its last result."""
    controller = unwrap(controller)
    if trial.is_saving:
        controller._cached_trial_decisions[trial.trial_id] = TrialScheduler.CONTINUE
    else:
        controller._schedule_trial_train(trial)


def pause(controller: Any, trial: Any) -> None:
    """Release the worker of a trial, which resumes later from its last reported checkpoint."""
    controller = unwrap(controller)
    controller._cached_trial_decisions.pop(trial.trial_id, None)
    if trial.is_saving:
        trial.temporary_state.saving_to = None
    controller.pause_trial(trial, should_checkpoint=False)


def stop(controller: Any, trial: Any) -> None:
    """End a trial."""
    controller = unwrap(controller)
    if trial.is_saving:
        trial.temporary_state.saving_to = None
    controller._cached_trial_decisions.pop(trial.trial_id, None)
    controller.stop_trial(trial)


def clean_up(controller: Any) -> None:
    """Kill the workers of an interrupted run, and release their resources."""
    controller = unwrap(controller)
    controller._actor_manager.cleanup()
    controller.end_experiment_callbacks()
