"""Name of the user of the operating system, which histories record as the actor of a change."""

import getpass
import os


def current_user() -> str:
    """Return the name of the operating system's user, or 'uid ID' if the user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a user id without an entry
        return f"uid {os.getuid()}"
