"""Sends runs of Weights & Biases (W&B) to the process that writes them, without waiting for it.

A failure of W&B neither stops nor delays the caller: after the first failure the reason is reported
once, and nothing more is sent.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.base.errors import StorageError
from sluice.base.files import make_folder
from sluice.base.redaction import redact, redact_data
from sluice.tracking.client_process import ClientFailed
from sluice.tracking.line_process import LineProcess
from sluice.tracking.settings import TrackingSettings
from sluice.tracking.wandb_mirror import system_metrics_settings, wandb_environment
from sluice.tracking.wandb_run_end import RunEnd

_MAX_INIT_WAIT_S = 15.0
"""Maximum wait for W&B's server at the start of a run [s]. A server that has not responded by then
counts as unreachable."""
_MAX_UPLOAD_WAIT_S = 30.0
"""Maximum wait for the last uploads when a training or a search has ended [s]."""


class RunSender:
    """Sends messages about runs to a writer process, which starts with the first message.

    Args:
        writer: Module of the writer process, see ``wandb_run_writer.write_runs``.
        settings: Destination and time limit.
        runs_name: Plural noun for the runs, for messages: 'Trials'.
        work_name: Noun for the work that creates the runs, for messages: 'search'.
        group: Group of the runs.
        config: Config of every run. Credentials are removed from it.
        folder: Folder for wandb's files.
        environ: Environment variables of the writer process.
        warn: Called once with the reason if the runs are not sent.
    """

    def __init__(
        self,
        writer: str,
        settings: TrackingSettings,
        *,
        runs_name: str,
        work_name: str,
        group: str,
        config: Mapping[str, Any],
        folder: Path,
        environ: Mapping[str, str],
        warn: Callable[[str], None],
    ) -> None:
        self._writer, self._settings = writer, settings
        self._runs_name, self._work_name = runs_name, work_name
        self._folder, self._environ, self._warn = folder.absolute(), environ, warn
        self._max_wait_s = min(_MAX_UPLOAD_WAIT_S, settings.timeout_s)
        self._destination = {
            "project": settings.project,
            "entity": settings.entity,
            "mode": settings.mode,
            "group": group,
            "tags": list(settings.tags),
            "config": redact_data(dict(config)),
            "folder": str(self._folder),
            "system_metrics_settings": system_metrics_settings(settings, pid=os.getpid()),
            "init_timeout_s": min(_MAX_INIT_WAIT_S, settings.timeout_s / 2),
            "exit_timeout_s": math.ceil(self._max_wait_s),
        }
        self._process: LineProcess | None = None
        self.has_failed = False
        """Whether a failure was reported, so that nothing more is sent."""

    def send(self, **message: Any) -> None:
        """Send one message; returns at once and does not raise."""
        if self.has_failed:
            return
        with self.reporting_failure():
            if self._process is None:
                make_folder(self._folder / "mirrored")
                environ = wandb_environment(self._folder, self._environ)
                self._process = LineProcess(self._writer, folder=self._folder, environ=environ)
                self._process.send(_encode_line(self._destination))
            self._process.send(_encode_line(message))

    def end(self, *, state: RunEnd, reason: str) -> None:
        """Close the runs that have not ended, and wait a limited time until everything is sent.

        Args:
            state: State of the runs that have not ended.
            reason: Why these runs have not ended.
        """
        if self._process is None or self.has_failed:
            return
        self.send(do="end", state=state, reason=redact(reason))
        if not self.has_failed:
            with self.reporting_failure():
                self.close(self._max_wait_s)

    def close(self, timeout_s: float) -> None:
        """End the writer process, which closes the runs that have not ended.

        Raises:
            ClientFailed: The process failed, or was killed because it exceeded the time limit.
        """
        process, self._process = self._process, None
        if process is not None:
            process.close(timeout_s)

    @contextlib.contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Report the first failure of a block instead of raising it; ignore later failures."""
        try:
            yield
        except (ClientFailed, OSError, StorageError) as error:
            if self.has_failed:
                return
            self.has_failed = True
            self._warn(
                f"{self._runs_name} are no longer sent to Weights & Biases: {redact(str(error))}. "
                f"The {self._work_name} is not affected. Correct WANDB_API_KEY, the connection or "
                f"the disk before the next {self._work_name}.{self._sync_hint()}"
            )

    def _sync_hint(self) -> str:
        """Return a sentence with the command that sends the runs stored on this machine.

        The result is "" if no runs are stored.
        """
        wandb_folder = self._folder / "wandb"
        if self._settings.mode != "online" or not any(wandb_folder.glob("run-*/*.wandb")):
            return ""
        return f" Send what was not sent with: wandb sync {wandb_folder}/run-*"


def _encode_line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
