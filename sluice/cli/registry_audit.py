"""``sluice registry audit``: prints every change and every refused attempt, as JSON lines."""

import json
from typing import Annotated

import typer

from sluice.base.errors import ContractError
from sluice.cli.registry_access import KeyFile, open_ledger, parse_time, read_key


def audit(
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Start of the period: ISO 8601 with time zone, 2026-03-14T09:00:00Z.",
            show_default=False,
        ),
    ] = None,
    key: KeyFile = None,
) -> None:
    """Print every change and every refused attempt as JSON lines, oldest first.

    Each line has user, time, versions, reason and the state of the signature, which is verified
    with the key of --key. To verify the registry as a whole: sluice registry verify.
    """
    start = None if since is None else parse_time(since)
    if start is not None and start.tzinfo is None:
        raise ContractError(
            f"--since requires a time zone, got {since}.",
            fix=f"Add the time zone: {start.isoformat()}Z for UTC",
        )
    with open_ledger() as ledger:
        records = ledger.audit(since=start, key=read_key(key))
    for record in records:
        # json.dumps escapes all non-ASCII characters, so that no reason breaks the line or controls
        # a terminal.
        typer.echo(json.dumps(record.model_dump(mode="json")))
