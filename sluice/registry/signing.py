"""Keys that sign the registry's log: a shared secret (HMAC-SHA256), or a personal key (Ed25519).

A signature protects against an attacker who can write the database but does not have the key. With
a shared secret, anyone who can verify can also sign. An Ed25519 signature is verified with the
public key, so it proves which person or service signed.
"""

import base64
import binascii
import hashlib
import hmac
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)

from sluice.base.errors import SettingsError

MIN_KEY_BYTES = 32
"""Minimum length of a shared secret [bytes]."""

FORBIDDEN_MODE_BITS = 0o037
"""Permissions that a file with a secret or with known keys must not have: any for other users, and
write or execute for the group. The group may have read access, as for secrets that Kubernetes
mounts."""

_PEM_PREFIX = b"-----BEGIN "


class VerifyingKey(Protocol):
    """A key that verifies signatures."""

    @property
    def key_id(self) -> str:
        """Return the id of the key. A secret cannot be derived from the id."""

    def verify(self, signature: str, purpose: str, text: str) -> bool:
        """Return whether the signature was made with this key."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Key that signs and verifies: a shared secret (HMAC-SHA256), or an ``Ed25519SigningKey``."""

    secret: bytes = field(repr=False)
    """Shared secret, or the content of a PEM file."""

    path: Path | None = field(default=None, compare=False)
    """File of the key; None for a key that was not read from a file.

    The list of known keys is stored in the same folder. By default, the anchor is stored there,
    too. A key without a file has neither.
    """

    @classmethod
    def read(cls, path: Path) -> "SigningKey":
        """Read a key file: an Ed25519 private key in PEM format, or random bytes.

        Raises:
            SettingsError: The file cannot be read, is accessible to other users, is too short, or
                is in PEM format without an Ed25519 private key.
        """
        try:
            secret = path.read_bytes()
        except OSError as error:
            raise SettingsError(
                f"The key file {path} cannot be read ({error.strerror}).",
                fix="Use a file that this user can read, or create a file of random bytes: "
                "openssl rand -out registry.key 32",
            ) from error
        require_private_file(path, what="A key file")
        if secret.startswith(_PEM_PREFIX):
            return Ed25519SigningKey(secret, path).require_readable()
        if len(secret) < MIN_KEY_BYTES:
            raise SettingsError(
                f"A key file must have at least {MIN_KEY_BYTES} bytes, but {path} has "
                f"{len(secret)}.",
                fix="Create a key file: openssl rand -out registry.key 32",
            )
        return SigningKey(secret, path)

    @property
    def key_id(self) -> str:
        """Id of the key. The secret cannot be derived from the id."""
        return self.sign("key id", "")[:16]

    def sign(self, purpose: str, text: str) -> str:
        """Return the signature of ``text`` for a purpose (domain separation)."""
        return hmac.new(self.secret, _message(purpose, text), hashlib.sha256).hexdigest()

    def verify(self, signature: str, purpose: str, text: str) -> bool:
        """Return whether the signature was made with this key."""
        return hmac.compare_digest(signature.encode(), self.sign(purpose, text).encode())


class Ed25519SigningKey(SigningKey):
    """Ed25519 private key of a person or service."""

    def require_readable(self) -> Self:
        """Return the key after checking that it can be loaded.

        Raises:
            SettingsError: The PEM contains another kind of key, or requires a passphrase.
        """
        try:
            if isinstance(load_pem_private_key(self.secret, password=None), Ed25519PrivateKey):
                return self
        except (ValueError, TypeError):
            pass
        raise SettingsError(
            "A key file in PEM format must contain an Ed25519 private key without a passphrase, "
            f"but {self.path} does not.",
            fix="Create a key file: openssl genpkey -algorithm ed25519 -out NAME.key",
        )

    @property
    def key_id(self) -> str:
        """Id of the key, the same for the private and the public key."""
        return self.public.key_id

    @property
    def public(self) -> "Ed25519VerifyingKey":
        """The public key."""
        return Ed25519VerifyingKey(self._private().public_key())

    def sign(self, purpose: str, text: str) -> str:
        """Return the signature of ``text`` for a purpose (domain separation)."""
        return self._private().sign(_message(purpose, text)).hex()

    def verify(self, signature: str, purpose: str, text: str) -> bool:
        """Return whether the signature was made with this key."""
        return self.public.verify(signature, purpose, text)

    def _private(self) -> Ed25519PrivateKey:
        key = load_pem_private_key(self.secret, password=None)
        assert isinstance(key, Ed25519PrivateKey), "checked by require_readable"
        return key


@dataclass(frozen=True, slots=True)
class Ed25519VerifyingKey:
    """Ed25519 public key of a person or service: verifies but cannot sign."""

    key: Ed25519PublicKey

    @classmethod
    def parse(cls, text: str, *, where: str) -> Self:
        """Parse the middle line of the output of ``openssl pkey -in NAME.key -pubout``.

        Raises:
            SettingsError: The text is not an Ed25519 public key.
        """
        try:
            key = load_der_public_key(base64.b64decode(text, validate=True))
        except (ValueError, binascii.Error):
            key = None
        if not isinstance(key, Ed25519PublicKey):
            raise SettingsError(
                f"{where}: an Ed25519 public key in base64 is required, got {text[:80]!r}.",
                fix="Copy the middle line of: openssl pkey -in NAME.key -pubout",
            )
        return cls(key)

    @property
    def key_id(self) -> str:
        """Id of the key, the same for the private and the public key."""
        raw_bytes = self.key.public_bytes(Encoding.Raw, PublicFormat.Raw)
        return hashlib.sha256(b"sluice key id\n" + raw_bytes).hexdigest()[:16]

    def verify(self, signature: str, purpose: str, text: str) -> bool:
        """Return whether the signature was made with the private key."""
        try:
            self.key.verify(bytes.fromhex(signature), _message(purpose, text))
        except (InvalidSignature, ValueError):
            return False
        return True


def require_private_file(path: Path, *, what: str) -> None:
    """Reject a file that other users can access, or that its group can write or execute.

    Raises:
        SettingsError: The permissions of the file are too wide.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & FORBIDDEN_MODE_BITS:
        raise SettingsError(
            f"{what} must not be accessible to other users, nor writable or executable by its "
            f"group (mode 0600 or 0640), but {path} has mode {mode:04o}.",
            fix=f"Run: chmod 600 {path}",
        )


def _message(purpose: str, text: str) -> bytes:
    return f"sluice {purpose}\n{text}".encode()
