"""What a planted defect is: where it stands, and what a right answer of the gate says."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sluice.bench.poc.setup import Setup
from sluice.findings.finding import Finding, Outcome

Where = Literal["here", "apart", "unwritable"]
"""In this process, in one of its own, or in this one with a folder that cannot be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One defect in a workload, its model or its settings."""

    name: str
    check: str
    """The check that must be the first to object."""
    says: tuple[str, ...]
    """Parts of what it must say it saw: the place, the column, the parameter."""
    advises: str
    """Part of the cause or the fix, in any case of letters."""
    setup: Setup
    expected: Outcome = "fail"
    where: Where = "here"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedAlone:
    """One defect in a function or file of the user's own, for a validator that is used alone."""

    name: str
    check: str
    """The validator."""
    requirement: str
    says: tuple[str, ...]
    advises: str
    validate: Callable[[Path], Finding]
    """Runs it on the defect; the folder is for its files."""
    expected: Outcome = "fail"


Defect = Planted | PlantedAlone
