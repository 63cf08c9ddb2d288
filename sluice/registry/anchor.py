"""The last signed line, kept outside the database: what a database cannot forget.

A database that was put back to an older copy, or from which signed lines and their signatures were
removed, holds together by itself. The line that was signed last is therefore also kept beside the
key, or where ``known_keys.yaml`` says. It may be older than the database (another machine signed
since, or a process died between the two writes), and must then be one of its lines.
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
from sluice.base.settings import Record
from sluice.registry.keyring import KNOWN_KEYS, Keyring


class SignedLine(Record):
    """A signature of the log, with the line that it is of."""

    line: int = Field(ge=1)
    digest: str
    key_id: str
    signature: str
    signed_at: datetime
    since: int
    kind: str
    actor: str


class Kept(Protocol):
    """Tells which line of one registry was signed last."""

    @property
    def place(self) -> str:
        """Return where it is, for messages."""

    def read(self) -> SignedLine | None:
        """Return the last line that was kept; None when there never was one.

        Raises:
            StorageError: The place cannot be read.
            IntegrityError: What is there is not a signed line.
        """


@dataclass(frozen=True, slots=True)
class KeptBefore:
    """What an anchor held before a transaction began that only reads.

    Read later, it could be a line that was signed since, which that transaction does not see.
    """

    place: str
    found: SignedLine | StorageError | None

    @classmethod
    def of(cls, anchor: "Anchor | None") -> Self | None:
        """Return what an anchor holds now, or why it cannot be read; None without an anchor."""
        if anchor is None:
            return None
        try:
            return cls(anchor.place, anchor.read())
        except StorageError as error:  # IntegrityError as well
            return cls(anchor.place, error)

    def read(self) -> SignedLine | None:
        """Return the line; see ``Kept``."""
        if isinstance(self.found, StorageError):
            raise self.found
        return self.found


class Anchor(Kept, Protocol):
    """A place outside the database that holds the last signed line of one registry."""

    @contextlib.contextmanager
    def writing(self, signed: SignedLine) -> Iterator[None]:
        """Prepare to keep a line; it is kept once the block (the commit) ends without an error.

        Raises:
            StorageError: The place cannot be written; before the block where that can be known.
        """


def anchor_of(keys: Keyring, url: str) -> Anchor | None:
    """Return the anchor of a registry; None for a key that was not read from a file."""
    path = keys.signing.path
    if path is None:
        return None
    name = registry_identity(url)[:16]
    if keys.anchor is None:
        return FileAnchor(path.with_name(f"{path.name}.{name}.anchor.json").absolute())
    root = keys.anchor if "://" in keys.anchor else str(path.parent.absolute() / keys.anchor)
    return ObjectAnchor(f"{root.rstrip('/')}/{name}")


def registry_identity(url: str) -> str:
    """Return the digest of a registry's address, without who connects and how.

    The address is what the user names, so nobody who only writes the database can change it.
    """
    parsed = make_url(url)
    database = parsed.database or ""
    if parsed.get_backend_name() == "sqlite" and not database.startswith("file:"):
        database = str(Path(database).resolve())
    parts: list[object] = [parsed.get_backend_name(), parsed.host, parsed.port, database]
    parts += [parsed.query.get(name) for name in ("host", "port", "options")]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FileAnchor:
    """One small file, replaced with each signature."""

    path: Path

    @property
    def place(self) -> str:
        """The file."""
        return str(self.path)

    def read(self) -> SignedLine | None:
        """Return the line in the file; see ``Anchor``."""
        try:
            return _parse(self.path.read_bytes(), self.place)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(self.place, error) from error

    @contextlib.contextmanager
    def writing(self, signed: SignedLine) -> Iterator[None]:
        """Write the new file before the block, and put it in place after; see ``Anchor``."""
        folder, temporary = self.path.parent, None
        try:
            try:
                handle, temporary = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=folder)
                with open(handle, "wb") as file:  # mkstemp: only the owner may read it
                    file.write(signed.model_dump_json().encode())
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise StorageError(
                    f"The last signed line cannot be kept at {self.path} ({error.strerror}); "
                    "nothing was changed.",
                    fix="Make the key's folder writable, or name another place as anchor in "
                    f"{KNOWN_KEYS} beside the key.",
                ) from error
            yield
            try:
                self._replace(temporary, signed.line)
            except (OSError, StorageError) as error:
                raise _not_kept(signed, self.place, error) from error
        finally:
            if temporary is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)

    def _replace(self, temporary: str, line: int) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            with contextlib.suppress(IntegrityError):
                kept = self.read()
                if kept is not None and kept.line > line:  # another process committed after us
                    return
            os.replace(temporary, self.path)
            os.fsync(folder)
        finally:
            os.close(folder)


@dataclass(frozen=True, slots=True)
class ObjectAnchor:
    """A folder or bucket to which each signature adds one object; none is ever replaced."""

    root: str

    @property
    def place(self) -> str:
        """The folder."""
        return self.root

    def read(self) -> SignedLine | None:
        """Return the line in the newest object; see ``Anchor``."""
        import fsspec

        try:
            files, root = fsspec.core.url_to_fs(self.root)
            try:
                names = [str(name) for name in files.ls(root, detail=False, refresh=True)]
            except FileNotFoundError:
                return None
            newest = max((name for name in names if name.endswith(".json")), default=None)
            return None if newest is None else _parse_named(files.cat_file(newest), newest)
        except (OSError, ImportError, ValueError) as error:
            raise _unreadable(self.place, error) from error

    @contextlib.contextmanager
    def writing(self, signed: SignedLine) -> Iterator[None]:
        """Add the object after the block: an object cannot be taken back; see ``Anchor``."""
        import fsspec

        yield
        try:
            files, root = fsspec.core.url_to_fs(self.root)
            files.makedirs(root, exist_ok=True)
            name = f"{root}/{_object_name(signed)}"
            files.pipe_file(name, signed.model_dump_json().encode(), mode="create")
        except (OSError, ImportError, ValueError) as error:
            raise _not_kept(signed, self.place, error) from error


def _parse(content: bytes, where: str) -> SignedLine:
    try:
        return SignedLine.model_validate_json(content)
    except ValidationError:
        raise IntegrityError(
            f"The last signed line that is kept at {where} cannot be read.",
            cause="It was changed or damaged.",
            fix=_remove(where),
        ) from None


def _parse_named(content: bytes, where: str) -> SignedLine:
    """Read an object; who may only add some must not put an older line above the newest."""
    kept = _parse(content, where)
    if where.rsplit("/", 1)[-1] != _object_name(kept):
        raise IntegrityError(
            f"The object {where} must hold the signed line that its name says, and holds line "
            f"{kept.line}.",
            cause="It was not put there by Sluice.",
            fix=_remove(where),
        )
    return kept


def _object_name(signed: SignedLine) -> str:
    return f"{signed.line:012d}.json"


def _remove(where: str) -> str:
    return (
        "Find out why. If the registry is known to be right (compare a copy of it), move "
        f"{where} away; the next signed change makes a new one."
    )


def _not_kept(signed: SignedLine, place: str, error: Exception) -> StorageError:
    return StorageError(
        f"The change was made and signed, and its line {signed.line} could not be kept at {place} "
        f"({error}).",
        fix="Make the place writable; do not repeat the change. The next one is kept there again.",
    )


def _unreadable(place: str, error: Exception) -> StorageError:
    return StorageError(
        f"The last signed line that is kept at {place} cannot be read ({error}).",
        cause="Without it nobody can tell whether the database lost signed lines.",
        fix="Make the place readable, then repeat the command.",
    )
