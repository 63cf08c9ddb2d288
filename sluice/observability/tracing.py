"""Traces for OpenTelemetry, the one adapter to it; off unless a receiver is named (OBS-1).

Every candidate has a trace of its own, whose id is the head of its digest: so its registration,
its rollouts and its promotion find each other across processes and days, with nothing to keep.
Spans about a candidate link to it. The spans of a run of the pipeline share the trace of the run.

Covers processes that call ``start``. Off, a span costs a comparison and nothing is imported.
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

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""OpenTelemetry's own variable, such as http://127.0.0.1:4318; spans go to its /v1/traces."""

_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")
_PATIENCE_S = 2.0
"""A process that ends waits no longer for a receiver that is gone, unless a variable says so."""

_DISABLED = "OTEL_SDK_DISABLED"
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

Fact = str | int | float | bool


class Span(Protocol):
    """What the code inside a span can say of it."""

    @property
    def traceparent(self) -> str:
        """The span as W3C Trace Context, for whoever goes on elsewhere; empty when off."""
        ...

    def tell(self, **facts: Fact) -> None:
        """Add facts."""
        ...

    def fail(self, why: str) -> None:
        """Mark the span as failed, though nothing was raised."""
        ...


class _NoSpan:
    traceparent = ""

    def tell(self, **facts: Fact) -> None:
        del facts

    def fail(self, why: str) -> None:
        del why

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        return None


_NO_SPAN = _NoSpan()


@dataclass(frozen=True, slots=True)
class TraceContext:
    """W3C Trace Context: of which trace something is a part, and of which span."""

    trace: str
    span: str
    sampled: bool

    @classmethod
    def parse(cls, traceparent: str) -> "TraceContext | None":
        """Return what a ``traceparent`` says; None when it is none.

        >>> TraceContext.parse("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01").span
        'cdcdcdcdcdcdcdcd'
        >>> TraceContext.parse("00-" + "00" * 16 + "-" + "cd" * 8 + "-01") is None
        True
        """
        found = _TRACEPARENT.fullmatch(traceparent)
        if found is None or not int(found[1], 16) or not int(found[2], 16):
            return None
        return cls(found[1], found[2], bool(int(found[3], 16) & 1))


def start(environ: Mapping[str, str], *, service: str) -> bool:
    """Trace this process when ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set; say whether it is traced.

    What was started stays; a second call changes nothing. Spans are sent in the background and
    once more when the process ends; a receiver that is gone costs spans, never work.

    Args:
        environ: OpenTelemetry's own variables; the exporter reads its headers from the environment
            of the process itself.
        service: What the process is called in the traces, unless OTEL_SERVICE_NAME says so.

    Raises:
        SettingsError: The variable holds no http address.
    """
    global _engine
    endpoint = environ.get(ENDPOINT, "")
    if not endpoint or environ.get(_DISABLED, "").lower() == "true":
        return False
    if not re.match(r"https?://[^/\s]+", endpoint):
        raise SettingsError(
            f"{ENDPOINT} must be an address like http://127.0.0.1:4318, got '{endpoint}'.",
            fix="Correct the variable or unset it.",
        )
    with _starting:
        if _engine is None:
            _engine = _Engine(
                f"{endpoint.rstrip('/')}/v1/traces",
                environ.get("OTEL_SERVICE_NAME") or service,
                timeout_s=None if any(name in environ for name in _TIMEOUTS) else _PATIENCE_S,
            )
    return True


def stop() -> None:
    """Send what waits and trace no more."""
    global _engine
    with _starting:
        if _engine is not None:
            _engine.close()
        _engine = None


def span(name: str, *, parent: str = "", **facts: Fact) -> AbstractContextManager[Span]:
    """Return a context whose time is a span; within it further spans are its children.

    What is raised through it marks it as failed, with the kind of the error and not its words.

    Args:
        name: Of a closed set: facts tell the rest.
        parent: A ``traceparent``; the span around this one when empty.
        facts: Its attributes.
    """
    if _engine is None:
        return _NO_SPAN
    return _engine.span(name, parent=parent, facts=facts)


