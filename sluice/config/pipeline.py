"""One pipeline as its YAML says: which workload, and every setting of the line it walks."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from sluice.base.digests import digest_json
from sluice.base.errors import SettingsError
from sluice.base.imports import import_named
from sluice.base.settings import Settings, nearest
from sluice.cluster.settings import ComputeSettings
from sluice.config.drift_settings import DriftSettings, PersistenceSettings
from sluice.config.pipeline_file import overridden, read_attributes
from sluice.config.poc_settings import PocSettings
from sluice.evaluation.guard_settings import GuardSettings
from sluice.evaluation.settings import GateSettings
from sluice.evaluation.simple_rules import SimpleRuleSettings
from sluice.evaluation.suites.settings import SuiteSettings
from sluice.models.settings import ModelSettings
from sluice.registry.stored_code import CodeChoice
from sluice.rollout.settings import RolloutSettings
from sluice.serving.settings import ServingSettings
from sluice.tracking.wandb_mirror import TrackingSettings
from sluice.training.code import optimizer_code
from sluice.training.diagnosis import DiagnosisSettings
from sluice.training.settings import NO_EFFECT, TrainSettings
from sluice.tuning.default_space import default_space
from sluice.tuning.settings import SearchSettings
from sluice.tuning.space_fit import require_fit, require_workload_fit, workload_names
from sluice.tuning.spaces import Setup, Space
from sluice.tuning.strategy import plan_search
from sluice.workloads.load import build_workload, require_workload_type
from sluice.workloads.workload import Workload


class ScheduleSettings(Settings):
    """When the pipeline retrains by itself, and when its registry is verified."""

    cron: str = Field("0 6 * * 1", description="Five cron fields; Monday 06:00 by default.")
    verify_cron: str = Field(
        "30 4 * * *",
        description="Five cron fields of the verification of the registry, which reads every "
        "artifact of the model; daily at 04:30 by default.",
    )
    timezone: str = Field("UTC", description="IANA name of the zone both crons are read in.")


class PipelineSettings(Settings):
    """Everything under ``attributes`` of a ``defs.yaml``."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="Prefix of every asset and job.")
    description: str = Field("", description="What the model is for, shown in the UI.")
    owners: tuple[str, ...] = Field(
        ("team:ml",), strict=False, description="E-mail addresses or 'team:NAME'."
    )
    workload: str = Field(description="Import path of the workload class, 'module:Class'.")
    workload_settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of that workload class."
    )
    model: ModelSettings = ModelSettings()
    training: TrainSettings = TrainSettings()
    search: SearchSettings | None = Field(
        None, description="Search for better settings before training; none when not set."
    )
    space: Space | None = Field(
        None, description="What is searched; that of the architecture when not set."
    )
    seeds: tuple[int, ...] = Field(
        (0, 1, 2, 3, 4, 5, 6, 7),
        min_length=1,
        strict=False,
        description="One network per seed and fold; the gate needs at least gate.min_seeds.",
    )
    data_seed: int | None = Field(
        None,
        ge=0,
        description="Base seed of the row order for all members; the member's own when not set.",
    )
    compute: ComputeSettings = ComputeSettings()
    diagnosis: DiagnosisSettings = DiagnosisSettings()
    poc: PocSettings = PocSettings()
    baseline: SimpleRuleSettings = SimpleRuleSettings()
    gate: GateSettings = GateSettings()
    guards: GuardSettings = GuardSettings()
    suites: SuiteSettings = SuiteSettings()
    tracking: TrackingSettings = TrackingSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    serving: ServingSettings = ServingSettings()
    rollout: RolloutSettings | None = Field(
        None,
        description="How a candidate that the gate promoted meets real traffic before it becomes "
        "production; when not set, the gate alone moves production.",
    )
    production_code: CodeChoice = Field(
        "present",
        description="Code that scores production when the code here is another one: 'present' "
        "refuses it unless it still makes its recorded losses; 'stored' runs the modules that are "
        "stored with the version.",
    )
    drift: DriftSettings | None = Field(
        DriftSettings(),
        description="What counts as drift of the model in production; null switches drift off: no "
        "reference is made, no window is judged, and there is no drift job and no sensor.",
    )
    drift_alarm: PersistenceSettings = PersistenceSettings()

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds) or min(seeds) < 0:
            raise ValueError("seeds must be distinct and not negative")
        return tuple(sorted(seeds))

    @model_validator(mode="after")
    def _enough_seeds(self) -> "PipelineSettings":
        if len(self.seeds) < self.gate.min_seeds:
            raise ValueError(
                f"the gate decides nothing below gate.min_seeds = {self.gate.min_seeds} seeds, got "
                f"{len(self.seeds)}: hours of training would end INCONCLUSIVE"
            )
        return self

    @model_validator(mode="after")
    def _searchable(self) -> "PipelineSettings":
        if self.space is not None:
            if workload_names(self.space):
                settings_type, where = self._workload_type.settings_type, self._where
                require_workload_fit(self.space, settings_type, self.workload_settings, where=where)
            require_fit(self.space, self.setup)
        if self.search is not None:
            plan_search(self.searched, self.search, self.setup)
        return self

    @property
    def drift_settings(self) -> DriftSettings:
        """What counts as drift.

        Raises:
            SettingsError: Drift is switched off.
        """
        if self.drift is None:
            raise SettingsError(
                f"Pipeline {self.name} has drift: null, so no window of it is judged.",
                fix="Remove 'drift: null' from the pipeline's file to switch drift on.",
            )
        return self.drift

    @property
    def setup(self) -> Setup:
        """Settings of network and training, and those of the workload that are searched."""
        own: dict[str, Any] = {}
        names = workload_names(self.space) if self.space is not None else ()
        if names:
            fields = self._workload_type.settings_type.model_fields
            for name in names:
                default = fields[name].get_default(call_default_factory=True)
                own[name] = self.workload_settings.get(name, default)
        return Setup(model=self.model, training=self.training, workload_settings=own)

    @property
    def searched(self) -> Space:
        """What a search looks through: the space as written, else that of the architecture."""
        return self.space or default_space(self.setup)

    def with_setup(self, setup: Setup) -> "PipelineSettings":
        """Return the pipeline with the settings that a search found."""
        return self.model_copy(
            update={
                "model": setup.model,
                "training": setup.training,
                "workload_settings": self.workload_settings | setup.workload_settings,
            }
        )

    @property
    def loaded_workload(self) -> Workload:
        """The workload, built from its settings.

        Raises:
            SettingsError: It does not import, is no workload, or a setting of it is wrong.
        """
        return self.build_workload(self._workload_type)

    def build_workload(self, cls: type[Workload]) -> Workload:
        """Build the workload whose class was found already.

        Raises:
            SettingsError: A setting of it is wrong.
        """
        settings = cls.settings_type.parse(dict(self.workload_settings), where=self._where)
        return build_workload(cls, settings, path=self.workload)

    @property
    def _workload_type(self) -> type[Workload]:
        return require_workload_type(import_named(self.workload, what="workload"), self.workload)

    @property
    def _where(self) -> str:
        return f"{self.name}: workload_settings"

    @property
    def config(self) -> dict[str, Any]:
        """Every setting that determines the bits of a member, resolved, as plain JSON."""
        return {
            "workload": self.workload,
            "workload_settings": self.loaded_workload.settings.model_dump(mode="json"),
            "model": self.model.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json", exclude=set(NO_EFFECT)),
            **optimizer_code(self.training),
            "data_seed": self.data_seed,
            # Gradients add up in another order.
            "ranks": self.compute.ranks_per_training,
        }

    @property
    def promotion_rules(self) -> str:
        """Digest of every setting that decides about a promotion."""
        rules = self.baseline.model_dump(mode="json")
        return digest_json(
            {
                # Only where they are not the usual ones: receipts from before they were kept hold.
                **({"baseline": rules} if self.baseline != SimpleRuleSettings() else {}),
                "gate": self.gate.model_dump(mode="json"),
                "guards": self.guards.model_dump(mode="json"),
                "suites": self.suites.model_dump(mode="json"),
            }
        )

    @property
    def config_digest(self) -> str:
        """Digest of ``config``."""
        return digest_json(self.config)


