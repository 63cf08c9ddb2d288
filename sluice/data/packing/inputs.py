"""The files of a source that is packed, on any file system that fsspec supports."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from sluice.base.errors import SourceError
from sluice.base.extras import missing_filesystem_advice
from sluice.data.file_source import suggest_name
from sluice.data.rows.shards import InputFile
from sluice.data.source_url import hide_secrets, resolve

StreamFormat = Literal["jsonl", "csv", "tar", "parquet"]
"""Formats of a source: a JSON object per line, comma-separated values with a header line, an
archive whose files become records, or a table."""

_SUFFIXES: dict[str, StreamFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tar": "tar",
    ".tgz": "tar",
    ".parquet": "parquet",
    ".pq": "parquet",
}

_COMPRESSION_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")

_BUFFER_BYTES = 2**20


class SourceFiles:
    """Files that match a path or URL, in the order of their names.

    Args:
        source: Path or URL of a file, or a pattern with ``*`` for several files. ``${NAME}`` is
            replaced by the value of the environment variable.
        format: Format of the files; None to detect it from their names.
        environ: Environment variables.
        on_bytes: Receives the number of bytes of every read.

    Raises:
        SourceError: There is no such file, or its format is not known.
    """

    def __init__(
        self,
        source: str,
        *,
        format: StreamFormat | None,
        environ: Mapping[str, str],
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        import fsspec

        self._source, self._environ = source, environ
        self._on_bytes = on_bytes if on_bytes is not None else _ignore
        resolved = resolve(source, environ)
        try:
            self._filesystem, path = fsspec.core.url_to_fs(resolved)
            is_pattern = any(character in path for character in "*?[")
            paths = sorted(self._filesystem.glob(path)) if is_pattern else [path]
            self._paths = [path for path in paths if self._filesystem.isfile(path)]
            infos = [self._filesystem.info(path) for path in self._paths]
        except Exception as error:  # fsspec raises errors of many classes, which repeat the URL
            raise self._unreadable_error(error) from None
        if not self._paths:
            suggestion = "" if is_pattern else hide_secrets(suggest_name(resolved), source, environ)
            raise SourceError(
                f"There is no file {source}.{suggestion}",
                fix="Name a file, or several files by a quoted pattern such as 'folder/*.parquet'.",
            )
        self.format = format or _detect_format(self.name(0))
        self.inputs = tuple(
            InputFile(
                name=self.name(number), num_bytes=info.get("size"), version=_file_version(info)
            )
            for number, info in enumerate(infos)
        )

    def __len__(self) -> int:
        return len(self._paths)

    def name(self, number: int) -> str:
        """Return the path of a file, without credentials."""
        return hide_secrets(str(self._paths[number]), self._source, self._environ)

    def open(self, number: int) -> io.BufferedReader:
        """Open a file to read its decompressed content; errors while reading are SourceErrors.

        Args:
            number: Number of the file.

        Raises:
            SourceError: The file cannot be opened.
        """
        import fsspec

        path = self._paths[number]
        try:
            raw = self._filesystem.open(path, "rb")
            compression = fsspec.utils.infer_compression(path)
            if compression is None and path.lower().endswith(".zst"):
                raise KeyError(path)
            if compression is not None:
                raw = fsspec.compression.compr[compression](raw, mode="rb")
        except KeyError:
            raise SourceError(
                f"{self.name(number)} cannot be decompressed.",
                cause="The package for this compression is not installed.",
                fix="Install zstandard for .zst, or compress the file with gzip.",
            ) from None
        except Exception as error:  # fsspec raises errors of many classes, which repeat the URL
            raise self._unreadable_error(error) from None
        return io.BufferedReader(
            _SourceFile(raw, self._unreadable_error, self._on_bytes), _BUFFER_BYTES
        )

    def _unreadable_error(self, error: Exception) -> SourceError:
        message = hide_secrets(f"{type(error).__name__}: {error}", self._source, self._environ)
        return SourceError(
            f"{self._source} cannot be read ({message}).",
            cause="The file is damaged or not readable, or the package of its file system is "
            "missing.",
            fix=missing_filesystem_advice(self._source)
            or "Check the path and the permissions, and run the command again: finished shards are "
            "kept.",
        )


class _SourceFile(io.RawIOBase):
    """File of any file system whose errors are SourceErrors; counts the bytes that are read."""

    def __init__(
        self,
        raw: Any,
        unreadable_error: Callable[[Exception], SourceError],
        on_bytes: Callable[[int], None],
    ) -> None:
        self._raw, self._unreadable_error, self._on_bytes = raw, unreadable_error, on_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._raw.seekable())

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._raw.read(len(buffer))
        except Exception as error:  # the file system's and the decompressor's own classes
            raise self._unreadable_error(error) from None
        buffer[: len(content)] = content
        self._on_bytes(len(content))
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._raw.seek(offset, whence))

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def _ignore(num_bytes: int) -> None:
    """Do nothing; the default of ``on_bytes``."""


def _detect_format(name: str) -> StreamFormat:
    suffixes = [suffix.lower() for suffix in PurePosixPath(name.partition("?")[0]).suffixes]
    while suffixes and suffixes[-1] in _COMPRESSION_SUFFIXES:
        suffixes.pop()
    detected = _SUFFIXES.get(suffixes[-1]) if suffixes else None
    if detected is None:
        raise SourceError(
            f"The format of {name} is not known from its name.",
            fix=f"Pass --format with one of {', '.join(get_args(StreamFormat))}.",
        )
    return detected


def _file_version(info: Mapping[str, Any]) -> str:
    for key in ("ETag", "etag", "md5Hash", "LastModified", "updated", "mtime"):
        if info.get(key) is not None:
            return str(info[key])
    return ""


def source_name(source: str) -> str:
    """Return the source as it is recorded: a URL unchanged, a local path as an absolute path."""
    return source if "://" in source else str(Path(source).absolute())
