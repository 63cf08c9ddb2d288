"""Settings of one pipeline, as read from its YAML file."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from sluice.base.digests import digest_json
from sluice.base.errors import SettingsError
from sluice.base.settings import Settings, suggest_nearest
from sluice.cluster.settings import ComputeSettings
from sluice.config.drift_settings import AlarmDebounceSettings, DriftSettings
from sluice.config.pipeline_file import apply_overrides, read_attributes
from sluice.config.poc_settings import PocSettings
from sluice.evaluation.guard_settings import GuardSettings
from sluice.evaluation.settings import GateSettings
from sluice.evaluation.simple_rules import BaselineSettings
from sluice.evaluation.suites.settings import SuiteSettings
from sluice.models.settings import ModelSettings
from sluice.registry.approval_settings import ApprovalSettings
from sluice.registry.stored_code import CodeSource
from sluice.rollout.settings import RolloutSettings
from sluice.serving.settings import ServingSettings
from sluice.tracking.settings import TrackingSettings
from sluice.training.curve_diagnosis import DiagnosisSettings
from sluice.training.settings import TrainSettings
from sluice.tuning.default_space import default_space
from sluice.tuning.settings import SearchSettings
from sluice.tuning.space_validation import require_trainable, workload_setting_names
from sluice.tuning.spaces import Space, TrialSettings
from sluice.tuning.strategy import plan_search


class ScheduleSettings(Settings):
    """Schedules of automatic retraining and of the verification of the registry."""

    cron: str = Field(
        "0 6 * * 1",
        description="Cron expression (five fields) of the automatic retraining; Monday 06:00 by "
        "default.",
    )
    verify_cron: str = Field(
        "30 4 * * *",
        description="Cron expression (five fields) of the verification of the registry, which "
        "reads every artifact of the model; daily at 04:30 by default.",
    )
    timezone: str = Field("UTC", description="IANA name of the time zone of both schedules.")


class PipelineSettings(Settings):
    """Settings of a pipeline: the ``attributes`` of a pipeline file."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="Prefix of every asset and job.")
    description: str = Field("", description="Purpose of the model, shown in the UI.")
    owners: tuple[str, ...] = Field(
        ("team:ml",),
        strict=False,
        description="Owners of the assets, as e-mail addresses or 'team:NAME'.",
    )
    workload: str = Field(description="Import path of the workload class, 'module:Class'.")
    workload_settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the workload class."
    )
    model: ModelSettings = ModelSettings()
    training: TrainSettings = TrainSettings()
    search: SearchSettings | None = Field(
        None, description="Hyperparameter search before training; by default none."
    )
    space: Space | None = Field(
        None, description="Search space; by default the search space of the architecture."
    )
    seeds: tuple[int, ...] = Field(
        (0, 1, 2, 3, 4, 5, 6, 7),
        min_length=1,
        strict=False,
        description="Seeds; one network is trained per seed and fold. The promotion gate requires "
        "at least gate.min_seeds seeds.",
    )
    data_seed: int | None = Field(
        None,
        ge=0,
        description="Base seed of the row order of all members; by default the member's seed.",
    )
    compute: ComputeSettings = ComputeSettings()
    diagnosis: DiagnosisSettings = DiagnosisSettings()
    poc: PocSettings = PocSettings()
    baseline: BaselineSettings = BaselineSettings()
    gate: GateSettings = GateSettings()
    guards: GuardSettings = GuardSettings()
    suites: SuiteSettings = SuiteSettings()
    approval: ApprovalSettings = ApprovalSettings()
    tracking: TrackingSettings = TrackingSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    serving: ServingSettings = ServingSettings()
    rollout: RolloutSettings | None = Field(
        None,
        description="Gradual move of live traffic to a candidate that passed the promotion gate. "
        "If null, such a candidate becomes the production version immediately.",
    )
    production_code: CodeSource = Field(
        "current",
        description="Code that scores the production version if the current code differs: "
        "'current' uses the current code only if it reproduces the recorded losses; 'stored' runs "
        "the modules stored with the version.",
    )
    drift: DriftSettings | None = Field(
        DriftSettings(),
        description="Drift monitoring of the production model; null disables it: no reference, no "
        "evaluation of windows, no drift job and no sensor.",
    )
    drift_alarm: AlarmDebounceSettings = AlarmDebounceSettings()

    @field_validator("seeds")
    @classmethod
    def _require_distinct_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds) or min(seeds) < 0:
            raise ValueError("seeds must be distinct and non-negative")
        return tuple(sorted(seeds))

    @model_validator(mode="after")
    def _require_enough_seeds(self) -> "PipelineSettings":
        if len(self.seeds) < self.gate.min_seeds:
            raise ValueError(
                f"the promotion gate requires at least gate.min_seeds = {self.gate.min_seeds} "
                f"seeds, got {len(self.seeds)}: the verdict would be INCONCLUSIVE"
            )
        return self

    @model_validator(mode="after")
    def _require_searchable_space(self) -> "PipelineSettings":
        # For a space with settings of the workload, ``resolve`` makes this check, because it builds
        # the workload.
        if self.space is None or not workload_setting_names(self.space):
            base = TrialSettings(model=self.model, training=self.training)
            require_searchable(self.space, self.search, base)
        return self

    @property
    def gate_settings_digest(self) -> str:
        """Digest of all settings of the pipeline that determine a promotion decision."""
        return digest_gate_settings(self.baseline, self.gate, self.guards, self.suites)