def read_pipeline(path: Path, overrides: Sequence[str] = ()) -> PipelineSettings:
    """Read a ``defs.yaml``, with what it is based on.

    Args:
        path: The file.
        overrides: What holds in place of what the file says; see ``overridden``.

    Raises:
        SettingsError: The file is missing, is no YAML, or a key or value in it is wrong.
    """
    attributes = overridden(read_attributes(path), overrides)
    where = " ".join([str(path), *(f"--set {given}" for given in overrides)])
    return PipelineSettings.parse(attributes, where=where)


def find_pipeline(name: str, folder: Path, overrides: Sequence[str] = ()) -> PipelineSettings:
    """Read the pipeline that ``name`` means; see ``locate_pipeline`` and ``read_pipeline``."""
    return read_pipeline(locate_pipeline(name, folder), overrides)


def locate_pipeline(name: str, folder: Path) -> Path:
    """Return the YAML that ``name`` means: its path, its folder, or a folder's name in ``folder``.

    Raises:
        SettingsError: There is no such pipeline; the known ones are listed.
    """
    given = Path(name)
    if given.suffix in (".yaml", ".yml"):
        return given
    if (given / "defs.yaml").is_file():
        return given / "defs.yaml"
    known = known_pipelines(folder)
    if name not in known:
        raise SettingsError(
            f"There is no pipeline '{name}'.{nearest(name, known)} Known: {', '.join(known)}.",
            fix="Name a known pipeline or give the path of its defs.yaml.",
        )
    return folder / name / "defs.yaml"


def known_pipelines(folder: Path) -> list[str]:
    """Return the names of the pipelines in ``folder``, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/defs.yaml"))


def defs_folder() -> Path:
    """Return the folder of the shipped pipelines, one sub-folder each."""
    spec = importlib.util.find_spec("sluice.pipelines")
    if spec is None or not spec.submodule_search_locations:
        raise SettingsError(
            "The package 'sluice.pipelines' is required and was not found.",
            fix="Install Sluice again: its folder lacks the link or the package 'pipelines'.",
        )
    return Path(next(iter(spec.submodule_search_locations))) / "defs"
