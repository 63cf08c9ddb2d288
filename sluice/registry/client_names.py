"""Names of clients: by user key or address, by subnet, and as pseudonyms in stored samples."""

import functools
import hashlib
import hmac
import ipaddress


def client_of(user: str | None, address: str) -> str:
    """Return the name of a client: "user KEY", or "address IP" for a request without a user key."""
    return f"user {user}" if user is not None else f"address {address}"


@functools.lru_cache(2**14)
def subnet_of(address: str) -> str:
    """Return the subnet of an address, because one client often controls a whole subnet.

    For IPv6 it is the /64 subnet, which a subscriber usually gets. For IPv4 it is the /24 subnet,
    the smallest subnet that is routed on the internet.

    >>> subnet_of("2001:db8::7"), subnet_of("192.0.2.7")
    ('2001:db8::/64', '192.0.2.0/24')
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # no IP address, such as "" for a request over a Unix domain socket
        return address
    ip = getattr(ip, "ipv4_mapped", None) or ip
    prefix = 24 if ip.version == 4 else 64
    return str(ipaddress.ip_network((int(ip), prefix), strict=False))


def client_pseudonym(client: str, *, secret: str) -> str:
    """Return the pseudonym of a client in samples: a digest keyed with the model's secret.

    Args:
        client: Client from ``client_of``, or subnet from ``subnet_of``.
        secret: Secret of the model.
    """
    text = client.encode(errors="surrogatepass")
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()[:32]
