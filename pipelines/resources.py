"""The resources every pipeline is run with."""

import functools

import dagster as dg

from sluice.assets.records import RecordIOManager
from sluice.assets.resources import RECORDS, Progress, State, silent
from sluice.home import Home


def resources(home: Home, progress: Progress = silent) -> dict[str, object]:
    """Return the resources for one state folder, the same objects for every pipeline of a process.

    Dagster compares resources by identity when it merges definitions.
    """
    return {**_of_home(home), "sluice_progress": progress}


@functools.cache
def _of_home(home: Home) -> dict[str, object]:
    return {
        "sluice_state": State.at(home),
        RECORDS: RecordIOManager(root=str(home.records)),
    }


def with_resources(
    definitions: dg.Definitions, home: Home, progress: Progress = silent
) -> dg.Definitions:
    """Return a pipeline's definitions with the resources that its assets require."""
    return dg.Definitions.merge(definitions, dg.Definitions(resources=resources(home, progress)))
