"""What a case of the fault benchmark is: a program with one fault, and its twin without."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from sluice.trace.faults import Fault

NetName = Literal["mlp", "cnn", "gru", "transformer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One run of a program."""

    net: NetName
    seed: int
    folder: Path
    """For whatever the program writes; empty."""
    has_fault: bool = True
    rank: int = 0
    ranks: int = 1
    """More than one: a gloo group of so many processes is there when the program starts."""


Program = Callable[[Setup], list[nn.Module]]
"""Trains as people do, within a second or two on one core; returns what it trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """One fault of the benchmark.

    The program without its fault is a healthy run: no error may be found in it.
    """

    number: int
    """In the list of faults that the README's table shows."""
    name: str
    program: Program
    answers: frozenset[Fault]
    """Any of these is right."""
    within: int
    """Steps from the first one that the fault changes to the step of the finding, at most."""
    nets: tuple[NetName, ...]
    needs: Literal["error", "confirm"] = "error"
    """'confirm' where only intent decides: needing confirmation is a right answer, too."""
    starts_at: int = 1
    """The first step that the fault changes."""
    ranks: int = 1
    raises: bool = False
    """The program ends with an exception because of the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyCase:
    """One unusual set-up that learns: ``has_fault`` is always false."""

    number: int
    name: str
    program: Program
    nets: tuple[NetName, ...]
