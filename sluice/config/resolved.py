"""Settings of a pipeline with the workload built from them, and the inputs of its stages."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sluice.base.digests import digest_json
from sluice.cluster.settings import ComputeSettings
from sluice.config.pipeline import PipelineSettings, require_searchable
from sluice.models.settings import ModelSettings
from sluice.training.code import optimizer_code
from sluice.training.settings import SETTINGS_WITHOUT_EFFECT, TrainSettings
from sluice.tuning.default_space import default_space
from sluice.tuning.settings import SearchSettings
from sluice.tuning.space_validation import require_valid_workload_settings, workload_setting_names
from sluice.tuning.spaces import Space, TrialSettings
from sluice.workloads.load import load_workload
from sluice.workloads.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingInputs:
    """Everything except data and seed that determines the bits of a trained model.

    Digests of code are not fields, because source files may change during the life of a process
    that runs scheduled pipelines, and training processes import the changed files. Each stage
    therefore computes the digests again, and does not accept a receipt for other code.
    """

    path: str
    """Import path of the workload, 'module:Class'."""
    workload: Workload
    workload_settings: Mapping[str, Any]
    """Settings of the workload as in the pipeline file, for processes that build it again."""
    model: ModelSettings
    training: TrainSettings
    data_seed: int | None
    num_ranks: int
    """Number of processes that train one model. It affects the weights, because it changes the
    order in which gradients are summed."""

    @property
    def config(self) -> dict[str, Any]:
        """All resolved settings that determine the weights of a member bit by bit, as JSON."""
        return {
            "workload": self.path,
            "workload_settings": self.workload.settings.model_dump(mode="json"),
            "model": self.model.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json", exclude=set(SETTINGS_WITHOUT_EFFECT)),
            **optimizer_code(self.training),
            "data_seed": self.data_seed,
            "ranks": self.num_ranks,
        }

    @property
    def config_digest(self) -> str:
        """Digest of ``config``."""
        return digest_json(self.config)

    def with_settings(self, trial_settings: TrialSettings) -> "TrainingInputs":
        """Return the inputs with the settings that a search selected.

        The workload is built again only if the search changed one of its settings.
        """
        settings = {**self.workload_settings, **trial_settings.workload_settings}
        workload = self.workload
        if workload.settings_type.parse(settings, where=self.path) != workload.settings:
            workload = load_workload(self.path, settings, where=self.path)
        return replace(
            self,
            workload=workload,
            workload_settings=settings,
            model=trial_settings.model,
            training=trial_settings.training,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchInputs:
    """Inputs of a search: settings of the pipeline file, of the search, and the search space."""

    base: TrainingInputs
    """Inputs of a training with the settings of the file."""
    search: SearchSettings | None
    file_space: Space | None
    """Search space of the file; None for the default space of the architecture."""
    compute: ComputeSettings

    @property
    def trial_settings(self) -> TrialSettings:
        """Settings of model and training, and the workload settings in the search space."""
        names = () if self.file_space is None else workload_setting_names(self.file_space)
        fields = self.base.workload.settings_type.model_fields
        defaults = {name: fields[name].get_default(call_default_factory=True) for name in names}
        values = {name: self.base.workload_settings.get(name, defaults[name]) for name in names}
        return TrialSettings(
            model=self.base.model, training=self.base.training, workload_settings=values
        )

    @property
    def space(self) -> Space:
        """Search space of the file, or the default space of the architecture."""
        return self.file_space or default_space(self.trial_settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPipeline:
    """Settings of a pipeline, and the workload built from them; created once per process.

    Stages receive only the inputs that they need, and not this object.
    """

    settings: PipelineSettings
    workload: Workload

    @property
    def training(self) -> TrainingInputs:
        """Inputs of a training with the settings of the file."""
        return TrainingInputs(
            path=self.settings.workload,
            workload=self.workload,
            workload_settings=self.settings.workload_settings,
            model=self.settings.model,
            training=self.settings.training,
            data_seed=self.settings.data_seed,
            num_ranks=self.settings.compute.ranks_per_training,
        )

    @property
    def search(self) -> SearchInputs:
        """Inputs of the search. Without a search in the file, their ``search`` is None."""
        return SearchInputs(
            base=self.training,
            search=self.settings.search,
            file_space=self.settings.space,
            compute=self.settings.compute,
        )


def resolve(settings: PipelineSettings) -> ResolvedPipeline:
    """Import and build the workload of a pipeline.

    Raises:
        SettingsError: The workload cannot be imported or is not a workload, one of its settings is
            invalid, the architecture is unknown, or the search space does not suit the settings.
    """
    where, space = f"{settings.name}: workload_settings", settings.space
    workload = load_workload(settings.workload, settings.workload_settings, where=where)
    workload.require_known_architecture(settings.model)
    pipeline = ResolvedPipeline(settings=settings, workload=workload)
    if space is not None and workload_setting_names(space):
        workload_settings = settings.workload_settings
        require_valid_workload_settings(
            space, workload.settings_type, workload_settings, where=where
        )
        require_searchable(space, settings.search, pipeline.search.trial_settings)
    return pipeline
