"""What ``dagster dev`` and ``dg dev`` load: every pipeline under ``defs``."""

import os
import sys
from pathlib import Path

import dagster as dg

from sluice.home import Home
from sluice.pipeline import read_pipeline
from sluice.pipelines.build import build_definitions
from sluice.pipelines.resources import with_resources

EXTRA = "SLUICE_PIPELINES"
"""Environment variable: further pipeline files outside ``defs``, separated like PATH."""


@dg.definitions
def defs() -> dg.Definitions:
    """Load the component tree, and the pipelines that ``sluice dev FILE`` adds."""
    if str(Path.cwd()) not in sys.path:  # a user's workload lies where the user started
        sys.path.insert(0, str(Path.cwd()))
    extra = [Path(part) for part in os.environ.get(EXTRA, "").split(os.pathsep) if part]
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    return dg.Definitions.merge(
        dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
        *(with_resources(build_definitions(read_pipeline(path)), home) for path in extra),
    )
