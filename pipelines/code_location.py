"""The code location of ``sluice dev``, under which the UI shows the runs of ``sluice run``."""

from functools import partial

import dagster as dg
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

DEFINITIONS_MODULE = "sluice.pipelines.definitions"
"""Name of the module with the definitions, and of the code location."""


def attribute_runs(instance: dg.DagsterInstance, job: str) -> None:
    """Attribute new runs of a job to the code location.

    ``execute_in_process`` creates runs without an origin. The UI's timeline omits such runs.
    """
    target = LoadableTargetOrigin(module_name=DEFINITIONS_MODULE)
    location_origin = ManagedGrpcPythonEnvCodeLocationOrigin(target, DEFINITIONS_MODULE)
    repository_origin = RemoteRepositoryOrigin(location_origin, SINGLETON_REPOSITORY_NAME)
    create_run = instance.create_run_for_job
    instance.create_run_for_job = partial(  # type: ignore[method-assign]
        create_run, remote_job_origin=repository_origin.get_job_origin(job)
    )
