"""Fixtures: a Ray cluster of two simulated machines for the session, and an S3 server."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import s3_server
from tests.support.ray_machines import NODE_OPTIONS, start_with_retries

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "hunter-secret-2"}


@dataclass
class TwoMachines:
    """A cluster whose second machine can be removed and added again."""

    cluster: Any
    second: Any = None

    @property
    def address(self) -> str:
        return self.cluster.address

    def ids(self) -> tuple[str, str]:
        """Return Ray's node ids of the two machines."""
        return self.cluster.head_node.node_id, self.second.node_id

    def complete(self) -> None:
        """Add the second machine unless it has been added."""
        if self.second is None:
            self.second = start_with_retries(lambda: self.cluster.add_node(**NODE_OPTIONS))

    def lose(self, *, gracefully: bool) -> None:
        """Kill all processes of the second machine; if gracefully, it first leaves the cluster."""
        self.cluster.remove_node(self.second, allow_graceful=gracefully)
        self.second = None


@pytest.fixture(scope="session")
def cluster() -> Iterator[TwoMachines]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    # A machine without a health check for 5 s is lost; Ray's default is 15 s.
    health = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    first = {**NODE_OPTIONS, "_system_config": health}
    machines = TwoMachines(
        start_with_retries(lambda: Cluster(initialize_head=True, head_node_args=first))
    )
    yield machines
    machines.cluster.shutdown()


@pytest.fixture
def two_machines(cluster) -> TwoMachines:
    cluster.complete()
    return cluster


@pytest.fixture(scope="module")
def ray_here(cluster):
    """Ray, initialized in this process before Sluice uses it; Sluice must leave it running."""
    import ray

    cluster.complete()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Template of a storage_path on an S3 server with the bucket 'studies'."""
    server = subprocess.Popen(
        [sys.executable, s3_server.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    port = next(line for line in server.stdout if line.startswith("port ")).split()[1]
    put = urllib.request.Request(f"http://127.0.0.1:{port}/studies", method="PUT")
    urllib.request.urlopen(put).close()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        yield f"s3://studies/{{}}?endpoint_override=http://127.0.0.1:{port}"
    server.communicate()  # closes its standard input, which ends it