def server_span(name: str, *, trace: str, traceparent: str) -> AbstractContextManager[Span]:
    """Return the context of a request's span, in the trace that its log lines name.

    Args:
        name: Method and route, of a closed set.
        trace: Id of its trace, 32 hex digits; that of ``traceparent`` when it is valid.
        traceparent: What the caller sent.
    """
    if _engine is None:
        return _NO_SPAN
    return _engine.span(
        name, parent=traceparent, facts={}, ids=(trace, secrets.token_hex(8)), serves=True
    )


def about(candidate: str) -> None:
    """Link the span around this to the trace of a candidate.

    Args:
        candidate: Its digest.
    """
    if _engine is not None:
        from opentelemetry import trace

        trace.get_current_span().add_link(_span_context(_candidate(candidate)))


def begin_candidate(candidate: str, **facts: Fact) -> None:
    """Write the first span of a candidate's trace, linked to the span that made it."""
    if _engine is not None:
        _engine.begin_candidate(candidate, facts)


class _Engine:
    """The SDK of OpenTelemetry, set up for one process."""

    def __init__(self, url: str, service: str, *, timeout_s: float | None) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        class Ids(RandomIdGenerator):
            """Ids of our choice where there is one."""

            def generate_trace_id(self) -> int:
                chosen = _ids.get()
                return int(chosen[0], 16) if chosen else super().generate_trace_id()

            def generate_span_id(self) -> int:
                chosen = _ids.get()
                return int(chosen[1], 16) if chosen else super().generate_span_id()

        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service}), id_generator=Ids()
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
        facts: Mapping[str, Fact],
        ids: tuple[str, str] | None = None,
        serves: bool = False,
    ) -> Iterator[Span]:
        from opentelemetry import trace
        from opentelemetry.trace import SpanKind

        above = TraceContext.parse(parent)
        chosen = _ids.set(ids)
        try:
            made = self._tracer.start_span(
                name,
                context=None if above is None else trace.set_span_in_context(_remote(above)),
                kind=SpanKind.SERVER if serves else SpanKind.INTERNAL,
                attributes=_attributes(facts),
            )
        finally:
            _ids.reset(chosen)
        with trace.use_span(
            made, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            told = _OpenSpan(made)
            try:
                yield told
            except BaseException as error:
                told.fail(type(error).__name__)
                raise

    def begin_candidate(self, candidate: str, facts: Mapping[str, Fact]) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context

        here = trace.get_current_span().get_span_context()
        own = _candidate(candidate)
        chosen = _ids.set((own.trace, own.span))
        try:
            first = self._tracer.start_span(
                "candidate",
                context=Context(),
                links=[trace.Link(here)] if here.is_valid else [],
                attributes=_attributes({"candidate": candidate, **facts}),
            )
        finally:
            _ids.reset(chosen)
        first.end()


class _OpenSpan:
    def __init__(self, made: Any) -> None:
        self._made = made

    @property
    def traceparent(self) -> str:
        own = self._made.get_span_context()
        return f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"

    def tell(self, **facts: Fact) -> None:
        self._made.set_attributes(_attributes(facts))

    def fail(self, why: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._made.set_status(Status(StatusCode.ERROR, why))


_engine: _Engine | None = None
_starting = threading.Lock()
_ids: ContextVar[tuple[str, str] | None] = ContextVar("ids", default=None)


def _attributes(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    return {f"sluice.{name}": value for name, value in facts.items()}


def _candidate(digest: str) -> TraceContext:
    return TraceContext(digest[:32], digest[32:48], sampled=True)


def _remote(context: TraceContext) -> Any:
    from opentelemetry.trace import NonRecordingSpan

    return NonRecordingSpan(_span_context(context))


def _span_context(context: TraceContext) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(
        trace_id=int(context.trace, 16),
        span_id=int(context.span, 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT),
    )
