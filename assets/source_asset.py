"""Asset of the user's project as the source of a pipeline."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import dagster as dg

from sluice.data.asset_rows import AssetPath, provide_asset, rows_of_asset
from sluice.data.source_settings import AssetSource
from sluice.workloads.workload import Workload

SOURCE = "source"
"""Name of the input with the rows of the user's asset."""

LoadAsset = Callable[[AssetPath], object]
"""Function that returns the value of an asset, which its IO manager loads."""


def source_key(workload: Workload) -> AssetPath | None:
    """Return the key of the asset that is the source of a workload; None for other sources."""
    source = getattr(workload.settings, "source", None)
    return source.key if isinstance(source, AssetSource) else None


def source_inputs(workload: Workload) -> dict[str, dg.AssetIn]:
    """Return the Dagster input for a source that is an asset; empty for other sources."""
    key = source_key(workload)
    return {} if key is None else {SOURCE: dg.AssetIn(key=dg.AssetKey(key))}


def require_readable_source(workload: Workload) -> None:
    """Raise an error if the source of a workload is an asset whose rows are not provided here.

    Raises:
        SourceError: The source is an asset, and the call is outside of ``provide_source``.
    """
    key = source_key(workload)
    if key is not None:
        rows_of_asset(key)  # raises the error if no rows are provided


@contextlib.contextmanager
def provide_source(workload: Workload, inputs: Mapping[str, object]) -> Iterator[None]:
    """Let the workload load rows from an input of ``source_inputs`` within the block."""
    key = source_key(workload)
    if key is None:
        yield
        return
    with provide_asset(key, inputs[SOURCE]):
        yield


def asset_loader(context: dg.ScheduleEvaluationContext | dg.SensorEvaluationContext) -> LoadAsset:
    """Return a function that loads the value of an asset during a tick of a schedule or sensor.

    The repository is read only when an asset is loaded, because Dagster's test contexts have no
    repository.
    """

    def load(key: AssetPath) -> object:
        repository = context.repository_def
        assert repository is not None  # the code server provides it
        return repository.load_asset_value(dg.AssetKey(key), instance=context.instance)

    return load
