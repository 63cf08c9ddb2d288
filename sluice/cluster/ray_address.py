"""Checks that a Ray cluster answers at an address, before Ray tries to connect.

If no cluster answers, Ray itself waits for minutes and then ends the process.
"""

import re
import socket

from sluice.base.errors import SettingsError

_CONNECT_TIMEOUT_S = 5.0
"""Time within which the port must answer [s]. A running cluster answers in milliseconds."""
_PROBE_METHODS = {
    "": "/ray.rpc.NodeInfoGcsService/CheckAlive",
    "ray://": "/ray.rpc.RayletDriver/ClusterInfo",
}
"""gRPC method that only a Ray server provides, by scheme of the address. The method accepts an
empty request."""


def require_cluster(address: str | None) -> None:
    """Refuse an address at which no Ray cluster answers.

    Args:
        address: Address as in ``ComputeSettings``; None (this machine) and 'auto' are not checked.

    Raises:
        SettingsError: The address is malformed, nothing answers within seconds, or the server is
            not Ray.

    Cost:
        Milliseconds, and half a second to import Ray; at most 10 s.
    """
    if address is None or address == "auto":
        return
    match = re.fullmatch(r"(ray://|)\[?([^\[\]/]+?)\]?:(\d+)", address)
    if match is None:
        raise SettingsError(
            f"compute.address must be 'host:port', 'ray://host:port' or 'auto', got '{address}'.",
            fix="Correct the address, or omit it to use this machine.",
        )
    try:
        socket.create_connection((match[2], int(match[3])), timeout=_CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise unreachable_error(address, str(error)) from error
    _require_ray(address, scheme=match[1])


def unreachable_error(address: str, reason: str) -> SettingsError:
    """Return the error for a cluster that cannot be reached."""
    return SettingsError(
        f"The Ray cluster at '{address}' cannot be reached: {reason}.",
        cause="The cluster is not running, the address is wrong, a firewall blocks it, or it "
        "requires a token that this process does not have (RAY_AUTH_MODE, RAY_AUTH_TOKEN).",
        fix="Start the cluster with 'ray start --head', correct compute.address, or remove "
        "compute.address to use this machine.",
    )


def _require_ray(address: str, *, scheme: str) -> None:
    import grpc
    from ray._private.grpc_utils import init_grpc_channel  # adds Ray's certificates and token

    host_and_port = address.removeprefix(scheme)
    with init_grpc_channel(host_and_port, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(_PROBE_METHODS[scheme])(b"", timeout=_CONNECT_TIMEOUT_S)
        except grpc.RpcError as error:
            # Another status comes from Ray, for example if the token is missing.
            statuses_of_other_servers = (
                grpc.StatusCode.UNIMPLEMENTED,
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
            if error.code() not in statuses_of_other_servers:
                return
            raise SettingsError(
                f"The server at '{address}' is not a Ray head node ({error.code().name}).",
                cause="The port belongs to another service, such as Ray's dashboard (8265).",
                fix="Use the port that 'ray start --head' printed, usually 6379, or 10001 after "
                "'ray://'.",
            ) from error
