"""Runs a server with few file descriptors, as ``python -m``.

The program prints the port of the server. For each line on stdin, it opens an SQLite file many
times, as registries do, and prints whether all connections could be opened.
"""

import resource
import sqlite3
import sys

from sluice.rollout.traffic_split import TrafficSplit
from tests.sluice.serving.serving_samples import (
    LinearNetwork,
    candidate,
    deployed,
    quick_settings,
    run_server,
)

MAX_DESCRIPTORS = 200
_NUM_REGISTRIES = 20


def main() -> None:
    """Serve until stdin ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS // 2, MAX_DESCRIPTORS))
    model = deployed("one", 1, LinearNetwork(1.0))
    split = TrafficSplit(epoch=1, production=candidate("one"))
    settings = quick_settings(connections={"reserved_descriptors": 64})
    with run_server({model.candidate: model}, split, settings=settings) as server:
        print(server.url.rpartition(":")[2], flush=True)
        for _ in sys.stdin:
            try:
                connections = [sqlite3.connect(sys.argv[1]) for _ in range(_NUM_REGISTRIES)]
                for connection in connections:
                    connection.execute("create table if not exists t (x)")
                    connection.close()
                print(f"opened {len(connections)}", flush=True)
            except sqlite3.Error as error:
                print(error, flush=True)


if __name__ == "__main__":
    main()
