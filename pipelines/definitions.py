"""The entry point of ``dagster dev`` and ``dg dev``: shipped pipelines and additional files."""

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

EXTRA_PIPELINES_VARIABLE = "SLUICE_PIPELINES"
"""Environment variable with additional pipeline files outside ``defs``, separated like PATH."""


@dg.definitions
def defs() -> dg.Definitions:
    """Load the pipelines under ``defs`` and those added by ``sluice dev FILE``.

    Each file is loaded separately: an installed package has no project file for Dagster's own
    loader, and an invalid file must not remove the other pipelines.
    """
    redact_logs()  # every process of Dagster loads the definitions
    extra = [
        Path(part)
        for part in os.environ.get(EXTRA_PIPELINES_VARIABLE, "").split(os.pathsep)
        if part
    ]
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    folder = defs_folder()
    shipped = [folder / name / "defs.yaml" for name in known_pipelines(folder)]

    def load(path: Path) -> dg.Definitions:
        return with_resources(build_definitions(resolve(read_pipeline(path))), home)

    loaded = (load_or_explain(_name_of(path), partial(load, path)) for path in [*shipped, *extra])
    return without_launchpad_config(dg.Definitions.merge(*loaded), home)


def _name_of(path: Path) -> str:
    return path.parent.name if path.name == "defs.yaml" else path.stem
