"""Opens a server that runs in the foreground: logs to stderr, and announces its address."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from sluice.serving.arm_environment import hide_from_children
from sluice.serving.log import json_log
from sluice.serving.log_writer import LogWriter
from sluice.serving.server import cleartext_warnings, require_token_beyond_loopback
from sluice.serving.server_spec import ServerSpec, open_server
from sluice.serving.state import Serving
from sluice.serving.tls import Tls

OnReady = Callable[[int], None]
"""Function that is called with the port once the server answers requests."""


@contextlib.contextmanager
def open_foreground(spec: ServerSpec, *, tls: Tls | None) -> Iterator[tuple[Serving, OnReady]]:
    """Yield the state of a server, and the function that prints its URL as a line of JSON.

    Raises:
        SettingsError: The address is not a loopback address, and no token is set for clients.
        SluiceError: See ``open_server``.
    """
    require_token_beyond_loopback(spec.host, spec.tokens)
    log = json_log(LogWriter(sys.stderr))
    if tls is None:
        for what in cleartext_warnings(spec.host, spec.tokens):
            log.warning("clear text", what=what)
    hide_from_children()
    with open_server(spec, clock=lambda: datetime.now(UTC), log=log) as serving:
        deployed = serving.router.table.production.deployed
        version_fields = {
            "model": spec.model,
            "version": deployed.version,
            "candidate": deployed.candidate,
        }
        scheme = "http" if tls is None else "https"
        url_host = f"[{spec.host}]" if ":" in spec.host else spec.host

        def on_ready(port: int) -> None:
            print(json.dumps({"url": f"{scheme}://{url_host}:{port}"} | version_fields), flush=True)

        yield serving, on_ready
