"""Finds the user's key and server of W&B, from the environment or from ``wandb login``."""

import configparser
import netrc
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_SERVER = "https://api.wandb.ai"


def with_wandb_login(environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the environment with WANDB_API_KEY and WANDB_BASE_URL, or None without a key."""
    key = find_wandb_key(environ)
    if key is None:
        return None
    return {**environ, "WANDB_API_KEY": key, "WANDB_BASE_URL": find_wandb_server(environ)}


def find_wandb_server(environ: Mapping[str, str]) -> str:
    """Return the URL of the server.

    The URL is the first of these that is set: WANDB_BASE_URL, the host of ``wandb login --host``,
    ``DEFAULT_SERVER``.

    Args:
        environ: Environment variables; WANDB_CONFIG_DIR or HOME determines the folder of wandb's
            settings.
    """
    if url := environ.get("WANDB_BASE_URL"):
        return url
    if not (environ.get("WANDB_CONFIG_DIR") or environ.get("HOME")):
        return DEFAULT_SERVER
    folder = environ.get("WANDB_CONFIG_DIR") or Path(environ["HOME"]) / ".config" / "wandb"
    settings = configparser.ConfigParser(interpolation=None)
    try:
        settings.read(Path(folder) / "settings")
    except (OSError, configparser.Error, UnicodeDecodeError):
        return DEFAULT_SERVER
    return settings.get("default", "base_url", fallback="") or DEFAULT_SERVER


def find_wandb_key(environ: Mapping[str, str]) -> str | None:
    """Return the key of the user, or None if the user has no key.

    The key is the value of WANDB_API_KEY. If the variable is not set, it is the key that ``wandb
    login`` stored in the user's netrc file for the server (``find_wandb_server``).

    Args:
        environ: Environment variables; NETRC or HOME determines the path of the netrc file.
    """
    if key := environ.get("WANDB_API_KEY"):
        return key
    if not (environ.get("NETRC") or environ.get("HOME")):
        return None
    path = Path(environ.get("NETRC") or Path(environ["HOME"]) / ".netrc")
    host = urlsplit(find_wandb_server(environ)).hostname
    try:
        credentials = netrc.netrc(path).authenticators(host or "")
    except (OSError, netrc.NetrcParseError):
        return None
    if credentials is None:
        return None
    _login, _account, password = credentials
    return password or None
