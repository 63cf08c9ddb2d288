"""``sluice serve``: answer predictions with what is in production."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.base.errors import SettingsError
from sluice.base.home import Home

if TYPE_CHECKING:
    from sluice.serving.recipe import ServerRecipe
    from sluice.serving.tls import Tls
    from sluice.serving.tokens import Tokens

_EXAMPLE = "Example: sluice serve sp500_volatility --port 8000"


class CodeOption(StrEnum):
    """Values of ``--code``."""

    PRESENT = "present"
    STORED = "stored"


def register(app: typer.Typer) -> None:
    """Add ``serve`` to the command line."""
    app.command("serve", epilog=_EXAMPLE)(serve_command)


def serve_command(
    pipeline: Annotated[
        str,
        typer.Argument(help="A pipeline's name, or the path of its defs.yaml.", show_default=False),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="File of named tokens with scopes and rates, made by: sluice tokens add. It is "
            "read again when it changes.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with one token for all clients; SLUICE_SERVE_TOKEN when left out. "
            "Without one the server answers everybody on this machine, and listens nowhere else.",
            show_default=False,
        ),
    ] = None,
    hook_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token that Alertmanager shows to /hooks/rollback; "
            "SLUICE_HOOK_TOKEN when left out. Without one there is no such route.",
            show_default=False,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate in PEM format, to speak HTTPS.", show_default=False),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="Its private key in PEM format.", show_default=False)
    ] = None,
    code: Annotated[
        CodeOption,
        typer.Option(
            help="Whose code runs a version: that of this checkout, which must be the code that "
            "it was trained with; or the code that is stored with it, which then runs here.",
        ),
    ] = CodeOption.PRESENT,
    ray: Annotated[
        bool, typer.Option("--ray", help="Several processes on Ray Serve, behind its proxy.")
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="With --ray: processes.  [default: 2]"),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="With --ray: a running cluster as host:port or auto; Ray is started on this "
            "machine when left out.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Answer predictions with what is in production, and follow it when it moves.

    Prints one JSON line with the URL on stdout when it is ready; the log goes to stderr, one JSON
    object a line (with --ray into Ray's own logs). SIGTERM drains: /readyz says no first, requests
    under way are answered.
    """
    from sluice.config.pipeline import defs_folder, find_pipeline
    from sluice.serving.arm_environment import hide_from_children
    from sluice.serving.log import json_log
    from sluice.serving.log_writer import LogWriter
    from sluice.serving.recipe import ServerRecipe, open_recipe
    from sluice.serving.server import in_clear, require_token_beyond_loopback, serve

    if not ray and (replicas is not None or address is not None):
        raise SettingsError(
            "--replicas and --address go with --ray, and it is missing.", fix="Add --ray."
        )
    settings = find_pipeline(pipeline, defs_folder())
    known = _tokens(tokens, token_file, hook_token_file)
    require_token_beyond_loopback(host, known)
    tls = _tls(tls_cert, tls_key)
    log = json_log(LogWriter(sys.stderr))
    if tls is None:
        for what in in_clear(host, known):
            log.warning("clear text", what=what)
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    recipe = ServerRecipe(
        model=settings.name,
        settings=settings.serving,
        registry_url=home.registry_url,
        artifacts=home.artifacts,
        tokens=known,
        token_file=tokens,
        host=host,
        registry_key=home.registry_key,
        code="stored" if code is CodeOption.STORED else "present",
    )
    hide_from_children()
    with open_recipe(recipe, clock=lambda: datetime.now(UTC), log=log) as serving:
        deployed = serving.router.table.production.deployed
        ready = {
            "model": settings.name,
            "version": deployed.version,
            "candidate": deployed.candidate,
        }

        scheme = "http" if tls is None else "https"

        def on_ready(bound: int) -> None:
            where = f"[{host}]" if ":" in host else host
            print(json.dumps({"url": f"{scheme}://{where}:{bound}"} | ready), flush=True)

        if not ray:
            serve(serving, host=host, port=port, tls=tls, on_ready=on_ready)
            return
    # What was opened here has shown that it can be.
    _on_ray(
        recipe,
        replicas=replicas or 2,
        address=address,
        port=port,
        tls=tls,
        on_ready=on_ready,
    )


def _on_ray(
    recipe: "ServerRecipe",
    *,
    replicas: int,
    address: str | None,
    port: int,
    tls: "Tls | None",
    on_ready: Callable[[int], None],
) -> None:
    from sluice.serving.ray_serve import serve_on_ray

    stop = threading.Event()

    def drain(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
        stop.set()

    def ready(bound: int) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):  # only now: Ray sets its own at its start
            signal.signal(number, drain)
        on_ready(bound)

    serve_on_ray(
        recipe,
        replicas=replicas,
        address=address,
        port=port,
        tls=tls,
        on_ready=ready,
        stop=stop,
    )


def _tokens(named: Path | None, serve: Path | None, hook: Path | None) -> "Tokens":
    from sluice.serving.token_file import TokenFile
    from sluice.serving.tokens import Tokens

    serve_secret = _secret(serve, "SLUICE_SERVE_TOKEN")
    hook_secret = _secret(hook, "SLUICE_HOOK_TOKEN")
    if named is None:
        return Tokens.of(serve=serve_secret, hook=hook_secret)
    if serve_secret is not None or hook_secret is not None:
        raise SettingsError(
            "--tokens names all tokens, and a token was given beside it (--token-file, "
            "--hook-token-file, SLUICE_SERVE_TOKEN or SLUICE_HOOK_TOKEN).",
            fix="Give one or the other.",
        )
    return TokenFile.read(named).to_tokens()


def _secret(path: Path | None, variable: str) -> str | None:
    from sluice.base.secret_files import read_secret_file

    if path is None:
        return os.environ.get(variable)
    return read_secret_file(path, what="token file").decode(errors="replace").strip()


def _tls(cert: Path | None, key: Path | None) -> "Tls | None":
    from sluice.serving.tls import Tls

    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise SettingsError(
            "--tls-cert and --tls-key go together, and one is missing.", fix="Give both."
        )
    return Tls.read(cert, key)
