"""The gate's own event log: what was checked, in order, and how it ended, whatever happened."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from sluice.base.errors import StorageError
from sluice.eventlog.event_log import EventLog
from sluice.failfast.gate.messages import Started
from sluice.failfast.gate.plan import Plan
from sluice.failfast.gate.request import GateRequest
from sluice.failfast.result import CheckResult, GateReport


class GateLog:
    """Writes one log; on a disk that cannot be written it stays silent, and ``path`` is None.

    That the disk cannot be written is found by a check of the gate, with its fix; a log that
    raised would hide the report.
    """

    def __init__(self, log: EventLog, request: GateRequest) -> None:
        self._log: EventLog | None = log
        self._request = request
        self._requirements: dict[str, str] = {}
        self.path: Path | None = log.path

    @classmethod
    def open(cls, folder: Path, request: GateRequest) -> Self:
        """Name the log after the target, the time and the process."""
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

    def write(self, message: Plan | Started | CheckResult) -> None:
        """Write what was planned, begun or found."""
        match message:
            case Plan(workload=workload, checks=checks):
                self._requirements = {check.name: check.requirement for check in checks}
                self._write(
                    "gate_start",
                    workload=workload,
                    level=self._request.level,
                    checks=[check.name for check in checks],
                    target=self._request.label,
                    seed=self._request.seed,
                )
            case Started(name=name):
                self._write("check_start", name=name, requirement=self._requirements.get(name, ""))
            case CheckResult():
                self._write(
                    "check_complete",
                    name=message.name,
                    requirement=message.requirement,
                    outcome=message.outcome,
                    seconds=message.seconds,
                    summary=message.summary,
                    cause=message.cause,
                    fix=message.fix,
                )

    def complete(self, report: GateReport) -> None:
        """Write how it ended."""
        self._write("gate_complete", outcome=report.outcome, seconds=report.seconds)

    def stopped(self, reason: str, *, check: str) -> None:
        """Write that it did not come to its end, and in which check."""
        self._write("gate_stopped", reason=reason, check=check)

    def _write(self, event: str, **fields: object) -> None:
        if self._log is None:
            return
        try:
            self._log.write(event, **fields)
        except StorageError:
            self._log = self.path = None
