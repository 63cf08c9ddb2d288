"""OpenTelemetry spans; disabled unless an exporter endpoint is set.

Every candidate has its own trace, whose id is the beginning of the candidate's digest. Spans about
a candidate have a link to this trace. This connects the registration, the rollouts and the
promotion of a candidate across processes and days without stored state. The spans of a pipeline run
are in the trace of the run.

Spans are recorded only in processes that call ``configure``. In other processes, a span costs one
comparison, and OpenTelemetry is not imported.
"""

import contextlib
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.base.errors import SettingsError

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Environment variable with the OTLP endpoint, such as http://127.0.0.1:4318. Spans are sent to
/v1/traces of the endpoint."""

_TIMEOUT_VARIABLES = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
_EXPORT_TIMEOUT_S = 2.0
"""Default timeout of an export [s]. It limits how long a process waits at its exit for a receiver
that cannot be reached."""

_DISABLED_VARIABLE = "OTEL_SDK_DISABLED"
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

AttributeValue = str | int | float | bool


class ActiveSpan(Protocol):
    """Interface of a span for the code inside it."""

    @property
    def traceparent(self) -> str:
        """W3C Trace Context of the span, to continue the trace in another process.

        Empty if spans are disabled.
        """
        ...

    def set_attributes(self, **attributes: AttributeValue) -> None:
        """Add attributes to the span."""
        ...

    def set_error(self, reason: str) -> None:
        """Set the error status without an exception."""
        ...


class _NoSpan:
    traceparent = ""

    def set_attributes(self, **attributes: AttributeValue) -> None:
        del attributes

    def set_error(self, reason: str) -> None:
        del reason

    def __enter__(self) -> ActiveSpan:
        return self

    def __exit__(self, *_: object) -> None:
        return None


_NO_SPAN = _NoSpan()


@dataclass(frozen=True, slots=True)
class TraceContext:
    """W3C Trace Context: ids of a trace and a span, and the sampling flag."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @classmethod
    def parse(cls, traceparent: str) -> "TraceContext | None":
        """Parse a ``traceparent`` header; None if it is invalid.

        >>> TraceContext.parse("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01").span_id
        'cdcdcdcdcdcdcdcd'
        >>> TraceContext.parse("00-" + "00" * 16 + "-" + "cd" * 8 + "-01") is None
        True
        """
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None or not int(match[1], 16) or not int(match[2], 16):
            return None
        return cls(match[1], match[2], bool(int(match[3], 16) & 1))


def configure(environ: Mapping[str, str], *, service: str) -> bool:
    """Enable spans if ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set; return whether they are enabled.

    Further calls do not change an enabled configuration. Spans are exported in the background and
    when the process ends. If the receiver cannot be reached, spans are lost without an error.

    Args:
        environ: Environment variables of OpenTelemetry. The exporter reads its headers from the
            process environment.
        service: Service name in the traces, unless OTEL_SERVICE_NAME is set.

    Raises:
        SettingsError: The endpoint is not an http URL.
    """
    global _engine
    endpoint = environ.get(ENDPOINT_VARIABLE, "")
    if not endpoint or environ.get(_DISABLED_VARIABLE, "").lower() == "true":
        return False
    if not re.match(r"https?://[^/\s]+", endpoint):
        raise SettingsError(
            f"{ENDPOINT_VARIABLE} must be a URL like http://127.0.0.1:4318, got '{endpoint}'.",
            fix="Correct the variable or unset it.",
        )
    with _engine_lock:
        if _engine is None:
            _engine = _Engine(
                f"{endpoint.rstrip('/')}/v1/traces",
                environ.get("OTEL_SERVICE_NAME") or service,
                timeout_s=None
                if any(name in environ for name in _TIMEOUT_VARIABLES)
                else _EXPORT_TIMEOUT_S,
            )
    return True


def shutdown() -> None:
    """Export pending spans and disable spans."""
    global _engine
    with _engine_lock:
        if _engine is not None:
            _engine.close()
        _engine = None


def span(
    name: str, *, parent: str = "", **attributes: AttributeValue
) -> AbstractContextManager[ActiveSpan]:
    """Return a context manager for a span; spans inside it become its children.

    An exception sets the error status with the class of the exception, but not its message.

    Args:
        name: Name from a fixed set; details belong in attributes.
        parent: ``traceparent`` of the parent; by default the current span.
        attributes: Attributes of the span.
    """
    if _engine is None:
        return _NO_SPAN
    return _engine.span(name, parent=parent, attributes=attributes)


