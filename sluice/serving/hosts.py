"""Checks the Host header of requests against the host names of the server.

This prevents DNS rebinding: a web page can make a browser send requests to a server on the same
machine or network under a host name that the page's owner controls. The Host header of such a
request contains this name.
"""

import ipaddress
import re
from collections.abc import Iterable

from sluice.serving.http_errors import MisdirectedRequest

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Names and addresses of this machine itself, which only its own processes can reach."""
_HOST_HEADER = re.compile(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(:\d{1,5})?", re.ASCII)
_ABSOLUTE_TARGET = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_MAX_CACHED = 64
"""Maximum number of accepted header values that are cached."""
_MAX_SHOWN_CHARS = 100
"""Maximum length of a header value in an error message [characters]."""
_SUBNET_BITS = 64
"""Prefix length of the smallest subnet that an IPv6 site gets (RFC 6177)."""


class TrustedHosts:
    """The host names of a server."""

    def __init__(self, host: str, names: Iterable[str]) -> None:
        """Trust the loopback names, the listening address and further names.

        If the server listens on all addresses of its machine, every IP address is trusted as
        well, but no other host name.

        Args:
            host: Address or name that the server listens on.
            names: Further names; '*.example.org' matches all names below example.org.
        """
        self._trusts_any_address = _is_unspecified(host)
        lower_names = [name.lower() for name in names]
        exact_names = (name for name in lower_names if not name.startswith("*."))
        self._exact_names = {*LOOPBACK, host.lower(), *exact_names}
        self._name_suffixes = tuple(name[1:] for name in lower_names if name.startswith("*."))
        self._accepted_headers: set[bytes] = set()

    def require(self, values: Iterable[bytes]) -> None:
        """Accept a request with exactly one Host header that names the server.

        Args:
            values: Values of all Host headers of the request.

        Raises:
            MisdirectedRequest: The header is missing, repeated, or has a name that is not trusted.
        """
        headers = tuple(values)
        if len(headers) == 1:
            (header,) = headers
            if header in self._accepted_headers:
                return
            if self._trusts(header):
                if len(self._accepted_headers) < _MAX_CACHED:
                    self._accepted_headers.add(header)
                return
            header_text = header.decode("latin-1")[:_MAX_SHOWN_CHARS]
            raise MisdirectedRequest(
                f"The Host header must name this server, got {header_text!r}.",
                cause="The request used a host name that the server does not trust.",
                fix="Call the server by its address, or add the name to serving.trusted_hosts.",
            )
        raise MisdirectedRequest(
            f"A request must have one Host header, got {len(headers)}.",
            fix="Send one Host header with the name or address of the server.",
        )

    def _trusts(self, header: bytes) -> bool:
        match = _HOST_HEADER.fullmatch(header.decode("latin-1").lower())
        if match is None:
            return False
        name = match["name"].strip("[]").rstrip(".")
        if name in self._exact_names or name.endswith(self._name_suffixes):
            return True
        return self._trusts_any_address and _is_address(name)


def host_of_target(target: bytes) -> bytes | None:
    """Return the host of a request target such as 'http://host/path'; None for a path.

    This host replaces the Host header, because a proxy routes by the target and the header could
    name another server.

    Source:
        RFC 9112, section 3.2.2.
    """
    match = _ABSOLUTE_TARGET.match(target)
    return None if match is None else match[1]


def address_for_limits(address: str) -> str:
    """Return the part of a client address that the client cannot choose.

    For IPv6 this is the /64 subnet: a host may use all its 2^64 addresses, so a limit per address
    would be ineffective. For IPv4, and IPv4 mapped into IPv6, it is the whole address.
    """
    if ":" not in address:
        return address
    ipv6 = ipaddress.IPv6Address(address.partition("%")[0])
    if ipv6.ipv4_mapped is not None:
        return str(ipv6.ipv4_mapped)
    return str(ipaddress.IPv6Network((ipv6, _SUBNET_BITS), strict=False))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_unspecified(host: str) -> bool:
    return not host or (_is_address(host) and ipaddress.ip_address(host).is_unspecified)
