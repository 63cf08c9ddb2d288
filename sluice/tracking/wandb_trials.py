"""Sends the trials of a running search to Weights & Biases (W&B), with Ray Tune's callback.

A failure of W&B neither stops nor delays a search, because separate processes send the runs. After
the first failure, the callback reports it once and sends nothing more.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sluice.base.pluralize import pluralize
from sluice.base.redaction import redact
from sluice.tracking.settings import Mode, TrackingSettings
from sluice.tracking.wandb_login import with_wandb_login
from sluice.tracking.wandb_mirror import INIT_TIMEOUT_S, QUIET_SETTINGS, stats_settings
from sluice.tracking.wandb_run_end import finish_run

_MAX_UPLOAD_WAIT_S = 30
"""Maximum wait for the last uploads when a search ends [s]."""
_UNKNOWN_END = {"state": "interrupted", "reason": "The search ended before the trial."}

Values = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Function that converts the Tune config of a trial to the values by path of the setting."""


def trial_callbacks(
    settings: TrackingSettings,
    *,
    group: str,
    folder: Path,
    values: Values,
    environ: Mapping[str, str],
    warn: Callable[[str], None],
) -> list[Any]:
    """Return the callbacks that log each trial of a search while it trains.

    Args:
        settings: Destination; trials are sent only if the mode is 'online' and a key is set.
        group: Name of the group of runs, which is different for each search.
        folder: Folder for wandb's files.
        values: Converts the Tune config of a trial.
        environ: Environment variables of the caller, with the key or the place of the login.
        warn: Called with the reason if trials are not sent.

    Returns:
        A list with one callback, or an empty list if trials are not sent.

    Cost:
        Two additional processes per running trial.
    """
    if settings.mode != "online":
        return []
    login = with_wandb_login(environ)
    if login is None:
        warn(
            "Trials are not sent to Weights & Biases: tracking.mode is online and WANDB_API_KEY is "
            "not set. Set it, run 'wandb login', or use offline."
        )
        return []
    return [
        wandb_callback(
            settings,
            group=group,
            mode="online",
            folder=folder,
            values=values,
            base_url=login["WANDB_BASE_URL"],
            key=login["WANDB_API_KEY"],
            warn=warn,
        )
    ]


