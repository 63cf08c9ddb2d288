"""What is to be gated, in a form that another process can open (it imports no torch)."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.config.poc_settings import PocSettings
from sluice.failfast.result import Level
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings

if TYPE_CHECKING:
    from sluice.config.pipeline import PipelineSettings
    from sluice.failfast.gate.inputs import StoredData


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTarget:
    """What a person types: a pipeline's name or file, or 'module:Workload'."""

    name: str
    overrides: tuple[str, ...] = ()
    """Of a pipeline: 'key.key=value' in place of what its file says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTarget:
    """A workload class and every setting, as plain values."""

    path: str
    """Import path, 'module:Class'; the module may be '__main__'."""
    settings: str = "{}"
    """As JSON, which keeps every kind of value that a settings class can hold."""
    script: str | None = None
    """File of '__main__', when the class stands there."""
    argv: tuple[str, ...] = ()
    """What the script was called with."""
    model: ModelSettings = field(default_factory=ModelSettings)
    training: TrainSettings = field(default_factory=TrainSettings)
    poc: PocSettings = field(default_factory=PocSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTarget:
    """A pipeline whose tables an earlier stage stored."""

    pipeline: "PipelineSettings"
    data: "StoredData"


Target = NamedTarget | WorkloadTarget | StoredTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """One run of the gate."""

    target: Target
    level: Level
    seed: int

    @property
    def label(self) -> str:
        """How the target is called, also in file names."""
        match self.target:
            case NamedTarget(name=name) | WorkloadTarget(path=name):
                return name
            case StoredTarget(pipeline=pipeline):
                return pipeline.name
