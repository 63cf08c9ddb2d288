"""A workload with all its settings, on which the benchmark runs the gate."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sluice.config.poc_settings import PocSettings
from sluice.failfast.gate.inputs import GateInputs
from sluice.failfast.gate.request import GateRequest, WorkloadTarget
from sluice.failfast.gate.run import run_gate
from sluice.failfast.gate.supervisor import supervise
from sluice.failfast.result import GateReport
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload

POC = PocSettings(mini_rows=256, signal_rows=500)
"""Gate settings with fewer rows, so that a set-up takes about a second. Thresholds are the
defaults."""

TRAINING = TrainSettings(batch_rows=32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PocSetup:
    """A workload with all settings."""

    workload: type[Workload]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the workload as plain JSON values, so that a child process can receive them."""
    model: ModelSettings
    training: TrainSettings = TRAINING
    poc: PocSettings = POC
    seed: int = 0
    is_served: bool = False
    """Whether the model will be served, as in a pipeline; ``run_in_child`` ignores it."""

    def run(self, folder: Path) -> GateReport:
        """Run the full gate in this process; checks write to ``folder``."""
        workload = self.workload(
            self.workload.settings_type.parse(dict(self.settings), where=self.workload.__name__)
        )
        inputs = GateInputs(
            workload=workload,
            model_settings=self.model,
            train_settings=self.training,
            settings=self.poc,
            seed=self.seed,
            folder=folder,
            clock=lambda: datetime.now(UTC),
            is_served=self.is_served,
        )
        return run_gate(inputs, level="full")

    def run_in_child(self, folder: Path) -> GateReport:
        """Run the full gate in a child process, which the defect may block or crash."""
        target = WorkloadTarget(
            path=f"{self.workload.__module__}:{self.workload.__qualname__}",
            settings=json.dumps(dict(self.settings)),
            model=self.model,
            training=self.training,
            poc=self.poc,
        )
        request = GateRequest(target=target, level="full", seed=self.seed)
        return supervise(request, folder=folder / "gates").report


def network(name: str, *, hidden: int = 32, dropout: float = 0.0, layers: int = 1) -> ModelSettings:
    """Return settings for a network of this package, or for a built-in architecture.

    Args:
        name: 'networks:Class' or 'network_defects:Class' for a network of this package, such as
            'networks:Mlp'; or the name of a built-in architecture, such as 'gru'.
        hidden: Width of a hidden layer [units].
        dropout: Dropout rate.
        layers: Number of stacked layers; ignored by networks without such layers.
    """
    path = f"sluice.bench.poc.{name}" if ":" in name else name
    return ModelSettings(architecture=path, hidden=hidden, dropout=dropout, layers=layers)
