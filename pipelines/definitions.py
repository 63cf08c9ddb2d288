"""The entry point of ``dagster dev`` and ``dg dev``: loads the configured pipelines."""

import os
from functools import partial
from pathlib import Path

import dagster as dg

from sluice.base.home import Home
from sluice.base.redaction import redact_logs
from sluice.config.pipeline import defs_folder, known_pipelines, read_pipeline
from sluice.config.resolved import resolve
from sluice.pipelines.definitions_builder import build_definitions
from sluice.pipelines.failed_pipeline import load_or_explain
from sluice.pipelines.resources import with_resources, without_launchpad_config

PIPELINES_VARIABLE = "SLUICE_PIPELINES"
"""Environment variable with the pipeline files to load, separated like PATH. If it is unset or
empty, the pipelines in Sluice's folder ``pipelines/defs`` are loaded."""


@dg.definitions
def defs() -> dg.Definitions:
    """Load the pipelines of ``SLUICE_PIPELINES``, by default those in Sluice's ``pipelines/defs``.

    Each file is loaded separately, so that an invalid file does not affect the other pipelines.
    Dagster's own loader is not used, because it requires a project file, which an installed package
    does not have.
    """
    redact_logs()  # every process of Dagster loads the definitions
    named_paths = [
        Path(part) for part in os.environ.get(PIPELINES_VARIABLE, "").split(os.pathsep) if part
    ]
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    folder = defs_folder()
    paths = named_paths or [folder / name / "defs.yaml" for name in known_pipelines(folder)]

    def load(path: Path) -> dg.Definitions:
        return with_resources(build_definitions(resolve(read_pipeline(path))), home)

    loaded_definitions = (
        load_or_explain(_pipeline_name(path), partial(load, path)) for path in paths
    )
    return without_launchpad_config(dg.Definitions.merge(*loaded_definitions), home)


def _pipeline_name(path: Path) -> str:
    return path.parent.name if path.name == "defs.yaml" else path.stem
