"""What the supervisor and the gate's process say to each other (no torch is needed to read it)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sluice.base.errors import SluiceError
from sluice.failfast.gate.plan import Plan
from sluice.failfast.gate.request import GateRequest
from sluice.failfast.result import CheckResult

CRASH_FILE = "crash.txt"
"""In the scratch folder: where Python was when native code crashed."""

PREPARING = "data_are_made_again"
"""Named instead of a check while a second process makes the data that the first one had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the supervisor sends first."""

    request: GateRequest
    scratch: Path
    done: tuple[CheckResult, ...]
    """Results of an earlier process; those checks are not run again."""


@dataclass(frozen=True, slots=True)
class Started:
    """A check begins, or PREPARING."""

    name: str


@dataclass(frozen=True, slots=True)
class Place:
    """The answer to 'where': the line that runs now."""

    text: str


Message = Plan | Started | CheckResult | Place | SluiceError | Literal["finished"]
Question = Task | Literal["where"]
