"""``sluice serve``: serves predictions of the production model."""

import os
import signal
import threading
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.base.errors import SettingsError
from sluice.base.home import Home

if TYPE_CHECKING:
    from sluice.serving.server_spec import ServerSpec
    from sluice.serving.tls import Tls
    from sluice.serving.tokens import Tokens

_EXAMPLE = "Example: sluice serve sp500_volatility --port 8000"


class CodeOption(StrEnum):
    """Values of ``--code``."""

    CURRENT = "current"
    STORED = "stored"


def register(app: typer.Typer) -> None:
    """Add ``serve`` to the command line."""
    app.command("serve", epilog=_EXAMPLE)(serve_command)


def serve_command(
    pipeline: Annotated[
        str,
        typer.Argument(help="A pipeline's name, or the path of its YAML file.", show_default=False),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free one.")
    ] = 8000,
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="File of named tokens with scopes and rate limits, created by: sluice tokens add. "
            "The file is read again when it changes.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with one token for all clients. Default: the variable SLUICE_SERVE_TOKEN. "
            "Without a token, all requests are accepted, and --host must be a loopback address.",
            show_default=False,
        ),
    ] = None,
    hook_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token that Alertmanager sends to /hooks/rollback. Default: the "
            "variable SLUICE_HOOK_TOKEN. Without a token, the route does not exist.",
            show_default=False,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="TLS certificate in PEM format, for HTTPS.", show_default=False),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(help="Private key of the certificate, in PEM format.", show_default=False),
    ] = None,
    code: Annotated[
        CodeOption,
        typer.Option(
            help="Code that runs a version. 'current' is the code of this checkout, which must "
            "match the code that trained the version. 'stored' is the code that is stored with "
            "the version.",
        ),
    ] = CodeOption.CURRENT,
    ray: Annotated[
        bool, typer.Option("--ray", help="Serve from several processes on Ray Serve.")
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="With --ray: number of server processes.  [default: 2]"),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="With --ray: address of a running cluster, host:port or auto. Default: Ray is "
            "started on this machine.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve predictions of the production model, and switch when production changes.

    When the server is ready, it prints one JSON line with its URL on stdout. The log is written to
    stderr as JSON lines; with --ray, to the logs of Ray. On SIGTERM the server drains: /readyz
    fails first, and requests in progress are completed.
    """
    from sluice.config.pipeline import defs_folder, find_pipeline
    from sluice.serving.foreground import open_foreground
    from sluice.serving.server import serve
    from sluice.serving.server_spec import ServerSpec

    if not ray and (replicas is not None or address is not None):
        raise SettingsError("--replicas and --address require --ray.", fix="Add --ray.")
    settings = find_pipeline(pipeline, defs_folder())
    accepted_tokens = _read_tokens(tokens, token_file, hook_token_file)
    tls = _read_tls(tls_cert, tls_key)
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    spec = ServerSpec(
        model=settings.name,
        settings=settings.serving,
        registry_url=home.registry_url,
        artifacts=home.artifacts,
        tokens=accepted_tokens,
        token_file=tokens,
        host=host,
        registry_key=home.registry_key,
        code="stored" if code is CodeOption.STORED else "current",
    )
    # With --ray, the server is opened here only so that errors are reported before Ray starts.
    with open_foreground(spec, tls=tls) as (serving, on_ready):
        if not ray:
            serve(serving, host=host, port=port, tls=tls, on_ready=on_ready)
            return
    _serve_on_ray(
        spec,
        replicas=replicas or 2,
        address=address,
        port=port,
        tls=tls,
        on_ready=on_ready,
    )


def _serve_on_ray(
    spec: "ServerSpec",
    *,
    replicas: int,
    address: str | None,
    port: int,
    tls: "Tls | None",
    on_ready: Callable[[int], None],
) -> None:
    from sluice.serving.ray_serve import serve_on_ray

    stop_requested = threading.Event()

    def drain(signal_number: int, _: FrameType | None) -> None:
        signal.signal(signal_number, signal.SIG_DFL)  # a second signal ends the process immediately
        stop_requested.set()

    def install_signal_handlers(bound_port: int) -> None:
        # Called after the start of Ray, because Ray installs its own handlers during its start.
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, drain)
        on_ready(bound_port)

    serve_on_ray(
        spec,
        replicas=replicas,
        address=address,
        port=port,
        tls=tls,
        on_ready=install_signal_handlers,
        stop=stop_requested,
    )


def _read_tokens(
    tokens: Path | None, token_file: Path | None, hook_token_file: Path | None
) -> "Tokens":
    from sluice.serving.token_file import TokenFile
    from sluice.serving.tokens import Tokens

    serve_secret = _read_secret(token_file, "SLUICE_SERVE_TOKEN")
    hook_secret = _read_secret(hook_token_file, "SLUICE_HOOK_TOKEN")
    if tokens is None:
        return Tokens.of(serve=serve_secret, hook=hook_secret)
    if serve_secret is not None or hook_secret is not None:
        raise SettingsError(
            "--tokens cannot be combined with a single token (--token-file, --hook-token-file, "
            "SLUICE_SERVE_TOKEN or SLUICE_HOOK_TOKEN).",
            fix="Give either --tokens or single tokens.",
        )
    return TokenFile.read(tokens).to_tokens()


def _read_secret(path: Path | None, variable: str) -> str | None:
    from sluice.base.secret_files import read_secret_file

    if path is None:
        return os.environ.get(variable)
    return read_secret_file(path, what="token file").decode(errors="replace").strip()


def _read_tls(cert: Path | None, key: Path | None) -> "Tls | None":
    from sluice.serving.tls import Tls

    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise SettingsError(
            "--tls-cert and --tls-key are required together, and one is missing.", fix="Give both."
        )
    return Tls.read(cert, key)
