"""``sluice tokens``: edits the file of named tokens for ``sluice serve --tokens``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.base.errors import SettingsError
from sluice.cli.output import print_json

if TYPE_CHECKING:
    from sluice.serving.token_file import TokenFile

_FILE = typer.Option("--file", help="Token file; created if it does not exist.", show_default=False)
_EXISTING_FILE = typer.Option("--file", help="Token file.", show_default=False)
_JSON = typer.Option("--json", help="Print JSON.")


def register(app: typer.Typer) -> None:
    """Add ``tokens`` to the command line."""
    group = typer.Typer(no_args_is_help=True, help="Named access tokens of a server.")
    app.add_typer(group, name="tokens")
    group.command(
        "add", epilog="Example: sluice tokens add web-shop --file tokens.json --scope predict"
    )(add)
    group.command("remove", epilog="Example: sluice tokens remove web-shop --file tokens.json")(
        remove
    )


def add(
    name: Annotated[str, typer.Argument(help="Name of the token, for logs.", show_default=False)],
    file: Annotated[Path, _FILE],
    scope: Annotated[
        list[str],
        typer.Option(
            help="Permission: predict, hook, metrics or admin; may be repeated.",
            show_default=False,
        ),
    ],
    requests_per_s: Annotated[
        float | None,
        typer.Option(
            help="Rate limit of requests with the token, per server process [1/s]. Default: an "
            "equal share of serving.requests_per_s.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Create a token, add its digest to the file and print the token, which is not stored.

    A running server accepts the token within a second. To rotate a token, add one with a new name,
    switch the clients to it, and remove the old one.
    """
    from sluice.serving.token_file import TokenFile, make_token

    tokens_file = _read_token_file(file)
    if name in tokens_file.tokens:
        raise SettingsError(
            f"{file} already has a token named '{name}'.",
            fix=f"Choose another name, or first run: sluice tokens remove {name} --file {file}",
        )
    secret, digest = make_token()
    entry = {"sha256": digest, "scopes": scope, "requests_per_s": requests_per_s}
    tokens = tokens_file.model_dump()["tokens"] | {name: entry}
    TokenFile.parse({"tokens": tokens}, where="sluice tokens add").write(file)
    if as_json:
        print_json({"name": name, "token": secret})
    else:
        print(secret)


def remove(
    name: Annotated[str, typer.Argument(help="Name of the token.", show_default=False)],
    file: Annotated[Path, _EXISTING_FILE],
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Remove a token; a running server rejects it within a second."""
    from sluice.serving.token_file import TokenFile

    tokens_file = _read_token_file(file)
    if name not in tokens_file.tokens:
        raise SettingsError(
            f"{file} has no token '{name}'. Its tokens: {', '.join(tokens_file.tokens) or 'none'}.",
            fix="Give the name of one of these tokens."
            if tokens_file.tokens
            else "Check the path of the file.",
        )
    remaining_tokens = {key: entry for key, entry in tokens_file.tokens.items() if key != name}
    TokenFile(tokens=remaining_tokens).write(file)
    if as_json:
        print_json({"removed": name})


def _read_token_file(file: Path) -> "TokenFile":
    """Return the tokens of the file; no tokens if it does not exist."""
    from sluice.serving.token_file import TokenFile

    return TokenFile.read(file) if file.exists() else TokenFile(tokens={})
