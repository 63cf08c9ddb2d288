"""A receiver of OTLP over HTTP in this process, which stores all received spans."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A received span. ``trace``, ``span`` and ``parent`` are ids in hexadecimal."""

    name: str
    service: str
    trace: str
    span: str
    parent: str
    links: list[tuple[str, str]]
    attributes: dict[str, Any]
    error: str
    """Error message of the span; empty without an error."""
    is_server: bool


@dataclass
class Receiver:
    """Spans received so far, and the paths of the requests."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReceivedSpan:
        [span] = self.named(name)
        return span

    def wait_for(self, name: str) -> ReceivedSpan:
        for _ in range(500):
            if self.named(name):
                return self.one(name)
            time.sleep(0.01)
        raise AssertionError(f"no span {name}, got {[span.name for span in self.spans]}")


@contextlib.contextmanager
def run_receiver() -> Iterator[Receiver]:
    receiver = Receiver(url="")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.paths.add(self.path)
            receiver.spans += parse(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def parse(body: bytes) -> list[ReceivedSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        ReceivedSpan(
            name=span.name,
            service=_to_dict(resource.resource.attributes)["service.name"],
            trace=span.trace_id.hex(),
            span=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
            attributes=_to_dict(span.attributes),
            error=span.status.message if span.status.code == 2 else "",
            is_server=span.kind == 2,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _to_dict(attributes: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}
