"""Anchor: a copy of the last signed line outside the database, which reveals lost lines.

If a database was restored from an older copy, or lost its last signed lines together with their
signatures, the database alone does not show the loss. The last signed line is therefore also stored
in a file beside the key, or at the location set in ``known_keys.yaml``. The database must contain
this line. It may contain later lines: another machine may have signed lines meanwhile, or a process
may have ended between writing the database and writing the anchor.
"""

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, Self

from pydantic import Field, ValidationError
from sqlalchemy.engine import make_url

from sluice.base.errors import IntegrityError, StorageError
from sluice.base.extras import missing_filesystem_advice
from sluice.base.settings import Record
from sluice.registry.keyring import KNOWN_KEYS_FILE, Keyring


class SignedLine(Record):
    """A signature of the log, with number and digest of the last line that it covers."""

    line: int = Field(ge=1, description="Number of the last line that the signature covers.")
    digest: str = Field(description="Digest of this line.")
    key_id: str
    signature: str
    signed_at: datetime
    since: int = Field(description="Number of the line before the first covered line; 0 for none.")
    kind: str = Field(description="change or bridge; see ``log_signatures``.")
    actor: str


class AnchorReader(Protocol):
    """Reads the last signed line of one registry from its anchor."""

    @property
    def location(self) -> str:
        """Return the location of the anchor, for messages."""

    def read(self) -> SignedLine | None:
        """Return the stored line; None if no line was ever stored.

        Raises:
            StorageError: The location cannot be read.
            IntegrityError: The content is not a signed line.
        """


@dataclass(frozen=True, slots=True)
class AnchorSnapshot:
    """Content of an anchor, which must be read before a read transaction begins.

    An anchor that is read later could contain a newer line that is not visible to the transaction.
    """

    location: str
    line_or_error: SignedLine | StorageError | None

    @classmethod
    def take(cls, anchor: "Anchor | None") -> Self | None:
        """Read an anchor; return its content or the read error, or None without an anchor."""
        if anchor is None:
            return None
        try:
            return cls(anchor.location, anchor.read())
        except StorageError as error:  # IntegrityError is a StorageError
            return cls(anchor.location, error)

    def read(self) -> SignedLine | None:
        """Return the line, or None if the anchor has no line; raise the read error, if any."""
        if isinstance(self.line_or_error, StorageError):
            raise self.line_or_error
        return self.line_or_error


class Anchor(AnchorReader, Protocol):
    """A location outside the database that stores the last signed line of one registry."""

    @contextlib.contextmanager
    def writing(self, signed_line: SignedLine) -> Iterator[None]:
        """Return a context manager that stores a line after its block.

        The block commits the change. If the block fails, the line is not stored.

        Raises:
            StorageError: The location cannot be written. If possible, this error is raised before
                the block runs.
        """


def anchor_of(keys: Keyring, url: str) -> Anchor | None:
    """Return the anchor of a registry; None for a key that was not read from a file."""
    path = keys.signing_key.path
    if path is None:
        return None
    name = registry_identity(url)[:16]
    if keys.anchor is None:
        return FileAnchor(path.with_name(f"{path.name}.{name}.anchor.json").absolute())
    root = keys.anchor if "://" in keys.anchor else str(path.parent.absolute() / keys.anchor)
    return ObjectAnchor(f"{root.rstrip('/')}/{name}")


