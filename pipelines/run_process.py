"""The process that executes a run, recorded in a run tag so that killed runs can be detected."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

PROCESS_TAG = "sluice/process"
"""Run tag with run id, host, process id and start time of the executing process."""

TERMINAL_TAG = "sluice/terminal"
"""Run tag with the id of a run that ``sluice run`` executes in a terminal. A re-execution in the UI
has the tags of the first run, but another id."""

_TAG_PATTERN = re.compile(r"run (\S+) on (\S+) in process (\d+) of second (\d+\.\d+)")
_START_TOLERANCE_S = 1.0
"""Maximum difference between two measurements of the start time of one process [s]. If they differ
more, the process id was reused by another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProcess:
    """A process and the run that it executes."""

    run_id: str
    """Id of the run. A re-executed run inherits the tags of the first run, but has another id."""

    host: str
    pid: int

    started_s: float
    """Start time after boot [s]. It identifies the process, because process ids are reused."""

    @classmethod
    def current(cls, run_id: str) -> "RunProcess":
        """Return the present process as the executor of a run."""
        pid = os.getpid()
        return cls(run_id=run_id, host=socket.gethostname(), pid=pid, started_s=_started_s(pid))

    @classmethod
    def of(cls, run_id: str, tags: Mapping[str, str]) -> "RunProcess | None":
        """Return the process in the tags of a run; None if they contain no process of this run."""
        match = _TAG_PATTERN.fullmatch(tags.get(PROCESS_TAG, ""))
        if match is None or match[1] != run_id:
            return None
        return cls(run_id=run_id, host=match[2], pid=int(match[3]), started_s=float(match[4]))

    @property
    def tags(self) -> dict[str, str]:
        """Run tags in the format that ``of`` reads."""
        where = f"on {self.host} in process {self.pid} of second {self.started_s:.2f}"
        return {PROCESS_TAG: f"run {self.run_id} {where}"}

    @property
    def is_on_this_host(self) -> bool:
        """Whether the process runs, or ran, on this host."""
        return self.host == socket.gethostname()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended; False for processes of other hosts."""
        import psutil

        if not self.is_on_this_host:
            return False
        try:
            is_zombie = psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
            return is_zombie or abs(_started_s(self.pid) - self.started_s) > _START_TOLERANCE_S
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:  # the process exists, but belongs to another user
            return False


def _started_s(pid: int) -> float:
    import psutil

    return float(psutil.Process(pid).create_time() - psutil.boot_time())
