"""The Dagster component ``ModelPipeline``: one pipeline, configured in YAML."""

import os
from typing import Any, Self

import dagster as dg
from pydantic import BaseModel, ConfigDict

from sluice.base.home import Home
from sluice.config.pipeline import PipelineSettings
from sluice.config.pipeline_file import BASED_ON, resolve_base
from sluice.config.resolved import resolve
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.resources import with_resources
from sluice.pipelines.scaffolder import PipelineScaffolder


class Attributes(BaseModel):
    """The unparsed ``attributes`` of a ``defs.yaml``, which may be based on another file.

    ``PipelineSettings`` validates them after both files are merged.
    """

    model_config = ConfigDict(extra="allow")

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the schema of the settings. With ``based_on``, only the name is required."""
        schema = PipelineSettings.model_json_schema(*args, **kwargs)
        based_on = {
            "type": "string",
            "description": "File with the settings that this file does not set.",
        }
        required = schema.pop("required")
        return schema | {
            "properties": schema["properties"] | {BASED_ON: based_on},
            "anyOf": [{"required": required}, {"required": ["name", BASED_ON]}],
        }


@dg.scaffold_with(PipelineScaffolder)
class ModelPipeline(dg.Component):
    """A gated pipeline from raw rows to a model in production.

    Each pipeline has its own asset keys, groups and jobs, which start with its name. The
    resources of a pipeline have the keys sluice_state, sluice_records and sluice_progress, so that
    the project keeps its own default IO manager.
    """

    # The attributes in YAML have the schema of PipelineSettings, so that the command line, the
    # component and 'dg check yaml' share one schema.

    def __init__(self, settings: PipelineSettings) -> None:
        self.settings = settings

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the schema of the attributes."""
        return Attributes

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Read the attributes, and merge both files if they are based on another file."""
        assert isinstance(attributes, Attributes)
        file = context.path / "defs.yaml"  # context.path is the folder
        merged_attributes = resolve_base(
            attributes.model_extra or {}, folder=file.parent, file_chain=(str(file),)
        )
        return cls(PipelineSettings.parse(merged_attributes, where=str(file)))

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the pipeline's assets, checks, jobs, schedule and sensors, with resources.

        A relative ``SLUICE_HOME`` is resolved against the project's root.
        """
        home = Home.from_environment(os.environ, cwd=context.project_root)
        return with_resources(build_definitions(resolve(self.settings)), home)
