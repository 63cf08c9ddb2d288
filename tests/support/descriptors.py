"""A server with few file descriptors, run as ``python -m``.

It prints its port. For each line on stdin, it opens registries and prints whether that succeeds.
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

DESCRIPTORS = 200
REGISTRIES = 20


def main() -> None:
    """Serve until stdin ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS // 2, DESCRIPTORS))
    model = deployed("one", 1, LinearNetwork(1.0))
    split = TrafficSplit(epoch=1, production=candidate("one"))
    settings = quick_settings(connections={"reserved_descriptors": 64})
    with run_server({model.candidate: model}, split, settings=settings) as server:
        print(server.url.rpartition(":")[2], flush=True)
        for _ in sys.stdin:
            try:
                opened = [sqlite3.connect(sys.argv[1]) for _ in range(REGISTRIES)]
                for each in opened:
                    each.execute("create table if not exists t (x)")
                    each.close()
                print(f"opened {len(opened)}", flush=True)
            except sqlite3.Error as error:
                print(error, flush=True)


if __name__ == "__main__":
    main()
