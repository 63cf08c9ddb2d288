"""The token with which Ray's processes on this machine authenticate each other."""

import os
import secrets
from pathlib import Path

from sluice.base.files import PRIVATE_FILE_MODE, write_secret


def ray_token_path() -> Path:
    """Return the path of Ray's token file, which Ray itself would create readable for all users."""
    return Path.home() / ".ray" / "auth_token"


def keep_token_private() -> None:
    """Create Ray's token if it is missing, and make the file readable for this user only.

    Ray requires the token for every request unless ``RAY_AUTH_MODE=disabled``. A token that is set
    in the environment (``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH``) is used as it is.

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
