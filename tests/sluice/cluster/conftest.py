"""Two machines of a Ray cluster, played by processes; one cluster for the whole session."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import s3_server
from tests.support.ray_machines import MACHINE, start_with_retries

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "hunter-secret-2"}


@dataclass
class TwoMachines:
    """The cluster, and how to lose its second machine."""

    cluster: Any
    second: Any = None

    @property
    def address(self) -> str:
        return self.cluster.address

    def ids(self) -> tuple[str, str]:
        """Return Ray's names of the two machines."""
        return self.cluster.head_node.node_id, self.second.node_id

    def complete(self) -> None:
        """Put a second machine there, if it is lost."""
        if self.second is None:
            self.second = start_with_retries(lambda: self.cluster.add_node(**MACHINE))

    def lose(self, *, gracefully: bool) -> None:
        """Kill all processes of the second machine; gracefully, it takes leave of the first."""
        self.cluster.remove_node(self.second, allow_graceful=gracefully)
        self.second = None


@pytest.fixture(scope="session")
def cluster() -> Iterator[TwoMachines]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    # A machine that is silent for so long is lost; Ray's default is a quarter of a minute.
    health = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    first = {**MACHINE, "_system_config": health}
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
    """Ray as somebody else started it in this process: it is used, and left running."""
    import ray

    cluster.complete()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """An S3 server with the bucket 'studies': how to write it as a storage_path."""
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
    server.communicate()  # closes its standard input, at which it ends
