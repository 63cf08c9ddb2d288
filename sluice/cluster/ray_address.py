"""Whether a Ray cluster answers at its address, asked before anything is started.

Ray itself waits minutes for one that does not, and then ends the process.
"""

import re
import socket

from sluice.base.errors import SettingsError

_REACH_S = 5.0
"""A cluster's port answers at once or not at all."""
_ASK = {
    "": "/ray.rpc.NodeInfoGcsService/CheckAlive",
    "ray://": "/ray.rpc.RayletDriver/ClusterInfo",
}
"""What each kind of address serves and nothing else does; the request may be empty."""


def require_cluster(address: str | None) -> None:
    """Refuse an address at which no Ray cluster answers.

    Args:
        address: As in ``ComputeSettings``; this machine (None) and 'auto' are not asked.

    Raises:
        SettingsError: It is not written as an address, nothing answers within seconds, or what
            answers is not Ray.

    Cost:
        Milliseconds, and half a second to import Ray; at most 10 s.
    """
    if address is None or address == "auto":
        return
    found = re.fullmatch(r"(ray://|)\[?([^\[\]/]+?)\]?:(\d+)", address)
    if found is None:
        raise SettingsError(
            f"compute.address must be 'host:port', 'ray://host:port' or 'auto', got '{address}'.",
            fix="Correct it, or leave it out to use this machine.",
        )
    try:
        socket.create_connection((found[2], int(found[3])), timeout=_REACH_S).close()
    except (OSError, OverflowError) as error:
        raise unreachable(address, str(error)) from error
    _require_ray(address, scheme=found[1])


def unreachable(address: str, why: str) -> SettingsError:
    """Return the error that says that a cluster cannot be reached."""
    return SettingsError(
        f"The Ray cluster at '{address}' cannot be reached: {why}.",
        cause="It does not run, the address is wrong, a firewall is in between, or it asks for a "
        "token that this process does not have (RAY_AUTH_MODE, RAY_AUTH_TOKEN).",
        fix="Start it with 'ray start --head', correct compute.address, or leave it out to use "
        "this machine.",
    )


def _require_ray(address: str, *, scheme: str) -> None:
    import grpc
    from ray._private.grpc_utils import init_grpc_channel  # knows Ray's certificates and tokens

    where = address.removeprefix(scheme)
    with init_grpc_channel(where, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(_ASK[scheme])(b"", timeout=_REACH_S)
        except grpc.RpcError as error:
            # Any other answer, as to a request that is empty or has no token, is one of Ray's.
            nobody = (
                grpc.StatusCode.UNIMPLEMENTED,
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
            if error.code() not in nobody:
                return
            raise SettingsError(
                f"At '{address}' something answers, but not as Ray's head node "
                f"({error.code().name}).",
                cause="The port is that of something else, such as Ray's dashboard (8265).",
                fix="Give the port that 'ray start --head' printed, usually 6379, or 10001 after "
                "'ray://'.",
            ) from error
