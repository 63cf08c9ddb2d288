"""What Prometheus is told of a server as it is now, read when it asks (OBS-1)."""

import time
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.registry.reading import Clock
from sluice.serving.state import Serving

PROBLEMS = (
    "source",
    "registry",
    "stale",
    "production",
    "challenger",
    "lease",
    "reports",
    "tokens",
)
"""What ``Follower.note`` is about."""


class ServerNow(Collector):
    """The model, the problems, the lease, and whether production hangs."""

    def __init__(self, serving: Serving, clock: Clock) -> None:
        self._serving = serving
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Read everything of one moment."""
        serving = self._serving
        server = GaugeMetricFamily("sluice_server", "Whose model it serves; 1.", labels=("model",))
        server.add_metric((serving.model,), 1)
        yield server
        problem = GaugeMetricFamily(
            "sluice_problem", "1 while it is not as the weights want it.", labels=("about",)
        )
        for about in PROBLEMS:
            problem.add_metric((about,), float(serving.follower.has_problem(about)))
        yield problem
        yield GaugeMetricFamily(
            "sluice_hangs_seconds",
            "How long production has hung; 0 while it answers [s].",
            value=serving.hangs_s(time.monotonic()),
        )
        lease = GaugeMetricFamily(
            "sluice_lease_seconds",
            "Until production serves alone unless the rollout is looked at; none without one [s].",
        )
        expires_at = serving.router.table.weights.expires_at
        if expires_at is not None:
            lease.add_metric((), (expires_at - self._clock()).total_seconds())
        yield lease
