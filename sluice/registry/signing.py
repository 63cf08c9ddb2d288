"""Keys that sign the registry's log: a shared secret (HMAC-SHA256), or a personal one (Ed25519).

A signature protects against an attacker who can write the database and does not have the key.
Whoever verifies with a shared secret can also sign with it; an Ed25519 key is verified with its
public half, so it proves which person or service signed.
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

FOR_OTHERS = 0o037
"""Permissions that a file with a secret, or with the known keys, must not have: none for other
users, and a group may only read, as it does where Kubernetes mounts a secret."""

_PEM = b"-----BEGIN "


class VerifyingKey(Protocol):
    """A key that tells its own signatures from others."""

    @property
    def key_id(self) -> str:
        """Return the name of the key, which says nothing about a secret."""

    def fits(self, signature: str, what: str, text: str) -> bool:
        """Say whether this key made the signature."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret that signs and verifies."""

    secret: bytes = field(repr=False)

    path: Path | None = field(default=None, compare=False)
    """File of the key; the known keys and the last signed line are kept beside it. None for a key
    that was not read from a file: then neither is."""

    @classmethod
    def read(cls, path: Path) -> "SigningKey":
        """Read a key file: an Ed25519 private key in PEM, or random bytes, all of which count.

        Raises:
            SettingsError: It cannot be read, other users can, or it is too short to be a secret.
        """
        try:
            secret = path.read_bytes()
        except OSError as error:
            raise SettingsError(
                f"The key file {path} cannot be read ({error.strerror}).",
                fix="Name a file of random bytes: openssl rand -out registry.key 32",
            ) from error
        require_private(path, what="A key file")
        if secret.startswith(_PEM):
            return Ed25519SigningKey(secret, path).require_readable()
        if len(secret) < MIN_KEY_BYTES:
            raise SettingsError(
                f"A key file has at least {MIN_KEY_BYTES} bytes, {path} has {len(secret)}.",
                fix="Make one: openssl rand -out registry.key 32",
            )
        return SigningKey(secret, path)

    @property
    def key_id(self) -> str:
        """Tells keys apart, and says nothing about the secret."""
        return self.sign("key id", "")[:16]

    def sign(self, what: str, text: str) -> str:
        """Return the signature of ``text``; ``what`` keeps signatures of other things apart."""
        return hmac.new(self.secret, _message(what, text), hashlib.sha256).hexdigest()

    def fits(self, signature: str, what: str, text: str) -> bool:
        """Say whether this key made the signature."""
        return hmac.compare_digest(signature.encode(), self.sign(what, text).encode())


class Ed25519SigningKey(SigningKey):
    """The private half of a personal key."""

    def require_readable(self) -> Self:
        """Return the key itself, once it is known to be one.

        Raises:
            SettingsError: The PEM holds another kind of key, or is protected by a passphrase.
        """
        try:
            if isinstance(load_pem_private_key(self.secret, password=None), Ed25519PrivateKey):
                return self
        except (ValueError, TypeError):
            pass
        raise SettingsError(
            f"A key file in PEM must hold an Ed25519 private key without a passphrase; {self.path} "
            "does not.",
            fix="Make one: openssl genpkey -algorithm ed25519 -out NAME.key",
        )

    @property
    def key_id(self) -> str:
        """Tells keys apart, and is the same for both halves."""
        return self.public.key_id

    @property
    def public(self) -> "PublicKey":
        """The public half."""
        return PublicKey(self._private().public_key())

    def sign(self, what: str, text: str) -> str:
        """Return the signature of ``text``; ``what`` keeps signatures of other things apart."""
        return self._private().sign(_message(what, text)).hex()

    def fits(self, signature: str, what: str, text: str) -> bool:
        """Say whether this key made the signature."""
        return self.public.fits(signature, what, text)

    def _private(self) -> Ed25519PrivateKey:
        key = load_pem_private_key(self.secret, password=None)
        assert isinstance(key, Ed25519PrivateKey), "require_readable has seen it"
        return key


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The public half of a personal key: verifies, and cannot sign."""

    key: Ed25519PublicKey

    @classmethod
    def parse(cls, text: str, *, where: str) -> Self:
        """Read the middle line of what ``openssl pkey -in NAME.key -pubout`` prints.

        Raises:
            SettingsError: It is not an Ed25519 public key.
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
        """Tells keys apart, and is the same for both halves."""
        raw = self.key.public_bytes(Encoding.Raw, PublicFormat.Raw)
        return hashlib.sha256(b"sluice key id\n" + raw).hexdigest()[:16]

    def fits(self, signature: str, what: str, text: str) -> bool:
        """Say whether the private half made the signature."""
        try:
            self.key.verify(bytes.fromhex(signature), _message(what, text))
        except (InvalidSignature, ValueError):
            return False
        return True


def require_private(path: Path, *, what: str) -> None:
    """Refuse a file that other users can read, or that others than its owner can change.

    Raises:
        SettingsError: Its permissions are wider than that.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & FOR_OTHERS:
        raise SettingsError(
            f"{what} must be closed to other users (mode 0600), and {path} has mode {mode:04o}.",
            fix=f"Close it: chmod 600 {path}",
        )


def _message(what: str, text: str) -> bytes:
    return f"sluice {what}\n{text}".encode()
