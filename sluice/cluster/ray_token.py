"""Protects the token with which Ray's processes on this machine authenticate each other."""

import os
import secrets
from pathlib import Path

from sluice.base.files import PRIVATE_FILE_MODE, write_secret


def ray_token_path() -> Path:
    """Return the path of Ray's token file."""
    return Path.home() / ".ray" / "auth_token"


def keep_token_private() -> None:
    """Create Ray's token file if it is missing, and make it readable for this user only.

    Ray itself would create the file readable for all users. Ray requires the token for every
    request unless ``RAY_AUTH_MODE=disabled``. If the environment sets the token
    (``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH``), this function does nothing.

    Raises:
        StorageError: The file cannot be written.
    """
    if any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    path = ray_token_path()
    if not path.exists():
        write_secret(path, secrets.token_hex(32).encode())
    elif path.stat().st_uid == os.getuid():
        path.chmod(PRIVATE_FILE_MODE)
