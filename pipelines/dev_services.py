"""The services of ``sluice dev``: Dagster's web server behind ``UiGuard``, daemon, code server.

``dagster dev`` starts the same three services, but cannot filter requests to the web server.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
import uvicorn
import yaml
from dagster._cli.proxy_server_manager import ProxyServerManager
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget, WorkspaceFileTarget
from dagster._utils.log import configure_loggers
from dagster_shared.ipc import (
    get_ipc_shutdown_pipe,
    open_ipc_subprocess,
    send_ipc_shutdown_message,
)
from dagster_webserver.app import create_app_from_workspace_process_context
from dagster_webserver.version import __version__

from sluice.pipelines.code_location import DEFINITIONS_MODULE
from sluice.pipelines.ui_guard import UiGuard

LOOPBACK = "127.0.0.1"
_LOG_LEVEL = "warning"
_POLL_MS = 2000
"""Interval at which a page of the UI polls for changes [ms], the same as in ``dagster dev``."""

_DAEMON_STOP_TIMEOUT_S = 60.0
"""Maximum wait for the end of the daemon [s]."""

_UI_STOP_TIMEOUT_S = 3
"""Maximum wait for open requests at shutdown [s]. Each open page of the UI has such a request."""

# The next three values are Dagster's defaults for its web server. They do not affect SQLite.
_STATEMENT_TIMEOUT_MS = 15_000
"""Maximum duration of a database statement of the web server [ms]."""
_POOL_RECYCLE_S = 3600
"""Age at which a database connection is replaced [s]."""
_POOL_OVERFLOW = 20
"""Maximum number of database connections beyond the size of the pool."""


def serve(*, port: int, trusted_hosts: Sequence[str]) -> None:
    """Serve the UI until SIGINT or SIGTERM, or until the daemon ends.

    Args:
        port: Port of the UI on 127.0.0.1.
        trusted_hosts: Host names, besides loopback, under which the UI may be opened.
    """
    configure_loggers(formatter="colored", log_level=_LOG_LEVEL.upper())
    with (
        _safe_python_path() as empty_folder,
        dg.DagsterInstance.get() as instance,
        _run_code_server(instance, empty_folder) as workspace_path,
        _run_daemon(workspace_path, empty_folder) as daemon,
    ):
        instance.optimize_for_webserver(_STATEMENT_TIMEOUT_MS, _POOL_RECYCLE_S, _POOL_OVERFLOW)
        with WorkspaceProcessContext(
            instance,
            version=__version__,
            workspace_load_target=WorkspaceFileTarget([str(workspace_path)]),
            code_server_log_level=_LOG_LEVEL,
        ) as context:
            app = create_app_from_workspace_process_context(context, live_data_poll_rate=_POLL_MS)
            server = uvicorn.Server(
                uvicorn.Config(
                    UiGuard(app, trusted_hosts=trusted_hosts),
                    host=LOOPBACK,
                    port=port,
                    log_level=_LOG_LEVEL,
                    proxy_headers=False,
                    server_header=False,
                    timeout_graceful_shutdown=_UI_STOP_TIMEOUT_S,
                )
            )
            _stop_after_daemon(server, daemon)
            server.run()
        if daemon.poll() is not None:
            raise SystemExit(
                f"Dagster's daemon stopped unexpectedly with exit code {daemon.poll()}."
            )


@contextlib.contextmanager
def _safe_python_path() -> Iterator[Path]:
    """Keep the working folder off ``sys.path`` of Dagster's processes; yield an empty folder.

    A module in the working folder could replace a module of the standard library. The working
    folder may contain untrusted files, such as a downloaded state folder. Three properties of
    Dagster are compensated:

    - Dagster starts Python without ``-P``. The variable PYTHONSAFEPATH has the same effect.
    - While Dagster loads the pipelines, it first searches the working folder of the target. The
      callers of this function pass the empty folder as working folder.
    - While Dagster loads the pipelines, it removes the first folder of ``sys.path``. PYTHONPATH
      therefore begins with the empty folder.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-dev-") as folder:
        paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        os.environ |= {
            "PYTHONSAFEPATH": "1",
            "PYTHONPATH": os.pathsep.join([folder, *paths]),
        }
        yield Path(folder)


@contextlib.contextmanager
def _run_code_server(instance: dg.DagsterInstance, empty_folder: Path) -> Iterator[Path]:
    """Start the code server, which loads the pipelines; yield the file with its address."""
    target = ModuleTarget(DEFINITIONS_MODULE, None, str(empty_folder), None)
    with (
        ProxyServerManager(instance, target, code_server_log_level=_LOG_LEVEL) as servers,
        tempfile.TemporaryDirectory() as folder,
    ):
        workspace_path = Path(folder) / "workspace.yaml"
        workspace_path.write_text(
            yaml.safe_dump({"load_from": list(servers.get_code_server_specs())})
        )
        yield workspace_path


@contextlib.contextmanager
def _run_daemon(workspace_path: Path, empty_folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the daemon, which runs schedules and sensors; stop it on exit.

    The daemon finds the instance by DAGSTER_HOME, not by command-line arguments: all users of the
    machine can read the arguments of a process, which could contain database passwords. The working
    folder of the daemon is empty, because the daemon reads variables such as LD_PRELOAD from a
    ``.env`` file there.
    """
    read_end, write_end = get_ipc_shutdown_pipe()
    process = open_ipc_subprocess(
        [
            *(sys.executable, "-P", "-m", "dagster._daemon", "run"),
            *("--log-level", _LOG_LEVEL, "--shutdown-pipe", str(read_end)),
            *("--code-server-log-level", _LOG_LEVEL, "--workspace", str(workspace_path)),
        ],
        pass_fds=[read_end],
        cwd=empty_folder,
    )
    os.close(read_end)
    try:
        yield process
    finally:
        with contextlib.suppress(BrokenPipeError):  # the daemon had already ended
            send_ipc_shutdown_message(write_end)
        try:
            process.wait(_DAEMON_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()


def _stop_after_daemon(server: uvicorn.Server, daemon: "subprocess.Popen[bytes]") -> None:
    """Stop the web server when the daemon ends."""

    def watch() -> None:
        daemon.wait()
        server.should_exit = True

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Serve the UI. Usage: ``dev_services PORT [TRUSTED_HOST ...]``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("trusted_hosts", nargs="*")
    arguments = parser.parse_args()
    os.environ["DAGSTER_IS_DEV_CLI"] = "1"
    # SIGTERM raises KeyboardInterrupt, so that the context managers of ``serve`` stop the daemon.
    # uvicorn catches the signal first, and sends it again after its own shutdown.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        serve(port=arguments.port, trusted_hosts=arguments.trusted_hosts)


if __name__ == "__main__":
    main()
