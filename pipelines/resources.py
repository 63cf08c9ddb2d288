"""The Dagster resources of all pipelines."""

import functools
from collections.abc import Hashable
from typing import cast

import dagster as dg

from sluice.assets.config_schema import reject_config
from sluice.assets.record_io_manager import RecordIOManager
from sluice.assets.resources import RECORDS, ProgressReporter, SluiceState, ignore_progress
from sluice.base.home import Home

_NO_CONFIG = reject_config(
    "set SLUICE_HOME, SLUICE_REGISTRY_URL and SLUICE_REGISTRY_KEY where Sluice is started",
    description="Folders, addresses and keys are fixed when Sluice starts.",
)


def resources(home: Home, progress: ProgressReporter = ignore_progress) -> dict[str, object]:
    """Return the resources for one home, as the same objects for all pipelines of a process.

    Dagster compares resources by identity when it merges definitions.
    """
    return {
        **_home_resources(home),
        "sluice_progress": _constant_resource(cast(Hashable, progress)),
    }


@functools.cache
def _home_resources(home: Home) -> dict[str, object]:
    return {
        "sluice_state": _constant_resource(SluiceState.at(home)),
        RECORDS: _fixed_io_manager(RecordIOManager(home.records)),
    }


@functools.cache
def _constant_resource(value: Hashable) -> dg.ResourceDefinition:
    return dg.ResourceDefinition(lambda _: value, config_schema=_NO_CONFIG)


def _fixed_io_manager(manager: dg.IOManager) -> dg.IOManagerDefinition:
    return dg.IOManagerDefinition(lambda _: manager, config_schema=_NO_CONFIG)


def without_launchpad_config(definitions: dg.Definitions, home: Home) -> dg.Definitions:
    """Return definitions whose resources cannot be configured in the launchpad.

    If the checks of a job name no IO manager, Dagster adds a default IO manager. Its folder can be
    set in the launchpad, even from an environment variable (``{env: NAME}``). This function
    replaces the default IO manager. It is for Sluice's own code location, because a project may
    have its own default.
    """
    shared_definitions = dg.Definitions(resources={"io_manager": _home_resources(home)[RECORDS]})
    return dg.Definitions.merge(definitions, shared_definitions)


def with_resources(
    definitions: dg.Definitions, home: Home, progress: ProgressReporter = ignore_progress
) -> dg.Definitions:
    """Return the definitions of a pipeline with the resources that its assets require."""
    return dg.Definitions.merge(definitions, dg.Definitions(resources=resources(home, progress)))
