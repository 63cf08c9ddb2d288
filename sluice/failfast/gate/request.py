"""Targets of a gate run as picklable values, which another process resolves (imports no torch)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.config.poc_settings import PocSettings
from sluice.failfast.result import Level
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings

if TYPE_CHECKING:
    from sluice.failfast.gate.inputs import StoredData


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTarget:
    """Target as typed by a user: a pipeline's name or YAML file, or 'module:Workload'."""

    name: str
    overrides: tuple[str, ...] = ()
    """Overrides of a pipeline's settings, each as 'key.key=value'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTarget:
    """A workload class and all of its settings, as plain values."""

    path: str
    """Import path, 'module:Class'; the module may be '__main__'."""
    settings: str = "{}"
    """Settings as JSON, which preserves every type of value of a settings class."""
    script: str | None = None
    """File of '__main__', when the class is defined there."""
    argv: tuple[str, ...] = ()
    """Command-line arguments of the script."""
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainSettings = field(default_factory=TrainSettings)
    poc: PocSettings = field(default_factory=PocSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTarget:
    """A pipeline, and its tables if an earlier stage stored them."""

    name: str
    path: str
    """Import path of the workload, 'module:Class'."""
    workload_settings: Mapping[str, Any]
    model: ModelSettings
    training: TrainSettings
    poc: PocSettings
    stored_data: "StoredData | None" = None
    guarded_metrics: tuple[str, ...] = ()
    """Metrics that the promotion gate guards; the workload must compute them."""


Target = NamedTarget | WorkloadTarget | PipelineTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """One run of the gate."""

    target: Target
    level: Level
    seed: int

    @property
    def label(self) -> str:
        """Name of the target, also used in file names."""
        match self.target:
            case NamedTarget(name=name) | WorkloadTarget(path=name) | PipelineTarget(name=name):
                return name
