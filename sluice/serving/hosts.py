"""Host names that a request may use for the server.

A web page can make a browser send requests to a server on the same machine or network under a
name that the page controls (DNS rebinding). Such a request has that name in its Host header.
"""

import ipaddress
import re
from collections.abc import Iterable

from sluice.serving.http_errors import MisdirectedRequest

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(:\d{1,5})?", re.ASCII)
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_MAX_CACHED = 64
_SHOWN = 100
_NETWORK_BITS = 64
"""Smallest network of an IPv6 host (RFC 6177)."""


class TrustedHosts:
    """The host names of a server."""

    def __init__(self, host: str, names: Iterable[str]) -> None:
        """Trust the loopback names, the listening address and further names.

        A server that listens on all addresses of its machine may be called by any IP address as
        well, but by no other name.

        Args:
            host: Address or name that the server listens on.
            names: Further names; '*.example.org' matches all names below example.org.
        """
        self._any_address = _is_unspecified(host)
        given = [name.lower() for name in names]
        self._exact = {*LOOPBACK, host.lower(), *(n for n in given if not n.startswith("*."))}
        self._suffixes = tuple(name[1:] for name in given if name.startswith("*."))
        self._cached: set[bytes] = set()

    def require(self, values: Iterable[bytes]) -> None:
        """Accept a request with exactly one Host header that names the server.

        Args:
            values: Values of all Host headers of the request.

        Raises:
            MisdirectedRequest: The header is missing, repeated, or names another server.
        """
        found = tuple(values)
        if len(found) == 1:
            if found[0] in self._cached:
                return
            if self._trusts(found[0]):
                if len(self._cached) < _MAX_CACHED:
                    self._cached.add(found[0])
                return
        got = ", ".join(value.decode("latin-1")[:_SHOWN] for value in found[:3]) or "none"
        raise MisdirectedRequest(
            f"The Host header must name this server, got {got!r}.",
            cause="The request used a host name that the server does not trust.",
            fix="Call the server by its address, or add the name to serving.trusted_hosts.",
        )

    def _trusts(self, value: bytes) -> bool:
        match = _HOST.fullmatch(value.decode("latin-1").lower())
        if match is None:
            return False
        name = match["name"].strip("[]").rstrip(".")
        if name in self._exact or name.endswith(self._suffixes or ("/",)):
            return True
        return self._any_address and _is_address(name)


def host_of_target(target: bytes) -> bytes | None:
    """Return the host of a request target such as 'http://host/path'; None for a path.

    It replaces the Host header: a proxy routes by the target, and the header could name another
    server.

    Source:
        RFC 9112, section 3.2.2.
    """
    found = _ABSOLUTE.match(target)
    return None if found is None else found[1]


def counted_address(address: str) -> str:
    """Return the part of a client address that the client cannot choose.

    An IPv6 host owns all 2^64 addresses of its network, so limits per address would be
    ineffective; for IPv4, and IPv4 mapped into IPv6, it is the whole address.
    """
    if ":" not in address:
        return address
    found = ipaddress.IPv6Address(address.partition("%")[0])
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, _NETWORK_BITS), strict=False))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_unspecified(host: str) -> bool:
    return not host or (_is_address(host) and ipaddress.ip_address(host).is_unspecified)
