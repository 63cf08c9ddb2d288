"""Messages between the supervisor and the gate's child process (importable without torch)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sluice.base.errors import SluiceError
from sluice.failfast.gate.plan import GatePlan
from sluice.failfast.gate.request import GateRequest
from sluice.failfast.result import CheckResult

CRASH_FILE = "crash.txt"
"""File in the scratch folder with the Python stack of a crash in native code."""

RELOADING_DATA = "data_are_loaded_again"
"""Name that is reported instead of a check's name while a new process loads the data again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateTask:
    """First message of the supervisor."""

    request: GateRequest
    scratch: Path
    earlier_results: tuple[CheckResult, ...]
    """Results of an earlier process; these checks are not run again."""


@dataclass(frozen=True, slots=True)
class CheckStarted:
    """Start of a check, or of RELOADING_DATA."""

    name: str


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """Reply to 'where': the line of user code that is running."""

    text: str


WorkerMessage = (
    GatePlan | CheckStarted | CheckResult | CodeLocation | SluiceError | Literal["finished"]
)
"""Message from the gate's child process to the supervisor."""

SupervisorMessage = GateTask | Literal["where"]
"""Message from the supervisor to the child process; "where" requests a ``CodeLocation``."""
