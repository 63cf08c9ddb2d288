"""Content-addressed files: stored under their SHA-256, checked on every read."""

import re
from pathlib import Path

from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError, IntegrityError, StorageError
from sluice.base.files import read_regular, write_atomic

_DIGEST = re.compile(r"[0-9a-f]{64}")


class ArtifactStore:
    """A folder of immutable files. Writing the same content twice is one file."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def root(self) -> Path:
        """The folder."""
        return self._root

    def has(self, digest: str) -> bool:
        """Return whether there is a file of this digest; ``get`` checks its content."""
        return self.path(digest).exists()

    def path(self, digest: str) -> Path:
        """Where the content with this digest lies, whether it exists or not.

        Raises:
            ContractError: It is no digest; a stored name must never lead out of the folder.
        """
        if _DIGEST.fullmatch(digest) is None:
            raise ContractError(
                f"An artifact is named by 64 hexadecimal digits, got {digest[:80]!r}.",
                fix="Pass the digest that put returned.",
            )
        return self._root / digest[:2] / digest

    def put(self, content: bytes) -> str:
        """Store ``content`` and return its digest.

        Raises:
            StorageError: The store cannot be written; nothing half-written is left.
        """
        digest = digest_bytes(content)
        path = self.path(digest)
        if not self._holds(path, content):
            write_atomic(path, content)
        return digest

    def get(self, digest: str) -> bytes:
        """Return the content.

        Raises:
            IntegrityError: It is missing, or its bytes are not those of ``digest``.
            StorageError: It is there and cannot be read, or is no regular file.
            ContractError: ``digest`` is none.
        """
        path = self.path(digest)
        try:
            content = read_regular(path)
        except FileNotFoundError:
            raise IntegrityError(
                f"Artifact {digest} is required and missing at {path}.",
                fix="Restore it from a backup, or run the pipeline again to make it anew.",
            ) from None
        except OSError as error:
            raise StorageError(
                f"Artifact {path} cannot be read ({error.strerror or error}).",
                fix="Make it readable for this user and check the disk, then run again.",
            ) from error
        if digest_bytes(content) != digest:
            raise IntegrityError(
                f"Artifact {path} holds other bytes than its name says "
                f"(SHA-256 {digest_bytes(content)[:12]}, required {digest[:12]}).",
                cause="The file was changed or damaged after it was written.",
                fix="Restore it from a backup, or run the pipeline again to make it anew.",
            )
        return content

    @staticmethod
    def _holds(path: Path, content: bytes) -> bool:
        try:
            return read_regular(path) == content
        except OSError:  # missing or unreadable: writing it anew says what is wrong, if anything
            return False
