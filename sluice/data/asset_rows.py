"""Data frames of Dagster assets that are the source of a pipeline.

The library does not import Dagster. The code that runs inside Dagster provides the data frame for
the time of a call, and a source of kind ``asset`` reads it.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import pandas as pd

from sluice.base.errors import SourceError

AssetPath = tuple[str, ...]
"""Key of an asset, one text per part."""

_provided_asset: ContextVar[tuple[AssetPath, object] | None] = ContextVar("provided", default=None)


@contextlib.contextmanager
def provide_asset(key: AssetPath, value: object) -> Iterator[None]:
    """Provide the value of an asset to sources of kind ``asset`` within the block.

    Args:
        key: Key of the asset.
        value: Value of the asset, as its IO manager loaded it.
    """
    token = _provided_asset.set((key, value))
    try:
        yield
    finally:
        _provided_asset.reset(token)


def rows_of_asset(key: AssetPath) -> pd.DataFrame:
    """Return the provided data frame of an asset; a Polars or Arrow table is converted.

    Raises:
        SourceError: The asset is not provided, or its value is not a data frame.
    """
    name, provided_asset = "/".join(key), _provided_asset.get()
    if provided_asset is None or provided_asset[0] != key:
        raise SourceError(
            f"The rows of the asset {name} can only be read inside Dagster.",
            cause="The source of this pipeline is an asset of your Dagster project, whose value is "
            "loaded by its IO manager.",
            fix="Materialize the pipeline's assets with 'dg dev' or 'dg launch', or set 'source' "
            "to a file.",
        )
    value = provided_asset[1]
    convert = getattr(value, "to_pandas", None)  # tables of Polars and Arrow
    frame = convert() if callable(convert) else value
    if not isinstance(frame, pd.DataFrame):
        raise SourceError(
            f"The asset {name} must return a data frame to be a source, got "
            f"{type(value).__name__}.",
            fix="Return a pandas, Polars or Arrow table from the asset, and let its IO manager "
            "load a table.",
        )
    return frame
