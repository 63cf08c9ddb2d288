"""``sluice registry audit``: every change and every refused attempt, as JSON lines."""

import json
from typing import Annotated

import typer

from sluice.base.errors import ContractError
from sluice.cli.registry_access import KeyFile, as_moment, open_ledger, read_key


def audit(
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Leave out what was before: ISO 8601 with its zone, 2026-03-14T09:00:00Z.",
            show_default=False,
        ),
    ] = None,
    key: KeyFile = None,
) -> None:
    """Print every change and every refused attempt as JSON, one object a line, oldest first.

    Each has who, when, from and to which version, why, and the state of its signature, which is
    checked with a key. It shows what the registry says; that it holds together, verify says.
    """
    moment = None if since is None else as_moment(since)
    if moment is not None and moment.tzinfo is None:
        raise ContractError(
            f"A moment needs its time zone, got {since}.",
            fix=f"Write it with one: {since}Z for UTC",
        )
    with open_ledger() as ledger:
        records = ledger.audit(since=moment, key=read_key(key))
    for record in records:
        # Everything beyond ASCII is escaped: a reason must not break the line or steer a terminal.
        typer.echo(json.dumps(record.model_dump(mode="json")))
