"""Sends the trials of a running search to Weights & Biases (W&B), by a callback of Ray Tune.

One process per search writes the runs. A failure of W&B neither stops nor delays the search.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sluice.base.redaction import redact
from sluice.tracking.settings import TrackingSettings
from sluice.tracking.wandb_login import with_wandb_login
from sluice.tracking.wandb_run_sender import RunSender

_WRITER = "sluice.tracking.wandb_trial_writer"

DecodeConfig = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Function that converts the Tune config of a trial to a mapping from setting path to value."""


def trial_callbacks(
    settings: TrackingSettings,
    *,
    group: str,
    folder: Path,
    decode_config: DecodeConfig,
    environ: Mapping[str, str],
    warn: Callable[[str], None],
) -> list[Any]:
    """Return the callbacks that log each trial of a search while it trains.

    Args:
        settings: Destination; trials are sent only if the mode is 'online' and a key is set.
        group: Name of the group of runs; each search has another group.
        folder: Folder for wandb's files.
        decode_config: Converts the Tune config of a trial.
        environ: Environment variables of the caller, with the key or the location of the login.
        warn: Called with the reason if trials are not sent.

    Returns:
        A list with one callback, or an empty list if trials are not sent.

    Cost:
        One process per search, which starts with the first trial.
    """
    if settings.mode != "online":
        return []
    online_environ = with_wandb_login(environ)
    if online_environ is None:
        warn(
            "Trials are not sent to Weights & Biases: tracking.mode is online and WANDB_API_KEY is "
            "not set. Set it, run 'wandb login', or set tracking.mode to offline."
        )
        return []
    return [
        wandb_callback(
            settings,
            group=group,
            folder=folder,
            decode_config=decode_config,
            environ=online_environ,
            warn=warn,
        )
    ]


def wandb_callback(
    settings: TrackingSettings,
    *,
    group: str,
    folder: Path,
    decode_config: DecodeConfig,
    environ: Mapping[str, str],
    warn: Callable[[str], None],
) -> Any:
    """Return a callback of Ray Tune that logs each trial as a run; a resumed search continues runs.

    The step of a run is the epoch, and the history of a run contains every epoch of the trial. When
    the search ends or is interrupted, the callback waits for the last uploads. It waits at most
    30 s, and at most ``settings.timeout_s``.

    Args:
        settings: Mode, project, entity, tags and time limit.
        group: Group of the runs; the id of a run is the group and the number of the trial.
        folder: Folder for wandb's files.
        decode_config: Converts the Tune config of a trial.
        environ: Environment variables of the process that writes the runs.
        warn: Called with the reason if trials are not sent.
    """
    from ray.tune import Callback

    sender = RunSender(
        _WRITER,
        settings,
        runs_name="Trials",
        work_name="search",
        group=group,
        config={},
        folder=folder,
        environ=environ,
        warn=warn,
    )

    class TrialRuns(Callback):
        """Sends starts, results and ends of trials."""

        def __init__(self) -> None:
            self._number_by_trial: dict[Any, int] = {}
            self._open_trials: set[Any] = set()
            self._closed_trials: set[Any] = set()

        def __reduce__(self) -> tuple[Any, ...]:
            # Tune pickles its callbacks. A callback without state is pickled, because a resumed
            # search creates a new callback.
            return Callback, ()

        def on_trial_start(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            del iteration, info
            self._open_run(trials, trial)

        def on_trial_result(
            self,
            iteration: int,
            trials: list[Any],
            trial: Any,
            result: dict[str, Any],
            **info: Any,
        ) -> None:
            del iteration, info
            self._open_run(trials, trial)
            self._send_result(trial, result)

        def on_trial_complete(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            del iteration, info
            self._close_run(trials, trial, failed=False)

        def on_trial_error(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            del iteration, info
            self._close_run(trials, trial, failed=True)

        def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
            del info
            for trial in trials:
                if trial.is_finished():  # a resumed study does not report the end of each trial
                    self._close_run(trials, trial, failed=trial.status == "ERROR")
            sender.end(state="interrupted", reason="The search ended before the trial did.")

        def _run_id(self, trial: Any) -> str:
            return f"{group}-{self._number_by_trial[trial]}"

        def _open_run(self, trials: list[Any], trial: Any) -> None:
            if trial in self._open_trials:
                return  # the trial was paused and continues
            self._open_trials.add(trial)
            number = self._number(trials, trial)
            config = dict(decode_config(trial.config))
            sender.send(do="open", id=self._run_id(trial), name=f"trial {number}", config=config)
            # Send the last report: if the search was interrupted before the callback of this
            # report, it was not sent. The writer ignores epochs that were already written.
            if trial.last_result and "curve" in trial.last_result:
                self._send_result(trial, {"config": trial.config, **trial.last_result})

        def _number(self, trials: list[Any], trial: Any) -> int:
            # A resumed study adds all trials again in the order of their numbers.
            return self._number_by_trial.setdefault(trial, trials.index(trial))

        def _send_result(self, trial: Any, result: Mapping[str, Any]) -> None:
            config = dict(decode_config(result["config"]))
            if reason := str(result.get("reason") or ""):
                config["reason"] = redact(reason)
            for epoch_result in _epoch_results(result):
                sender.send(do="epoch", id=self._run_id(trial), result=epoch_result, config=config)

        def _close_run(self, trials: list[Any], trial: Any, *, failed: bool) -> None:
            number = self._number(trials, trial)
            done_path = (
                folder / "mirrored" / f"{settings.project}-{group}-{number}-{settings.mode}.json"
            )
            # Return if the run is complete. ``done_path`` exists even if the run was completed
            # before the search was resumed. An incomplete run is sent again.
            if trial not in self._open_trials and (
                trial in self._closed_trials or done_path.exists()
            ):
                return
            self._closed_trials.add(trial)
            self._open_run(trials, trial)
            self._open_trials.discard(trial)
            state_and_reason = _state_and_reason(trial.last_result or {}, failed=failed)
            sender.send(
                do="close",
                id=self._run_id(trial),
                done_path=str(done_path.absolute()),
                **state_and_reason,
            )

    return TrialRuns()


def _epoch_results(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one result per epoch since the trial's last report."""
    names = ("epoch", "train_loss", "val_loss", "loss")
    curve = [dict(zip(names, row, strict=True)) for row in json.loads(result.get("curve") or "[]")]
    # The last report of a failed trial contains its reason, and no losses.
    return [
        {"training_iteration": epoch_result["epoch"]} | epoch_result
        for epoch_result in curve or [{"epoch": result["epoch"]}]
    ]


def _state_and_reason(result: Mapping[str, Any], *, failed: bool) -> dict[str, str]:
    """Return state and reason of a trial that ended with this result."""
    reason = redact(str(result.get("reason") or ""))
    # The last report of a failed trial contains its reason, and no losses.
    if failed or (reason and not json.loads(result.get("curve") or "[]")):
        return {"state": "failed", "reason": reason or "The worker of the trial was lost."}
    if reason:
        return {"state": "finished", "reason": reason}
    return {
        "state": "pruned",
        "reason": f"The scheduler stopped the trial after epoch {result.get('epoch', 0)}.",
    }
