"""Floods a server with connections from one IPv6 network; run as ``python -m``.

The program needs a separate network namespace, whose loopback interface has ``ADDRESSES``. It
prints numbers of connections and of client subnets as JSON.
"""

import contextlib
import json
import socket

import httpx

from sluice.rollout.traffic_split import TrafficSplit
from tests.sluice.serving.serving_samples import (
    SECRET,
    LinearNetwork,
    body,
    candidate,
    deployed,
    quick_settings,
    run_server,
)

ADDRESSES = tuple(f"2001:db8::{number:x}:1" for number in range(1, 9))
MAX_PER_ADDRESS = 8
TOKEN = {"authorization": f"Bearer {SECRET}"}


def main() -> None:
    """Open connections and request predictions from all addresses."""
    model = deployed("one", 1, LinearNetwork(1.0))
    split = TrafficSplit(epoch=1, production=candidate("one"))
    settings = quick_settings(
        connections={
            "max_connections": 64,
            "max_per_address": MAX_PER_ADDRESS,
            "idle_timeout_s": 60,
        }
    )
    with (
        run_server({model.candidate: model}, split, settings=settings, host="::") as server,
        contextlib.ExitStack() as stack,
    ):
        port = int(server.url.rpartition(":")[2])
        for number in range(2 * MAX_PER_ADDRESS):  # two IPv4 addresses, up to the limit of each
            ipv4_address = f"127.0.0.{2 + number % 2}"
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port), source_address=(ipv4_address, 0))
            )
        before = server.metrics()["sluice_connections"]
        for number in range(64):
            source = (ADDRESSES[number % len(ADDRESSES)], 0)
            stack.enter_context(
                socket.create_connection((ADDRESSES[0], port), timeout=10, source_address=source)
            )
        for address in ADDRESSES:
            transport = httpx.HTTPTransport(local_address=address)
            with httpx.Client(transport=transport, headers=TOKEN) as client:
                url = f"http://[{ADDRESSES[0]}]:{port}/predict"
                assert client.post(url, json=body(1.0)).status_code == 200
        num_subnets = len(server.serving.router.counters.clients._current_period.subnet_requests)
        flooded = server.metrics()["sluice_connections"]  # all connections were accepted by now
        print(json.dumps({"before": before, "flooded": flooded, "num_subnets": num_subnets}))


if __name__ == "__main__":
    main()
