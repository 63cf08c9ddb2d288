"""Under which names what listens on loopback may be addressed."""

from collections.abc import Iterable
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost"})


def is_trusted_host(host: str, extra: Iterable[str] = ()) -> bool:
    """Return whether a ``Host`` header names this machine's loopback or one of ``extra``.

    A page of another site can have its own name resolved to 127.0.0.1 (DNS rebinding), and is then
    of one origin with what listens here. The port does not matter: a tunnel changes it.

    Args:
        host: Value of the header, with or without a port.
        extra: Names, without ports.
    """
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if name is None or parts.netloc != host or parts.username is not None:
        return False
    return name in LOOPBACK_NAMES | {each.lower() for each in extra}
