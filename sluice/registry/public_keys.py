"""Ed25519 signatures of version files: who exported a version, for registries that share no secret.

The HMAC of ``signing`` needs one secret on both sides, and whoever verifies with it can sign with
it. Here the exporter keeps a private key, and importers keep a list of the public keys they trust.
A signature covers the manifest, which has the digest of every part of the file: lineage, receipts,
history and the weights with their headers.
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
"""Largest file of keys that is read [bytes]."""

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_LINE = re.compile(rf"([a-z][a-z0-9_.-]{{0,63}})\s+{ALGORITHM}:([0-9a-f]{{64}})")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_PURPOSE = b"sluice version file\n"
"""Begins what is signed, so that a signature of anything else with the key is none of a version."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies; 32 bytes."""

    content: bytes

    @property
    def text(self) -> str:
        """The key as it is written in a list of trusted keys."""
        return f"{ALGORITHM}:{self.content.hex()}"

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Return whether the private half of this key signed exactly this message."""
        try:
            Ed25519PublicKey.from_public_bytes(self.content).verify(signature, message)
        except (InvalidSignature, ValueError):  # the second: 32 bytes that are no point
            return False
        return True


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A key that signs; 32 bytes that nobody else may have."""

    seed: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a private key that ``make_key_pair`` or openssl wrote.

        Raises:
            SettingsError: It cannot be read, is no Ed25519 key, or other users may read it.
        """
        try:
            content = read_regular(path, max_bytes=MAX_KEY_FILE_BYTES)
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            raise SettingsError(
                f"The private key {path} cannot be read ({error.strerror}).",
                fix="Name one that sluice registry new-key made.",
            ) from error
        if mode & 0o077:
            raise SettingsError(
                f"The private key {path} must be readable for its owner alone, and has mode "
                f"{mode:04o}.",
                cause="Other users of this machine can sign with it.",
                fix=f"Run: chmod 600 {path}; make another key if somebody may have read it.",
            )
        try:
            key = load_pem_private_key(content, password=None)
        except (ValueError, TypeError) as error:  # TypeError: it is encrypted
            raise _no_private_key(path) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise _no_private_key(path)
        return cls(key.private_bytes_raw())

    @property
    def public(self) -> PublicKey:
        """The half that verifies."""
        return PublicKey(self._key().public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes; the same message has the same one."""
        return self._key().sign(message)

    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)


@dataclass(frozen=True, slots=True)
class TrustedKeys:
    """The public keys whose versions are imported, by the name their owner has here."""

    by_name: Mapping[str, PublicKey]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file with a name and a key on each line; empty lines and # comments are skipped.

        Raises:
            SettingsError: It cannot be read, has no key, a malformed line, or a name or key twice.
        """
        try:
            text = read_regular(path, max_bytes=MAX_KEY_FILE_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"The list of trusted keys {path} cannot be read ({error}).",
                fix="Name a text file with a line 'NAME ed25519:KEY' for each key.",
            ) from error
        found: dict[str, PublicKey] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = _LINE.fullmatch(line.strip())
            key = PublicKey(bytes.fromhex(match[2])) if match else None
            if match is None or key is None or match[1] in found or key in found.values():
                raise SettingsError(
                    f"{path}, line {number} must be 'NAME {ALGORITHM}:KEY' with 64 hexadecimal "
                    f"digits, each name and key once, got {line[:100]!r}.",
                    fix="Copy the line of the .pub file that sluice registry new-key made.",
                )
            found[match[1]] = key
        if not found:
            raise SettingsError(
                f"The list of trusted keys {path} holds no key.",
                cause="With it, every import would be refused.",
                fix="Add the line of a .pub file, or name another list.",
            )
        return cls(found)

    def name_of(self, key: PublicKey) -> str | None:
        """Return the name of a trusted key; None for one that is not trusted."""
        return next((name for name, known in self.by_name.items() if known == key), None)


@dataclass(frozen=True, slots=True)
class ManifestSignature:
    """The signature of a version file, and the key it says it is from."""

    key: PublicKey
    signature: bytes

    @classmethod
    def make(cls, manifest: bytes, key: PrivateKey) -> Self:
        """Sign a manifest."""
        return cls(key.public, key.sign(_PURPOSE + manifest))

    @classmethod
    def parse(cls, text: bytes) -> Self | None:
        """Return the signature in a part of a file; None when it is malformed."""
        key, _, signature = text.decode("ascii", errors="replace").partition(" ")
        match = _LINE.fullmatch(f"x {key}")
        if match is None or _SIGNATURE.fullmatch(signature) is None:
            return None
        return cls(PublicKey(bytes.fromhex(match[2])), bytes.fromhex(signature))

    @property
    def text(self) -> bytes:
        """The signature as a part of a file."""
        return f"{self.key.text} {self.signature.hex()}".encode()

    def fits(self, manifest: bytes) -> bool:
        """Return whether it is the signature of this manifest, by the key it names."""
        return self.key.verifies(self.signature, _PURPOSE + manifest)


def make_key_pair(path: Path, *, name: str) -> PublicKey:
    """Write a new private key, and its public half to ``path`` with the suffix .pub.

    Args:
        path: File of the private key; mode 0600 from its first byte on.
        name: Of its owner, in the lists of those who trust it.

    Raises:
        SettingsError: The name is none that a list can hold, or one of the files is there.
        StorageError: A file cannot be written.
    """
    if _NAME.fullmatch(name) is None:
        raise SettingsError(
            f"A key's name has 1 to 64 lower-case letters, digits, dots, dashes and underscores "
            f"and begins with a letter, got {name[:80]!r}.",
            fix="Name it after its owner, as in --name team_a.",
        )
    public_path = path.with_name(f"{path.name}.pub")
    key = Ed25519PrivateKey.generate()
    public = PublicKey(key.public_key().public_bytes_raw())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for target in (path, public_path):
        if target.exists():
            raise SettingsError(
                f"A new key needs a file of its own, and {target} is there.",
                fix="Name another file; a key that is replaced cannot be had back.",
            )
    try:
        _write_once(path, private, mode=0o600)
        _write_once(public_path, f"{name} {public.text}\n".encode(), mode=0o644)
    except OSError as error:
        raise StorageError(
            f"The key {path} cannot be written ({error.strerror}).",
            fix="Name a file in a folder that you can write to.",
        ) from error
    return public


def _write_once(path: Path, content: bytes, *, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)


def _no_private_key(path: Path) -> SettingsError:
    return SettingsError(
        f"{path} must be an Ed25519 private key in PEM without a password, and is none.",
        fix="Name one that sluice registry new-key made.",
    )
