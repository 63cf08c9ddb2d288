"""Receives messages about runs of Weights & Biases (W&B) in a separate process; writes the runs.

The process reads one JSON object per line from stdin: first the destination, then messages whose
field ``do`` is 'open', 'epoch', 'close' (each for the run with the given ``id``) or 'end'. When
stdin ends, the runs that are still open are closed. ``sluice.tracking.wandb_run_sender`` sends the
messages.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sluice.tracking.wandb_mirror import QUIET_SETTINGS


class RunWriter(Protocol):
    """Writes one run. The arguments of both methods are the fields of a message."""

    @property
    def write_epoch(self) -> Callable[..., None]:
        """Method that writes the result of an epoch."""

    @property
    def close(self) -> Callable[..., None]:
        """Method that writes how the run ended, and waits until everything is written or sent."""


def write_runs(
    lines: Iterable[str],
    *,
    open_run: Callable[..., RunWriter],
    lost_reason: str,
) -> None:
    """Write the runs that the lines describe; after the last line, close the runs still open.

    Args:
        lines: Lines of stdin.
        open_run: Function that opens a run. Its arguments are the destination, the id of the run,
            and the fields of the message 'open' as keywords.
        lost_reason: Stored as the reason for the interruption of the runs that are open when stdin
            ends without a message 'end'.
    """
    messages = map(json.loads, lines)
    destination = next(messages, None)
    if destination is None:
        return
    runs: dict[str, RunWriter] = {}
    end_fields: dict[str, Any] = {"state": "interrupted", "reason": lost_reason}
    for message in messages:
        run_id = message.pop("id", "")
        match message.pop("do"):
            case "open":
                runs[run_id] = open_run(destination, run_id, **message)
            case "epoch":
                runs[run_id].write_epoch(**message)
            case "close":
                runs.pop(run_id).close(**message)
            case "end":
                end_fields = message
    _exit_after(destination["exit_timeout_s"])
    for run in runs.values():
        run.close(**end_fields)


def init_run(
    destination: Mapping[str, Any], run_id: str, *, name: str, config: Mapping[str, Any], job: str
) -> Any:
    """Start a run, or continue the run with the same id, and return wandb's object.

    Args:
        destination: Project, mode and settings, as sent by ``RunSender``.
        run_id: Id of the run.
        name: Name of the run.
        config: Config of this run, in addition to the config in ``destination``.
        job: Type of the job, such as 'training'; W&B can group runs by it.
    """
    import wandb

    return wandb.init(
        project=destination["project"],
        entity=destination["entity"],
        id=run_id,
        name=name,
        group=destination["group"],
        job_type=job,
        tags=tuple(destination["tags"]),
        config={**destination["config"], **config},
        allow_val_change=True,
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(
            mode=destination["mode"],
            init_timeout=destination["init_timeout_s"],
            **{**QUIET_SETTINGS, **destination["system_metrics_settings"]},
        ),
    )


def last_written_epoch(run: Any) -> int:
    """Return the last epoch of a continued run that the server has; 0 for a new run."""
    return max(int(run.starting_step) - 1, 0)


def store_artifact(
    run: Any,
    path: Path,
    *,
    artifact: str,
    kind: str,
    name: str,
    metadata: Mapping[str, Any],
    aliases: Sequence[str],
) -> None:
    """Store a file as a new version of an artifact.

    Args:
        run: The run that logs the artifact.
        path: Path of the file.
        artifact: Name of the artifact.
        kind: Type of the artifact, such as 'model'.
        name: Name of the file inside the artifact.
        metadata: Metadata of the version.
        aliases: Aliases of the version.
    """
    import wandb

    version = wandb.Artifact(artifact, type=kind, metadata=dict(metadata))
    version.add_file(str(path), name=name)
    run.log_artifact(version, aliases=list(aliases))


def _exit_after(seconds: float) -> None:
    """End this process and its children after a time, even if wandb waits for its server."""

    def end() -> None:
        os.killpg(os.getpgrp(), signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
