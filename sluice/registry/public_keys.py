"""Ed25519 signatures of version files, which prove who exported a file without a shared secret.

With a shared secret (HMAC, see ``signing``), anyone who can verify can also sign. With Ed25519, the
exporter has a private key, and importers have a list of trusted public keys. A signature covers the
manifest, which contains the digest of every part of the file: lineage, receipts, history and the
weights with their headers.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from sluice.base.errors import SettingsError, StorageError
from sluice.base.files import read_regular

ALGORITHM = "ed25519"
MAX_KEY_FILE_BYTES = 2**20
"""Maximum size of a key file [bytes]."""

_KEY_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_KEY_LINE = re.compile(rf"([a-z][a-z0-9_.-]{{0,63}})\s+{ALGORITHM}:([0-9a-f]{{64}})")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_MESSAGE_PREFIX = b"sluice version file\n"
"""Prefix of each signed message (domain separation), so that a signature for another purpose is not
valid for a version file."""


@dataclass(frozen=True, slots=True)
class ExporterPublicKey:
    """Ed25519 public key of an exporter, 32 bytes."""

    content: bytes

    @property
    def text(self) -> str:
        """The key in the format of a list of trusted keys: "ed25519:" and 64 hexadecimal digits."""
        return f"{ALGORITHM}:{self.content.hex()}"

    def verify(self, signature: bytes, message: bytes) -> bool:
        """Return whether the signature of this message was made with the private key."""
        try:
            Ed25519PublicKey.from_public_bytes(self.content).verify(signature, message)
        except (InvalidSignature, ValueError):  # ValueError: not a point of the curve
            return False
        return True


@dataclass(frozen=True, slots=True)
class ExporterPrivateKey:
    """Ed25519 private key of an exporter, 32 secret bytes."""

    seed: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a private key written by ``make_key_pair`` or openssl.

        Raises:
            SettingsError: The file cannot be read, is not an Ed25519 key, or is accessible to other
                users.
        """
        try:
            content = read_regular(path, max_bytes=MAX_KEY_FILE_BYTES)
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            raise SettingsError(
                f"The private key {path} cannot be read ({error.strerror}).",
                fix="Use a file created by sluice registry new-key.",
            ) from error
        if mode & 0o077:
            raise SettingsError(
                f"The private key {path} must be accessible only to its owner, but has mode "
                f"{mode:04o}.",
                cause="Other users of this machine could sign with it.",
                fix=f"Run: chmod 600 {path}. Create another key if somebody may have read it.",
            )
        try:
            key = load_pem_private_key(content, password=None)
        except (ValueError, TypeError) as error:  # TypeError: the key is encrypted
            raise _invalid_key_error(path) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise _invalid_key_error(path)
        return cls(key.private_bytes_raw())

    @property
    def public(self) -> ExporterPublicKey:
        """The public key."""
        return ExporterPublicKey(self._key().public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes; deterministic."""
        return self._key().sign(message)

    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """Public keys of the exporters that the importer trusts, by local name."""

    key_by_name: Mapping[str, ExporterPublicKey]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file with a name and a key per line; empty lines and # comments are skipped.

        Raises:
            SettingsError: The file cannot be read, or has no key, a malformed line or a duplicate.
        """
        try:
            text = read_regular(path, max_bytes=MAX_KEY_FILE_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"The list of trusted keys {path} cannot be read ({error}).",
                fix="Use a text file with a line 'NAME ed25519:KEY' for each key.",
            ) from error
        keys: dict[str, ExporterPublicKey] = {}
        for line_number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = _KEY_LINE.fullmatch(line.strip())
            key = ExporterPublicKey(bytes.fromhex(match[2])) if match else None
            if match is None or key is None or match[1] in keys or key in keys.values():
                raise SettingsError(
                    f"Line {line_number} of {path} must be 'NAME {ALGORITHM}:KEY' with a key of 64 "
                    f"hexadecimal digits, got {line[:100]!r}. Each name and key may occur only "
                    "once.",
                    fix="Copy the line of the .pub file created by sluice registry new-key.",
                )
            keys[match[1]] = key
        if not keys:
            raise SettingsError(
                f"The list of trusted keys {path} has no keys.",
                cause="With this list, every import would be rejected.",
                fix="Add the line of a .pub file, or use another list.",
            )
        return cls(keys)

    def name_of(self, key: ExporterPublicKey) -> str | None:
        """Return the name of a trusted key; None if the key is not trusted."""
        return next(
            (name for name, trusted_key in self.key_by_name.items() if trusted_key == key), None
        )


@dataclass(frozen=True, slots=True)
class ManifestSignature:
    """Signature of a version file, with the public key for which the file claims it is valid."""

    key: ExporterPublicKey
    signature: bytes

    @classmethod
    def make(cls, manifest: bytes, key: ExporterPrivateKey) -> Self:
        """Sign a manifest."""
        return cls(key.public, key.sign(_MESSAGE_PREFIX + manifest))

    @classmethod
    def parse(cls, content: bytes) -> Self | None:
        """Parse the signature part of a version file; None if it is malformed."""
        key, _, signature = content.decode("ascii", errors="replace").partition(" ")
        match = _KEY_LINE.fullmatch(f"x {key}")  # the pattern expects a name before the key
        if match is None or _SIGNATURE.fullmatch(signature) is None:
            return None
        return cls(ExporterPublicKey(bytes.fromhex(match[2])), bytes.fromhex(signature))

    @property
    def content(self) -> bytes:
        """Content of the part of a version file that stores the signature."""
        return f"{self.key.text} {self.signature.hex()}".encode()

    def verify(self, manifest: bytes) -> bool:
        """Return whether the signature of the manifest is valid for the claimed key."""
        return self.key.verify(self.signature, _MESSAGE_PREFIX + manifest)


def make_key_pair(path: Path, *, name: str) -> ExporterPublicKey:
    """Write a new private key to ``path``, and its public key to ``path`` with the suffix .pub.

    Args:
        path: File of the private key; created with mode 0600.
        name: Name of the owner in lists of trusted keys.

    Raises:
        SettingsError: The name is invalid, or one of the files exists.
        StorageError: A file cannot be written.
    """
    if _KEY_NAME.fullmatch(name) is None:
        raise SettingsError(
            f"A key's name has 1 to 64 lower-case letters, digits, dots, dashes and underscores "
            f"and begins with a letter, got {name[:80]!r}.",
            fix="Name it after its owner, as in --name team_a.",
        )
    public_path = path.with_name(f"{path.name}.pub")
    key = Ed25519PrivateKey.generate()
    public_key = ExporterPublicKey(key.public_key().public_bytes_raw())
    private_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for target in (path, public_path):
        if target.exists():
            raise SettingsError(
                f"A new key needs a new file, but {target} exists.",
                fix="Use another file, because an overwritten key cannot be recovered.",
            )
    try:
        _write_once(path, private_pem, mode=0o600)
        _write_once(public_path, f"{name} {public_key.text}\n".encode(), mode=0o644)
    except OSError as error:
        raise StorageError(
            f"The key {path} cannot be written ({error.strerror}).",
            fix="Use a file in a writable folder.",
        ) from error
    return public_key


def _write_once(path: Path, content: bytes, *, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)


def _invalid_key_error(path: Path) -> SettingsError:
    return SettingsError(
        f"{path} is not an Ed25519 private key in unencrypted PEM format.",
        fix="Use a file created by sluice registry new-key.",
    )
