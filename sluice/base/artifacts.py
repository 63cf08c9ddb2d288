"""Stores files under the SHA-256 of their content, and verifies the content on every read."""

import re
from pathlib import Path

from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError, IntegrityError, StorageError
from sluice.base.files import read_regular, write_atomic

_DIGEST_FORM = re.compile(r"[0-9a-f]{64}")


class ArtifactStore:
    """Folder of immutable files. Equal contents are stored once."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def root(self) -> Path:
        """Folder of the store."""
        return self._root

    def has(self, digest: str) -> bool:
        """Return whether a file of this digest exists; ``get`` verifies its content."""
        return self.path(digest).exists()

    def path(self, digest: str) -> Path:
        """Return the path of the content with this digest, whether it exists or not.

        Raises:
            ContractError: ``digest`` is not a digest. The check guarantees that the path is inside
                the folder of the store.
        """
        if _DIGEST_FORM.fullmatch(digest) is None:
            raise ContractError(
                "The name of an artifact must be 64 lower-case hexadecimal digits, got "
                f"{digest[:80]!r}.",
                fix="Pass a digest that put() returned.",
            )
        return self._root / digest[:2] / digest

    def put(self, content: bytes) -> str:
        """Store ``content`` and return its digest.

        Raises:
            StorageError: The file cannot be written. No partial file is left.
        """
        digest = digest_bytes(content)
        path = self.path(digest)
        if not self._has_content(path, content):
            write_atomic(path, content)
        return digest

    def get(self, digest: str) -> bytes:
        """Return the content with this digest.

        Raises:
            IntegrityError: The file is missing, or its bytes do not match ``digest``.
            StorageError: The file exists but cannot be read, or is not a regular file.
            ContractError: ``digest`` is not a digest.
        """
        path = self.path(digest)
        try:
            content = read_regular(path)
        except FileNotFoundError:
            raise IntegrityError(
                f"Artifact {digest} is required and missing at {path}.",
                fix="Restore the file from a backup, or recreate it: run the pipeline again.",
            ) from None
        except OSError as error:
            raise StorageError(
                f"Artifact {path} cannot be read ({error.strerror or error}).",
                fix="Make the file readable for this user and check the disk, then run again.",
            ) from error
        if digest_bytes(content) != digest:
            raise IntegrityError(
                f"The content of artifact {path} does not match its name "
                f"(SHA-256 {digest_bytes(content)[:12]}, required {digest[:12]}).",
                cause="The file was changed or damaged after it was written.",
                fix="Restore the file from a backup, or recreate it: run the pipeline again.",
            )
        return content

    @staticmethod
    def _has_content(path: Path, content: bytes) -> bool:
        """Return whether the file exists and has this content, so that no write is necessary."""
        try:
            return read_regular(path) == content
        except OSError:  # missing or unreadable
            return False
