"""Reads the rows of a folder of Parquet files, such as a partitioned data set."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sluice.base.errors import SourceError
from sluice.base.pluralize import pluralize
from sluice.data.size_limits import require_bounded_parquet, too_large_error
from sluice.data.source_settings import ParquetSource
from sluice.data.source_url import hide_secrets, resolve

_SUFFIXES = (".parquet", ".pq")


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    """Folder of Parquet files on any file system of fsspec."""

    filesystem: Any
    path: str
    files: tuple[str, ...]
    """Paths of the files relative to the folder, sorted."""


def find_parquet_folder(
    source: ParquetSource, *, environ: Mapping[str, str]
) -> ParquetFolder | None:
    """Return the folder at the URI of the source, or None if the URI is not a folder.

    A URI that ends with .parquet or .pq names a file; if it is a folder, add a trailing slash.
    Files and folders whose name begins with '_' or '.' are ignored, as by other readers.

    Raises:
        SourceError: The folder contains no Parquet file, or cannot be listed.
    """
    import fsspec

    if source.uri.endswith(_SUFFIXES) and not source.uri.endswith("/"):
        return None
    try:
        filesystem, path = fsspec.core.url_to_fs(resolve(source.uri, environ))
        if not filesystem.isdir(path):
            return None
        paths = filesystem.find(path)
    except SourceError:
        raise
    except Exception as error:  # file systems of fsspec raise errors of their own classes
        if not source.uri.endswith("/"):
            return None  # reading it as a file reports the error
        raise SourceError(
            f"The folder {source.uri} cannot be listed "
            f"({hide_secrets(str(error), source.uri, environ)}).",
            fix="Correct 'uri', and check that this user has permission to read the folder.",
        ) from None
    root = path.rstrip("/") + "/"
    names = sorted(str(name).removeprefix(root) for name in paths)
    files = tuple(name for name in names if name.endswith(_SUFFIXES) and not _is_hidden(name))
    if not files:
        raise SourceError(
            f"The folder {source.uri} must contain Parquet files, but has "
            f"{pluralize(len(names), 'other file')}.",
            cause="Only files that end with .parquet or .pq are read, except hidden files (_NAME, "
            ".NAME).",
            fix="Correct 'uri', or use another kind of source.",
        )
    return ParquetFolder(filesystem=filesystem, path=path.rstrip("/"), files=files)


def read_parquet_folder(folder: ParquetFolder, source: ParquetSource) -> pd.DataFrame:
    """Return the rows of all files in the order of their paths.

    Folder names such as 'year=2020' become columns: int64 if all values are integers, else texts.

    Raises:
        SourceError: A file cannot be read, files have different columns or dtypes, or the rows need
            more than ``max_bytes``.
    """
    import pyarrow as pa

    frames: list[pd.DataFrame] = []
    num_bytes = num_memory_bytes = 0
    for name in folder.files:
        try:
            content = folder.filesystem.cat_file(f"{folder.path}/{name}")
            num_bytes += len(content)
            if num_bytes > source.max_bytes:
                raise too_large_error(source, "larger files")
            require_bounded_parquet(content, source)
            frame = pd.read_parquet(io.BytesIO(content), engine="pyarrow")
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(
                f"{name} of {source.uri} cannot be read as Parquet: {error}.",
                cause="The file is incomplete, was removed or has another format.",
                fix="Write the file again.",
            ) from None
        frame = frame.assign(**_partition_values(name))
        num_memory_bytes += int(frame.memory_usage(deep=True).sum())
        if num_memory_bytes > source.max_bytes:
            raise too_large_error(source, f"at least {num_memory_bytes:,} bytes of rows")
        if frames:
            _require_same_columns(source, folder.files[0], frames[0], name, frame)
        frames.append(frame)
    has_named_index = any(level is not None for level in frames[0].index.names)
    rows = pd.concat(frames, ignore_index=not has_named_index)
    for column in _partition_values(folder.files[0]):
        if rows[column].str.fullmatch(r"-?\d{1,18}").all():
            rows[column] = rows[column].astype("int64")
    return rows


def _is_hidden(name: str) -> bool:
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def _partition_values(name: str) -> dict[str, str]:
    from urllib.parse import unquote

    pairs = (part.split("=", 1) for part in name.split("/")[:-1] if "=" in part)
    return {column: unquote(value) for column, value in pairs}


def _require_same_columns(
    source: ParquetSource,
    first_name: str,
    first_frame: pd.DataFrame,
    name: str,
    frame: pd.DataFrame,
) -> None:
    first_dtypes, dtypes = _dtype_names(first_frame), _dtype_names(frame)
    for column in {**first_dtypes, **dtypes}:
        first_dtype, dtype = first_dtypes.get(column, "missing"), dtypes.get(column, "missing")
        if first_dtype != dtype:
            raise SourceError(
                f"All files of {source.uri} must have the same columns, but '{column}' is "
                f"{first_dtype} in {first_name} and {dtype} in {name}.",
                fix="Write all files with the same schema.",
            )


def _dtype_names(frame: pd.DataFrame) -> dict[str, str]:
    return {str(column): str(dtype) for column, dtype in frame.dtypes.items()}
