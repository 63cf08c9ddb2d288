"""Finds the key of Weights & Biases: in the environment, or that of ``wandb login``."""

import netrc
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_SERVER = "https://api.wandb.ai"


def find_wandb_key(environ: Mapping[str, str]) -> str | None:
    """Return the key of the user, or None if there is none.

    WANDB_API_KEY comes first. Otherwise it is the key that ``wandb login`` stored in the user's
    netrc file for the server of WANDB_BASE_URL, by default wandb's own.

    Args:
        environ: Environment variables; NETRC, or HOME, says where the netrc file is.
    """
    if key := environ.get("WANDB_API_KEY"):
        return key
    if not ("NETRC" in environ or "HOME" in environ):
        return None
    path = Path(environ.get("NETRC") or Path(environ["HOME"]) / ".netrc")
    host = urlsplit(environ.get("WANDB_BASE_URL") or DEFAULT_SERVER).hostname
    try:
        login = netrc.netrc(path).authenticators(host or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return (login[2] or None) if login else None
