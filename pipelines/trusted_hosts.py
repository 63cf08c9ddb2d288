"""Host names under which services on loopback accept requests."""

from collections.abc import Iterable
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost"})


def is_trusted_host(host: str, extra_names: Iterable[str] = ()) -> bool:
    """Return whether a ``Host`` header names this machine's loopback or one of ``extra_names``.

    Other names are rejected, because another site can resolve its own name to 127.0.0.1 (DNS
    rebinding). Its pages would then have the same origin as the services here. The port is ignored,
    because a tunnel changes it.

    Args:
        host: Value of the header, with or without a port.
        extra_names: Additional host names, without ports.
    """
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname, parts.port  # ``port`` raises a ValueError if it is invalid
    except ValueError:
        return False
    if name is None or parts.netloc != host or parts.username is not None:
        return False
    return name in LOOPBACK_NAMES | {extra_name.lower() for extra_name in extra_names}