def server_span(
    name: str, *, trace_id: str, traceparent: str
) -> AbstractContextManager[ActiveSpan]:
    """Return a context manager for the server span of a request, with the trace id of its logs.

    Args:
        name: Method and route, from a fixed set.
        trace_id: Trace id, 32 hexadecimal digits. A valid ``traceparent`` must contain the same id.
        traceparent: Header sent by the client.
    """
    if _engine is None:
        return _NO_SPAN
    return _engine.span(
        name,
        parent=traceparent,
        attributes={},
        ids=(trace_id, secrets.token_hex(8)),
        is_server=True,
    )


def link_candidate(candidate: str) -> None:
    """Link the current span to the trace of a candidate.

    Args:
        candidate: Digest of the candidate.
    """
    if _engine is not None:
        from opentelemetry import trace

        trace.get_current_span().add_link(_span_context(_candidate_context(candidate)))


def start_candidate_trace(candidate: str, **attributes: AttributeValue) -> None:
    """Create the first span of a candidate's trace, linked to the current span."""
    if _engine is not None:
        _engine.start_candidate_trace(candidate, attributes)


class _Engine:
    """OpenTelemetry SDK configured for this process."""

    def __init__(self, url: str, service: str, *, timeout_s: float | None) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        class IdGenerator(RandomIdGenerator):
            """Generator of ids that uses the ids in ``_next_span_ids`` if they are set."""

            def generate_trace_id(self) -> int:
                ids = _next_span_ids.get()
                return int(ids[0], 16) if ids else super().generate_trace_id()

            def generate_span_id(self) -> int:
                ids = _next_span_ids.get()
                return int(ids[1], 16) if ids else super().generate_span_id()

        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service}), id_generator=IdGenerator()
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=url, timeout=timeout_s))
        )
        self._tracer = self._provider.get_tracer("sluice")

    def close(self) -> None:
        self._provider.shutdown()

    @contextlib.contextmanager
    def span(
        self,
        name: str,
        *,
        parent: str,
        attributes: Mapping[str, AttributeValue],
        ids: tuple[str, str] | None = None,
        is_server: bool = False,
    ) -> Iterator[ActiveSpan]:
        from opentelemetry import trace
        from opentelemetry.trace import SpanKind

        parent_context = TraceContext.parse(parent)
        token = _next_span_ids.set(ids)
        try:
            otel_span = self._tracer.start_span(
                name,
                context=None
                if parent_context is None
                else trace.set_span_in_context(_remote_span(parent_context)),
                kind=SpanKind.SERVER if is_server else SpanKind.INTERNAL,
                attributes=_with_prefix(attributes),
            )
        finally:
            _next_span_ids.reset(token)
        with trace.use_span(
            otel_span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            active_span = _RecordingSpan(otel_span)
            try:
                yield active_span
            except BaseException as error:
                active_span.set_error(type(error).__name__)
                raise

    def start_candidate_trace(
        self, candidate: str, attributes: Mapping[str, AttributeValue]
    ) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context

        current_context = trace.get_current_span().get_span_context()
        context = _candidate_context(candidate)
        token = _next_span_ids.set((context.trace_id, context.span_id))
        try:
            candidate_span = self._tracer.start_span(
                "candidate",
                context=Context(),
                links=[trace.Link(current_context)] if current_context.is_valid else [],
                attributes=_with_prefix({"candidate": candidate, **attributes}),
            )
        finally:
            _next_span_ids.reset(token)
        candidate_span.end()


class _RecordingSpan:
    def __init__(self, otel_span: Any) -> None:
        self._span = otel_span

    @property
    def traceparent(self) -> str:
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def set_attributes(self, **attributes: AttributeValue) -> None:
        self._span.set_attributes(_with_prefix(attributes))

    def set_error(self, reason: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_status(Status(StatusCode.ERROR, reason))


_engine: _Engine | None = None
_engine_lock = threading.Lock()
_next_span_ids: ContextVar[tuple[str, str] | None] = ContextVar("ids", default=None)
"""Trace id and span id of the next span, in hexadecimal; None for random ids."""


def _with_prefix(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {f"sluice.{name}": value for name, value in attributes.items()}


def _candidate_context(digest: str) -> TraceContext:
    """Return the context of the first span in the trace of a candidate."""
    return TraceContext(digest[:32], digest[32:48], is_sampled=True)


def _remote_span(context: TraceContext) -> Any:
    from opentelemetry.trace import NonRecordingSpan

    return NonRecordingSpan(_span_context(context))


def _span_context(context: TraceContext) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(context.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT),
    )