def wandb_callback(
    settings: TrackingSettings,
    *,
    group: str,
    mode: Mode,
    folder: Path,
    values: Values,
    warn: Callable[[str], None],
    base_url: str | None = None,
    key: str | None = None,
) -> Any:
    """Return Ray Tune's W&B callback, changed so that a resumed search continues the same runs.

    The step of a run is the epoch, and its history contains every epoch of the trial.

    Args:
        settings: Project, entity, tags and time limit.
        group: Group of the runs.
        mode: Mode of ``wandb.init``.
        folder: Folder for wandb's files.
        values: Converts the Tune config of a trial.
        warn: Called with the reason if trials are not sent.
        base_url: URL of a W&B server; by default chosen by wandb.
        key: Key of the user; by default that of WANDB_API_KEY.
    """
    import ray
    from ray.air.integrations.wandb import WandbLoggerCallback, _QueueItem, _WandbLoggingActor
    from ray.tune import Callback

    class RunActor(_WandbLoggingActor):
        """Process that sends one run with the key that it was given, and how the trial ended."""

        def run(self) -> None:
            use_key_from_environment_only()
            run = self._wandb.init(*self.args, **self.kwargs)
            while True:
                kind, content = self.queue.get()
                if kind == _QueueItem.END:
                    break
                row, config = self._handle_result(content)
                run.config.update(config, allow_val_change=True)
                run.log(row, step=row["training_iteration"])
            finish_run(run, tags=settings.tags, **(content or _UNKNOWN_END))

    class TrialRuns(WandbLoggerCallback):
        """W&B callback whose run ids consist of the group and the number of the trial."""

        _logger_actor_cls = RunActor

        def setup(self, *args: Any, **options: Any) -> None:
            self._numbers: dict[Any, int] = {}
            self._has_failed = False
            if mode == "online":
                super().setup(*args, **options)  # type: ignore[no-untyped-call]

        def __reduce__(self) -> tuple[Any, ...]:
            return (
                Callback,
                (),
            )  # Tune stores its callbacks, but a resumed search creates a new one.

        def on_trial_start(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            # A resumed study adds all trials again in the order of their numbers.
            if trial not in self._numbers:
                self._numbers[trial] = trials.index(trial)
            super().on_trial_start(iteration, trials, trial, **info)

        def log_trial_start(self, trial: Any) -> None:
            if self._can_send():
                super().log_trial_start(trial)

        def _start_logging_actor(
            self, trial: Any, exclude_results: list[str], **wandb_init_kwargs: Any
        ) -> None:
            if trial in self._trial_logging_futures:
                return
            number = self._numbers[trial]
            wandb_init_kwargs |= {
                "id": f"{group}-{number}",
                "name": f"trial {number}",
                "config": dict(values(trial.config)),
            }
            super()._start_logging_actor(trial, exclude_results, **wandb_init_kwargs)
            queues: dict[Any, Any] = self._trial_queues
            queues[trial] = _Outbox(queues[trial])

        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            if not self._can_send():
                return
            config = dict(values(result["config"]))
            if reason := str(result.get("reason") or ""):
                config["reason"] = redact(reason)
            for epoch_result in _epoch_results(result):
                super().log_trial_result(iteration, trial, epoch_result | {"config": config})

        def log_trial_end(self, trial: Any, failed: bool = False) -> None:
            # A resumed study also reports the end of trials that it did not start again.
            if trial in self._trial_queues and self._can_send():
                ending = _trial_end(trial.last_result or {}, failed=failed)
                self._trial_queues[trial].put((_QueueItem.END, ending))
                self._cleanup_logging_actors()

        def on_experiment_end(self, trials: list[Any], **info: Any) -> None:  # noqa: ARG002 - Tune's
            futures = list(self._trial_logging_futures.values())
            if not self._can_send() or not futures:
                return
            _, unfinished = ray.wait(
                futures, num_returns=len(futures), timeout=self._upload_timeout
            )
            if self._can_send() and unfinished:
                self._stop_sending(
                    f"{pluralize(len(unfinished), 'run')} not sent {self._upload_timeout:g} s "
                    f"after the search"
                )
            self._cleanup_logging_actors(kill_on_timeout=True)

        def _can_send(self) -> bool:
            """Return whether no run has failed so far; stop all runs at the first failure."""
            futures = list(self._trial_logging_futures.values())
            if not self._has_failed and futures:
                ended, _ = ray.wait(futures, num_returns=len(futures), timeout=0)
                for future in ended:
                    try:
                        ray.get(future)
                    except ray.exceptions.RayError as error:
                        self._stop_sending(_last_line(error))
                        break
            return not self._has_failed

        def _stop_sending(self, reason: str) -> None:
            self._has_failed = True
            for trial in list(self._trial_logging_actors):
                self._cleanup_logging_actor(trial)
            warn(
                f"Trials are no longer sent to Weights & Biases: {redact(reason)}. The search "
                "continues. Correct WANDB_API_KEY or the connection before the next search."
            )

    init_limit = {"init_timeout": min(INIT_TIMEOUT_S, settings.timeout_s / 2)}
    return TrialRuns(
        project=settings.project,
        api_key=key,
        group=group,
        log_config=True,
        upload_timeout=math.ceil(min(_MAX_UPLOAD_WAIT_S, settings.timeout_s)),
        entity=settings.entity,
        tags=list(settings.tags),
        mode=mode,
        dir=str(folder),
        resume="allow",
        settings={
            **QUIET_SETTINGS,
            **init_limit,
            **stats_settings(settings),
            **({"base_url": base_url} if base_url else {}),
        },
    )


def _epoch_results(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one result per epoch since the trial's last report."""
    names = ("epoch", "train_loss", "val_loss", "loss")
    curve = [dict(zip(names, row, strict=True)) for row in json.loads(result.get("curve") or "[]")]
    # A failed trial reports its reason without an epoch.
    return [
        {"training_iteration": epoch_result["epoch"]} | epoch_result
        for epoch_result in curve or [{"epoch": result["epoch"]}]
    ]


def _trial_end(result: Mapping[str, Any], *, failed: bool) -> dict[str, str]:
    """Return state and reason of a trial that ended with this result."""
    reason = redact(str(result.get("reason") or ""))
    # A failed trial reports its reason without an epoch.
    if failed or (reason and not json.loads(result.get("curve") or "[]")):
        return {"state": "failed", "reason": reason or "The worker of the trial was lost."}
    if reason:
        return {"state": "finished", "reason": reason}
    return {
        "state": "pruned",
        "reason": f"The scheduler stopped the trial after epoch {result.get('epoch', 0)}.",
    }


class _Outbox:
    """Wraps Tune's queue of results so that ``put`` does not wait for the actor of the queue."""

    def __init__(self, queue: Any) -> None:
        self.actor = queue.actor

    def put(self, item: Any) -> None:
        """Send an item without waiting; the order of the items is preserved."""
        self.actor.put_nowait.remote(item)


def use_key_from_environment_only() -> None:
    """Make wandb read the key only from the environment, not from a login on this machine."""
    os.environ["NETRC"] = os.devnull
    os.environ["WANDB_ERROR_REPORTING"] = "false"


def _last_line(error: Exception) -> str:
    """Return the class and the last line of the error, or of its cause in a Ray process."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[-1] if lines else ''}".rstrip(".")
