"""Planted defects with the expected results of the checks."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sluice.bench.poc.setup import PocSetup
from sluice.findings.check_outcome import CheckOutcome, Outcome

RunMode = Literal["this process", "child process", "unwritable folder"]
"""How the POC gate runs. With an unwritable folder, it runs in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedDefect:
    """One defect in a workload, its model or its settings, for the gate."""

    name: str
    check: str
    """Name of the check that must be the first to report the defect."""
    summary_texts: tuple[str, ...]
    """Texts that the summary of the check must contain, ignoring case, such as a column name."""
    advice_text: str
    """Text that the cause or the fix of the check must contain, ignoring case."""
    setup: PocSetup
    expected_outcome: Outcome = "fail"
    run_mode: RunMode = "this process"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorDefect:
    """One defect in a user's functions or file, for a validator that runs without the gate.

    Fields without a docstring are as in ``PlantedDefect``.
    """

    name: str
    check: str
    """Name of the validator."""
    check_id: str
    summary_texts: tuple[str, ...]
    advice_text: str
    validate: Callable[[Path], CheckOutcome]
    """Runs the validator on the defect. Its argument is an empty folder for files."""
    expected_outcome: Outcome = "fail"


Defect = PlantedDefect | ValidatorDefect
