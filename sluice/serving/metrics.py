"""What Prometheus is told. Every label is from a closed set: no user, path or id makes a series."""

from collections.abc import Callable, Iterable
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.rollout.observations import Window
from sluice.rollout.samples import ArmName, Fault
from sluice.serving.steps import ARMS, KINDS

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

_FAULTS: tuple[Fault, ...] = ("errors", "timeouts", "not_finite")
_METHODS = ("GET", "POST")

Closed = Literal[
    "header_late",
    "header_large",
    "malformed",
    "idle",
    "body_late",
    "body_large",
    "unread",
    "pipelined",
    "evicted",
    "busy",
    "handshake",
    "descriptors",
]
"""Why the server ended a connection, or did not accept it."""
_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 5.0)


class Metrics:
    """The instruments of one app, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"sluice_{name}", text, labels, registry=self._registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"sluice_{name}", text, labels, registry=self._registry)

        self._requests = counter("http_requests", "Answers by status.", "route", "method", "status")
        self._http_seconds = Histogram(
            "sluice_http_seconds",
            "From the first byte of a request to the last of its answer [s].",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._answered: dict[tuple[str, str, int], Counter] = {}
        arm_requests = counter("arm_requests", "Predictions routed to an arm.", "arm")
        arm_faults = counter("arm_faults", "Of them, what went wrong.", "arm", "fault")
        arm_seconds = Histogram(
            "sluice_arm_seconds",
            "How long an arm took for a prediction, its queue included [s].",
            ("arm",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        # Looked up once: a look-up costs more than counting.
        self._place_seconds = {
            place: self._http_seconds.labels(place) for place in (*ROUTES, OTHER)
        }
        self._arm_requests = {arm: arm_requests.labels(arm) for arm in ARMS}
        self._arm_seconds = {arm: arm_seconds.labels(arm) for arm in ARMS}
        self._arm_faults = {
            (arm, fault): arm_faults.labels(arm, fault) for arm in ARMS for fault in _FAULTS
        }
        shadow = counter("shadow", "Shadow copies by what became of them.", "outcome")
        self._shadow = {
            outcome: shadow.labels(outcome) for outcome in ("answered", "dropped", *_FAULTS)
        }
        self.shadow_dropped = self._shadow["dropped"]
        self.fallbacks = counter("fallbacks", "Production answered for the challenger.")
        self.source_failures = counter("weights_failures", "Reads of the weights that failed.")
        self.stale_weights = counter("weights_stale", "Weights that arrived and were older.")
        self.report_failures = counter("report_failures", "Reports to the rollout that failed.")
        self.source_up = gauge("weights_source_up", "1 when the last read of the weights worked.")
        self.registry_findings = gauge(
            "registry_findings",
            "Contradictions in the registry about what is served; 0 when it holds together.",
        )
        self.epoch = gauge("weights_epoch", "Epoch of the weights in force.")
        self.share = gauge("challenger_share", "Of users that the challenger answers.")
        self.version = gauge("served_version", "Number of the version; 0 for none.", "arm")
        self.hook_acts = counter("hook_acts", "Alerts told, by what they did.", "act")
        for act in ("aborted", "rolled_back", "nothing", "failed"):
            self.hook_acts.labels(act)  # or the first one would be no increase
        self.ready = gauge("ready", "1 while the server wants requests.")
        self.connections = gauge("connections", "Open connections.")
        closed = counter(
            "connections_closed", "Connections that the server ended or did not accept.", "reason"
        )
        self.connections_closed = {reason: closed.labels(reason) for reason in get_args(Closed)}

    def count_answer(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Count one HTTP answer."""
        place = route if route in ROUTES else OTHER
        way = method if method in _METHODS else OTHER
        key = (place, way, status)
        answered = self._answered.get(key)
        if answered is None:
            answered = self._requests.labels(place, way, str(status))
            self._answered[key] = answered
        answered.inc()
        self._place_seconds[place].observe(seconds)

    def count(self, arm: ArmName, *, seconds: float, fault: Fault | None) -> None:
        """Count one prediction that was routed to an arm."""
        self._arm_requests[arm].inc()
        self._arm_seconds[arm].observe(seconds)
        if fault is not None:
            self._arm_faults[arm, fault].inc()

    def count_shadow(self, fault: Fault | None) -> None:
        """Count one shadow copy that was computed."""
        self._shadow[fault or "answered"].inc()

    def show_step(self, window: Callable[[], Window | None]) -> None:
        """Show the counts of the step under way with every scrape, all of one moment."""
        self.show(_StepCounts(window))

    def show(self, now: Collector) -> None:
        """Show what a collector reads, with every scrape."""
        self._registry.register(now)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _StepCounts(Collector):
    """The window of the step, read when Prometheus asks."""

    def __init__(self, window: Callable[[], Window | None]) -> None:
        self._window = window

    def collect(self) -> Iterable[Metric]:
        counts = GaugeMetricFamily(
            "sluice_step_count",
            "Counts since the rollout's step began; they fall to 0 with a new epoch.",
            labels=("arm", "kind"),
        )
        epoch = GaugeMetricFamily("sluice_step_epoch", "Epoch of the step that is counted.")
        window = self._window()
        if window is not None:
            for arm, counted in zip(ARMS, (window.production, window.challenger), strict=True):
                for kind in KINDS:
                    counts.add_metric((arm, kind), getattr(counted, kind))
            epoch.add_metric((), window.epoch)
        yield counts
        yield epoch
