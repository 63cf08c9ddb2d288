"""The file of named tokens: JSON with the digests of tokens, reloaded when the file changes.

    {"tokens": {"web-shop": {"sha256": "9f86...", "scopes": ["predict"], "requests_per_s": 50}}}

To rotate a token, add a token under another name, let the clients use it, and remove the old token.
"""

import json
import os
import secrets
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from sluice.base.errors import SettingsError
from sluice.base.files import write_secret
from sluice.base.secret_files import read_secret_file
from sluice.base.settings import Settings
from sluice.serving.tokens import Grant, Scope, Tokens, digest_token

MAX_TOKENS = 1000
"""Maximum number of tokens in a file."""
_FILE_KIND = "token file"
"""Name of this kind of file in errors."""

TokenName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class TokenEntry(Settings):
    """Digest and permissions of one token."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the token, in hex.")
    scopes: tuple[Scope, ...] = Field(
        strict=False,
        min_length=1,
        description="Scopes of the routes that the token may use: predict, hook, metrics, admin.",
    )
    requests_per_s: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Maximum rate of predictions with this token per process [1/s]; null for an "
        "equal share of serving.requests_per_s.",
    )


class TokenFile(Settings):
    """Content of the token file."""

    tokens: dict[TokenName, TokenEntry] = Field(
        max_length=MAX_TOKENS, description="Tokens by name."
    )

    @classmethod
    def read(cls, path: Path) -> "TokenFile":
        """Read the file.

        Raises:
            StorageError: The file cannot be read.
            SettingsError: Other users may read the file, or its content is invalid.
        """
        content = read_secret_file(path, what=_FILE_KIND)
        text = content.decode(errors="replace")
        token_file = cls.parse_json(text, where=f"The {_FILE_KIND} {path}")
        name_by_digest: dict[str, str] = {}
        for name, entry in token_file.tokens.items():
            other_name = name_by_digest.setdefault(entry.sha256, name)
            if other_name != name:
                raise SettingsError(
                    f"The tokens '{other_name}' and '{name}' in the {_FILE_KIND} {path} must be "
                    "different, but have the same digest.",
                    fix="Create a token for each: sluice tokens add",
                )
        return token_file

    def to_tokens(self) -> Tokens:
        """Return the tokens in the form that a server uses."""
        return Tokens(
            tuple(
                Grant(
                    name=name,
                    digest=bytes.fromhex(entry.sha256),
                    scopes=frozenset(entry.scopes),
                    requests_per_s=entry.requests_per_s,
                )
                for name, entry in self.tokens.items()
            )
        )

    def write(self, path: Path) -> None:
        """Replace the file, readable by its owner only (mode 0600).

        Raises:
            StorageError: The file cannot be written.
        """
        content = json.dumps(self.model_dump(mode="json"), indent=2) + "\n"
        write_secret(path, content.encode())


def make_token() -> tuple[str, str]:
    """Return a new token of 256 random bits and its digest for the file."""
    token = secrets.token_urlsafe(32)
    return token, digest_token(token).hex()


class TokenFileWatch:
    """Reloads the token file if it has changed."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            StorageError, SettingsError: See ``TokenFile.read``.
        """
        self._path = path
        self._last_stat = self._stat()
        self.tokens = TokenFile.read(path).to_tokens()

    def refresh(self) -> Tokens | None:
        """Return the tokens if the file has changed since the last successful read, else None.

        Raises:
            StorageError, SettingsError: See ``TokenFile.read``. The previous tokens stay in force.
        """
        stat = self._stat()
        if stat == self._last_stat:
            return None
        self.tokens = TokenFile.read(self._path).to_tokens()
        self._last_stat = stat
        return self.tokens

    def _stat(self) -> tuple[int, ...] | None:
        try:
            stat = os.stat(self._path)
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
