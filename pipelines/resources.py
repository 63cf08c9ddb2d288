"""The resources every pipeline is run with."""

import functools
from collections.abc import Hashable
from typing import cast

import dagster as dg

from sluice.assets.config_schema import refuse_config
from sluice.assets.records import RecordIOManager
from sluice.assets.resources import RECORDS, Progress, State, silent
from sluice.base.home import Home

_NO_CONFIG = refuse_config(
    "set SLUICE_HOME, SLUICE_REGISTRY_URL and SLUICE_REGISTRY_KEY where Sluice is started",
    why="Folders, addresses and keys are fixed when Sluice starts.",
)


def resources(home: Home, progress: Progress = silent) -> dict[str, object]:
    """Return the resources for one state folder, the same objects for every pipeline of a process.

    Dagster compares resources by identity when it merges definitions.
    """
    return {**_of_home(home), "sluice_progress": _fixed(cast(Hashable, progress))}


@functools.cache
def _of_home(home: Home) -> dict[str, object]:
    return {
        "sluice_state": _fixed(State.at(home)),
        RECORDS: _fixed_io_manager(RecordIOManager(home.records)),
    }


@functools.cache
def _fixed(value: Hashable) -> dg.ResourceDefinition:
    return dg.ResourceDefinition(lambda _: value, config_schema=_NO_CONFIG)


def _fixed_io_manager(manager: dg.IOManager) -> dg.IOManagerDefinition:
    return dg.IOManagerDefinition(lambda _: manager, config_schema=_NO_CONFIG)


def sealed(definitions: dg.Definitions, home: Home) -> dg.Definitions:
    """Return definitions of which no resource can be configured in the launchpad.

    For a code location that is ours alone. Dagster gives jobs whose checks name no IO manager one
    of its own, whose folder ``{env: NAME}`` may set.
    """
    ours = dg.Definitions(resources={"io_manager": _of_home(home)[RECORDS]})
    return dg.Definitions.merge(definitions, ours)


def with_resources(
    definitions: dg.Definitions, home: Home, progress: Progress = silent
) -> dg.Definitions:
    """Return a pipeline's definitions with the resources that its assets require."""
    return dg.Definitions.merge(definitions, dg.Definitions(resources=resources(home, progress)))
