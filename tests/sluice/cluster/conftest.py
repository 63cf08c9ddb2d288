"""Two machines of a Ray cluster, played by processes; one cluster for the whole session."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass
class TwoMachines:
    """The cluster, and how to lose its second machine."""

    cluster: Any
    second: Any = None

    @property
    def address(self) -> str:
        return self.cluster.address

    def complete(self) -> None:
        """Put a second machine there, if it is lost."""
        if self.second is None:
            self.second = self.cluster.add_node(num_cpus=1)

    def lose(self, *, gracefully: bool) -> None:
        """Kill all processes of the second machine; gracefully, it takes leave of the first."""
        self.cluster.remove_node(self.second, allow_graceful=gracefully)
        self.second = None


@pytest.fixture(scope="session")
def cluster() -> Iterator[TwoMachines]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    first = {
        "num_cpus": 1,
        "include_dashboard": False,
        # A machine that is silent for so long is lost; Ray's default is a quarter of a minute.
        "_system_config": {"health_check_period_ms": 1000, "health_check_failure_threshold": 5},
    }
    machines = TwoMachines(Cluster(initialize_head=True, head_node_args=first))
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
