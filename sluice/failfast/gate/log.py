"""Event log of the gate: planned checks, results in order, and how the run ended."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from sluice.base.errors import StorageError
from sluice.eventlog.event_log import EventLog
from sluice.failfast.gate.messages import CheckStarted
from sluice.failfast.gate.plan import GatePlan
from sluice.failfast.gate.request import GateRequest
from sluice.failfast.result import CheckResult, GateReport


class GateLog:
    """Writes one log. If the disk is not writable, nothing is written, and ``path`` is None.

    No error is raised, because a check of the gate reports a disk that is not writable.
    """

    def __init__(self, log: EventLog, request: GateRequest) -> None:
        self._log: EventLog | None = log
        self._request = request
        self._check_ids: dict[str, str] = {}
        self.path: Path | None = log.path

    @classmethod
    def open(cls, folder: Path, request: GateRequest) -> Self:
        """Create a log whose name has the time, the target and the process id."""
        now = datetime.now(UTC)
        target = re.sub(r"[^A-Za-z0-9_.]+", "-", request.label).strip("-.")[-60:]
        name = f"{now:%Y%m%dT%H%M%S.%f}Z-{target}-{os.getpid()}.ndjson"
        return cls(EventLog(folder / name, clock=lambda: datetime.now(UTC)), request)

    def __enter__(self) -> Self:
        assert self._log is not None
        try:
            self._log.__enter__()
        except StorageError:
            self._log = self.path = None
        return self

    def __exit__(self, *error: object) -> None:
        if self._log is not None:
            self._log.__exit__(None, None, None)

    def write(self, message: GatePlan | CheckStarted | CheckResult) -> None:
        """Write the plan, the start of a check or a result."""
        match message:
            case GatePlan(workload=workload, checks=checks):
                self._check_ids = {check.name: check.check_id for check in checks}
                self._write(
                    "gate_start",
                    workload=workload,
                    level=self._request.level,
                    checks=[check.name for check in checks],
                    target=self._request.label,
                    seed=self._request.seed,
                )
            case CheckStarted(name=name):
                self._write("check_start", name=name, check_id=self._check_ids.get(name, ""))
            case CheckResult():
                self._write(
                    "check_complete",
                    name=message.name,
                    check_id=message.check_id,
                    outcome=message.outcome,
                    seconds=message.seconds,
                    summary=message.summary,
                    cause=message.cause,
                    fix=message.fix,
                )

    def write_outcome(self, report: GateReport) -> None:
        """Write the outcome and the run time of the gate."""
        self._write("gate_complete", outcome=report.outcome, seconds=report.seconds)

    def write_stop(self, reason: str, *, check: str) -> None:
        """Write that the gate was stopped, why, and during which check."""
        self._write("gate_stopped", reason=reason, check=check)

    def _write(self, event: str, **fields: object) -> None:
        if self._log is None:
            return
        try:
            self._log.write(event, **fields)
        except StorageError:
            self._log = self.path = None
