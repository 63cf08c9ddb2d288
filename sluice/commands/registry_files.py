"""``sluice registry export|import|sign``: versions as files, and the seal on the log."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from sluice.commands.output import print_json
from sluice.commands.registry_access import (
    Actor,
    AsJson,
    KeyFile,
    Model,
    Number,
    artifact_store,
    current_user,
    open_ledger,
    pipeline_code,
    read_key,
    show_result,
)
from sluice.errors import SettingsError
from sluice.registry.transfer import export_version, import_version

File = Annotated[Path, typer.Argument(help="The file.", show_default=False)]


def export_file(
    model: Model, version: Number, file: File, key: KeyFile = None, as_json: AsJson = False
) -> None:
    """Write one version to one file: lineage, receipts, history, weights, every digest.

    The same version gives the same bytes. With a key the file is signed.
    """
    with open_ledger() as ledger:
        digest = export_version(
            ledger, model, version, store=artifact_store(), target=file, key=read_key(key)
        )
    if as_json:
        print_json({"model": model, "version": version, "file": str(file), "sha256": digest})
    else:
        show_result(Text(f"{model} version {version} is in {file} (SHA-256 {digest})."))


def import_file(
    file: File,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust",
            metavar="MODULE:CLASS",
            help="Code that the version names and that may run here, with the modules stored in "
            "the file. The code of the pipeline here, and of Sluice, needs no trust.",
            show_default=False,
        ),
    ] = None,
    actor: Actor = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """File the version in a file as dev, once every part of it was checked.

    Nothing in the file is run. Its receipts come along and promote nothing: the gates have to pass
    here. With a key the file must be signed with it.
    """
    with open_ledger(key, create=True) as ledger:
        done = import_version(
            ledger,
            file,
            store=artifact_store(),
            actor=actor or current_user(),
            key=read_key(key),
            own=pipeline_code,
            trust=trust or (),
        )
    version = done.version
    if as_json:
        print_json(
            {
                "model": version.model,
                "version": version.number,
                "state": version.state,
                "created": done.created,
            }
        )
        return
    known = "" if done.created else " It was known already; nothing was changed."
    show_result(Text(f"{version.model} version {version.number}, {version.state}.{known}"))


def sign(key: KeyFile = None, as_json: AsJson = False) -> None:
    """Sign the log as it is, after checking that it adds up.

    Note the digest somewhere else: it names everything that the registry holds up to now.
    """
    if key is None:
        raise SettingsError(
            "A key file is required to sign.",
            fix="Name one with --key or SLUICE_REGISTRY_KEY; make it with: "
            "openssl rand -out registry.key 32",
        )
    with open_ledger(key) as ledger:
        head = ledger.sign()
    if as_json:
        print_json({"lines": head.lines, "digest": head.digest})
    else:
        show_result(Text(f"Signed {head.lines} lines; the last one is {head.digest}."))
