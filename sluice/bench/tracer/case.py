"""A case of the fault benchmark: a program with one fault, and the same program without it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from sluice.findings.catalogue import FaultName

NetName = Literal["mlp", "cnn", "gru", "transformer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSetup:
    """Arguments of one run of a program."""

    net: NetName
    seed: int
    folder: Path
    """Empty folder for files of the program."""
    has_fault: bool = True
    rank: int = 0
    ranks: int = 1
    """Number of ranks; with more than one, a gloo process group exists when the program starts."""


Program = Callable[[CaseSetup], list[nn.Module]]
"""Trains within one or two seconds on one core; returns the trained networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """One fault of the benchmark.

    Without its fault, the program is healthy, and no error may be found.
    """

    number: int
    """Number in the list of faults."""
    name: str
    program: Program
    correct_causes: frozenset[FaultName]
    """Causes that count as correct."""
    max_late_steps: int
    """Maximum number of steps from the first affected step to the step of the finding."""
    nets: tuple[NetName, ...]
    required_severity: Literal["error", "confirm"] = "error"
    """``confirm`` where the fault may be intentional: then a finding that needs confirmation counts
    as correct, too."""
    starts_at: int = 1
    """First step affected by the fault."""
    ranks: int = 1
    raises: bool = False
    """Whether the fault ends the program with an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyCase:
    """One unusual but healthy program: ``has_fault`` is always False."""

    number: int
    name: str
    program: Program
    nets: tuple[NetName, ...]
