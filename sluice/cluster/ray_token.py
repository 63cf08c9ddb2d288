"""The token by which Ray's processes on this machine know each other."""

import os
import secrets
from pathlib import Path

from sluice.base.files import OWNER_FILE, write_secret


def ray_token_path() -> Path:
    """Return where Ray looks for it, and would write it readable for everybody."""
    return Path.home() / ".ray" / "auth_token"


def keep_token_private() -> None:
    """Make Ray's token where there is none, and close the file to other users.

    Ray asks every request for the token unless ``RAY_AUTH_MODE=disabled``. A token that the
    environment names (``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH``) is the user's own, and is used.

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
        path.chmod(OWNER_FILE)