def registry_identity(url: str) -> str:
    """Return a digest that identifies the database of a registry; anchors are named by it.

    The digest covers the backend, host, port and database of the URL, but not the user name. It
    also covers the query parameters host, port and options, of which options may select a schema.
    The URL comes from the user's settings, so an attacker who can only write the database cannot
    change it.
    """
    parsed_url = make_url(url)
    database = parsed_url.database or ""
    if parsed_url.get_backend_name() == "sqlite" and not database.startswith("file:"):
        database = str(Path(database).resolve())
    url_parts: list[object] = [
        parsed_url.get_backend_name(),
        parsed_url.host,
        parsed_url.port,
        database,
    ]
    url_parts += [parsed_url.query.get(name) for name in ("host", "port", "options")]
    return hashlib.sha256(repr(url_parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FileAnchor:
    """Anchor in a small file that is replaced with each signature."""

    path: Path

    @property
    def location(self) -> str:
        """Path of the file."""
        return str(self.path)

    def read(self) -> SignedLine | None:
        """Return the line in the file; None without a file. See ``Anchor``."""
        try:
            return _parse(self.path.read_bytes(), self.location)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable_error(self.location, error) from error

    @contextlib.contextmanager
    def writing(self, signed_line: SignedLine) -> Iterator[None]:
        """Write a temporary file before the block and rename it after the block; see ``Anchor``."""
        folder, temporary_path = self.path.parent, None
        try:
            try:
                handle, temporary_path = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=folder)
                with open(handle, "wb") as file:  # mkstemp grants access only to the owner
                    file.write(signed_line.model_dump_json().encode())
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise StorageError(
                    f"The last signed line cannot be stored at {self.path} ({error.strerror}). "
                    "Nothing was changed.",
                    fix="Make the key's folder writable, or set another anchor in "
                    f"{KNOWN_KEYS_FILE} beside the key.",
                ) from error
            yield
            try:
                self._replace(temporary_path, signed_line.line)
            except (OSError, StorageError) as error:
                raise _not_stored_error(signed_line, self.location, error) from error
        finally:
            if temporary_path is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary_path)

    def _replace(self, temporary_path: str, line_number: int) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            with contextlib.suppress(IntegrityError):  # a damaged anchor is replaced
                stored_line = self.read()
                # A later commit may have stored its line already.
                if stored_line is not None and stored_line.line > line_number:
                    return
            os.replace(temporary_path, self.path)
            os.fsync(folder)
        finally:
            os.close(folder)


@dataclass(frozen=True, slots=True)
class ObjectAnchor:
    """Anchor in a folder or bucket. Each signature adds an object, and no object is replaced."""

    root: str

    @property
    def location(self) -> str:
        """Path or URL of the folder."""
        return self.root

    def read(self) -> SignedLine | None:
        """Return the line in the newest object; see ``Anchor``."""
        import fsspec

        try:
            filesystem, root = fsspec.core.url_to_fs(self.root)
            try:
                names = [str(name) for name in filesystem.ls(root, detail=False, refresh=True)]
            except FileNotFoundError:
                return None
            newest_name = max((name for name in names if name.endswith(".json")), default=None)
            return (
                None
                if newest_name is None
                else _parse_object(filesystem.cat_file(newest_name), newest_name)
            )
        except (OSError, ImportError, ValueError) as error:
            raise _unreadable_error(self.location, error) from error

    @contextlib.contextmanager
    def writing(self, signed_line: SignedLine) -> Iterator[None]:
        """Add an object after the block; see ``Anchor``.

        If the object were added before the block, it could not be removed after a failed block.
        """
        import fsspec

        yield
        try:
            filesystem, root = fsspec.core.url_to_fs(self.root)
            filesystem.makedirs(root, exist_ok=True)
            name = f"{root}/{_object_name(signed_line)}"
            filesystem.pipe_file(name, signed_line.model_dump_json().encode(), mode="create")
        except (OSError, ImportError, ValueError) as error:
            raise _not_stored_error(signed_line, self.location, error) from error


def _parse(content: bytes, location: str) -> SignedLine:
    try:
        return SignedLine.model_validate_json(content)
    except ValidationError:
        raise IntegrityError(
            f"The anchor {location} is not a signed line.",
            cause="The anchor was changed or damaged.",
            fix=_removal_advice(location),
        ) from None


def _parse_object(content: bytes, location: str) -> SignedLine:
    """Parse an object and check its name, because a false name could hide a newer line."""
    stored_line = _parse(content, location)
    if location.rsplit("/", 1)[-1] != _object_name(stored_line):
        raise IntegrityError(
            f"The object {location} contains line {stored_line.line}, which does not match its "
            "name.",
            cause="The object was not written by Sluice.",
            fix=_removal_advice(location),
        )
    return stored_line


def _object_name(signed_line: SignedLine) -> str:
    return f"{signed_line.line:012d}.json"


def _removal_advice(location: str) -> str:
    return (
        "Find out who changed it. If a comparison with a copy shows that the registry is correct, "
        f"move {location} away. The next signed change stores its line again."
    )


def _not_stored_error(signed_line: SignedLine, location: str, error: Exception) -> StorageError:
    return StorageError(
        f"The change was made and signed, but its line {signed_line.line} could not be stored at "
        f"{location} ({error}).",
        fix="Make the location writable. Do not repeat the change: the next signed change stores "
        "its line there.",
    )


def _unreadable_error(location: str, error: Exception) -> StorageError:
    return StorageError(
        f"The anchor {location} cannot be read ({error}).",
        cause="Without the anchor, lost signed lines cannot be detected.",
        fix=missing_filesystem_advice(location)
        or "Make the location readable, then repeat the command.",
    )
