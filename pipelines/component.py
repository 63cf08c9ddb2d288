"""The one component: a pipeline is an instance of it in YAML."""

from typing import Self

import dagster as dg
from pydantic import BaseModel

from pipelines.build import build_definitions
from sluice.pipeline import PipelineSettings


class ModelPipeline(dg.Component):
    """A gated line from raw rows to a model in production.

    The YAML's attributes are ``sluice.pipeline.PipelineSettings`` itself, so the command line, the
    component and ``dg check yaml`` read one schema.
    """

    def __init__(self, settings: PipelineSettings) -> None:
        self.settings = settings

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return the schema of the attributes."""
        return PipelineSettings

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Take the attributes as they were validated."""
        del context
        assert isinstance(attributes, PipelineSettings)
        return cls(attributes)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the pipeline's assets, checks, jobs, schedule and sensor."""
        del context
        return build_definitions(self.settings)
