"""Entry of the fault catalogue: one problem that a detector of Sluice can report."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "confirm", "warning"]
"""``error``: certainly wrong; ``confirm``: wrong unless intended; ``warning``: worth checking."""

Detector = Literal["POC gate", "tracer", "training diagnosis", "rollout"]
"""Part of Sluice that reports a fault. A rehearsal can inject each fault that a rollout reports."""

Topic = Literal[
    "data",
    "tokens",
    "network",
    "gradients",
    "optimization",
    "losses",
    "checkpoints",
    "distributed",
    "runtime",
    "serving",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One problem, with its usual cause and fix."""

    id: str
    """Stable identifier, such as ``learning-rate-too-high``."""
    name: str
    topic: Topic
    severity: Severity
    """Severity of a typical finding. The detector decides the severity of each finding."""
    description: str
    """The problem and its effect."""
    cause: str
    """Likely cause."""
    fix: str
    detectors: tuple[Detector, ...]

    @property
    def explain_command(self) -> str:
        """Command that prints this entry."""
        return f"sluice explain {self.id}"
