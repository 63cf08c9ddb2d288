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
class Planted:
    """One defect in a workload, its model or its settings."""

    name: str
    check: str
    """The check that must fail first."""
    says: tuple[str, ...]
    """Texts that its summary must contain: place, column, parameter."""
    advises: str
    """Text that cause or fix must contain, ignoring case."""
    setup: PocSetup
    expected: Outcome = "fail"
    where: Where = "here"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedAlone:
    """One defect in a function or file of the user's own, for a validator that is used alone."""

    name: str
    check: str
    """The validator."""
    check_id: str
    says: tuple[str, ...]
    advises: str
    validate: Callable[[Path], CheckOutcome]
    """Runs it on the defect; the folder is for its files."""
    expected: Outcome = "fail"


Defect = Planted | PlantedAlone
