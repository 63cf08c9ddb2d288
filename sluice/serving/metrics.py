"""Prometheus metrics of the app.

Every label has a fixed set of values, so no user, path or id can create a time series.
"""

from collections.abc import Callable, Iterable
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.rollout.observations import TrafficCounts
from sluice.rollout.samples import ArmName, RequestFault
from sluice.serving.step_counters import ARMS, COUNTER_NAMES

ROUTES = (
    "/predict",
    "/model",
    "/rollout",
    "/healthz",
    "/readyz",
    "/metrics",
    "/problems",
    "/openapi.json",
    "/hooks/rollback",
)
OTHER = "other"
"""Label value of every route that is not in ``ROUTES``, and of every method but GET and POST."""

_FAULTS: tuple[RequestFault, ...] = ("errors", "timeouts", "not_finite")
_METHODS = ("GET", "POST")

CloseReason = Literal[
    "header_late",  # the header was not complete in time
    "header_large",  # the header has too many bytes or fields
    "malformed",  # the request is no valid HTTP
    "idle",  # no further request arrived in time
    "body_late",  # the body was not complete in time
    "body_large",  # the body has too many bytes including its chunk headers
    "unread",  # the client did not read its response in time
    "pipelined",  # too many requests wait for earlier responses
    "evicted",  # a new connection replaced this connection
    "busy",  # not accepted: the limit is reached, and no connection can be replaced
    "handshake",  # the connection or its TLS handshake failed
    "descriptors",  # the system did not accept it, for example without a free file descriptor
]
"""Reason why the server closed a connection or did not accept it."""
_BUCKETS_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets of the histograms of durations [s]."""


class Metrics:
    """The instruments of one app, in their own collector registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"sluice_{name}", help_text, labels, registry=self._registry)

        def gauge(name: str, help_text: str, *labels: str) -> Gauge:
            return Gauge(f"sluice_{name}", help_text, labels, registry=self._registry)

        self._requests = counter(
            "http_requests", "Responses by status.", "route", "method", "status"
        )
        self._http_seconds = Histogram(
            "sluice_http_seconds",
            "Time from the complete header of a request to the end of its response [s].",
            ("route",),
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._response_counters: dict[tuple[str, str, int], Counter] = {}
        arm_requests = counter("arm_requests", "Predictions routed to an arm.", "arm")
        arm_faults = counter("arm_faults", "Faults of predictions by arm.", "arm", "fault")
        arm_seconds = Histogram(
            "sluice_arm_seconds",
            "Time of an arm for a prediction, including the time in its queue [s].",
            ("arm",),
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        # Labels are resolved here, because resolving them in each request would be slower than
        # counting the request.
        self._route_seconds = {
            route_label: self._http_seconds.labels(route_label) for route_label in (*ROUTES, OTHER)
        }
        self._arm_requests = {arm: arm_requests.labels(arm) for arm in ARMS}
        self._arm_seconds = {arm: arm_seconds.labels(arm) for arm in ARMS}
        self._arm_faults = {
            (arm, fault): arm_faults.labels(arm, fault) for arm in ARMS for fault in _FAULTS
        }
        shadow_requests = counter("shadow", "Shadow requests by outcome.", "outcome")
        self._shadow_requests = {
            outcome: shadow_requests.labels(outcome)
            for outcome in ("answered", "dropped", *_FAULTS)
        }
        self.shadow_dropped = self._shadow_requests["dropped"]
        self.fallbacks = counter("fallbacks", "Production answered in place of the challenger.")
        # In the exported names, "weights" means the traffic split.
        self.source_failures = counter("weights_failures", "Failed reads of the traffic split.")
        self.stale_splits = counter(
            "weights_stale", "Traffic splits that were ignored as outdated."
        )
        self.report_failures = counter("report_failures", "Failed reports to the registry.")
        self.source_up = gauge(
            "weights_source_up", "1 when the last read of the traffic split succeeded."
        )
        self.registry_findings = gauge(
            "registry_findings",
            "Contradictions in the registry about what to serve; 0 when it is consistent.",
        )
        self.epoch = gauge("weights_epoch", "Epoch of the traffic split in force.")
        self.share = gauge("challenger_share", "Share of the users that the challenger answers.")
        self.version = gauge("served_version", "Version number; 0 without a version.", "arm")
        self.hook_acts = counter("hook_acts", "Alerts received by the webhook, by effect.", "act")
        for act in ("aborted", "rolled_back", "nothing", "failed"):
            self.hook_acts.labels(act)  # export 0, or Prometheus would miss the first increase
        self.ready = gauge("ready", "1 while the server accepts requests.")
        self.connections = gauge("connections", "Open connections.")
        closed_connections = counter(
            "connections_closed", "Connections that the server closed or did not accept.", "reason"
        )
        self.connections_closed = {
            reason: closed_connections.labels(reason) for reason in get_args(CloseReason)
        }

    def count_response(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Count one HTTP response."""
        route_label = route if route in ROUTES else OTHER
        method_label = method if method in _METHODS else OTHER
        label_values = (route_label, method_label, status)
        counter = self._response_counters.get(label_values)
        if counter is None:
            counter = self._requests.labels(route_label, method_label, str(status))
            self._response_counters[label_values] = counter
        counter.inc()
        self._route_seconds[route_label].observe(seconds)

    def count_prediction(self, arm: ArmName, *, seconds: float, fault: RequestFault | None) -> None:
        """Count one prediction that was routed to an arm."""
        self._arm_requests[arm].inc()
        self._arm_seconds[arm].observe(seconds)
        if fault is not None:
            self._arm_faults[arm, fault].inc()

    def count_shadow(self, fault: RequestFault | None) -> None:
        """Count one computed shadow request."""
        self._shadow_requests[fault or "answered"].inc()

    def register_step_counts(self, read_counts: Callable[[], TrafficCounts | None]) -> None:
        """Export the counts of the current rollout step, read together at each scrape."""
        self.register_collector(_StepCountsCollector(read_counts))

    def register_collector(self, collector: Collector) -> None:
        """Export the metrics of a collector with every scrape."""
        self._registry.register(collector)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _StepCountsCollector(Collector):
    """Collects the counts of the current rollout step."""

    def __init__(self, read_counts: Callable[[], TrafficCounts | None]) -> None:
        self._read_counts = read_counts

    def collect(self) -> Iterable[Metric]:
        counts = GaugeMetricFamily(
            "sluice_step_count",
            "Counts since the rollout's step began; reset to 0 with a new epoch.",
            labels=("arm", "kind"),
        )
        epoch = GaugeMetricFamily("sluice_step_epoch", "Epoch of the counted step.")
        traffic = self._read_counts()
        if traffic is not None:
            for arm, arm_counts in zip(ARMS, (traffic.production, traffic.challenger), strict=True):
                for kind in COUNTER_NAMES:
                    counts.add_metric((arm, kind), getattr(arm_counts, kind))
            epoch.add_metric((), traffic.epoch)
        yield counts
        yield epoch
