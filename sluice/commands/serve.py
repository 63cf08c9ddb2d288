"""``sluice serve``: answer predictions with what is in production."""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.registry_access import artifact_store
from sluice.home import Home

if TYPE_CHECKING:
    from sluice.serving.limits import Token

_EXAMPLE = "Example: sluice serve sp500_volatility --port 8000"


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
) -> None:
    """Answer predictions with what is in production, and follow it when it moves.

    Prints one JSON line with the URL on stdout when it is ready; the log goes to stderr, one JSON
    object a line. SIGTERM drains: /readyz says no first, requests under way are answered.
    """
    from sluice.pipeline import defs_folder, find_pipeline
    from sluice.registry.rollouts import RolloutLedger
    from sluice.serving.ledger_models import LedgerModels
    from sluice.serving.ledger_rollback import LedgerRollback
    from sluice.serving.ledger_weights import LedgerWeights
    from sluice.serving.log import json_log
    from sluice.serving.rollback import Hook
    from sluice.serving.server import open_serving, require_token_beyond_loopback, serve

    settings = find_pipeline(pipeline, defs_folder())
    token = _token(token_file, "SLUICE_SERVE_TOKEN")
    hook_token = _token(hook_token_file, "SLUICE_HOOK_TOKEN")
    require_token_beyond_loopback(host, token)
    home = Home.from_environment(os.environ, cwd=Path.cwd())

    def utc_now() -> datetime:
        return datetime.now(UTC)

    with RolloutLedger.open(home.registry_url, clock=utc_now, create=False) as ledger:
        rollback = LedgerRollback(
            ledger,
            settings.name,
            artifact_store(),
            clock=utc_now,
            quiet_s=settings.serving.hook_quiet_s,
        )
        serving = open_serving(
            settings.name,
            LedgerWeights(ledger, settings.name),
            LedgerModels(ledger, settings.name, artifact_store()).load,
            settings=settings.serving,
            token=token,
            hook=None if hook_token is None else Hook(token=hook_token, rollback=rollback),
            clock=utc_now,
            log=json_log(sys.stderr),
            reports=ledger.observations,
        )

        def on_ready(bound: int) -> None:
            deployed = serving.router.table.production.deployed
            address = f"[{host}]" if ":" in host else host
            ready = {
                "url": f"http://{address}:{bound}",
                "model": settings.name,
                "version": deployed.version,
                "candidate": deployed.candidate,
            }
            print(json.dumps(ready), flush=True)

        serve(serving, host=host, port=port, on_ready=on_ready)


def _token(path: Path | None, variable: str) -> "Token | None":
    from sluice.serving.limits import Token

    if path is not None:
        return Token.read(path)
    secret = os.environ.get(variable)
    return None if secret is None else Token(secret)
