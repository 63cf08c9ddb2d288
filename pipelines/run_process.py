"""Which process executes a run, told by a tag: a run that was killed cannot say so itself."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

PROCESS_TAG = "sluice/process"
"""Run tag: run, host, process number and start of the process that executes the run."""

_FORM = re.compile(r"run (\S+) on (\S+) in process (\d+) of second (\d+\.\d+)")
_SAME_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProcess:
    """A process and the run that it executes."""

    run_id: str
    """A run that is executed again begins with the tags of the first."""

    host: str
    pid: int

    started_s: float
    """Seconds after the machine's start: process numbers are given again, and clocks are set."""

    @classmethod
    def this(cls, run_id: str) -> "RunProcess":
        """Return this process, which executes the run."""
        pid = os.getpid()
        return cls(run_id=run_id, host=socket.gethostname(), pid=pid, started_s=_started_s(pid))

    @classmethod
    def of(cls, run_id: str, tags: Mapping[str, str]) -> "RunProcess | None":
        """Return the process that the tags of a run name; None when they name none of this run."""
        found = _FORM.fullmatch(tags.get(PROCESS_TAG, ""))
        if found is None or found[1] != run_id:
            return None
        return cls(run_id=run_id, host=found[2], pid=int(found[3]), started_s=float(found[4]))

    @property
    def tags(self) -> dict[str, str]:
        """The tag that ``of`` reads."""
        where = f"on {self.host} in process {self.pid} of second {self.started_s:.2f}"
        return {PROCESS_TAG: f"run {self.run_id} {where}"}

    @property
    def is_here(self) -> bool:
        """Whether it runs, or ran, on this host."""
        return self.host == socket.gethostname()

    @property
    def is_gone(self) -> bool:
        """Whether it ended for certain; of another host nobody here knows."""
        import psutil

        if not self.is_here:
            return False
        try:
            ended = psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
            return ended or abs(_started_s(self.pid) - self.started_s) > _SAME_S
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:  # somebody else's process, but a process
            return False


def _started_s(pid: int) -> float:
    import psutil

    return float(psutil.Process(pid).create_time() - psutil.boot_time())
