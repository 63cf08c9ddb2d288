"""The audit passes only if the advisory service answers and knows a control vulnerability."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from requirements import audit

pytestmark = pytest.mark.slow

CONTROL = tuple(audit.KNOWN_VULNERABLE.split("=="))
ADVISORY_FIELDS = {
    "id": "TEST-2026-1",
    "summary": "A test.",
    "published": "2026-01-01T00:00:00Z",
}


def make_advisory(name: str, fixed: str) -> dict:
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": fixed}]}]
    affected = [{"package": {"name": name, "ecosystem": "PyPI"}, "ranges": ranges}]
    return {**ADVISORY_FIELDS, "affected": affected}


@pytest.fixture
def service() -> Iterator[Callable[[set[tuple[str, str]]], str]]:
    """Start a service with the interface of OSV that knows some vulnerable packages."""
    servers: list[ThreadingHTTPServer] = []

    def start(vulnerable: set[tuple[str, str]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = query["package"]["name"]
                known = (name, query["version"]) in vulnerable
                body = json.dumps({"vulns": [make_advisory(name, "9.9")]} if known else {}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/v1/query"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_locks_are_clean_if_the_service_reports_only_the_control(service) -> None:
    code, text = audit.audit(
        [audit.ROOT / "requirements" / name for name in audit.LOCKS], osv_url=service({CONTROL})
    )

    assert code == audit.CLEAN, text
    count, _, rest = text.partition(" ")
    assert rest == "packages, no known vulnerability"
    assert int(count) > 200


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    path = tmp_path / "one.txt"
    path.write_text(f"torch==2.13.0 \\\n    --hash=sha256:{'0' * 64}\n")
    return path


def test_vulnerable_package_is_reported_with_its_advisory(service, lock_file, capsys) -> None:
    url = service({CONTROL, ("torch", "2.13.0")})

    code = audit.main(["--osv-url", url, str(lock_file)])

    assert code == audit.VULNERABLE
    output = capsys.readouterr()
    assert "torch 2.13.0: TEST-2026-1, fixed in 9.9" in output.err
    assert output.out == ""


def test_audit_fails_if_the_service_has_no_advisories(service, lock_file) -> None:
    """An example is a mirror of the package index that answers every query with an empty list."""
    code, text = audit.audit([lock_file], osv_url=service(set()))

    assert code == audit.NOT_AUDITED
    assert text.startswith("Not audited: http://127.0.0.1")
    assert "knows no vulnerability of django==2.0" in text


def test_audit_fails_if_the_service_is_unreachable(lock_file, capsys) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound and not listening, so that connections are refused
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/v1/query"
        code = audit.main(["--osv-url", url, str(lock_file)])

    assert code == audit.NOT_AUDITED
    error = capsys.readouterr().err
    assert error.startswith("Not audited: http://127.0.0.1")
    assert ": not reachable (" in error


def test_audit_of_no_packages_fails(service, tmp_path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("# nothing\n")

    code, text = audit.audit([empty], osv_url=service({CONTROL}))

    assert code == audit.NOT_AUDITED
    assert text.startswith("Not audited: no package was queried.")
