"""What ``dagster dev`` and ``dg dev`` load: every shipped pipeline, and those that are named."""

import os
from functools import partial
from pathlib import Path

import dagster as dg

from sluice.base.home import Home
from sluice.base.redaction import redact_logs
from sluice.config.pipeline import defs_folder, known_pipelines, read_pipeline
from sluice.pipelines.broken import load_or_explain
from sluice.pipelines.build import build_definitions
from sluice.pipelines.resources import sealed, with_resources

EXTRA = "SLUICE_PIPELINES"
"""Environment variable: further pipeline files outside ``defs``, separated like PATH."""


@dg.definitions
def defs() -> dg.Definitions:
    """Load the pipelines under ``defs`` and those that ``sluice dev FILE`` adds.

    Each file is read by itself, as an installed package has no project file that Dagster's own
    loader could start from, and one that is broken must not take the others away.
    """
    redact_logs()  # each process of Dagster loads the definitions
    extra = [Path(part) for part in os.environ.get(EXTRA, "").split(os.pathsep) if part]
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    folder = defs_folder()
    shipped = [folder / name / "defs.yaml" for name in known_pipelines(folder)]

    def load(path: Path) -> dg.Definitions:
        return with_resources(build_definitions(read_pipeline(path)), home)

    loaded = (load_or_explain(_name_of(path), partial(load, path)) for path in [*shipped, *extra])
    return sealed(dg.Definitions.merge(*loaded), home)


def _name_of(path: Path) -> str:
    return path.parent.name if path.name == "defs.yaml" else path.stem