def digest_gate_settings(
    baseline: BaselineSettings, gate: GateSettings, guards: GuardSettings, suites: SuiteSettings
) -> str:
    """Return the digest of all settings that determine a promotion decision."""
    baseline_rules = baseline.model_dump(mode="json", exclude_none=True)
    return digest_json(
        {
            # The default baseline is omitted: receipts from before this setting must stay valid.
            **({"baseline": baseline_rules} if baseline != BaselineSettings() else {}),
            "gate": gate.model_dump(mode="json"),
            "guards": guards.model_dump(mode="json"),
            "suites": suites.model_dump(mode="json"),
        }
    )


def require_searchable(
    space: Space | None, search: SearchSettings | None, base: TrialSettings
) -> None:
    """Raise if a search space or a search cannot be used.

    Args:
        space: Search space; None for the default space of the architecture.
        search: Settings of the search. If None, only ``space`` is checked.
        base: Settings of model, training and workload. The search replaces some of them.

    Raises:
        SettingsError: The space does not suit ``base``, or the search does not suit the space.
    """
    if space is not None:
        require_trainable(space, base)
    if search is not None:
        plan_search(space or default_space(base), search, base)


def read_pipeline(path: Path, overrides: Sequence[str] = ()) -> PipelineSettings:
    """Read the settings of a pipeline file and of the file on which it is based.

    Args:
        path: The file, usually a ``defs.yaml``.
        overrides: Values that replace values in the file; see ``apply_overrides``.

    Raises:
        SettingsError: The file is missing, is not YAML, or has an invalid key or value.
    """
    attributes = apply_overrides(read_attributes(path), overrides)
    where = " ".join([str(path), *(f"--set {override}" for override in overrides)])
    return PipelineSettings.parse(attributes, where=where)


def find_pipeline(name: str, folder: Path, overrides: Sequence[str] = ()) -> PipelineSettings:
    """Find and read a pipeline; see ``locate_pipeline`` and ``read_pipeline``."""
    return read_pipeline(locate_pipeline(name, folder), overrides)


def locate_pipeline(name: str, folder: Path) -> Path:
    """Return the YAML file of a pipeline. A path of a file is returned even if it does not exist.

    Args:
        name: Path of the file, path of its folder, name of a subfolder of ``folder``, or name of a
            file NAME.yaml in the working folder.
        folder: Folder of the known pipelines.

    Raises:
        SettingsError: There is no such pipeline; the message lists the known pipelines.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    if (path / "defs.yaml").is_file():
        return path / "defs.yaml"
    known_names = known_pipelines(folder)
    if name not in known_names:
        working_file = Path(f"{name}.yaml")
        if working_file.is_file():
            return working_file
        raise SettingsError(
            f"There is no pipeline '{name}'.{suggest_nearest(name, known_names)} "
            f"Known pipelines: {', '.join(known_names)}.",
            fix="Use a known name, or the path of a pipeline file, such as my_model.yaml.",
        )
    return folder / name / "defs.yaml"


def known_pipelines(folder: Path) -> list[str]:
    """Return the names of the pipelines in ``folder``, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/defs.yaml"))


def defs_folder() -> Path:
    """Return the folder of the shipped pipelines, one subfolder each.

    Raises:
        SettingsError: The package ``sluice.pipelines`` is missing.
    """
    spec = importlib.util.find_spec("sluice.pipelines")
    if spec is None or not spec.submodule_search_locations:
        raise SettingsError(
            "The package 'sluice.pipelines' was not found.",
            fix="Reinstall Sluice: the folder 'pipelines', or the link sluice/pipelines to it, is "
            "missing.",
        )
    return Path(next(iter(spec.submodule_search_locations))) / "defs"
