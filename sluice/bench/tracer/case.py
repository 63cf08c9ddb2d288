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
    """Folder in which the program may write files; empty at the start."""
    has_fault: bool = True
    """Whether the program contains its fault; False for a healthy program."""
    rank: int = 0
    num_ranks: int = 1
    """Number of ranks. With several ranks, a gloo process group exists when the program starts."""


Program = Callable[[CaseSetup], list[nn.Module]]
"""Trains networks within one or two seconds on one core, and returns the networks."""

ANY_STEP = 200
"""``max_late_steps`` of a fault whose finding may have any step. Programs with such a fault have
fewer steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """One fault of the benchmark, in a program that also runs without the fault.

    Without the fault, the program is healthy, and the tracer must report no error.
    """

    number: int
    """Number of the fault, for option ``--faults``. Variants of one fault share a number."""
    name: str
    program: Program
    correct_causes: frozenset[FaultName]
    """Reported causes that count as correct."""
    max_late_steps: int
    """Maximum number of steps after ``starts_at`` at which a finding still counts as in time."""
    nets: tuple[NetName, ...]
    """Networks that the program can train."""
    required_severity: Literal["error", "confirm"] = "error"
    """Minimum severity of a correct cause. With ``confirm``, a cause that needs confirmation is
    correct, too: the fault may be intentional."""
    starts_at: int = 1
    """First step affected by the fault, from 1."""
    num_ranks: int = 1
    """Number of ranks on which the program runs."""
    raises: bool = False
    """Whether the fault ends the program with an exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyCase:
    """One unusual but healthy program, in which the tracer must report no error."""

    number: int
    """Number in the list of healthy programs, from 1."""
    name: str
    program: Program
    nets: tuple[NetName, ...]
    """Networks that the program can train."""
