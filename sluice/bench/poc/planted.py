"""A planted defect, and the expected result of the gate."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sluice.bench.poc.setup import PocSetup
from sluice.findings.check_outcome import CheckOutcome, Outcome

Where = Literal["here", "apart", "unwritable"]
"""In this process, in a child process, or in this process with a folder that is not writable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedDefect:
    """One defect in a workload, its model or its settings."""

    name: str
    check: str
    """The check that must fail first."""
    summary_texts: tuple[str, ...]
    """Texts that the summary of the check must contain: place, column, parameter."""
    advice_text: str
    """Text that cause or fix of the check must contain, ignoring case."""
    setup: PocSetup
    expected: Outcome = "fail"
    where: Where = "here"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorDefect:
    """One defect in a function or file of a user, for a validator that runs without the gate."""

    name: str
    check: str
    """The validator."""
    check_id: str
    summary_texts: tuple[str, ...]
    advice_text: str
    validate: Callable[[Path], CheckOutcome]
    """Runs the validator on the defect; the folder is for its files."""
    expected: Outcome = "fail"


Defect = PlantedDefect | ValidatorDefect
