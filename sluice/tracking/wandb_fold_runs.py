"""Logs each fold run of a training as a run of Weights & Biases (W&B), while it trains.

A separate process writes the runs, and gets its messages through a pipe that never blocks.
Therefore W&B neither delays nor changes a training. If W&B fails, the training continues: the
reason is reported once, and nothing more is sent.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json, short
from sluice.base.errors import Interrupted, SluiceError
from sluice.base.redaction import redact
from sluice.tracking.settings import TrackingSettings
from sluice.tracking.tracked_run import fold_run_task
from sluice.tracking.wandb_login import with_wandb_login
from sluice.tracking.wandb_run_end import RunEnd
from sluice.tracking.wandb_run_sender import RunSender
from sluice.training.fold_run_events import FoldRunEvent, OnFoldRunEvent
from sluice.training.members import Member

_WRITER = "sluice.tracking.wandb_fold_run_writer"


def training_group(pipeline: str, *, data: str, config: str, code: str) -> str:
    """Return the group of a training's fold runs: pipeline, and digest of the training's inputs.

    A repeated or resumed training has the same group. If a training is repeated with more seeds,
    its group gets more runs.
    """
    return f"{pipeline}-{short(digest_json({'data': data, 'config': config, 'code': code}))}"


@contextlib.contextmanager
def log_fold_runs(
    settings: TrackingSettings,
    *,
    pipeline: str,
    group: str,
    config: Mapping[str, Any],
    store: ArtifactStore,
    folder: Path,
    environ: Mapping[str, str],
    warn: Callable[[str], None],
) -> Iterator[OnFoldRunEvent]:
    """Yield the function that receives the events of a training and logs its fold runs.

    A fold run that fails has the state 'failed' and the error as its reason. If an error leaves the
    block, the runs that have not ended get the state 'stopped', or 'interrupted' if the user
    stopped the training.

    Args:
        settings: Destination, and what is logged.
        pipeline: Name of the pipeline.
        group: Group of the runs, see ``training_group``.
        config: Resolved settings of the training, as plain JSON.
        store: Store of weights and event logs.
        folder: Folder for wandb's files.
        environ: Environment variables of the caller, with the key or the location of the login.
        warn: Called once with the reason if the runs are not logged.

    Yields:
        A function that returns at once and does not raise.

    Cost:
        One process per training, which starts with the first fold run and needs about 1.5 s of CPU
        time. For each epoch about 0.05 ms in this process, and 1 ms in the separate process.
    """
    if settings.mode == "off" or not settings.fold_runs:
        yield _ignore
        return
    if settings.mode == "online":
        online_environ = with_wandb_login(environ)
        if online_environ is None:
            warn(
                "Fold runs are not sent to Weights & Biases: tracking.mode is online and "
                "WANDB_API_KEY is not set. Set it, run 'wandb login', or set tracking.mode to "
                "offline."
            )
            yield _ignore
            return
        environ = online_environ
    fold_runs = _FoldRuns(
        settings,
        pipeline=pipeline,
        group=group,
        config=config,
        store=store,
        folder=folder.absolute(),
        environ=environ,
        warn=warn,
    )
    try:
        yield fold_runs
    except BaseException as error:
        fold_runs.end(*_state_and_reason(error))
        raise
    fold_runs.end("stopped", "The training ended without a result of this fold run.")


def _ignore(_: FoldRunEvent) -> None:
    pass


def _state_and_reason(error: BaseException) -> tuple[RunEnd, str]:
    """Return state and reason of the runs that an error has ended."""
    if not isinstance(error, Exception):
        return "interrupted", "The training was interrupted. Run it again to resume it."
    reason = error.what if isinstance(error, SluiceError) else str(error)
    return "interrupted" if isinstance(error, Interrupted) else "stopped", reason


class _FoldRuns:
    """Translates the events of fold runs into messages for the writer process."""

    def __init__(
        self,
        settings: TrackingSettings,
        *,
        pipeline: str,
        group: str,
        config: Mapping[str, Any],
        store: ArtifactStore,
        folder: Path,
        environ: Mapping[str, str],
        warn: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._pipeline = pipeline
        self._group = group
        self._store = store
        self._folder = folder
        self._open_run_ids: set[str] = set()
        self.sender = RunSender(
            _WRITER,
            settings,
            runs_name="Fold runs",
            work_name="training",
            group=group,
            config={**config, "pipeline": pipeline},
            folder=folder,
            environ=environ,
            warn=warn,
        )

    def __call__(self, event: FoldRunEvent) -> None:
        """Send an event without waiting."""
        if not self.sender.has_failed:
            with self.sender.reporting_failure():
                self._send_event(event)

    def _send_event(self, event: FoldRunEvent) -> None:
        run_id = f"{self._group}-{fold_run_task(event.seed, event.fold_id)}"
        if (
            event.kind == "reused"
            and run_id not in self._open_run_ids
            and self._done_path(run_id).exists()
        ):
            return
        if event.kind in ("lost", "replaces"):
            # 'lost': the fold run will resume on another worker; 'replaces': it has not started.
            return
        if run_id not in self._open_run_ids:
            self._open_run_ids.add(run_id)
            self.sender.send(do="open", id=run_id, **self._open_fields(event))
        for result in event.history or filter(None, [event.result]):
            self.sender.send(do="epoch", id=run_id, result=dataclasses.asdict(result))
        if event.member is not None:
            self.sender.send(
                do="close", id=run_id, state="finished", **self._close_fields(event.member)
            )
        elif event.kind == "failed":
            self.sender.send(do="close", id=run_id, state="failed", reason=redact(event.reason))

    def end(self, state: RunEnd, reason: str) -> None:
        """Close the runs that have not ended, and wait until everything is sent."""
        self.sender.end(state=state, reason=reason)

    def _open_fields(self, event: FoldRunEvent) -> dict[str, Any]:
        """Return the fields of the message 'open' of a fold run."""
        return {
            "name": f"seed {event.seed} fold {event.fold_id}",
            "config": {"seed": event.seed, "fold": event.fold_id},
        }

    def _close_fields(self, member: Member) -> dict[str, Any]:
        """Return the results of a fold run as fields of the message 'close'.

        They include ``log_path``, from which the writer reads epochs that were not sent, such as
        the epochs of a reused fold run.
        """
        task = fold_run_task(member.seed, member.fold_id)
        weights = {
            "artifact": f"weights-{self._pipeline}-{task}",
            "path": str(self._store.path(member.weights).absolute()),
            "digest": member.weights,
        }
        return {
            "done_path": str(self._done_path(f"{self._group}-{task}")),
            "log_path": str(self._store.path(member.event_log).absolute()),
            "summary": {
                "best_epoch": member.best_epoch,
                "best/train_loss": member.train_loss,
                "best/val_loss": member.val_loss,
                "seconds": member.seconds,
                **{f"test/{name}": value for name, value in member.test_metrics.items()},
            },
            "weights": weights if self._settings.log_weights else None,
        }

    def _done_path(self, run_id: str) -> Path:
        """Return the path of a file that exists if the finished run is logged.

        With ``log_weights``, the file exists only if the weights are logged, too.
        """
        settings = self._settings
        weights_suffix = "-weights" if settings.log_weights else ""
        name = f"{settings.project}-{run_id}-{settings.mode}{weights_suffix}.json"
        return self._folder / "mirrored" / name
