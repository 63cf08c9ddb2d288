"""Prometheus metrics of the current state of a server, read at each scrape."""

import time
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.registry.readonly import Clock
from sluice.serving.state import Serving

PROBLEM_KINDS = (
    "source",  # the traffic split cannot be read
    "registry",  # entries of the registry about what to serve contradict each other
    "stale",  # a traffic split was ignored, because a newer or contradicting split is known
    "production",  # the production version does not load
    "challenger",  # the challenger does not load, or is not served
    "lease",  # the lease of the rollout has expired
    "reports",  # reports of this server to the registry fail
    "tokens",  # the file with the access tokens of clients cannot be used
)
"""Kinds of problems that /metrics and /readyz show; /problems shows problems of all kinds."""


class ServerStateCollector(Collector):
    """Collects the model, the problems, the lease, and whether production hangs."""

    def __init__(self, serving: Serving, clock: Clock) -> None:
        self._serving = serving
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics. Each value is read when its metric is yielded, without a lock."""
        serving = self._serving
        server = GaugeMetricFamily("sluice_server", "1 for the served model.", labels=("model",))
        server.add_metric((serving.model,), 1)
        yield server
        problem = GaugeMetricFamily(
            "sluice_problem", "1 while a problem of this kind is present.", labels=("about",)
        )
        for kind in PROBLEM_KINDS:
            problem.add_metric((kind,), float(serving.split_sync.has_problem(kind)))
        yield problem
        yield GaugeMetricFamily(
            "sluice_hangs_seconds",
            "Time for which production has been hanging; 0 while it answers [s].",
            value=serving.hang_duration_s(time.monotonic()),
        )
        lease = GaugeMetricFamily(
            "sluice_lease_seconds",
            "Time until the lease expires and production serves alone, unless it is renewed; "
            "absent without a lease [s].",
        )
        expires_at = serving.router.table.split.expires_at
        if expires_at is not None:
            lease.add_metric((), (expires_at - self._clock()).total_seconds())
        yield lease
