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

from sluice.errors import SettingsError
from sluice.home import Home

if TYPE_CHECKING:
    from sluice.serving.limits import Token
    from sluice.serving.recipe import ServerRecipe

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
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the bearer token; SLUICE_SERVE_TOKEN when left out. Without one the "
            "server answers everybody on this machine, and listens nowhere else.",
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
    from sluice.pipeline import defs_folder, find_pipeline
    from sluice.serving.log import json_log
    from sluice.serving.recipe import ServerRecipe, open_recipe
    from sluice.serving.server import require_token_beyond_loopback, serve

    if not ray and (replicas is not None or address is not None):
        raise SettingsError(
            "--replicas and --address go with --ray, and it is missing.", fix="Add --ray."
        )
    settings = find_pipeline(pipeline, defs_folder())
    token = _token(token_file, "SLUICE_SERVE_TOKEN")
    hook_token = _token(hook_token_file, "SLUICE_HOOK_TOKEN")
    require_token_beyond_loopback(host, token)
    home = Home.from_environment(os.environ, cwd=Path.cwd())
    recipe = ServerRecipe(
        model=settings.name,
        settings=settings.serving,
        registry_url=home.registry_url,
        artifacts=home.artifacts,
        token=token,
        hook_token=hook_token,
        registry_key=home.registry_key,
        code="stored" if code is CodeOption.STORED else "present",
    )
    with open_recipe(recipe, clock=lambda: datetime.now(UTC), log=json_log(sys.stderr)) as serving:
        deployed = serving.router.table.production.deployed
        ready = {
            "model": settings.name,
            "version": deployed.version,
            "candidate": deployed.candidate,
        }

        def on_ready(bound: int) -> None:
            where = f"[{host}]" if ":" in host else host
            print(json.dumps({"url": f"http://{where}:{bound}"} | ready), flush=True)

        if not ray:
            serve(serving, host=host, port=port, on_ready=on_ready)
            return
    # What was opened here has shown that it can be.
    _on_ray(
        recipe, replicas=replicas or 2, address=address, host=host, port=port, on_ready=on_ready
    )


def _on_ray(
    recipe: "ServerRecipe",
    *,
    replicas: int,
    address: str | None,
    host: str,
    port: int,
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
        host=host,
        port=port,
        on_ready=ready,
        stop=stop,
    )


def _token(path: Path | None, variable: str) -> "Token | None":
    from sluice.serving.limits import Token

    if path is not None:
        return Token.read(path)
    secret = os.environ.get(variable)
    return None if secret is None else Token(secret)
